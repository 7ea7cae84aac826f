package rm

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"nvtrace/internal/need"
)

// world builds the usual tree of a compute program.
type world struct {
	*testing.T
	tree *Tree
	abi  *ABI
	now  int64
}

const (
	hClient = 0xc1d00001
	hDevice = 0x5c000001
	hSubdev = 0x5c000002
	hSpace  = 0x5c000003
	hGroup  = 0x5c000004
	hChan   = 0x5c000005
	hComp   = 0x5c000006
	hMem    = 0x5c000007
	hUserd  = 0x5c000008
)

func newWorld(t *testing.T, o *TreeOptions) *world {
	t.Helper()
	w := &world{T: t, tree: NewTree(o), abi: load(t, "580.142")}
	w.tree.Open(w.at(1), "nvidiactl")
	w.alloc(0, hClient, 0x41)
	w.alloc(hClient, hDevice, 0x80)
	w.alloc(hDevice, hSubdev, 0x2080)
	w.alloc(hDevice, hSpace, 0x90f1)
	w.alloc(hDevice, hGroup, 0xa06c, hSpace)
	w.memory(hUserd, 0x40, 4096)
	w.alloc(hGroup, hChan, 0xc86f, hSpace, hUserd)
	w.alloc(hChan, hComp, 0xcbc0)
	w.memory(hMem, 0x40, 2<<20)
	return w
}

func (w *world) at(file uint32) At {
	w.now++
	return At{Time: w.now, PID: 100, File: file}
}

func (w *world) alloc(parent, handle, class uint32, deps ...uint32) *Object {
	w.Helper()
	r := Ref{hClient, handle}
	if parent == 0 {
		r = Ref{handle, handle}
	}
	c := w.abi.Class(class)
	if c == nil {
		w.Fatalf("no class %#x", class)
	}
	return w.tree.Alloc(&AllocOp{At: w.at(1), Ref: r, Parent: parent, ClassID: class, Class: c, Attr: Attr{Deps: deps, FD: -1}})
}

func (w *world) memory(handle, class uint32, size uint64) *Object {
	c := w.abi.Class(class)
	return w.tree.Alloc(&AllocOp{
		At: w.at(1), Ref: Ref{hClient, handle}, Parent: hDevice, ClassID: class, Class: c,
		Attr: Attr{Size: size, Aperture: c.aperture(), FD: -1},
	})
}

func (w *world) object(handle uint32) *Object { return w.tree.Object(Ref{hClient, handle}) }

func (w *world) wantLive(handles ...uint32) {
	w.Helper()
	if w.tree.Live() != len(handles) {
		w.Errorf("%d objects live, want %d:\n%s", w.tree.Live(), len(handles), w.tree.AppendText(nil, w.now))
	}
	for _, h := range handles {
		if w.object(h) == nil {
			w.Errorf("%#x is gone", h)
		}
	}
}

func (w *world) bytes(kind Kindred, ap Aperture) Total {
	for _, x := range w.tree.Totals(0) {
		if x.Kind == kind && x.Aperture == ap {
			return x
		}
	}
	return Total{}
}

func TestTreeNames(t *testing.T) {
	w := newWorld(t, nil)
	second := w.alloc(hGroup, 0x5c000099, 0xc86f)
	if s := second.Short(); s != "chan1{c86f}" {
		t.Errorf("second channel is %s", s)
	}
	for id, want := range map[uint32]string{0: "x0{0000}", 1: "x0{0001}", 0x41: "x0{0041}", 0xfff: "x0{0fff}", 0x1000: "x0{1000}", 0xabcde: "x0{abcde}"} {
		if s := (&Object{ClassID: id, nick: "x"}).Short(); s != want {
			t.Errorf("class %#x: %s, want %s", id, s, want)
		}
	}
	if s := second.Long(); s != "GPFIFO channel 1 of pid 100" {
		t.Errorf("in words: %s", s)
	}
	if s := w.object(hComp).Path(); s != "client0/dev0/tsg0/chan0/compute0" {
		t.Errorf("path: %s", s)
	}
	if d := w.object(hComp).device(); d != w.object(hDevice) {
		t.Errorf("device: %v", d)
	}
	if s := w.tree.Name(Ref{hClient, hChan}); s != "chan0{c86f}" {
		t.Errorf("name of a handle: %s", s)
	}
	if s := w.tree.Name(Ref{hClient, 77}); s != "0x4d" {
		t.Errorf("name of an unknown handle: %s", s)
	}
	text := string(w.tree.AppendText(nil, w.now))
	want := `client0{0041} 0xc1d00001 NV01_ROOT_CLIENT pid 100
  dev0{0080} 0x5c000001 NV01_DEVICE_0
    subdev0{2080} 0x5c000002 NV20_SUBDEVICE_0
    vas0{90f1} 0x5c000003 FERMI_VASPACE_A
    tsg0{a06c} 0x5c000004 KEPLER_CHANNEL_GROUP_A
      chan0{c86f} 0x5c000005 HOPPER_CHANNEL_GPFIFO_A
        compute0{cbc0} 0x5c000006 HOPPER_COMPUTE_A
      chan1{c86f} 0x5c000099 HOPPER_CHANNEL_GPFIFO_A
    vidmem0{0040} 0x5c000008 NV01_MEMORY_LOCAL_USER 4K vidmem
    vidmem1{0040} 0x5c000007 NV01_MEMORY_LOCAL_USER 2M vidmem
`
	if text != want {
		t.Errorf("tree:\n%s\nwant:\n%s", text, want)
	}
}

// TestTreeNoParent: a call that names no parent puts the object under its client.
func TestTreeNoParent(t *testing.T) {
	w := newWorld(t, nil)
	o := w.alloc(0x1234, 0x99, 0x80)
	if !o.Parent.Guessed || o.Parent.Handle != 0x1234 || o.Parent.Parent != w.object(hClient) {
		t.Errorf("an unknown parent: %v", o.Parent)
	}
	c := w.tree.Alloc(&AllocOp{At: w.at(1), Ref: Ref{hClient, 0x98}, ClassID: 2, Class: w.abi.Class(2)})
	if c.Parent != w.object(hClient) {
		t.Errorf("no parent: %v", c.Parent)
	}
}

func TestTreeFree(t *testing.T) {
	t.Run("subtree", func(t *testing.T) {
		w := newWorld(t, nil)
		comp := w.object(hComp)
		w.tree.Free(w.at(1), Ref{hClient, hGroup})
		w.wantLive(hClient, hDevice, hSubdev, hSpace, hUserd, hMem)
		if comp.End != EndParent || comp.By.Handle != hChan || comp.Died != w.now {
			t.Errorf("the compute object: %s by %v", comp.End, comp.By)
		}
	})
	t.Run("dependants", func(t *testing.T) {
		w := newWorld(t, nil)
		ch, group := w.object(hChan), w.object(hGroup)
		w.tree.Free(w.at(1), Ref{hClient, hSpace})
		w.wantLive(hClient, hDevice, hSubdev, hUserd, hMem)
		if group.End != EndDependency || group.By.Handle != hSpace || ch.Died == Alive {
			t.Errorf("the group: %s by %v", group.End, group.By)
		}
	})
	t.Run("userd", func(t *testing.T) {
		w := newWorld(t, nil)
		w.tree.Free(w.at(1), Ref{hClient, hUserd})
		w.wantLive(hClient, hDevice, hSubdev, hSpace, hGroup, hMem)
	})
	t.Run("close", func(t *testing.T) {
		w := newWorld(t, nil)
		mem, comp := w.object(hMem), w.object(hComp)
		w.tree.Free(w.at(1), Ref{hClient, hMem})
		w.tree.CloseFile(w.at(1), true)
		w.wantLive()
		if mem.End != EndFreed || comp.End != EndExit || comp.By != nil {
			t.Errorf("memory %s, compute object %s by %v", mem.End, comp.End, comp.By)
		}
		if n := count(w.tree.Objects(), func(o *Object) bool { return o.End == EndExit }); n != 8 {
			t.Errorf("%d objects freed by the driver, want 8", n)
		}
	})
	t.Run("twice", func(t *testing.T) {
		w := newWorld(t, nil)
		w.tree.Free(w.at(1), Ref{hClient, hMem})
		w.tree.Free(w.at(1), Ref{hClient, hMem})
		w.tree.Free(w.at(1), Ref{1, 2})
		if n := w.bytes(Memory, ApertureVidmem); n.Bytes != 4096 || n.Objects != 1 {
			t.Errorf("memory: %+v", n)
		}
	})
	t.Run("handle reused", func(t *testing.T) {
		w := newWorld(t, nil)
		old := w.object(hMem)
		w.memory(hMem, 0x3e, 8192)
		if old.End != EndReplaced || w.object(hMem).Attr.Size != 8192 {
			t.Errorf("old: %s", old.End)
		}
	})
}

func TestTreeDeep(t *testing.T) {
	need.OneThread(t)
	w := newWorld(t, nil)
	parent := uint32(hDevice)
	for i := range uint32(200_000) {
		w.alloc(parent, 0x10000+i, 0x2080)
		parent = 0x10000 + i
	}
	w.tree.Free(w.at(1), Ref{hClient, hDevice})
	w.wantLive(hClient)
	_ = w.tree.AppendText(nil, w.now-1)
}

func TestTreeTotals(t *testing.T) {
	w := newWorld(t, nil)
	big := w.memory(0x77, 0x40, 1<<30)
	w.tree.Free(w.at(1), Ref{hClient, 0x77})
	x := w.bytes(Memory, ApertureVidmem)
	if x.Bytes != 2<<20+4096 || x.PeakBytes != 1<<30+2<<20+4096 || x.PeakTime != big.Born || x.Made != 3 || x.Objects != 2 {
		t.Errorf("vidmem: %+v", x)
	}
	w.memory(0x78, 0x3e, 1<<16)
	if x := w.bytes(Memory, ApertureSysmem); x.Bytes != 1<<16 {
		t.Errorf("sysmem: %+v", x)
	}
	var own []Total
	own = append(own, w.tree.Totals(100)...)
	all := w.tree.Totals(0)
	if len(own) != len(all) {
		t.Errorf("one process has %d rows, all have %d", len(own), len(all))
	}
}

func TestTreeSharing(t *testing.T) {
	w := newWorld(t, nil)
	other := At{Time: 50, PID: 200, File: 9}
	peer := w.tree.Duplicate(&DupOp{At: other, Ref: Ref{0xc1d00002, 5}, Parent: 7, Src: Ref{hClient, hMem}})
	if peer.Kind != Memory || peer.Dup != w.object(hMem) || !strings.HasPrefix(peer.Short(), "vidmem0{0040}") {
		t.Errorf("duplicate: %s of %v", peer.Short(), peer.Dup)
	}
	if p := peer.Parent; p == nil || !p.Guessed || !p.Parent.Guessed || p.Parent.Kind != Client {
		t.Errorf("its parent was not made up: %v", p)
	}
	w.tree.Free(w.at(1), Ref{hClient, hMem})
	if x := w.bytes(Memory, ApertureVidmem); x.Bytes != 2<<20+4096 {
		t.Errorf("memory that still has a handle is gone: %+v", x)
	}
	w.tree.CloseFile(other, false)
	if x := w.bytes(Memory, ApertureVidmem); x.Bytes != 4096 || peer.End != EndClosed {
		t.Errorf("after the last handle: %+v, %s", x, peer.End)
	}

	w.tree.Export(&ExportOp{At: w.at(1), Client: hClient, Handles: []uint32{hUserd}, Into: 33})
	in := w.tree.Import(&ImportOp{At: At{Time: 60, PID: 200, File: 9}, Ref: Ref{0xc1d00003, 6}, Parent: 0xc1d00003, From: 33})
	if in.Dup != w.object(hUserd) || in.Class == nil || in.Import != 33 {
		t.Errorf("import: %+v", in)
	}
	lone := w.tree.Import(&ImportOp{At: At{Time: 61, PID: 200, File: 9}, Ref: Ref{0xc1d00003, 8}, Parent: 0xc1d00003, From: 99})
	if lone.Dup != nil || lone.Import != 99 || lone.Died != Alive {
		t.Errorf("import of what was not seen: %+v", lone)
	}
}

func TestTreeMaps(t *testing.T) {
	w := newWorld(t, nil)
	m := w.tree.Map(&MapOp{At: w.at(1), Ref: Ref{hClient, hUserd}, Device: hDevice, Length: 4096, Cookie: 0xd000, Through: 44})
	if m.Shows() != MapVidmem || m.Mapped != Alive {
		t.Errorf("mapping: %+v", m)
	}
	if got := w.tree.Mmap(w.at(44), 0x7f0000001000, 4096); got != m || m.Addr != 0x7f0000001000 {
		t.Errorf("the mmap of the file is of %v", got)
	}
	if w.tree.Mmap(w.at(44), 0x7f0000009000, 4096) != nil {
		t.Error("a second mmap of the file found a mapping")
	}
	if w.tree.MoveMapping(w.at(1), Ref{hClient, hUserd}, 0xd000, 0x7f0000001000) != m {
		t.Error("the driver was told of another mapping")
	}
	if w.tree.MappingAt(100, 0x7f0000001fff) != m || w.tree.MappingAt(100, 0x7f0000002000) != nil || w.tree.MappingAt(7, 0x7f0000001000) != nil {
		t.Error("look-up by address")
	}
	if len(w.object(hUserd).Mappings()) != 1 {
		t.Error("the object has no mapping")
	}
	if w.tree.Munmap(w.at(0), 0x7f0000001000) != m || w.tree.MappingAt(100, 0x7f0000001000) != nil {
		t.Error("munmap")
	}
	if w.tree.Unmap(w.at(1), Ref{hClient, hUserd}, 0x7f0000001000) != m || m.Died != w.now {
		t.Errorf("unmap by address: %+v", m)
	}
	// mmap not seen: the driver's being told is enough.
	n := w.tree.Map(&MapOp{At: w.at(1), Ref: Ref{hClient, hMem}, Length: 1 << 16, Cookie: 0xe000})
	if w.tree.MoveMapping(w.at(1), Ref{hClient, hMem}, 0xe000, 0x5000) != n || n.Size != 1<<16 || w.tree.MappingAt(100, 0x5001) != n {
		t.Errorf("told: %+v", n)
	}
	w.tree.Free(w.at(1), Ref{hClient, hMem})
	if n.Died == Alive {
		t.Error("a mapping outlived its object")
	}

	d := w.tree.MapDMA(&DMAOp{At: w.at(1), Ref: Ref{hClient, hUserd}, Space: hSpace, Length: 4096, Addr: 0x200000})
	if len(w.object(hSpace).DMAMappings()) != 1 || d.Space != w.object(hSpace) {
		t.Errorf("DMA mapping: %+v", d)
	}
	if w.tree.UnmapDMA(w.at(1), hClient, hSpace, 0x200000) != d || d.Died != w.now || len(w.object(hUserd).DMAMappings()) != 0 {
		t.Errorf("after its end: %+v", d)
	}
	e := w.tree.MapDMA(&DMAOp{At: w.at(1), Ref: Ref{hClient, hUserd}, Space: hSpace, Length: 4096, Addr: 0x300000})
	w.tree.Free(w.at(1), Ref{hClient, hSpace})
	if e.Died == Alive {
		t.Error("a DMA mapping outlived its space")
	}
}

func TestTreeUVM(t *testing.T) {
	w := newWorld(t, nil)
	at := func() At { return w.at(5) }
	gpu := UUID{1, 2, 3, 4}
	w.tree.UVMInit(at(), 1)
	w.tree.UVMRegisterGPU(at(), gpu)
	w.tree.UVMRegisterSpace(at(), gpu, Ref{hClient, hSpace})
	w.tree.UVMRegisterChannel(at(), gpu, Ref{hClient, hChan}, Span{0x1000, 0x2000})
	w.tree.UVMRangeNew(at(), UVMManaged, Span{0x100000, 0x100000})
	w.tree.UVMRangeNew(at(), UVMExternal, Span{0x400000, 0x400000})
	m := w.tree.UVMMapExternal(at(), Span{0x600000, 0x200000}, Ref{hClient, hMem}, 0, []UUID{gpu})
	s := w.tree.UVM(5)
	if s.GPUs[gpu].Space != w.object(hSpace) || s.GPUs[gpu].Channels[Ref{hClient, hChan}] != w.object(hChan) {
		t.Errorf("GPU: %+v", s.GPUs[gpu])
	}
	if s.External(0x600001) != m || s.External(0x500000) != nil || s.External(0x900000) != nil || m.Object != w.object(hMem) {
		t.Error("look-up in external ranges")
	}
	if s.Total.Managed != 0x100000 || s.Total.External != 0x400000 {
		t.Errorf("totals: %+v", s.Total)
	}
	w.tree.UVMUnmapExternal(at(), 0x600000)
	if s.External(0x600001) != nil {
		t.Error("unmapped memory is still there")
	}
	w.tree.UVMRangeFree(at(), 0x400000)
	w.tree.UVMRangeFree(at(), 0x100000)
	if s.Total.Managed != 0 || s.Total.External != 0 || s.Total.PeakExternal != 0x400000 || s.Total.PeakManaged != 0x100000 {
		t.Errorf("totals: %+v", s.Total)
	}
	if x := w.tree.UVMMapExternal(at(), Span{0x900000, 0x1000}, Ref{hClient, hMem}, 0, nil); s.External(0x900fff) != x || s.Total.External != 0x1000 {
		t.Errorf("a range that was not seen: %+v", s.Total)
	}
	pool := w.tree.UVMRangeNew(at(), UVMSemaphore, Span{0xa00000, 0x1000})
	if w.tree.UVMRangeNew(at(), UVMManaged, Span{0xa00000, 0x1000}) != pool || s.Total.Managed != 0 {
		t.Error("the mmap of a pool made a managed range")
	}
	w.tree.CloseFile(at(), false)
	if s.Died == Alive || len(s.Ranges) != 0 || s.GPUs[gpu].Died == Alive {
		t.Errorf("after the close: %+v", s)
	}
}

func TestTreeSnapshot(t *testing.T) {
	w := newWorld(t, nil)
	before := w.now
	w.tree.Free(w.at(1), Ref{hClient, hGroup})
	if n := count(w.tree.At(before), nil); n != 9 {
		t.Errorf("%d objects before the free", n)
	}
	if n := count(w.tree.At(w.now), nil); n != 6 {
		t.Errorf("%d objects after it", n)
	}
	if n := count(w.tree.At(0), nil); n != 0 {
		t.Errorf("%d objects before the start", n)
	}
}

func TestTreeForget(t *testing.T) {
	born, died := 0, 0
	w := newWorld(t, &TreeOptions{Forget: true, Notify: func(_ *Object, b bool) {
		if b {
			born++
		} else {
			died++
		}
	}})
	for i := range uint32(10_000) {
		w.memory(0x100+i, 0x40, 1)
		w.tree.Free(w.at(1), Ref{hClient, 0x100 + i})
	}
	if n := count(w.tree.Objects(), nil); n > 300 {
		t.Errorf("%d objects are kept, 9 live", n)
	}
	if born != 10_009 || died != 10_000 {
		t.Errorf("%d born, %d died", born, died)
	}
}

// TestTreeRandom feeds nonsense and checks what must always hold.
func TestTreeRandom(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		tr := NewTree(&TreeOptions{Forget: seed%2 == 1})
		abi := Newest()
		classes := slices.Collect(abi.Classes())
		for i := range int64(3000) {
			at := At{Time: i, PID: r.Int32N(3) + 1, File: r.Uint32N(4)}
			ref := Ref{r.Uint32N(3) + 1, r.Uint32N(30) + 1}
			h := func() uint32 { return r.Uint32N(30) + 1 }
			switch r.IntN(9) {
			case 0, 1, 2:
				c := classes[r.IntN(len(classes))]
				tr.Alloc(&AllocOp{At: at, Ref: ref, Parent: h(), ClassID: c.ID, Class: c, Attr: Attr{Size: r.Uint64N(100), Deps: []uint32{h(), h()}}})
			case 3:
				tr.Free(at, ref)
			case 4:
				tr.Duplicate(&DupOp{At: at, Ref: ref, Parent: h(), Src: Ref{r.Uint32N(3) + 1, h()}})
			case 5:
				tr.Map(&MapOp{At: at, Ref: ref, Cookie: uint64(h()), Length: 1, Through: at.File})
				tr.Mmap(at, uint64(h())<<12, 4096)
			case 6:
				tr.MapDMA(&DMAOp{At: at, Ref: ref, Space: h(), Addr: uint64(h())})
			case 7:
				tr.Munmap(at, uint64(h())<<12)
				tr.UnmapDMA(at, ref.Client, h(), uint64(h()))
			case 8:
				if r.IntN(40) == 0 {
					tr.CloseFile(at, false)
				}
			}
		}
		checkTree(t, tr)
		for f := range uint32(4) {
			tr.CloseFile(At{Time: 5000, File: f}, true)
		}
		checkTree(t, tr)
	}
}

func checkTree(t *testing.T, tr *Tree) {
	t.Helper()
	live := 0
	for o := range tr.Objects() {
		if (o.Died == Alive) != (o.End == EndNone) {
			t.Fatalf("%s: died %d, %s", o.Short(), o.Died, o.End)
		}
		if o.Died != Alive {
			continue
		}
		live++
		if tr.Object(o.Ref) != o {
			t.Fatalf("%s lives and is not found", o.Short())
		}
		for p := o.Parent; p != nil; p = p.Parent {
			if p.Died != Alive {
				t.Fatalf("%s outlived %s", o.Short(), p.Short())
			}
		}
		if o.Parent == nil && !o.IsClient() {
			t.Fatalf("%s is an orphan", o.Short())
		}
		for _, d := range o.deps {
			if d.on.Died != Alive {
				t.Fatalf("%s outlived %s, which it depends on", o.Short(), d.on.Short())
			}
		}
	}
	if live != tr.Live() {
		t.Fatalf("%d objects live, Live says %d", live, tr.Live())
	}
	for _, x := range tr.Totals(0) {
		if x.Objects < 0 || x.Bytes > x.PeakBytes {
			t.Fatalf("total %+v", x)
		}
	}
}

func TestSpanSet(t *testing.T) {
	var s spanSet[int]
	model := map[uint64]uint64{}
	r := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		base := r.Uint64N(4000) * 16
		if r.IntN(3) > 0 {
			n := r.Uint64N(16) + 1
			s.put(Span{base, n}, int(base))
			model[base] = n
		} else {
			s.remove(base)
			delete(model, base)
		}
		at := r.Uint64N(64_100)
		v, _, ok := s.find(at)
		n, has := model[at/16*16]
		if want := has && at%16 < n; ok != want || ok && v != int(at/16*16) {
			t.Fatalf("address %d: %v %v, want %v", at, v, ok, want)
		}
	}
}

func TestAttr(t *testing.T) {
	a := load(t, "580.142")
	ch := a.Class(0xc86f)
	p := make([]byte, ch.Alloc.Size)
	put := func(name string, v uint32) {
		f := ch.Alloc.Lookup(name)
		p[f.Offset], p[f.Offset+1] = byte(v), byte(v>>8)
	}
	put("hVASpace", 11)
	put("hContextShare", 12)
	put("hUserdMemory", 13)
	put("gpFifoEntries", 1024)
	put("engineType", 1)
	at := ch.Attr(nil, p)
	if !slices.Equal(at.Deps, []uint32{11, 12, 13}) || at.Size != 1024 || at.Engine != 1 || at.FD != -1 {
		t.Errorf("channel: %+v", at)
	}
	for n := range p { // short parameters must not matter
		_ = ch.Attr(p[:n], p[:n])
	}
	mem := a.Class(0x40)
	q := make([]byte, mem.Alloc.Size)
	q[mem.Alloc.Lookup("size").Offset+2] = 0x20
	if at := mem.Attr(nil, q); at.Size != 2<<20 || at.Aperture != ApertureVidmem {
		t.Errorf("memory: %+v", at)
	}
	ev := a.Class(0x79)
	e := make([]byte, ev.Alloc.Size)
	e[ev.Alloc.Lookup("data").Offset] = 31
	after := bytes.Repeat([]byte{0xff}, len(e)) // an address of the driver's
	if at := ev.Attr(e, after); at.FD != 31 {
		t.Errorf("event: %+v", at)
	}
	if at := a.Class(0x2080).Attr(nil, nil); at.Size != 0 || at.Deps != nil {
		t.Errorf("subdevice: %+v", at)
	}
}

func ExampleTree() {
	abi := Newest()
	t := NewTree(nil)
	at := At{Time: 1, PID: 4120, File: 3}
	client := Ref{0xc1d00001, 0xc1d00001}
	t.Alloc(&AllocOp{At: at, Ref: client, ClassID: 0x41, Class: abi.Class(0x41)})
	t.Alloc(&AllocOp{At: at, Ref: Ref{client.Handle, 0x5c000001}, Parent: client.Handle, ClassID: 0x80, Class: abi.Class(0x80)})
	fmt.Print(string(t.AppendText(nil, 1)))
	t.CloseFile(At{Time: 2, PID: 4120, File: 3}, true)
	for o := range t.Objects() {
		fmt.Println(o.Long()+":", o.End)
	}
	// Output:
	// client0{0041} 0xc1d00001 NV01_ROOT_CLIENT pid 4120
	//   dev0{0080} 0x5c000001 NV01_DEVICE_0
	// client 0 of pid 4120: freed by the driver when the process ended
	// device 0 of pid 4120: freed by the driver when the process ended
}

// A process's address space goes with it: another process of the same id must
// not find its mappings, and they must not keep objects from being forgotten.
func TestExitForgetsMappings(t *testing.T) {
	tr := NewTree(&TreeOptions{Forget: true})
	at := At{PID: 7, File: 1}
	ref := Ref{0xc1d00001, 0x5c000001}
	tr.Open(at, "nvidiactl")
	tr.Alloc(&AllocOp{At: at, Ref: Ref{ref.Client, ref.Client}})
	tr.Alloc(&AllocOp{At: at, Ref: ref, Parent: ref.Client})
	tr.Map(&MapOp{At: at, Ref: ref, Length: 4096, Cookie: 0x1000, Through: 2})
	if tr.Mmap(At{PID: 7, File: 2}, 0x7000, 4096) == nil || tr.MappingAt(7, 0x7010) == nil {
		t.Fatal("the mapping is not known")
	}
	tr.Exit(At{PID: 7, Time: 5})
	if m := tr.MappingAt(7, 0x7010); m != nil {
		t.Errorf("a dead process maps %v", m.Object.Ref)
	}
	if m := tr.Munmap(At{PID: 7, Time: 6}, 0x7000); m != nil {
		t.Errorf("a dead process unmaps %v", m.Object.Ref)
	}
}
