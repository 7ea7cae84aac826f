package atomics

import (
	"slices"

	"github.com/cilium/ebpf/asm"
)

// Sources returns the instructions that give register r what it holds at instruction i, on
// any path that leads there, ascending. Copies from register to register are followed. ok is
// false if a path from the function's beginning gives it nothing.
func (f *Flow) Sources(i int, r asm.Register) (list []int, ok bool) {
	return f.trace(i, r, func(in *asm.Instruction) bool {
		op := in.OpCode
		return op.Class() == asm.ALU64Class && op.ALUOp() == asm.Mov && op.Source() == asm.RegSource && in.Offset == 0
	})
}

// objects is sources of a pointer: additions to it are followed, too.
func (f *Flow) objects(i int, r asm.Register) (list []int, ok bool) {
	return f.trace(i, r, func(in *asm.Instruction) bool {
		op := in.OpCode
		if op.Class() != asm.ALU64Class {
			return false
		}
		switch op.ALUOp() {
		case asm.Mov:
			return op.Source() == asm.RegSource && in.Offset == 0
		case asm.Add, asm.Sub:
			return true
		}
		return false
	})
}

// trace walks back from instruction i on all paths, through what follow says.
func (f *Flow) trace(i int, r asm.Register, follow func(*asm.Instruction) bool) (list []int, ok bool) {
	type point struct {
		at int
		r  asm.Register
	}
	before := f.before()
	seen := map[point]bool{}
	for todo := []point{{i, r}}; len(todo) > 0; {
		p := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[p] {
			continue
		}
		seen[p] = true
		if len(before[p.at]) == 0 || p.at == 0 || f.Prog[p.at].Symbol() != "" {
			return nil, false
		}
		for _, k := range before[p.at] {
			in := &f.Prog[k]
			switch {
			case !f.sets(in, p.r):
				todo = append(todo, point{k, p.r})
			case follow(in) && in.OpCode.ALUOp() == asm.Mov:
				todo = append(todo, point{k, in.Src})
			case follow(in):
				todo = append(todo, point{k, p.r})
			case !slices.Contains(list, k):
				list = append(list, k)
			}
		}
	}
	slices.Sort(list)
	return list, true
}

// sets reports whether an instruction may change a register.
func (f *Flow) sets(in *asm.Instruction, r asm.Register) bool {
	class := in.OpCode.Class()
	if class == asm.StXClass && in.OpCode.Mode() == asm.AtomicMode {
		return r == in.Src || r == asm.R0 || r == in.Dst && in.OpCode.AtomicOp() == loadAcquire
	}
	_, gone := f.touches(in, r)
	return gone
}

// loadAcquire is an atomic load, which package asm has no name for (Linux: BPF_LOAD_ACQ).
const loadAcquire asm.AtomicOp = 0x0001_0000

// before returns which instructions may come before each.
func (f *Flow) before() [][]int {
	if f.prev == nil {
		f.prev = make([][]int, len(f.Prog))
		for i, list := range f.next {
			for _, to := range list {
				f.prev[to] = append(f.prev[to], i)
			}
		}
	}
	return f.prev
}
