package ioctl

import (
	"strings"
	"testing"

	"nvtrace/rm"
	"nvtrace/traces"
)

// TestOwn: what was made for functions that nvtrace calls is nvtrace's own, and so is the call of the program's
// that gives it back; what has its name later is not.
func TestOwn(t *testing.T) {
	w := newWorld(t, testDriver)
	w.open(clientFD, "nvidiactl")
	w.open(7, "nvidia-uvm")
	own := func(e *traces.Event) { e.Flags |= traces.FlagOwn }
	memory := func() *traces.Event { return w.alloc(hClient, 1, 0x5c000030, 0x3e, nil, rm.OK) }
	free := func() *traces.Event {
		arg := w.new("NVOS00_PARAMETERS").set("hRoot", hClient).set("hObjectParent", 1).set("hObjectOld", 0x5c000030)
		return w.call(clientFD, escReq(escFree, len(arg.b)), w.place(arg.b), nil, 0)
	}
	uvm := func(name string, nr uint32, member string, v uint64) *traces.Event {
		arg := w.new(name + "_PARAMS")
		if name != "UVM_CREATE_RANGE_GROUP" {
			arg.set(member, v)
		}
		return w.call(7, nr, w.place(arg.b), func() { arg.set(member, v) }, 0)
	}
	ranges := func() *traces.Event { return uvm("UVM_CREATE_EXTERNAL_RANGE", 73, "base", 0x7f0000000000) }
	group := func() *traces.Event { return uvm("UVM_CREATE_RANGE_GROUP", 23, "rangeGroupId", 10) }
	unrange := func() *traces.Event { return uvm("UVM_FREE", 34, "base", 0x7f0000000000) }
	ungroup := func(n uint64) *traces.Event { return uvm("UVM_DESTROY_RANGE_GROUP", 24, "rangeGroupId", n) }

	own(memory())
	own(ranges())
	own(group())
	ungroup(9)
	ungroup(10)
	unrange()
	free()
	// The program's, by the same names.
	memory()
	ranges()
	group()
	ungroup(10)
	unrange()
	free()
	// A name that the program has taken meanwhile, as the end was not seen.
	own(memory())
	memory()
	free()
	// One that the driver refused was not made.
	own(w.alloc(hClient, 1, 0x5c000030, 0x3e, nil, rm.Status(0x51)))
	free()

	d := NewDecoder(w.header())
	var got strings.Builder
	for _, e := range w.events[2:] {
		if c := d.Decode(e); c.Own {
			got.WriteByte('o')
		} else {
			got.WriteByte('.')
		}
	}
	if want := "ooo.ooo" + "......" + "o.." + "o."; got.String() != want {
		t.Errorf("got  %s\nwant %s", &got, want)
	}
	if r := w.summary(); r.Own != 8 || r.Ioctls != 10 {
		t.Errorf("%d own ioctls, %d others", r.Own, r.Ioctls)
	}
}
