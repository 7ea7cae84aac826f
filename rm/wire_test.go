package rm

import (
	"errors"
	"strings"
	"testing"

	"nvtrace/rm/internal/wire"
)

// walk asks tables for everything that they have.
func walk(t *tables) (objects int) {
	for i := range t.versions {
		a := &ABI{t: t, at: i}
		for c := range a.Controls() {
			objects++
			for j := range c.Embedded {
				c.Embedded[j].Resolve(make([]byte, 64))
			}
			a.ControlGroup(c.Cmd)
		}
		objects += count(a.Escapes(), nil) + count(a.Classes(), nil) + count(a.Structs(), nil) + count(a.statuses(), nil)
		for _, s := range []int{count(a.UVMs(), nil), count(a.Modesets(), nil), count(a.NVSwitches(), nil), count(a.NVSwitchCtls(), nil), count(a.NVLinks(), nil), count(a.DRMs(), nil)} {
			objects += s
		}
		a.Struct("NVOS54_PARAMETERS")
		a.StatusName(31)
	}
	return objects
}

// TestAllRecordsRead: every record of the embedded tables decodes.
func TestAllRecordsRead(t *testing.T) {
	tab, err := open(packed)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, n uint32, get func(uint32) bool) {
		for i := range n {
			if !get(i) {
				t.Errorf("%s %d does not read", what, i)
			}
		}
		if n == 0 {
			t.Errorf("there is no %s", what)
		}
	}
	check("domain", tab.domains.recs.n, func(i uint32) bool { return tab.domain(i) != nil })
	check("struct", tab.structs.recs.n, func(i uint32) bool { return tab.structOf(i) != nil })
	check("control", tab.controls.recs.n, func(i uint32) bool { return tab.control(i) != nil })
	check("class", tab.classes.recs.n, func(i uint32) bool { return tab.class(i) != nil })
	check("escape", tab.escapes.recs.n, func(i uint32) bool { return tab.escape(i) != nil })
	check("request", tab.requests.recs.n, func(i uint32) bool { return tab.request(i) != nil })
	check("name", tab.names.n, func(i uint32) bool { return tab.name(i) != "" })
}

func TestOpenRefuses(t *testing.T) {
	if _, err := open(""); err == nil {
		t.Error("nothing is tables")
	}
	if _, err := open("not tables at all, but long enough to hold a directory" + string(make([]byte, 200))); err == nil {
		t.Error("noise is tables")
	}
	for n := range len(wire.Magic) + 4*wire.Sections {
		if _, err := open(packed[:n]); err == nil {
			t.Errorf("the first %d bytes are tables", n)
		}
	}
	for n := len(packed) - 1; n > 1000; n -= 9973 {
		if _, err := open(packed[:n]); !errors.Is(err, errTruncated) && err == nil {
			t.Errorf("the first %d bytes are tables", n)
		}
	}
}

// FuzzOpen changes bytes of the tables: they must read or be refused, without a
// panic and without more memory than their size warrants.
func FuzzOpen(f *testing.F) {
	dir := len(wire.Magic)
	f.Add(uint32(dir), uint32(5), byte(0xff), byte(1))
	for i := range wire.Sections {
		off := le32(packed, dir+4*i)
		f.Add(off, off+4, byte(0x7f), byte(0x80))
		f.Add(off+8, off+12, byte(0xff), byte(0))
	}
	f.Add(uint32(600_000), uint32(700_000), byte(0xff), byte(0xff))
	f.Fuzz(func(t *testing.T, a, b uint32, x, y byte) {
		data := []byte(packed)
		data[a%uint32(len(data))] ^= x
		data[b%uint32(len(data))] ^= y
		tab, err := open(string(data))
		if err != nil {
			return
		}
		tab.versions = tab.versions[len(tab.versions)-1:] // one is enough, and quick
		walk(tab)
	})
}

func TestResolve(t *testing.T) {
	e := Embedded{Offset: 0, Count: "n", CountOff: 8, CountSize: 4, Elem: 8, Plus: 1}
	b := make([]byte, 16)
	b[0], b[8] = 0x10, 3
	if addr, n, ok := e.Resolve(b); !ok || addr != 0x10 || n != 32 {
		t.Errorf("%#x %d %v", addr, n, ok)
	}
	if _, _, ok := e.Resolve(b[:11]); ok {
		t.Error("the count is cut off")
	}
	b[8] = 0
	if _, _, ok := e.Resolve(b); ok {
		t.Error("no elements")
	}
	b[8], b[11] = 1, 0xff
	if _, _, ok := e.Resolve(b); ok {
		t.Error("more bytes than there can be")
	}
	b[11] = 0
	e.When, e.WhenOff, e.WhenVal = "kind", 12, 7
	if _, _, ok := e.Resolve(b); ok {
		t.Error("the condition does not hold")
	}
	b[12] = 7
	if _, _, ok := e.Resolve(b); !ok {
		t.Error("the condition holds")
	}
	e.Square, b[8] = true, 4
	if _, n, ok := e.Resolve(b); !ok || n != 25*8 {
		t.Errorf("square: %d", n)
	}
	b[0] = 0
	if _, _, ok := e.Resolve(b); ok {
		t.Error("a null pointer")
	}
	alloc := load(t, "580.142").Escape(EscRMAlloc).Embedded[0]
	p := make([]byte, 48)
	p[alloc.Offset] = 1
	if addr, _, ok := alloc.Resolve(p); ok || addr != 1 || alloc.Of != TargetAlloc {
		t.Errorf("allocation parameters at %d, %v", addr, ok)
	}
}

func TestEscapePointers(t *testing.T) {
	a := load(t, "580.142")
	n := map[string]int{}
	for e := range a.Escapes() {
		for i := range e.Embedded {
			p := &e.Embedded[i]
			n[p.In.Name+"."+p.Field]++
			if f := p.In.Lookup(p.Field); f == nil || f.Kind != KindPointer || f.Offset != p.Offset {
				t.Errorf("%s.%s: %+v", p.In.Name, p.Field, f)
			}
		}
	}
	for _, want := range []string{
		"NVOS54_PARAMETERS.params", "NVOS21_PARAMETERS.pAllocParms", "NVOS64_PARAMETERS.pAllocParms", "NVOS64_PARAMETERS.pRightsRequested",
		"NVOS38_PARAMETERS.pDevNode", "NVOS38_PARAMETERS.pParmStr", "NVOS38_PARAMETERS.pBinaryData",
		"NVOS30_PARAMETERS.phClients", "NVOS30_PARAMETERS.phDevices", "NVOS30_PARAMETERS.phChannels",
		"NVOS41_PARAMETERS.pEvent", "NVOS_I2C_ACCESS_PARAMS.paramStructPtr", "nv_ioctl_xfer_t.ptr",
	} {
		if n[want] != 1 {
			t.Errorf("%s: %d rows", want, n[want])
		}
	}
	for e := range a.Escapes() {
		for i := range e.Embedded {
			if p := &e.Embedded[i]; p.Field == "pEvent" && (p.Struct == nil || p.Struct.Size != 16) {
				t.Errorf("pEvent points to %v", p.Struct)
			}
		}
	}
}

func TestCause(t *testing.T) {
	a := load(t, "580.142")
	var root, kernel *Control
	for c := range a.Controls() {
		switch {
		case len(c.FlagNames) == 1 && c.FlagNames[0] == "PRIVILEGED":
			root = c
		case c.Exported && c.Flags == 0:
			kernel = c
		}
	}
	for _, r := range []struct {
		s     Status
		c     *Control
		class *Class
		want  CauseKind
	}{
		{errPermissions, root, nil, CausePermission},
		{errPermissions, kernel, nil, CausePermission},
		{errPermissions, nil, a.Class(0xc637), CauseCapability},
		{errPermissions, nil, nil, CausePermission},
		{errParamStruct, root, nil, CauseVersion},
		{errVersionMismatch, nil, nil, CauseVersion},
		{errNoMemory, nil, a.Class(0x40), CauseMemory},
		{errNotSupported, root, nil, CauseUnsupported},
		{errNotSupported, nil, a.Class(0xc637), CauseMIG},
		{errStateInUse, nil, a.Class(0xc637), CauseMIG},
		{errGPULost, nil, nil, CauseHardware},
	} {
		x, ok := r.s.Cause(r.c, r.class)
		if !ok || x.Kind != r.want || x.Text == "" || x.Source == "" {
			t.Errorf("%s of %v, %v: %+v", r.s, r.c, r.class, x)
		}
	}
	for _, s := range []Status{OK, 0x1f, errStateInUse, errNotSupported, 0x7777} {
		if x, ok := s.Cause(nil, nil); ok {
			t.Errorf("%s has a cause: %+v", s, x)
		}
	}
	for _, c := range causes {
		if !strings.HasPrefix(c.of.String(), "NV_ERR_") {
			t.Errorf("%s is no error", c.of)
		}
	}
}
