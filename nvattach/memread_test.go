package nvattach

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx/bpf"
)

// probeReads gives the helpers that read memory a meaning for the interpreter: memory within
// the ranges, which read copies.
func probeReads(h map[int32]*bpf.Helper, ranges []mapmem.Range, read func(addr uint64, b []byte) error) {
	there := func(addr uint64) uint64 {
		for _, r := range ranges {
			if addr >= r.Base && addr < r.End {
				return r.End - addr
			}
		}
		return 0
	}
	for _, id := range proof.ReadHelpers {
		h[id].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
			b, ret := make([]byte, a[1]), uint64(0)
			switch {
			case a[1] == 0:
				return 0, nil
			case there(a[2]) < a[1]:
				ret = 1<<64 + helper.EFAULT
			default:
				if err := read(a[2], b); err != nil {
					return 0, err
				}
			}
			return ret, in.WriteMem(a[0], b)
		}
	}
	for _, id := range proof.ReadStrHelpers {
		h[id].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
			b := make([]byte, min(a[1]-1, there(a[2])))
			if len(b) > 0 {
				if err := read(a[2], b); err != nil {
					return 0, err
				}
			}
			end, ret, out := bytes.IndexByte(b, 0), uint64(1<<64+helper.EFAULT), make([]byte, a[1])
			switch {
			case there(a[2]) == 0:
			case end >= 0:
				ret = uint64(end + 1)
				copy(out, b[:end])
			case uint64(len(b)) == a[1]-1:
				ret = a[1]
				copy(out, b)
			}
			return ret, in.WriteMem(a[0], out)
		}
	}
}

// TestProbeRead: what programs read of the GPU's memory is what the interpreter reads, at
// any address around allocations, and no address makes the kernel fail.
func TestProbeRead(t *testing.T) {
	r := newRig(t, &PlanOptions{Programs: []string{"read_all"}}, testObject(t, "reads"))
	if !r.plan.ReadsMemory() {
		t.Fatal("the plan reads no memory")
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var ranges []mapmem.Range
	for _, size := range []int{1, 7, 8, 40, 1000, 64} {
		reg, err := r.machine.Alloc(uint64(size), "read")
		if err != nil {
			t.Fatal(err)
		}
		for i := range reg.Data {
			if reg.Data[i] = byte(rng.Uint32()); rng.IntN(9) == 0 {
				reg.Data[i] = 0
			}
		}
		ranges = append(ranges, mapmem.Range{Base: reg.Base, End: reg.Base + uint64(size)})
	}
	hidden := ranges[3] // is there, but nobody says so
	ranges = slices.Delete(ranges, 3, 4)
	if err := r.maps.SetReadable(r.machine, ranges); err != nil {
		t.Fatal(err)
	}
	const blocks, threads = 8, 256
	addrs := []uint64{0, 1, 1<<64 - 1, 1<<64 - 8, 1 << 63, hidden.Base, hidden.Base - 1, r.maps.Base}
	for len(addrs) < blocks*threads {
		a := ranges[rng.IntN(len(ranges))]
		switch rng.IntN(3) {
		case 0:
			addrs = append(addrs, a.Base+uint64(rng.IntN(32))-16)
		case 1:
			addrs = append(addrs, a.End+uint64(rng.IntN(40))-32)
		default:
			addrs = append(addrs, a.Base+rng.Uint64N(a.End-a.Base))
		}
	}
	from, out := r.maps.Find("addresses"), r.maps.Find("out")
	for i, a := range addrs {
		if err := r.maps.Update(r.machine, from, mapmem.IndexKey(uint64(i)), binary.LittleEndian.AppendUint64(nil, a)); err != nil {
			t.Fatal(err)
		}
	}
	r.runAdd(r.weave(vectorAdd).Text, blocks, threads)
	if n, err := r.maps.Readers(r.machine); n != 0 || err != nil {
		t.Errorf("%d readers are left, %v", n, err)
	}
	if now, _, _ := r.maps.ReadersOf(r.machine); now != 1 {
		t.Errorf("copy %d counts", now)
	}

	q := r.plan.Programs[0]
	helpers := q.Unit.Helpers()
	var thread *hostThread
	interpret(q.Unit, helpers, r.maps, &thread)
	probeReads(helpers, ranges, r.machine.ReadMem)
	env := &bpf.Env{Maps: (&proof.Unit{Object: q.Object}).EnvMaps(), Helpers: helpers}
	env.Context, _ = proof.ContextOf(q.Point.Kind, proof.CaptureText)
	written := map[uint64][]byte{} // by the interpreter
	in := &bpf.Interpreter{Env: env, Read: r.machine.ReadMem, Field: func(i int) uint64 { return thread.field(q.Fields[i]) }}
	in.Write = func(addr uint64, b []byte) error {
		written[addr] = slices.Clone(b)
		return nil
	}
	for _, d := range q.Unit.Defs {
		in.Maps = append(in.Maps, r.maps.Of(d).Base)
	}
	faults := 0
	for i := range uint32(blocks * threads) {
		thread = &hostThread{grid: [3]uint32{blocks, 1, 1}, dim: [3]uint32{threads, 1, 1}, block: [3]uint32{i / threads}, thread: [3]uint32{i % threads}}
		if res, err := in.Run(&bpf.Program{Name: q.Name, Insns: q.Insns}); err != nil || res.Early {
			t.Fatalf("thread %d: %+v, %v", i, res, err)
		}
		got := make([]byte, out.Def.ValueSize)
		at := out.Base + uint64(i)*out.Stride
		if err := r.machine.ReadMem(at, got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, written[at]) {
			t.Fatalf("address %#x:\n%x, the interpreter has\n%x", addrs[i], got, written[at])
		}
		if binary.LittleEndian.Uint64(got) != 0 {
			faults++
		}
	}
	if faults < 100 || faults > blocks*threads-100 {
		t.Errorf("%d of %d threads read nothing", faults, blocks*threads)
	}
}

// TestReadableWaits: the table is not written while threads may read by it, and a thread that has
// been counted as a reader of it keeps what it reads from going.
func TestReadableWaits(t *testing.T) {
	r := newRig(t, &PlanOptions{Programs: []string{"read_all"}}, testObject(t, "reads"))
	one := []mapmem.Range{{Base: 0x1000, End: 0x2000}}
	line := r.maps.Base + r.maps.Readable + mapmem.ReadersOff + 3*object.LineBytes // of multiprocessor 3
	set := func(copies [2]uint64) {
		t.Helper()
		b := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, copies[0]), copies[1])
		if err := r.machine.WriteMem(line, b); err != nil {
			t.Fatal(err)
		}
	}
	set([2]uint64{5, 0}) // by the copy that counts
	if err := r.maps.SetReadable(r.machine, one); err != nil {
		t.Fatal(err)
	}
	if n, err := r.maps.Readers(r.machine); n != 5 || err != nil {
		t.Errorf("%d readers, %v", n, err)
	}
	if err := r.maps.SetReadable(r.machine, nil); !errors.Is(err, mapmem.ErrReaders) {
		t.Errorf("written while threads read: %v", err)
	}
	set([2]uint64{0, 7}) // others read by the new one
	if n, err := r.maps.Readers(r.machine); n != 0 || err != nil {
		t.Errorf("%d readers, %v", n, err)
	}
	if err := r.maps.SetReadable(r.machine, nil); err != nil {
		t.Error(err)
	}
	if n, err := r.maps.Readers(r.machine); n != 7 || err != nil {
		t.Errorf("%d readers, %v", n, err)
	}
}

// TestProbeReadMost: 128 bytes at once, and none; of more there is no code.
func TestProbeReadMost(t *testing.T) {
	r := newRig(t, &PlanOptions{Programs: []string{"read_most"}}, testObject(t, "reads"))
	reg, err := r.machine.Alloc(256, "read")
	if err != nil {
		t.Fatal(err)
	}
	reg.Data[127+5] = 42
	err = errors.Join(r.maps.SetReadable(r.machine, []mapmem.Range{{Base: reg.Base, End: reg.Base + 256}}),
		r.maps.Update(r.machine, r.maps.Find("addresses"), mapmem.IndexKey(0), binary.LittleEndian.AppendUint64(nil, reg.Base+5)))
	if err != nil {
		t.Fatal(err)
	}
	r.runAdd(r.weave(vectorAdd).Text, 1, 1)
	v, err := r.maps.Lookup(r.machine, r.maps.Find("out"), mapmem.IndexKey(0))
	if err != nil || binary.LittleEndian.Uint64(v) != 0 || binary.LittleEndian.Uint64(v[8:]) != 0 || binary.LittleEndian.Uint64(v[48:]) != 42 {
		t.Errorf("%x, %v", v, err)
	}
}
