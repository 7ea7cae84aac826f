package script

import (
	"strconv"

	"github.com/cilium/ebpf"

	"nvtrace/nvattach/object"
)

// CompileWith compiles a program with parameters. Those that it does not have are an error.
func CompileWith(name, text string, params Params) (prog *Program, err error) {
	p := &parser{lexer: lexer{name: name, text: text}, params: params}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *Error:
			prog, err = nil, r
		default:
			panic(r)
		}
	}()
	if len(text) > maxSource {
		p.fail(span{}, "a program of %d bytes; %d are the most", len(text), maxSource)
	}
	prog = &Program{lexer: &p.lexer, places: make(map[string]string), start: params.Start}
	prog.probes = p.program()
	p.surplus()
	prog.maps = p.check(prog.probes)
	prog.warnings = p.endless(prog.probes)
	prog.strings, prog.maxKeys, prog.argUses, prog.stacksAt = p.strings, p.config.maxKeys, p.argUses, p.stacksAt
	prog.stacks, prog.native, prog.texts = p.stacks, p.native, p.texts
	prog.atIoctls, prog.ranges = p.atIoctls, p.ranges
	spec := &ebpf.CollectionSpec{Programs: make(map[string]*ebpf.ProgramSpec), Maps: make(map[string]*ebpf.MapSpec)}
	for _, b := range prog.probes {
		for i := range b.points {
			if !b.side.compiled() {
				continue
			}
			name := "probe" + strconv.Itoa(len(spec.Programs)+1)
			prog.places[name] = text[b.points[i].at:b.points[i].end]
			g := newGen(prog, b, &b.points[i])
			insns := g.program(name)
			spec.Programs[name] = &ebpf.ProgramSpec{Name: name, SectionName: b.points[i].section, Instructions: insns}
		}
	}
	if len(spec.Programs) == 0 {
		return prog, nil
	}
	prog.describeMaps(spec)
	prog.Object, err = object.New(name, spec)
	if err != nil {
		return nil, err // more than an object may have
	}
	prog.Object.Script = true
	return prog, nil
}

// Compile compiles a program; name is for messages, "-e" or that of a file. An error is
// an *[Error], or what [object.New] says of a program with more than an object may have. params are $1, $2 … of the program; those that are not given are 0.
func Compile(name, text string, params ...int64) (prog *Program, err error) {
	var given Params
	for _, n := range params {
		given.Positional = append(given.Positional, strconv.FormatInt(n, 10))
	}
	return CompileWith(name, text, given)
}
