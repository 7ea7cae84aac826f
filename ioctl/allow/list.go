// Package allow writes down what programs need of the driver: the device nodes,
// requests, control commands, classes and unified memory calls that recordings
// show, with the sizes of their parameters. The list can be read back and held
// against other recordings, and turned into what sandboxes want.
//
// It knows calls and numbers. It does not judge whether a call is safe.
//
// The text form of a list is made for people, diff and version control: a line
// an entry, sorted, everything after a # a remark.
//
//	node    PATTERN            a node below /dev; *, ? and [ ] as in path.Match
//	ioctl   DEVICE NUMBER      the whole request number, on nvidiactl, nvidiaN, nvidia-uvm, ...
//	mmap    DEVICE WHAT        WHAT is a class, "managed" or "unknown"
//	escape  NUMBER [SIZES]     _IOC_NR of a request on nvidiactl or nvidiaN
//	control NUMBER [SIZES]     class NUMBER [SIZES]     uvm NUMBER [SIZES] ...
//
// SIZES are parameter sizes in bytes, separated by commas; without them any
// size is allowed. Numbers are decimal or 0x…. Words with blanks or # are
// quoted as in Go.
package allow

import (
	"cmp"
	"slices"
	"strings"

	"nvtrace/ioctl"
	"nvtrace/rm"
	"nvtrace/traces"
)

// Kind says what an entry allows.
type Kind string

// The kinds, in the order of a list.
const (
	KindNode        Kind = "node"        // opening a device node; Pattern
	KindIoctl       Kind = "ioctl"       // a request as the kernel's entry sees it; Device and Nr
	KindMmap        Kind = "mmap"        // mapping a kind of device node; Device, Name says what it shows
	KindEscape      Kind = "escape"      // a request on nvidiactl and nvidiaN by its _IOC_NR, also inside NV_ESC_IOCTL_XFER_CMD
	KindControl     Kind = "control"     // a control command
	KindClass       Kind = "class"       // making an object of a class
	KindUVM         Kind = "uvm"         // a request of nvidia-uvm or nvidia-uvm-tools
	KindModeset     Kind = "modeset"     // NvKmsIoctlParams.cmd
	KindNVSwitch    Kind = "nvswitch"    // _IOC_NR on nvidia-nvswitchN
	KindNVSwitchCtl Kind = "nvswitchctl" // request on nvidia-nvswitchctl
	KindNVLink      Kind = "nvlink"      // _IOC_NR on nvidia-nvlink
	KindDRM         Kind = "drm"         // request on a node of dri
)

// kinds is their order.
var kinds = [...]Kind{
	KindNode, KindIoctl, KindMmap, KindEscape, KindControl, KindClass, KindUVM, KindModeset, KindNVSwitch, KindNVSwitchCtl, KindNVLink, KindDRM,
}

// Use identifies one thing that programs use of the driver.
type Use struct {
	Kind   Kind
	Device string // KindIoctl, KindMmap: the kind of node, as ioctl.Device prints it
	Nr     uint32 // 0 for nodes and mappings
	Text   string // KindNode: the node below /dev, or in a list a pattern (path.Match); KindMmap: what is mapped
}

// compare orders uses as a list has them.
func (u Use) compare(v Use) int {
	return cmp.Or(
		cmp.Compare(slices.Index(kinds[:], u.Kind), slices.Index(kinds[:], v.Kind)),
		cmp.Compare(u.Device, v.Device), cmp.Compare(u.Nr, v.Nr), cmp.Compare(u.Text, v.Text),
	)
}

// Entry is a line of a list.
type Entry struct {
	Use
	Name string // for people; "" if the tables have none
	// Sizes are the sizes of the parameters, bytes, ascending; nil allows any.
	Sizes   []uint32
	Raw     []uint64 // KindIoctl: values of the 64-bit argument that are not Nr itself: a sign-extended int
	Drivers []string // driver versions that it was seen with, ascending
	OK      uint64   // how often it succeeded
	Failed  uint64   // how often it failed
	Unseen  uint64   // how often its end was not recorded
	Status  string   // result of its first failure
}

// Succeeded reports whether it ever worked, or might have.
func (e *Entry) Succeeded() bool { return e.OK+e.Unseen > 0 || e.Failed == 0 }

// List is what programs may use.
type List struct {
	Entries []*Entry // in the order that [List.Sort] makes
	byUse   map[Use]*Entry
	nodes   []*Entry // those of KindNode
}

// newList returns an empty list.
func newList() *List { return &List{byUse: make(map[Use]*Entry)} }

// entry returns the entry for a use, nil if the list has none. For nodes it is
// the first whose pattern matches.
func (l *List) entry(u Use) *Entry {
	if e := l.byUse[u]; e != nil || u.Kind != KindNode {
		return e
	}
	for _, e := range l.nodes {
		if matchNode(e.Text, u.Text) {
			return e
		}
	}
	return nil
}

// add returns the entry for a use, making it if there is none.
func (l *List) add(u Use) *Entry {
	e := l.byUse[u]
	if e == nil {
		e = &Entry{Use: u}
		l.byUse[u] = e
		l.Entries = append(l.Entries, e)
		if u.Kind == KindNode {
			l.nodes = append(l.nodes, e)
		}
	}
	return e
}

// Sort puts the entries in order: by kind, device, number.
func (l *List) Sort() {
	slices.SortFunc(l.Entries, func(a, b *Entry) int { return a.Use.compare(b.Use) })
}

// Keep drops the entries that keep returns false for.
func (l *List) Keep(keep func(*Entry) bool) {
	old := l.Entries
	*l = *newList()
	for _, e := range old {
		if keep(e) {
			*l.add(e.Use) = *e
		}
	}
}

// used is one use in a call.
type used struct {
	Use
	name string
	size uint32
	has  bool // size is known
}

// Collector adds what recordings use to a list. It is for one goroutine.
type Collector struct {
	List   *List
	buf    []used
	abi    *rm.ABI // of the last event
	driver string  // its version
}

// NewCollector returns a Collector with an empty list.
func NewCollector() *Collector { return &Collector{List: newList()} }

// Add takes in an event and its call, as d has decoded it.
func (c *Collector) Add(ev *traces.Event, call *ioctl.Call, d *ioctl.Decoder) {
	abi := d.ABI(ev.PID)
	if abi != c.abi {
		c.abi, c.driver = abi, abi.Asked().String()
	}
	c.buf = uses(c.buf[:0], ev, call, abi)
	for i := range c.buf {
		u := &c.buf[i]
		e := c.List.add(u.Use)
		if e.Name == "" {
			e.Name = u.name
		}
		if u.has {
			e.Sizes = insert(e.Sizes, u.size)
		}
		if raw := ev.Args[1]; u.Kind == KindIoctl && raw != uint64(u.Nr) {
			e.Raw = insert(e.Raw, raw)
		}
		if !slices.Contains(e.Drivers, c.driver) {
			e.Drivers = insertVersion(e.Drivers, c.driver)
		}
		switch {
		case ev.Flags&(traces.FlagNoExit|traces.FlagUnfinished) != 0:
			e.Unseen++
		case call.Failed():
			e.Failed++
			if e.Status == "" {
				e.Status = statusText(call)
			}
		default:
			e.OK++
		}
	}
}

// statusText names the result of a failed call.
func statusText(c *ioctl.Call) string {
	if c.Errno != 0 {
		return ioctl.ErrnoName(c.Errno)
	}
	return c.StatusName()
}

func insert[T cmp.Ordered](s []T, v T) []T {
	if i, ok := slices.BinarySearch(s, v); !ok {
		return slices.Insert(s, i, v)
	}
	return s
}

func insertVersion(s []string, v string) []string {
	i, _ := slices.BinarySearchFunc(s, v, compareVersions)
	return slices.Insert(s, i, v)
}

func compareVersions(a, b string) int {
	x, errX := rm.ParseVersion(a)
	y, errY := rm.ParseVersion(b)
	if errX != nil || errY != nil {
		return strings.Compare(a, b)
	}
	return x.Compare(y)
}

const (
	escControl = 0x2a
	escAlloc   = 0x2b
)

// uses appends what one call uses.
func uses(dst []used, ev *traces.Event, c *ioctl.Call, abi *rm.ABI) []used {
	if ev.Flags&(traces.FlagRestarted|traces.FlagImplicit) != 0 {
		return dst
	}
	switch ev.Kind {
	case traces.KindOpen:
		node := ev.Dev
		if node == "" {
			node = strings.TrimPrefix(ev.Path, "/dev/")
		}
		return append(dst, used{Use: Use{Kind: KindNode, Text: node}})
	case traces.KindMmap:
		return append(dst, used{Use: Use{Kind: KindMmap, Device: c.Device.String(), Text: mapText(c)}})
	case traces.KindIoctl:
	default:
		return dst
	}
	req := ev.Request()
	outer := used{Use: Use{Kind: KindIoctl, Device: c.Device.String(), Nr: req}, name: c.Name}
	if c.Xfer {
		outer.name = "NV_ESC_IOCTL_XFER_CMD"
	}
	dst = append(dst, outer)
	if c.Name != "" && c.Nr == req && c.Escape == nil && c.Request == nil {
		return dst // answered by the kernel itself on any file: FIOCLEX
	}
	switch c.Device {
	case ioctl.DeviceCtl, ioctl.DeviceGPU:
		return rmUses(dst, c, abi)
	}
	kind, ok := kindOf(c.Device)
	if !ok {
		return dst
	}
	u := used{Use: Use{Kind: kind, Nr: c.Nr}, name: c.Name}
	u.size, u.has = sizeOf(c, len(c.Parts)-1)
	return append(dst, u)
}

func kindOf(d ioctl.Device) (Kind, bool) {
	switch d {
	case ioctl.DeviceUVM, ioctl.DeviceUVMTools:
		return KindUVM, true
	case ioctl.DeviceModeset:
		return KindModeset, true
	case ioctl.DeviceNVSwitch:
		return KindNVSwitch, true
	case ioctl.DeviceNVSwitchCtl:
		return KindNVSwitchCtl, true
	case ioctl.DeviceNVLink:
		return KindNVLink, true
	case ioctl.DeviceDRM:
		return KindDRM, true
	}
	return "", false
}

// rmUses appends an escape and the command or class that it is about.
func rmUses(dst []used, c *ioctl.Call, abi *rm.ABI) []used {
	at := 0
	if c.Xfer {
		at = 1
	}
	esc := used{Use: Use{Kind: KindEscape, Nr: c.Nr}, name: c.Name}
	esc.size, esc.has = sizeOf(c, at)
	dst = append(dst, esc)
	if !c.HasSub {
		return dst
	}
	var kind Kind
	switch {
	case c.Nr == escControl:
		kind = KindControl
	case c.Class != nil || c.Unknown == ioctl.UnknownClass:
		kind = KindClass
	default:
		return dst // a function of NV_ESC_RM_VID_HEAP_CONTROL
	}
	sub := used{Use: Use{Kind: kind, Nr: c.SubNr}, name: c.Sub}
	if sub.name == "" && kind == KindControl {
		sub.name = abi.ControlGroup(c.SubNr)
	}
	switch field := "params"; {
	case kind == KindClass && c.Nr != escAlloc: // these have no parameters of the class
	case kind == KindClass:
		field = "pAllocParms"
		fallthrough
	default:
		sub.size, sub.has = 0, true // unless there is such a part, called without parameters
		for i := at + 1; i < len(c.Parts); i++ {
			if c.Parts[i].Field == field && c.Parts[i].Parent == at {
				sub.size, sub.has = sizeOf(c, i)
			}
		}
	}
	return append(dst, sub)
}

// sizeOf returns the size of a part as the program gave it.
func sizeOf(c *ioctl.Call, part int) (uint32, bool) {
	if part < 0 || part >= len(c.Parts) {
		return 0, false
	}
	return uint32(c.Parts[part].Len), true
}

// mapText says what an mmap shows.
func mapText(c *ioctl.Call) string {
	switch {
	case c.Link == nil:
		return "unknown"
	case c.Link.Managed:
		return "managed"
	case c.Link.Class != nil:
		return c.Link.Class.Name
	}
	return "unknown"
}
