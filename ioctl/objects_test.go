package ioctl

import (
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"nvtrace/rm"
	"nvtrace/traces"
)

// objects feeds all events of the world into a tree.
func (w *world) objects(o *LineOptions) (*Objects, string) {
	d := NewDecoder(w.header())
	objs := NewObjects(d, nil)
	if o == nil {
		o = &LineOptions{}
	}
	o.Name = objs.Namer()
	var out []byte
	for _, e := range w.events {
		c := d.Decode(e)
		objs.Add(e, &c)
		out = d.AppendCall(out, e, &c, o)
	}
	return objs, string(out)
}

func TestObjects(t *testing.T) {
	w := startup(t)
	for _, e := range memory(t).events[2:] { // the same descriptors are open
		e.Time += w.now
		w.events = append(w.events, e)
	}
	// As in memory: the node that the mapping goes through is open file 2.
	w2 := newWorld(t, testDriver)
	w2.open(clientFD, "nvidiactl")
	w2.open(6, "nvidia0")
	w2.events[1].Time = w.events[1].Time + 1
	w.events = append(w.events[:2:2], append([]*traces.Event{w2.events[1]}, w.events[2:]...)...)

	objs, lines := w.objects(&LineOptions{Clock: ClockNone, NoPID: true})
	tree := objs.Tree()
	golden(t, "testdata/objects.txtar", []txtar.File{
		{Name: "tree", Data: tree.AppendText(nil, objs.last)},
		{Name: "lines", Data: []byte(lines)},
	})
	if m := tree.MappingAt(testPID, 0x7f12c0000000); m != nil && m.Unmapped == rm.Alive {
		t.Error("the doorbell is still mapped")
	}
	if o := tree.Object(rm.Ref{Client: hClient, Handle: 0x5c000010}); o != nil {
		t.Error("freed memory lives")
	}
	if o := tree.Object(rm.Ref{Client: hClient, Handle: 0x5c000021}); o != nil {
		t.Error("a failed allocation made an object")
	}
	o := tree.Object(rm.Ref{Client: hClient, Handle: 0xcaf00001})
	if o == nil || o.Attr.Size != 4<<20 || o.Attr.Aperture != rm.ApertureVidmem {
		t.Errorf("heap memory: %+v", o)
	}

	// Closing the control node's last descriptor frees the client, and all under it.
	w.file = 2
	w.files[clientFD] = openFile{1, "nvidiactl"}
	w.close(clientFD)
	objs, _ = w.objects(nil)
	if n := objs.Tree().Live(); n != 0 {
		t.Errorf("%d objects live after the file was closed:\n%s", n, objs.Tree().AppendText(nil, objs.last+1))
	}
}

// TestObjectsFork: a file lives until both processes have closed it.
func TestObjectsFork(t *testing.T) {
	w := newWorld(t, testDriver)
	w.open(clientFD, "nvidiactl")
	w.alloc(0, 0, 0, 0x41, nil, rm.OK)
	w.add(&traces.Event{Kind: traces.KindFork, FD: -1, Child: 99})
	w.close(clientFD)
	objs, _ := w.objects(nil)
	if n := objs.Tree().Live(); n != 1 {
		t.Errorf("%d objects live while the child holds the file", n)
	}
	e := w.add(&traces.Event{Kind: traces.KindExit, FD: -1})
	e.PID, e.TID = 99, 99
	objs, _ = w.objects(nil)
	if n := objs.Tree().Live(); n != 0 {
		t.Errorf("%d objects live after the child is gone", n)
	}
}

func TestObjectsUVM(t *testing.T) {
	w := uvm(t)
	ext := w.new("UVM_CREATE_EXTERNAL_RANGE_PARAMS").set("base", 0x7f0000000000).set("length", 0x400000)
	w.call(7, 73, w.place(ext.b), nil, 0)
	m := w.new("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS").set("base", 0x7f0000000000).set("length", 0x200000).set("hClient", hClient).set("hMemory", 0x5c000010)
	w.call(7, 33, w.place(m.b), nil, 0)
	objs, _ := w.objects(nil)
	space := objs.Tree().UVM(w.files[7].id)
	if space == nil || space.External(0x7f0000100000) == nil || space.External(0x7f0000300000) != nil {
		t.Errorf("managed space %+v", space)
	}
}

// TestObjectsShare: objects that go through a file come out as the same.
func TestObjectsShare(t *testing.T) {
	w := newWorld(t, testDriver)
	w.open(clientFD, "nvidiactl")
	w.open(8, "nvidiactl")
	w.alloc(0, 0, 0, 0x41, nil, rm.OK)
	w.alloc(hClient, hClient, hDevice, 0x80, w.new("NV0080_ALLOC_PARAMETERS").b, rm.OK)
	mem := w.new("NV_MEMORY_ALLOCATION_PARAMS").set("size", 4096)
	w.alloc(hClient, hDevice, 0x5c000010, 0x40, mem.b, rm.OK)
	exp := w.new("NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS").set("fd", 8).set("object.type", 1).set("object.data.rmObject.hObject", 0x5c000010)
	w.control(hClient, 0x3d05, exp.b, nil, rm.OK)
	imp := w.new("NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS").set("fd", 8).set("object.type", 1).set("object.data.rmObject.hParent", hDevice).set("object.data.rmObject.hObject", 0x5c000011)
	w.control(hClient, 0x3d06, imp.b, nil, rm.OK)
	objs, lines := w.objects(nil)
	o := objs.Tree().Object(rm.Ref{Client: hClient, Handle: 0x5c000011})
	if o == nil || o.Dup == nil || o.Dup.Handle != 0x5c000010 || o.Parent == nil || o.Parent.Handle != hDevice {
		t.Errorf("imported: %+v\n%s", o, lines)
	}
	if !strings.Contains(lines, "fd=8<nvidiactl>") {
		t.Error(lines)
	}
}

// TestEventsAndDMABufs: the driver overwrites an event's descriptor, and makes a
// dma-buf's.
func TestEventsAndDMABufs(t *testing.T) {
	w := newWorld(t, testDriver)
	w.open(clientFD, "nvidiactl")
	w.open(6, "nvidia0")
	w.alloc(hClient, hClient, hClient, 0x41, nil, rm.OK)
	w.alloc(hClient, hClient, hDevice, 0x80, nil, rm.OK)
	for _, h := range []uint32{10, 11} {
		w.alloc(hClient, hDevice, h, 0x40, w.new("NV_MEMORY_ALLOCATION_PARAMS").set("size", 4096).b, rm.OK)
	}
	event := w.new("NV0005_ALLOC_PARAMETERS").set("data", 17)
	p := w.place(event.b)
	arg := w.new("NVOS64_PARAMETERS")
	arg.set("hRoot", hClient).set("hObjectParent", hDevice).set("hObjectNew", 12).set("hClass", 0x79).set("pAllocParms", p)
	w.call(clientFD, escReq(escAlloc, len(arg.b)), w.place(arg.b), func() { event.set("data", 0xffff888812345678) }, 0)

	export := func(index, handle, fd uint64, status rm.Status) {
		a := w.new("nv_ioctl_export_to_dma_buf_fd_t")
		a.set("hClient", hClient).set("totalObjects", 2).set("numObjects", 1).set("index", index).set("handles[0]", handle).set("fd", fd)
		w.call(6, escReq(escExportDMABuf, len(a.b)), w.place(a.b), func() { a.set("fd", 33).set("status", uint64(status)) }, 0)
	}
	export(0, 10, 0xffffffff, rm.OK)
	export(1, 11, 33, rm.OK)
	export(0, 10, 0xffffffff, 0x40)
	objs, _ := w.objects(nil)
	at := func(h uint32) *rm.Object { return objs.Tree().Object(rm.Ref{Client: hClient, Handle: h}) }
	if o := at(12); o == nil || o.Attr.FD != 17 {
		t.Errorf("event: %+v", o)
	}
	for _, h := range []uint32{10, 11} {
		if o := at(h); o == nil || len(o.DMABufs) != 1 || o.DMABufs[0] != 33 {
			t.Errorf("memory %d: %+v", h, o)
		}
	}
}
