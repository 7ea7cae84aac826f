package object

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"nvtrace/nvattach/atomics"
	"nvtrace/nvattach/helper"

	"github.com/cilium/ebpf/asm"
)

// What programs call that other code must be known for: a tail call's programs, a loop's
// callback, the cookie of where they run. It is known before a program is proven, since
// nobody changes an array of programs later: such calls become calls of functions, which
// every engine puts in place.

// maxLoops is BPF_MAX_LOOPS.
const maxLoops = 1 << 23

// expansion is a program that is being expanded.
type expansion struct {
	o      *Object
	cookie uint64
	have   map[string]bool // functions that are in out, or wait
	wait   []waiting
	out    asm.Instructions
	// values are the numbers that stand for callbacks and arrays of programs, which a program
	// that chooses one of several has in a register.
	values map[string]int64
}

// waiting is a function that is to be expanded, of a program that others have called, the
// latest last.
type waiting struct {
	insns asm.Instructions
	chain []string
}

// Expand returns the instructions of a program of the object with its tail calls, loops and
// cookies expanded. replaces says that the function returns what the program does.
func (o *Object) Expand(name string, insns asm.Instructions, cookie uint64, replaces bool) (asm.Instructions, error) {
	if !replaces && !slices.ContainsFunc(insns, func(in asm.Instruction) bool {
		return in.IsBuiltinCall() && (in.Constant == helper.TailCall || in.Constant == helper.Loop || in.Constant == helper.Cookie && cookie != 0)
	}) {
		return insns, nil
	}
	x := &expansion{o: o, cookie: cookie, have: make(map[string]bool), values: make(map[string]int64)}
	if replaces && len(insns) > 0 {
		insns = renamed(insns, name, "")
		x.made("ureplace", asm.Mov.Reg(asm.R6, asm.R1), asm.Call.Label(insns[0].Symbol()), asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Reg(asm.R2, asm.R0), asm.BuiltinFunc(helper.OverrideReturn).Call(), asm.Mov.Imm(asm.R0, 0), asm.Return())
	}
	x.add(insns, []string{name})
	for len(x.wait) > 0 {
		f := x.wait[0]
		x.wait = x.wait[1:]
		if err := x.function(f); err != nil {
			return nil, err
		}
	}
	return x.out, nil
}

// add adds the functions of a program that are not there yet.
func (x *expansion) add(insns asm.Instructions, chain []string) {
	for begin := 0; begin < len(insns); {
		end := begin + 1
		for end < len(insns) && insns[end].Symbol() == "" {
			end++
		}
		if name := insns[begin].Symbol(); name == "" || !x.have[name] {
			x.have[name] = true
			x.wait = append(x.wait, waiting{slices.Clone(insns[begin:end]), chain})
		}
		begin = end
	}
}

// made adds a function that no object has.
func (x *expansion) made(name string, insns ...asm.Instruction) asm.Instruction {
	if !x.have[name] {
		insns[0] = insns[0].WithSymbol(name)
		x.add(insns, nil)
	}
	return asm.Call.Label(name)
}

// function expands one function.
func (x *expansion) function(w waiting) error {
	f := w.insns
	slots := make([]int64, len(f)+1)
	for i := range f {
		slots[i+1] = slots[i] + int64(f[i].Width())
	}
	end, body := slots[len(f)], asm.Instructions(nil)
	replaced, paths := slices.Clone(f), atomics.NewFlow(f, nil)
	for i := range f {
		in := &f[i]
		with := func(by asm.Instruction) { replaced[i] = by.WithMetadata(keepSymbol(in, by)) }
		switch {
		case in.IsLoadOfFunctionPointer(), x.array(in) != nil:
			with(asm.LoadImm(in.Dst, x.value(in), asm.DWord))
		case !in.IsBuiltinCall():
		case in.Constant == helper.Cookie && x.cookie != 0:
			with(x.made("bpf_get_attach_cookie", asm.LoadImm(asm.R0, int64(x.cookie), asm.DWord), asm.Return()))
		case in.Constant == helper.Loop:
			names, err := x.choice(paths, i, (*asm.Instruction).IsLoadOfFunctionPointer)
			if err != nil {
				return fmt.Errorf("instruction %d: which function bpf_loop calls is not known: %w", i, err)
			}
			with(x.loops(names))
		case in.Constant == helper.TailCall:
			block, err := x.tails(paths, i, w.chain)
			if err != nil {
				return fmt.Errorf("instruction %d: %w", i, err)
			}
			there, back := end-slots[i+1], slots[i+1]-(end+int64(len(block))+2)
			if there != int64(int16(there)) || back != int64(int16(back)) {
				return fmt.Errorf("instruction %d: a tail call in too long a function", i)
			}
			jump := asm.Ja.Label("")
			jump.Offset = int16(there)
			with(jump)
			jump.Offset = int16(back)
			body = append(append(body, block...), asm.Mov.Imm(asm.R0, helper.EINVAL), jump)
			end += int64(len(block)) + 2
		}
	}
	x.out = append(append(x.out, replaced...), body...)
	return nil
}

// value is the number that stands for the callback or the array of programs that an
// instruction loads. None is 0: an address is never NULL.
func (x *expansion) value(in *asm.Instruction) int64 {
	what := in.Reference()
	if in.IsLoadOfFunctionPointer() {
		what = "function " + what
	}
	if x.values[what] == 0 {
		x.values[what] = int64(len(x.values)) + 1
	}
	return x.values[what]
}

// errOther: what a call is to use comes from where nobody can follow it.
var errOther = errors.New("it is stored, calculated, or an argument of the function; name it at the call, or choose between names by if and else in the same function")

// choice returns the instructions, one for each value, that may give the second argument of
// call i what it has there: the same one on every path, or one on each.
func (x *expansion) choice(f *atomics.Flow, i int, wanted func(*asm.Instruction) bool) (list []*asm.Instruction, err error) {
	found, ok := f.Sources(i, asm.R2)
	for _, k := range found {
		in := &f.Prog[k]
		ok = ok && wanted(in)
		if !slices.ContainsFunc(list, func(y *asm.Instruction) bool { return y.Reference() == in.Reference() }) {
			list = append(list, in)
		}
	}
	if !ok || len(list) == 0 {
		return nil, errOther
	}
	return list, nil
}

// keepSymbol is the metadata of an instruction that another takes the place of, with what
// that refers to.
func keepSymbol(was *asm.Instruction, by asm.Instruction) asm.Metadata {
	in := asm.Instruction{}.WithSymbol(was.Symbol())
	if s := was.Source(); s != nil {
		in = in.WithSource(s)
	}
	return in.WithReference(by.Reference()).Metadata
}

// array returns the array of programs that an instruction loads, nil if it does not.
func (x *expansion) array(in *asm.Instruction) *MapDef {
	if !in.IsLoadFromMap() {
		return nil
	}
	if d := x.o.Map(in.Reference()); d != nil && d.Type == MapProgArray {
		return d
	}
	return nil
}

// loops is a call of bpf_loop with the callback that register r2 stands for.
func (x *expansion) loops(callbacks []*asm.Instruction) asm.Instruction {
	if len(callbacks) == 1 {
		return x.loop(callbacks[0].Reference())
	}
	name, code := "bpf_loop", asm.Instructions(nil)
	for i, in := range callbacks {
		name += " " + in.Reference()
		if i+1 < len(callbacks) {
			code = append(code, Over(asm.JNE.Imm(asm.R2, int32(x.value(in)), ""), 2))
		}
		code = append(code, x.loop(in.Reference()), asm.Return())
	}
	return x.made(name, code...)
}

// Over has a jump go over so many slots.
func Over(in asm.Instruction, slots int) asm.Instruction {
	in.Offset = int16(slots)
	return in
}

// loop is a call of a function that does what bpf_loop(n, f, context, flags) does.
func (x *expansion) loop(f string) asm.Instruction {
	return x.made("bpf_loop "+f,
		asm.Mov.Reg32(asm.R6, asm.R1), asm.Mov.Reg(asm.R7, asm.R3), asm.Mov.Imm(asm.R8, 0),
		Over(asm.JNE.Imm(asm.R4, 0, ""), 10), Over(asm.JGT.Imm(asm.R6, maxLoops, ""), 11),
		Over(asm.JGE.Reg(asm.R8, asm.R6, ""), 6),
		asm.Mov.Reg(asm.R1, asm.R8), asm.Mov.Reg(asm.R2, asm.R7), asm.Call.Label(f), asm.Add.Imm(asm.R8, 1),
		Over(asm.JNE.Imm(asm.R0, 0, ""), 1), Over(asm.Ja.Label(""), -7),
		asm.Mov.Reg(asm.R0, asm.R8), asm.Return(),
		asm.Mov.Imm(asm.R0, helper.EINVAL), asm.Return(),
		asm.Mov.Imm(asm.R0, helper.E2BIG), asm.Return())
}

// constant returns the number that register r has at instruction i, on all paths, nil if that
// is not seen at once.
func constant(f *atomics.Flow, i int, r asm.Register) (only *int64) {
	found, ok := f.Sources(i, r)
	for _, k := range found {
		in := &f.Prog[k]
		if !ok || !in.OpCode.Class().IsALU() || in.OpCode.ALUOp() != asm.Mov || in.OpCode.Source() != asm.ImmSource || only != nil && *only != in.Constant {
			return nil
		}
		only = &in.Constant
	}
	return only
}

// tails is what call i, of bpf_tail_call, does: with the array that register r2 stands for.
func (x *expansion) tails(f *atomics.Flow, i int, chain []string) (list asm.Instructions, err error) {
	arrays, err := x.choice(f, i, func(in *asm.Instruction) bool { return x.array(in) != nil })
	if err != nil {
		return nil, fmt.Errorf("which map bpf_tail_call takes a program from is not known: %w", err)
	}
	for _, in := range arrays {
		block, err := x.tail(x.array(in), chain, constant(f, i, asm.R3))
		if err != nil {
			return nil, err
		}
		if len(arrays) > 1 {
			list = append(list, Over(asm.JNE.Imm(asm.R2, int32(x.value(in)), ""), len(block)))
		}
		list = append(list, block...)
	}
	return list, nil
}

// tail is what runs the program that is the third argument's in an array, and ends; it goes
// on behind if there is none. The first argument is the context. A program that runs already,
// in the chain, is none: the kernel ends such circles at some number of calls, here it is the
// first.
func (x *expansion) tail(d *MapDef, chain []string, only *int64) (list asm.Instructions, err error) {
	for _, key := range slices.Sorted(maps.Keys(d.Programs)) {
		name := d.Programs[key]
		if slices.Contains(chain, name) || only != nil && uint32(*only) != key {
			continue
		}
		code := x.o.code(name)
		if len(code) == 0 {
			return nil, fmt.Errorf("map %s: there is no program %s", d.Name, name)
		}
		insns := renamed(code, name, "@"+strings.Join(chain, "@"))
		x.add(insns, append(slices.Clip(chain), name))
		if len(x.wait) > mostExpanded {
			return nil, fmt.Errorf("map %s: its programs call one another in more than %d ways", d.Name, mostExpanded)
		}
		list = append(list, Over(asm.JNE.Imm32(asm.R3, int32(key), ""), 2), asm.Call.Label(insns[0].Symbol()), asm.Return())
	}
	return list, nil
}

// mostExpanded bounds functions that wait.
const mostExpanded = 4096

// renamed returns a program's instructions with other names of functions.
func renamed(code asm.Instructions, name, suffix string) asm.Instructions {
	code = slices.Clone(code)
	for i := range code {
		in := &code[i]
		if i == 0 && in.Symbol() == "" {
			*in = in.WithSymbol(name)
		}
		if in.IsFunctionReference() {
			*in = in.WithReference(in.Reference() + suffix)
		}
		if s := in.Symbol(); s != "" {
			*in = in.WithSymbol(s + suffix)
		}
	}
	return code
}

// code returns the instructions of a program of the object, nil if there is none.
func (o *Object) code(name string) asm.Instructions {
	for _, q := range o.Programs {
		if q.Name == name {
			return q.Insns
		}
	}
	for _, q := range slices.Concat(o.Host, o.loose) {
		if q.Name == name {
			return q.Insns
		}
	}
	return nil
}

// SetNamed does what --map asks for, if it is about an array of programs or of maps: it comes before
// NewPlan. done is false if it is not.
func SetNamed(objs []*Object, s Setting) (done bool, err error) {
	for _, o := range objs {
		d := o.Map(s.Name)
		if d == nil || !d.named() {
			continue
		}
		key, err := strconv.ParseUint(s.Key, 0, 32)
		if err != nil || key >= uint64(d.MaxEntries) {
			return true, Markf(ErrSetting, "%s: want an index below %d", s.Text, d.MaxEntries)
		}
		switch {
		case d.Type == MapArrayOfMaps:
			if err := o.putMap(d, uint32(key), s.Value); err != nil {
				return true, Markf(ErrSetting, "%s: %w", s.Text, err)
			}
		case o.code(s.Value) == nil:
			return true, Markf(ErrSetting, "%s: %s has no program %s", s.Text, o.Name, s.Value)
		default:
			d.put(uint32(key), s.Value)
		}
		done = true
	}
	return done, nil
}
