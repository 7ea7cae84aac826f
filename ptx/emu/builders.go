package emu

import (
	"maps"

	"nvtrace/ptx"
)

// New returns a machine. Nil options are the defaults.
func New(o *Options) *Machine {
	m := &Machine{builders: newBuilders(), shared: map[int][]byte{}}
	if o != nil {
		m.opts = *o
	}
	m.opts.Device.fill()
	m.dev = m.opts.Device
	if m.opts.Memory == nil {
		m.opts.Memory = newHeap(m.dev.TotalMemory)
	}
	m.mem = m.opts.Memory
	if m.opts.StackLimit == 0 {
		m.opts.StackLimit = 1 << 20
	}
	if m.opts.MaxDepth == 0 {
		m.opts.MaxDepth = 1024
	}
	return m
}

// Missing says what keeps the machine from executing the kernels of f, or its functions
// if it has none: a declaration that has no place in it, or every instruction that it lacks, each
// once. nil if nothing does.
func Missing(f *ptx.File) []string {
	mod, err := New(nil).Load(f)
	if err != nil {
		return []string{err.Error()}
	}
	defer mod.Unload()
	var list []string
	seen := map[string]bool{}
	add := func(err error) {
		if text := err.Error(); !seen[text] { // kernels share functions
			seen[text] = true
			list = append(list, text)
		}
	}
	note := func(k *Kernel, err error) {
		if err != nil {
			add(err)
			return
		}
		for _, err := range k.missing() {
			add(err)
		}
	}
	kernels := mod.Kernels()
	for _, name := range kernels {
		note(mod.Kernel(name))
	}
	for _, u := range mod.units {
		for i := range u.file.Funcs {
			if fn := &u.file.Funcs[i]; len(kernels) == 0 && fn.HasBody() {
				p, err := compileProgram(mod, u, fn)
				note(&Kernel{prog: p}, err)
			}
		}
	}
	return list
}

// newBuilders maps each opcode to what compiles it. The entries are grouped by
// family, each family in the file of its name.
func newBuilders() map[string]builder {
	all := map[string]builder{}
	for _, f := range []func() map[string]builder{
		arithBuilders, bitBuilders, floatBuilders, compareBuilders, moveBuilders, convertBuilders,
		memoryBuilders, atomicBuilders, flowBuilders, syncBuilders, barrierBuilders, asyncBuilders, videoBuilders, matrixBuilders,
	} {
		maps.Copy(all, f())
	}
	return all
}

func arithBuilders() map[string]builder {
	return map[string]builder{
		"add": intOrFloat(buildIntAdd(true), floatArith2("add", floatOp.add)),
		"sub": intOrFloat(buildIntAdd(false), floatArith2("sub", floatOp.sub)),
		"mul": intOrFloat(buildIntMul, floatArith2("mul", floatOp.mul)),
		"mad": intOrFloat(buildIntMad, buildFma),
		"div": intOrFloat(int2(intType.div), buildFloatDiv),
		"rem": int2(intType.rem),
		"min": intOrFloat(int2relu(intType.min), buildMinmax(false)),
		"max": intOrFloat(int2relu(intType.max), buildMinmax(true)),
		"abs": intOrFloat(int1(intType.abs), floatSign(floatOp.absolute)),
		"neg": intOrFloat(int1(intType.neg), floatSign(floatOp.neg)),
		"sad": func(x *insn) error {
			t, it, err := x.intType()
			if err != nil {
				return err
			}
			return x.op3(t, t, it.sad, nil)
		},
		"mul24": buildMul24, "mad24": buildMad24,
		"dp4a": buildDot, "dp2a": buildDot,
		"addc": buildCarry(true), "subc": buildCarry(false), "madc": buildIntMad,
	}
}

// intOrFloat emits an opcode that exists for both kinds of types.
func intOrFloat(ints, floats builder) builder {
	return func(x *insn) error {
		if x.lastType().Float() {
			return floats(x)
		}
		return ints(x)
	}
}
