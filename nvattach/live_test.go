package nvattach

import (
	"context"
	"encoding/binary"
	"sync"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/nvattach/emit"
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptx"
	"nvtrace/ptx/emu"
)

// TestRingLive reads a ring while blocks write to it. Every record is seen once and
// whole, or counted as dropped.
func TestRingLive(t *testing.T) {
	if need.Race {
		t.Skip("the host reads what the kernel writes, by design")
	}
	for _, bytes := range []uint32{1 << 12, 1 << 22} {
		ringLive(t, bytes)
	}
}

func ringLive(t *testing.T, bytes uint32) {
	g := newGPU(t, &mapmem.MapOptions{RingBytes: 64 << 20}, def("r", object.MapRingbuf, 0, 0, bytes))
	x := g.maps.Find("r")
	var s textSink
	c := &emit.Code{S: &s, M: g.maps}
	i := c.ThreadIndex()
	c.Output(x, &regBytes{c, []string{i, i, i, i, i, i}}, 48, "48", helper.EAGAIN)
	c.Output(x, &regBytes{c, []string{i}}, 8, "8", helper.EAGAIN)
	f, err := ptx.Parse("k.ptx", ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k()\n{\n"+s.String()+"\tret;\n}\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	mod, err := g.machine.Load(f)
	if err != nil {
		t.Fatal(err)
	}
	k, err := mod.Kernel("k")
	if err != nil {
		t.Fatal(err)
	}
	const threads = 200 * 128
	seen := make([]uint8, threads)
	rd := g.maps.NewReader(x)
	records := uint64(0)
	note := func(r mapmem.Record) {
		records++
		id := binary.LittleEndian.Uint64(r.Data)
		bit := uint8(1)
		if len(r.Data) == 48 {
			bit = 2
			for at := 8; at < 48; at += 8 {
				if binary.LittleEndian.Uint64(r.Data[at:]) != id {
					t.Errorf("a torn record: %x", r.Data)
				}
			}
		} else if len(r.Data) != 8 {
			t.Errorf("a record of %d bytes", len(r.Data))
		}
		if id >= threads || seen[id]&bit != 0 {
			t.Errorf("record %d of %d bytes twice, or nobody's", id, len(r.Data))
			return
		}
		seen[id] |= bit
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			if err := rd.Drain(g.machine, false, note); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	if _, err := g.machine.Launch(context.Background(), k, &emu.LaunchConfig{Grid: emu.Dim3{X: 200}, Block: emu.Dim3{X: 128}}); err != nil {
		t.Error(err)
	}
	close(stop)
	wg.Wait()
	if err := rd.Drain(g.machine, true, note); err != nil {
		t.Fatal(err)
	}
	dropped, err := rd.Dropped(g.machine)
	if err != nil || records+dropped != 2*threads || rd.Lost != 0 {
		t.Errorf("ring of %d bytes: %d records and %d dropped of %d, %d units lost, %v", bytes, records, dropped, 2*threads, rd.Lost, err)
	}
	if bytes == 1<<22 && dropped != 0 {
		t.Errorf("%d dropped from a ring with room for all", dropped)
	}
}
