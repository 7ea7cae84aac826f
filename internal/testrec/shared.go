package testrec

import (
	"math/rand/v2"
	"slices"

	"nvtrace/rm"
	"nvtrace/traces"
)

// Shared is two processes that share memory: by handle, and by a file.
func Shared() *Recording {
	r := New("580.142")
	a := r.Program(100)
	App(a)
	// A subtree that goes with its root, and what depends on it elsewhere.
	share := r.New("NV_CTXSHARE_ALLOCATION_PARAMETERS").Set("hVASpace", Space)
	a.Alloc(Client, Group, 0x5c000020, 0x9067, share.B, rm.OK)
	// Memory under two handles, and one exported to a file that the child gets.
	a.Duplicate(Client, Device, 0x5c000030, Client, Vidmem)
	a.Open(11, "nvidiactl")
	exp := r.New("NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS").Set("object.type", 1).Set("fd", 11).
		Set("object.data.rmObject.hDevice", Device).Set("object.data.rmObject.hParent", Device).Set("object.data.rmObject.hObject", Sysmem)
	a.Control(Client, Client, 0x3d05, exp.B, nil, rm.OK)
	ev := r.New("NV0005_ALLOC_PARAMETERS").Set("hParentClient", Client).Set("hClass", 0x79).Set("notifyIndex", 35).Set("data", 12)
	a.Alloc(Client, Subdev, Event, 0x79, ev.B, rm.OK)

	b := a.Fork(200)
	b.Exec("/usr/bin/child")
	b.Open(20, "nvidiactl")
	b.Ctl = 20
	b.Client(0xc1d00002)
	b.Alloc(0xc1d00002, 0xc1d00002, 0x5c000001, 0x80, r.New("NV0080_ALLOC_PARAMETERS").B, rm.OK)
	b.Duplicate(0xc1d00002, 0x5c000001, 0x5c000002, Client, Vidmem)
	b.Receive(21, a, 11)
	imp := r.New("NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS").Set("fd", 21).Set("object.type", 1).
		Set("object.data.rmObject.hDevice", 0x5c000001).Set("object.data.rmObject.hParent", 0x5c000001).Set("object.data.rmObject.hObject", 0x5c000003)
	b.Control(0xc1d00002, 0xc1d00002, 0x3d06, imp.B, nil, rm.OK)

	a.Free(Client, Device, Space, rm.OK)
	a.Free(Client, Device, Group, rm.OK)
	a.Free(Client, Device, 0x5c00dead, 0x57)
	a.OpenFails("nvidia\x1b[2J\n", 2)
	b.Exit(0)
	return r
}

// Damaged returns copies of the recording's events in which something has been changed n times.
func (r *Recording) Damaged(seed uint64, n uint8) []*traces.Event {
	random := rand.New(rand.NewPCG(seed, uint64(n)))
	events := make([]*traces.Event, len(r.Events))
	for i, e := range r.Events {
		events[i] = e.Clone()
	}
	for range n {
		damage(random, events)
	}
	return events
}

// damage changes something in some event.
func damage(r *rand.Rand, events []*traces.Event) {
	ev := events[r.IntN(len(events))]
	switch r.IntN(8) {
	case 0:
		ev.Flags ^= 1 << r.IntN(9)
	case 1:
		ev.Args[r.IntN(6)] = r.Uint64() >> r.IntN(64)
	case 2:
		ev.Ret = int64(r.Uint64()) >> r.IntN(64)
	case 3:
		ev.PID, ev.File = []int32{100, 200, 300}[r.IntN(3)], uint32(r.IntN(9))
	default:
		if len(ev.Mem) == 0 {
			return
		}
		s := &ev.Mem[r.IntN(len(ev.Mem))]
		for _, b := range [][]byte{s.In, s.Out} {
			if len(b) > 0 {
				// Small numbers stay plausible handles, counts and sizes.
				b[r.IntN(len(b))] ^= byte(1 << r.IntN(8))
			}
		}
		if r.IntN(8) == 0 {
			s.In = s.In[:r.IntN(len(s.In)+1)]
			if s.Out != nil {
				s.Out = slices.Clone(s.Out[:r.IntN(len(s.Out)+1)])
			}
		}
	}
}
