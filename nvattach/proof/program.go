package proof

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"

	"nvtrace/nvattach/atomics"
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/object"
	"nvtrace/ptx/bpf"
)

// A Program is a program with what was found out about it.
type Program struct {
	*object.Program
	Report bpf.Report
	// Increments is how many "*p += n" became atomic; see PlanOptions.Racy.
	Increments int

	Verified *bpf.Verified
	Fields   []int                   // numbers of the context's fields
	recounts map[int]atomics.Recount // calls whose value is counted for them
	inserts  map[int]bool            // calls that only insert; see insertions
	Unit     *Unit
	Plain    *Program // the program without places for keys, where this one has some
	Counter  int      // number of the program
	FirstEnd int      // number of the first counter of runs that were ended early
}

// CaptureText is how much of an instruction's text a program of KindCapture sees.
const CaptureText = 1024

// EnvMaps describes the object's maps to the compiler.
func (u *Unit) EnvMaps() []bpf.Map {
	var list []bpf.Map
	for _, d := range u.Object.Maps {
		if !d.Supported() {
			continue
		}
		if d.Inner != nil { // behind it is what its values are like, which no object has
			u.Defs = append(u.Defs, d, d.Inner)
			list = append(list, bpf.Map{Name: d.Name, KeySize: d.KeySize, ValueSize: d.ValueSize, MaxEntries: d.MaxEntries, Inner: len(list) + 2}, env(d.Inner))
			continue
		}
		list = append(list, env(d))
		u.Defs = append(u.Defs, d)
	}
	return list
}

// env is what programs need to know of a map whose values are no maps.
func env(m *object.MapDef) bpf.Map {
	e := bpf.Map{Thread: m.Thread, Block: m.PerBlock(), Each: m.PerSM(), Name: m.Name, KeySize: m.KeyBytes(), ValueSize: m.ValueSize, MaxEntries: m.MaxEntries, Direct: m.Data, ReadOnly: m.ReadOnly}
	if m.Data && m.ReadOnly {
		e.Contents = m.Initial
	}
	return e
}

// Verify proves one program safe.
func (u *Unit) Verify(prog *object.Program, env *bpf.Env, racy bool) (*Program, error) {
	for i := range prog.Insns {
		in := &prog.Insns[i]
		if !in.IsLoadFromMap() {
			continue
		}
		d := u.Object.Map(in.Reference())
		if d != nil && (!d.Supported() || d.HostOnly()) {
			return nil, fmt.Errorf("program %s: map %s has type %s, which can't be had on a GPU; there are hash, array, percpu_hash, percpu_array, lru_hash, lru_percpu_hash, ringbuf, perf_event_array, %s and bpftime's", prog.Name, d.Name, d.Type, object.MapBlockArray)
		}
		if d != nil {
			if err := d.CheckPlace(prog); err != nil {
				return nil, err
			}
		}
	}
	q, err := u.prepare(prog, env, racy, true)
	if err == nil && !q.counted() {
		q, err = u.prepare(prog, env, racy, false)
	}
	return q, err
}

// counted reports whether it is known what is counted for calls that want it.
func (q *Program) counted() bool {
	for _, r := range q.recounts {
		if _, _, ok := q.counts(r); !ok {
			return false
		}
	}
	return true
}

// counts returns the map and the index that a recount is of.
func (q *Program) counts(r atomics.Recount) (d *object.MapDef, key uint32, ok bool) {
	for i, d := range q.Unit.Defs {
		for _, c := range q.Report.Maps[i].Calls {
			if d.PerBlock() || d.Name != r.Name || c.Helper != helper.MapLookup || c.Info.Insn != r.Lookup || len(c.Info.Bytes[1]) != 4 {
				continue
			}
			key := binary.LittleEndian.Uint32(c.Info.Bytes[1])
			return d, key, key < d.MaxEntries
		}
	}
	return nil, 0, false
}

// Strange reports whether an instruction names a register that there is not. It is the
// proof that refuses it.
func Strange(in asm.Instruction) bool { return in.Dst > asm.RFP || in.Src > asm.RFP }

// prepare proves one program safe; later is that of atomicUpdates.
func (u *Unit) prepare(prog *object.Program, env *bpf.Env, racy, later bool) (*Program, error) {
	q := &Program{Program: prog, Unit: u}
	env.Context, q.Fields = ContextOf(prog.Point.Kind, CaptureText)
	env.Narrow = !racy
	rewrite := !racy && !slices.ContainsFunc(prog.Insns, Strange)
	err := q.prove(env, rewrite, later)
	if err != nil && rewrite {
		// It is refused for what the program says itself.
		q.Increments, q.recounts, q.inserts = 0, nil, nil
		err = q.prove(env, false, later)
	}
	if err != nil {
		return nil, err
	}
	q.Report = *q.Verified.Report()
	return q, nil
}

// prove verifies a program, rewritten if asked for so that threads lose nothing of what
// others change. Compilers let several paths share code in which a register points to
// different things, a map's value and the stack for instance. The verifier, which looks at
// all paths together, refuses that; so the code that is shared is given to each path on
// its own, a few times, as is an insertion's call that other paths share.
func (q *Program) prove(env *bpf.Env, rewrite, later bool) (first error) {
	insns, skip, splits := q.Insns, map[int]bool{}, 0
	split := func(at int) (ok bool) {
		if splits++; splits <= atomics.MaxSplits {
			insns, ok = atomics.Split(insns, at)
		}
		return ok
	}
	for {
		ready, stores := insns, []int(nil)
		if rewrite {
			var shared []int
			ready, stores, shared = q.rewrite(insns, env, skip, later)
			if len(shared) > 0 && split(shared[0]) {
				continue
			}
		}
		var err error
		if q.Verified, err = bpf.Verify(&bpf.Program{Name: q.Name, Insns: ready}, env); err == nil {
			return nil
		}
		why, refused := errors.AsType[*bpf.RefusedError](err)
		if refused && slices.Contains(stores, why.Insn) && len(skip) < MostSkipped {
			// What may not be atomic, at an address that is not aligned for instance,
			// stays as it was.
			skip[why.Insn] = true
			continue
		}
		if first == nil {
			first = err // about the program as it is in the file
		}
		if !refused || why.Insn < 0 || !split(why.Insn) {
			return first
		}
	}
}

// rewrite returns the program with as many instructions, in which what is changed in
// memory that threads share is changed atomically where that can be done; at which stores,
// and the calls of insertions that other paths share.
func (q *Program) rewrite(insns asm.Instructions, env *bpf.Env, skip map[int]bool, later bool) (out asm.Instructions, stores, shared []int) {
	o := q.Unit.Object
	out, stores = atomics.Increments(insns, o.AtomicMap, env.Helpers, skip)
	out, q.Increments, q.recounts = atomics.Updates(out, o.AtomicMap, env.Helpers, later)
	out = atomics.WithoutCopies(out, o.AtomicMap, env.Helpers)
	q.Increments += len(stores)
	q.inserts, shared = atomics.Insertions(atomics.NewFlow(out, env.Helpers), o.AtomicMap)
	return out, stores, shared
}

// MostSkipped bounds how often a program is proven again for increments that may not be
// atomic.
const MostSkipped = 32
