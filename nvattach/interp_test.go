package nvattach

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx/bpf"
)

// A hostThread is a thread of a grid whose programs the interpreter runs.
type hostThread struct {
	grid, dim, block, thread [3]uint32
	sm, warp, lane           uint32
	index                    uint64
	params                   []uint64
}

// funcMemory is the interpreter's memory as a Memory.
type funcMemory struct{ in *bpf.Interpreter }

func (f funcMemory) ReadMem(addr uint64, buf []byte) error  { return f.in.Read(addr, buf) }
func (f funcMemory) WriteMem(addr uint64, buf []byte) error { return f.in.Write(addr, buf) }

// interpret gives the unit's helpers a meaning on the host, for maps that are not
// kept as copies. Only what the tests' programs call is here.
func interpret(u *proof.Unit, h map[int32]*bpf.Helper, m *mapmem.Maps, t **hostThread) {
	number := func(id int32, f func(t *hostThread) uint64) {
		h[id].Interpret = func(*bpf.Interpreter, [5]uint64) (uint64, error) { return f(*t), nil }
	}
	number(14, func(*hostThread) uint64 { return 4711<<32 | 4711 })
	number(509, func(t *hostThread) uint64 { return uint64(t.sm) })
	number(510, func(t *hostThread) uint64 { return uint64(t.warp) })
	number(511, func(t *hostThread) uint64 { return uint64(t.lane) })
	number(185, func(t *hostThread) uint64 { return uint64(len(t.params)) })
	h[183].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		v, r := uint64(0), uint64(0)
		if p := (*t).params; a[1] < uint64(len(p)) {
			v = p[a[1]]
		} else {
			r = 1<<64 - 22
		}
		return r, in.WriteMem(a[2], binary.LittleEndian.AppendUint64(nil, v))
	}
	triple := func(id int32, f func(t *hostThread) [3]uint32) {
		h[id].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
			for i, v := range f(*t) {
				if err := in.WriteMem(a[i], binary.LittleEndian.AppendUint64(nil, uint64(v))); err != nil {
					return 0, err
				}
			}
			return 0, nil
		}
	}
	triple(503, func(t *hostThread) [3]uint32 { return t.block })
	triple(504, func(t *hostThread) [3]uint32 { return t.dim })
	triple(505, func(t *hostThread) [3]uint32 { return t.thread })
	mapOf := func(in *bpf.Interpreter, arg uint64) (*mapmem.Map, error) {
		i, ok := in.Map(arg)
		if !ok {
			return nil, errors.New("no map")
		}
		return m.Of(u.Defs[i]), nil
	}
	h[1].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		x, err := mapOf(in, a[0])
		if err != nil {
			return 0, err
		}
		key := make([]byte, x.Def.KeySize)
		if err := in.ReadMem(a[1], key); err != nil {
			return 0, err
		}
		return hostLookup(in, x, key, *t)
	}
	h[2].Interpret = func(in *bpf.Interpreter, a [5]uint64) (uint64, error) {
		x, err := mapOf(in, a[0])
		if err != nil {
			return 0, err
		}
		key, value := make([]byte, x.Def.KeySize), make([]byte, x.Def.ValueSize)
		if err := errors.Join(in.ReadMem(a[1], key), in.ReadMem(a[2], value)); err != nil {
			return 0, err
		}
		at, err := hostLookup(in, x, key, *t)
		switch {
		case err != nil:
			return 0, err
		case at != 0 && a[3] == helper.FlagNoExist:
			return 1<<64 - 17, nil
		case at != 0:
			return 0, in.Write(at, value)
		case x.Kind != object.LayoutHash:
			return 1<<64 - 7, nil
		case a[3] == helper.FlagExist:
			return 1<<64 - 2, nil
		}
		if err := m.HashUpdate(funcMemory{in}, x, key, make([]byte, len(value))); err != nil {
			return 1<<64 - 7, nil
		}
		at, err = hostLookup(in, x, key, *t)
		if err != nil {
			return 0, err
		}
		return 0, in.Write(at, value)
	}
}

// hostLookup returns the address of a value, 0 if there is none.
func hostLookup(in *bpf.Interpreter, x *mapmem.Map, key []byte, t *hostThread) (uint64, error) {
	if x.Kind == object.LayoutHash {
		slot, found, err := x.Find(funcMemory{in}, key)
		if err != nil || !found {
			return 0, nil
		}
		return x.ValueAddr(slot, int(t.sm)), nil
	}
	i := uint64(binary.LittleEndian.Uint32(key))
	switch {
	case i >= uint64(x.Def.MaxEntries):
		return 0, nil
	case x.Kind == object.LayoutThread:
		return x.Base + (i*x.Threads+t.index)*x.Stride, nil
	case x.Def.PerSM():
		return x.Base + uint64(t.sm)*x.CopyBytes + i*x.Stride, nil
	}
	return x.Base + i*x.Stride, nil
}

// field returns a context's field for a thread.
func (t *hostThread) field(id int) uint64 {
	if id >= proof.FieldPair {
		return t.field((id-proof.FieldPair)/proof.FieldPair) | t.field((id-proof.FieldPair)%proof.FieldPair)<<32
	}
	all := slices.Concat(t.grid[:], t.dim[:], t.block[:], t.thread[:], []uint32{t.sm, t.warp, t.lane, 0})
	if id < len(all) {
		return uint64(all[id])
	}
	return 0
}

// TestInterpreterAgrees runs the same programs in the interpreter, thread after
// thread, and woven into a kernel: the maps hold the same afterwards.
func TestInterpreterAgrees(t *testing.T) {
	for _, tt := range []struct {
		testObject string
		programs   []string
		maps       []string
	}{
		{"example_count", []string{"on_entry", "on_exit"}, []string{"threads"}},
		{"bpftime", []string{"cuda__counts", "cuda__threads"}, []string{"mapped", "by_pid", "host_shared", "host_thread", "per_thread"}},
		{"params", []string{"on_entry"}, []string{"per_sm_hash", ".bss"}},
	} {
		obj := testObject(t, tt.testObject)
		r := newRig(t, &PlanOptions{Programs: tt.programs}, obj)
		const blocks, threads = 5, 70
		r.runAdd(r.weave(vectorAdd).Text, blocks, threads)

		host, err := mapmem.NewMaps([]*object.Object{obj}, &mapmem.MapOptions{SMs: 4, Threads: 4096, RingBytes: 8 << 20, PrintBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		buf := &mapmem.Buffer{Base: 1 << 33, Data: make([]byte, host.Size())}
		if err := errors.Join(host.Place(buf.Base), host.Init(buf, 4711, 0)); err != nil {
			t.Fatal(err)
		}
		var thread *hostThread
		for _, q := range r.plan.Programs {
			helpers := q.Unit.Helpers()
			interpret(q.Unit, helpers, host, &thread)
			env := &bpf.Env{Maps: (&proof.Unit{Object: obj}).EnvMaps(), Helpers: helpers}
			env.Context, _ = proof.ContextOf(q.Point.Kind, proof.CaptureText)
			in := &bpf.Interpreter{Env: env, Read: buf.ReadMem, Write: buf.WriteMem, Field: func(i int) uint64 { return thread.field(q.Fields[i]) }}
			for _, d := range q.Unit.Defs {
				in.Maps = append(in.Maps, host.Of(d).Base)
			}
			for i := range uint32(blocks * threads) {
				b, th := i/threads, i%threads
				thread = &hostThread{
					grid: [3]uint32{blocks, 1, 1}, dim: [3]uint32{threads, 1, 1}, block: [3]uint32{b, 0, 0}, thread: [3]uint32{th, 0, 0},
					lane: th % 32, index: uint64(i), params: []uint64{r.variableOr("params", 0), r.variableOr("params", 1), 0},
				}
				if res, err := in.Run(&bpf.Program{Name: q.Name, Insns: q.Insns}); err != nil || res.Early {
					t.Fatalf("%s, thread %d: %+v, %v", q.Name, i, res, err)
				}
			}
		}
		for _, name := range tt.maps {
			want, err := host.Read(buf, host.Find(name))
			if err != nil {
				t.Fatal(err)
			}
			got := r.table(name)
			if len(got.Rows) != len(want.Rows) {
				t.Errorf("%s: %d rows, the interpreter has %d", name, len(got.Rows), len(want.Rows))
				continue
			}
			key := func(a, b mapmem.Row) int { return slices.Compare(a.Key, b.Key) }
			slices.SortFunc(got.Rows, key)
			slices.SortFunc(want.Rows, key)
			for i := range want.Rows {
				g, w := &got.Rows[i], &want.Rows[i]
				if !slices.Equal(g.Value, w.Value) || g.Total() != w.Total() && w.Value == nil {
					t.Errorf("%s[%x]: %x %d, the interpreter has %x %d", name, w.Key, g.Value, g.Total(), w.Value, w.Total())
				}
			}
		}
	}
}

// variableOr is variable, or 0 if there is none.
func (r *rig) variableOr(name string, index int) uint64 {
	for _, o := range r.plan.Objects {
		if slices.ContainsFunc(o.Vars, func(v object.Var) bool { return v.Name == name }) {
			return r.variable(name, index)
		}
	}
	return 0
}
