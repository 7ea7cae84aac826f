package nvattach

import (
	"bytes"
	"encoding/binary"
	"testing"

	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx/bpf"
)

// TestExtremes: the highest, the lowest, and all bits of what threads have are what is left, of
// numbers of all kinds; the interpreter, thread after thread, says the same.
func TestExtremes(t *testing.T) {
	const blocks, threads = 5, 77
	r := newRig(t, nil, testObject(t, "extremes"))
	x := r.maps.Find("kept")
	first := make([]byte, x.Def.ValueSize)
	binary.LittleEndian.PutUint64(first[8:], 1<<64-1) // the lowest of numbers without a sign
	binary.LittleEndian.PutUint32(first[36:], 1<<32-1)
	for i := range uint64(4) {
		if err := r.maps.Update(r.machine, x, mapmem.IndexKey(i), first); err != nil {
			t.Fatal(err)
		}
	}
	r.runAdd(r.weave(vectorAdd).Text, blocks, threads)

	q := r.plan.Programs[0]
	helpers := q.Unit.Helpers()
	mem := &mapmem.Buffer{Base: x.Base, Data: make([]byte, x.CopyBytes)}
	for i := range 4 {
		copy(mem.Data[uint64(i)*x.Stride:], first)
	}
	var thread *hostThread
	interpret(q.Unit, helpers, r.maps, &thread)
	env := &bpf.Env{Maps: (&proof.Unit{Object: q.Object}).EnvMaps(), Helpers: helpers}
	env.Context, _ = proof.ContextOf(q.Point.Kind, proof.CaptureText)
	in := &bpf.Interpreter{Env: env, Read: mem.ReadMem, Write: mem.WriteMem, Field: func(i int) uint64 { return thread.field(q.Fields[i]) }}
	for i := range uint32(blocks * threads) {
		thread = &hostThread{grid: [3]uint32{blocks, 1, 1}, dim: [3]uint32{threads, 1, 1}, block: [3]uint32{i / threads}, thread: [3]uint32{i % threads}}
		if res, err := in.Run(&bpf.Program{Name: q.Name, Insns: q.Insns}); err != nil || res.Early {
			t.Fatalf("thread %d: %+v, %v", i, res, err)
		}
	}

	for k := range uint64(4) {
		var want struct {
			Max, Min       uint64
			SMax, SMin     int64
			Max32, Min32   uint32
			SMax32, SMin32 int32
			Bits           uint64
		}
		want.Min, want.Min32 = 1<<64-1, 1<<32-1
		for i := k; i < blocks*threads; i += 4 {
			n := (i + 1) * 0x9e3779b97f4a7c15
			h := uint32(n >> 7)
			want.Max, want.Min, want.SMax, want.SMin = max(want.Max, n), min(want.Min, n), max(want.SMax, int64(n)), min(want.SMin, int64(n))
			want.Max32, want.Min32, want.SMax32, want.SMin32 = max(want.Max32, h), min(want.Min32, h), max(want.SMax32, int32(h)), min(want.SMin32, int32(h))
			want.Bits |= 1 << (n >> 58)
		}
		var truth bytes.Buffer
		if err := binary.Write(&truth, binary.LittleEndian, &want); err != nil {
			t.Fatal(err)
		}
		got, err := r.maps.Lookup(r.machine, x, mapmem.IndexKey(k))
		if err != nil || !bytes.Equal(got, truth.Bytes()) {
			t.Errorf("key %d: %x, want %x, %v", k, got, truth.Bytes(), err)
		}
		if said := mem.Data[k*x.Stride:][:x.Def.ValueSize]; !bytes.Equal(said, truth.Bytes()) {
			t.Errorf("key %d: the interpreter has %x, want %x", k, said, truth.Bytes())
		}
	}
}
