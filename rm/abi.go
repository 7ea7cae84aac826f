package rm

import (
	"fmt"
	"iter"
	"slices"
	"sort"

	"nvtrace/rm/internal/wire"
)

// ABI is the tables of one driver version. It is immutable and may be used from
// several goroutines, as everything that it returns. What it returns is made
// once and shared between versions that agree on it: two versions have the same
// layout exactly if their [Struct] pointers are equal.
type ABI struct {
	t     *tables
	at    int // index of the version
	asked Version
}

// Versions returns all versions in the data, in ascending order.
func Versions() []Version { return slices.Clone(known().versions) }

// Load returns the tables of version v, of the nearest older version if v is
// not in the data (of the oldest, if none is older), or of the newest if v is
// zero. It costs next to nothing: the tables are decoded as they are used.
func Load(v Version) *ABI { return known().load(v) }

// Newest returns the tables of the newest version in the data.
func Newest() *ABI { return known().load(Version{}) }

func (t *tables) load(v Version) *ABI {
	n := len(t.versions)
	if v.IsZero() {
		return &ABI{t, n - 1, t.versions[n-1]}
	}
	i, found := slices.BinarySearchFunc(t.versions, v, Version.Compare)
	if !found {
		i = max(i-1, 0)
	}
	return &ABI{t, i, v}
}

// Version returns the version whose tables these are.
func (a *ABI) Version() Version { return a.t.versions[a.at] }

// Asked returns the version that [Load] was asked for, the newest if for none.
func (a *ABI) Asked() Version { return a.asked }

// Exact reports whether the tables are those of the version asked for; false
// means that the data lacks it and a neighbour stands in.
func (a *ABI) Exact() bool { return a.asked == a.Version() }

// Escape returns the escape (request on nvidiactl and nvidiaN) of that number
// (_IOC_NR of the request), nil if the version has none.
func (a *ABI) Escape(nr uint32) *Escape {
	if n, ok := a.t.tab[wire.EscapeTab].get(nr, a.at); ok {
		return a.t.escape(n)
	}
	return nil
}

// Control returns the control command of that number, nil if it is unknown.
// [ABI.ControlGroup] says something about unknown ones.
func (a *ABI) Control(cmd uint32) *Control {
	if n, ok := a.t.tab[wire.ControlTab].get(cmd, a.at); ok {
		return a.t.control(n)
	}
	return nil
}

// ControlLayout returns the control command whose parameters have the given
// size, and the version it was found in: this version's own if it fits, else
// that of the nearest version, older ones first at equal distance, where it
// does; else nil. It serves drivers newer than the data, and traces whose
// version is not known: the size that the program passes tells more than the
// version (NVOS54_PARAMETERS.paramsSize).
func (a *ABI) ControlLayout(cmd uint32, paramsSize int) (*Control, Version) {
	t := &a.t.tab[wire.ControlTab]
	key := t.find(cmd)
	for d := range len(a.t.versions) {
		for _, at := range [2]int{a.at - d, a.at + d} {
			if at < 0 || at >= len(a.t.versions) {
				continue
			}
			n, ok := t.at(key, at)
			if !ok {
				continue
			}
			for c := a.t.control(n); c != nil; c = c.Other {
				if c.Size == paramsSize {
					return c, a.t.versions[at]
				}
			}
		}
	}
	return nil, Version{}
}

// Marks of commands whose bodies are not public.
const (
	gssLegacy           = 0x8000 // RM_GSS_LEGACY_MASK, ctrl2080/ctrl2080base.h users; g_rmapi: forwarded to closed code
	gssLegacyPrivileged = 0xc000
	classBinaryAPI      = 0x2081 // NV2081_BINAPI
	classBinaryAPIPriv  = 0x2082 // NV2082_BINAPI_PRIVILEGED
)

// ControlGroup describes a control command by its class and category, for those
// that have no name: "NV2080 PERF_LEGACY_NON_PRIVILEGED #0x83 (GSS-legacy)".
// GSS-legacy and BINAPI commands are handed on to closed code; their parameters
// are documented nowhere.
func (a *ABI) ControlGroup(cmd uint32) string {
	class, cat, index := cmd>>16, cmd>>8&0xff, cmd&0xff
	s := fmt.Sprintf("NV%04X ", class)
	if n, ok := a.t.tab[wire.CategoryTab].get(cmd>>8, a.at); ok {
		s += a.t.name(n)
	} else {
		s += fmt.Sprintf("category %#02x", cat)
	}
	s += fmt.Sprintf(" #%#02x", index)
	switch {
	case class == classBinaryAPI || class == classBinaryAPIPriv:
		s += " (BINAPI)"
	case cmd&gssLegacyPrivileged == gssLegacyPrivileged:
		s += " (GSS-legacy, privileged)"
	case cmd&gssLegacy != 0:
		s += " (GSS-legacy)"
	}
	return s
}

// category is the name of bits 15:8 of a command, "" if they have none.
func (a *ABI) category(cmd uint32) string {
	if n, ok := a.t.tab[wire.CategoryTab].get(cmd>>8, a.at); ok {
		return a.t.name(n)
	}
	return ""
}

// Category returns the name of a command's category (bits 15:8), "" if it has none.
func (a *ABI) Category(cmd uint32) string { return a.category(cmd) }

// Class returns the object class of that number, nil if it is unknown.
func (a *ABI) Class(id uint32) *Class {
	if n, ok := a.t.tab[wire.ClassTab].get(id, a.at); ok {
		return a.t.class(n)
	}
	return nil
}

func (a *ABI) request(tab int, nr uint32) *Request {
	if n, ok := a.t.tab[tab].get(nr, a.at); ok {
		return a.t.request(n)
	}
	return nil
}

// UVM returns the request of nvidia-uvm of that number, built-in tests included.
func (a *ABI) UVM(nr uint32) *Request { return a.request(wire.UVMTab, nr) }

// Modeset returns the request of nvidia-modeset (NvKmsIoctlParams.cmd).
func (a *ABI) Modeset(nr uint32) *Request { return a.request(wire.KMSTab, nr) }

// NVSwitch returns the request of an nvidia-nvswitchN node (_IOC_NR).
func (a *ABI) NVSwitch(nr uint32) *Request { return a.request(wire.NVSwitchTab, nr) }

// NVSwitchCtl returns the request of nvidia-nvswitchctl, by its whole ioctl number.
func (a *ABI) NVSwitchCtl(nr uint32) *Request { return a.request(wire.NVSwitchCtlTab, nr) }

// NVLink returns the request of nvidia-nvlink (_IOC_NR).
func (a *ABI) NVLink(nr uint32) *Request { return a.request(wire.NVLinkTab, nr) }

// DRM returns the request of nvidia-drm (a /dev/dri node), by its whole ioctl number.
func (a *ABI) DRM(nr uint32) *Request { return a.request(wire.DRMTab, nr) }

// Struct returns the layout of that name, which may be a typedef's, nil if the
// version has none of that name that programs and driver exchange.
func (a *ABI) Struct(name string) *Struct {
	t := &a.t.tab[wire.StructTab]
	i := sort.Search(t.n, func(i int) bool { return a.t.str(uint64(t.key(i))) >= name })
	if i == t.n || a.t.str(uint64(t.key(i))) != name {
		return nil
	}
	if n, ok := t.at(i, a.at); ok {
		return a.t.structOf(n)
	}
	return nil
}

// each iterates over the entries of a table that the version has.
func each[T any](a *ABI, tab int, get func(*tables, uint32) *T) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		t := &a.t.tab[tab]
		for i := range t.n {
			n, ok := t.at(i, a.at)
			if !ok {
				continue
			}
			if x := get(a.t, n); x != nil && !yield(x) {
				return
			}
		}
	}
}

// Escapes iterates over the escapes in ascending order of number.
func (a *ABI) Escapes() iter.Seq[*Escape] { return each(a, wire.EscapeTab, (*tables).escape) }

// AllControls yields the controls of all versions: each form that one has or
// had, once, in no order.
func AllControls() iter.Seq[*Control] {
	t := known()
	return func(yield func(*Control) bool) {
		for n := range uint32(len(t.controls.made)) {
			if c := t.control(n); c != nil && !yield(c) {
				return
			}
		}
	}
}

// Controls iterates over the control commands in ascending order.
func (a *ABI) Controls() iter.Seq[*Control] { return each(a, wire.ControlTab, (*tables).control) }

// Classes iterates over the object classes in ascending order of number.
func (a *ABI) Classes() iter.Seq[*Class] { return each(a, wire.ClassTab, (*tables).class) }

// UVMs iterates over nvidia-uvm's requests in ascending order, tests included.
func (a *ABI) UVMs() iter.Seq[*Request] { return each(a, wire.UVMTab, (*tables).request) }

// Modesets iterates over nvidia-modeset's requests in ascending order.
func (a *ABI) Modesets() iter.Seq[*Request] { return each(a, wire.KMSTab, (*tables).request) }

// NVSwitches iterates over the requests of NVSwitch devices in ascending order.
func (a *ABI) NVSwitches() iter.Seq[*Request] { return each(a, wire.NVSwitchTab, (*tables).request) }

// NVSwitchCtls iterates over nvidia-nvswitchctl's requests in ascending order.
func (a *ABI) NVSwitchCtls() iter.Seq[*Request] {
	return each(a, wire.NVSwitchCtlTab, (*tables).request)
}

// NVLinks iterates over nvidia-nvlink's requests in ascending order.
func (a *ABI) NVLinks() iter.Seq[*Request] { return each(a, wire.NVLinkTab, (*tables).request) }

// DRMs iterates over nvidia-drm's requests in ascending order.
func (a *ABI) DRMs() iter.Seq[*Request] { return each(a, wire.DRMTab, (*tables).request) }

// Structs iterates over all layouts in ascending order of name, typedefs
// included.
func (a *ABI) Structs() iter.Seq[*Struct] { return each(a, wire.StructTab, (*tables).structOf) }
