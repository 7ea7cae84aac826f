package emu

import (
	"fmt"
	"strings"

	"nvtrace/ptx"
)

// builtins are the functions without a body that kernels may call, from NVIDIA's
// CUDA C++ programming guide (device printf, malloc, assert).
var builtins = map[string]builtin{
	"vprintf":      builtinPrintf,
	"malloc":       builtinMalloc,
	"free":         builtinFree,
	"__assertfail": builtinAssert,
	"__assert_fail": func(w *warp, lane int, args []uint64) (uint64, error) {
		return builtinAssert(w, lane, args)
	},
}

// callBuiltin calls the function for one lane.
func (cs *callSite) callBuiltin(w *warp, lane int) {
	args := make([]uint64, len(cs.args))
	for k := range cs.args {
		args[k] = w.argValue(&cs.args[k], w.frame, lane)
	}
	v, err := cs.builtin(w, lane, args)
	if err != nil {
		w.fail(lane, err)
		return
	}
	for k := range cs.rets {
		w.setArg(&cs.rets[k], w.frame, lane, v)
	}
}

// maxString bounds the strings that device code may print.
const maxString = 64 << 10

// genericString reads a zero-terminated string at a generic address.
func (w *warp) genericString(addr uint64, lane int) (string, bool) {
	var b strings.Builder
	for range maxString {
		p := w.locate(ptx.SpaceGeneric, addr, 1, lane, false, cacheSlots-1)
		if p == nil {
			return "", false
		}
		if p[0] == 0 {
			break
		}
		b.WriteByte(p[0])
		addr++
	}
	return b.String(), true
}

// builtinPrintf is vprintf(format, arguments): the arguments lie one behind the
// other with their natural alignment, as C's default promotions leave them.
func builtinPrintf(w *warp, lane int, args []uint64) (uint64, error) {
	if len(args) != 2 {
		return 0, errf(ErrInvalid, "vprintf with %d arguments", len(args))
	}
	format, ok := w.genericString(args[0], lane)
	if !ok {
		return 0, w.err
	}
	p := printer{w: w, lane: lane, args: args[1]}
	text, n, err := p.format(format)
	if err != nil {
		return 0, err
	}
	m := w.wk.launch.machine
	if m.opts.Printf != nil {
		m.printfMu.Lock()
		_, err = m.opts.Printf.Write([]byte(text))
		m.printfMu.Unlock()
		if err != nil {
			return 0, fmt.Errorf("printf: %w", err)
		}
	}
	return uint64(n), nil
}

// A printer formats one printf call.
type printer struct {
	w    *warp
	lane int
	args uint64 // generic address of the next argument
	n    int
}

// arg reads the next argument of size bytes.
func (p *printer) arg(size uint64) (uint64, error) {
	p.args = (p.args + size - 1) &^ (size - 1)
	b := p.w.locate(ptx.SpaceGeneric, p.args, size, p.lane, false, cacheSlots-1)
	if b == nil {
		return 0, p.w.err
	}
	p.args += size
	p.n++
	return loadBytes(b, int(size)), nil
}

// format expands a printf format and counts its arguments.
func (p *printer) format(format string) (string, int, error) {
	var out strings.Builder
	for format != "" {
		i := strings.IndexByte(format, '%')
		if i < 0 {
			out.WriteString(format)
			break
		}
		out.WriteString(format[:i])
		spec, rest := cutSpec(format[i+1:])
		format = rest
		if err := p.spec(&out, spec); err != nil {
			return "", 0, err
		}
	}
	return out.String(), p.n, nil
}

// cutSpec splits a conversion such as "-08.3lld" from what follows.
func cutSpec(s string) (spec, rest string) {
	for i := range len(s) {
		if !strings.ContainsRune("-+ #0123456789.*hlLqjztI", rune(s[i])) {
			return s[:i+1], s[i+1:]
		}
	}
	return s, ""
}

// spec formats one conversion.
func (p *printer) spec(out *strings.Builder, spec string) error {
	if spec == "" {
		out.WriteByte('%')
		return nil
	}
	verb := spec[len(spec)-1]
	flags, long := "%", 0
	for i := range len(spec) - 1 {
		switch c := spec[i]; c {
		case 'l', 'q', 'j', 'z', 't':
			long++
		case 'h', 'L', 'I':
		case '*':
			v, err := p.arg(4)
			if err != nil {
				return err
			}
			flags += fmt.Sprint(max(-maxString, min(maxString, int32(v))))
		default:
			flags += string(c)
		}
	}
	return p.convert(out, flags, verb, long > 0)
}

// convert formats the argument of one conversion by Go's verb of the same
// meaning.
func (p *printer) convert(out *strings.Builder, flags string, verb byte, long bool) error {
	if len(flags) > 16 {
		return errf(ErrInvalid, "printf conversion %s%c", flags, verb)
	}
	size := uint64(4)
	if long {
		size = 8
	}
	switch verb {
	case '%':
		out.WriteByte('%')
		return nil
	case 's':
		return p.stringArg(out, flags)
	case 'c', 'd', 'i', 'u', 'o', 'x', 'X':
	case 'f', 'F', 'e', 'E', 'g', 'G', 'a', 'A', 'p':
		size = 8
	default:
		out.WriteString(flags + string(verb))
		return nil
	}
	v, err := p.arg(size)
	if err != nil {
		return err
	}
	switch verb {
	case 'c':
		out.WriteByte(byte(v))
	case 'd', 'i':
		fmt.Fprintf(out, flags+"d", sext(v, uint(size)*8))
	case 'u':
		fmt.Fprintf(out, flags+"d", v)
	case 'o', 'x', 'X':
		fmt.Fprintf(out, flags+string(verb), v)
	case 'p':
		fmt.Fprintf(out, "0x%x", v)
	case 'a', 'A':
		fmt.Fprintf(out, flags+string(verb+'x'-'a'), f64(v))
	default:
		formatFloat(out, flags, verb, f64(v))
	}
	return nil
}

// formatFloat prints like C: %g without a precision has six digits, infinities
// and NaNs are inf and nan.
func formatFloat(out *strings.Builder, flags string, verb byte, v float64) {
	if v != v || v-v != 0 {
		s := strings.ToLower(strings.TrimPrefix(fmt.Sprint(v), "+"))
		fmt.Fprintf(out, strings.TrimSuffix(strings.Split(flags, ".")[0], "0")+"s", s)
		return
	}
	if (verb == 'g' || verb == 'G') && !strings.Contains(flags, ".") {
		flags += ".6"
	}
	fmt.Fprintf(out, flags+string(verb), v)
}

func (p *printer) stringArg(out *strings.Builder, flags string) error {
	v, err := p.arg(8)
	if err != nil {
		return err
	}
	s, ok := p.w.genericString(v, p.lane)
	if !ok {
		return p.w.err
	}
	fmt.Fprintf(out, flags+"s", s)
	return nil
}

// builtinMalloc is the device's malloc; null when memory is short.
func builtinMalloc(w *warp, _ int, args []uint64) (uint64, error) {
	if len(args) != 1 {
		return 0, errf(ErrInvalid, "malloc with %d arguments", len(args))
	}
	r, err := w.wk.launch.machine.Alloc(args[0], "device malloc")
	if err != nil {
		return 0, nil
	}
	return r.Base, nil
}

func builtinFree(w *warp, _ int, args []uint64) (uint64, error) {
	if len(args) != 1 {
		return 0, errf(ErrInvalid, "free with %d arguments", len(args))
	}
	a, ok := w.wk.launch.machine.mem.(Allocator)
	if args[0] == 0 || !ok {
		return 0, nil
	}
	return 0, a.Free(args[0])
}

// builtinAssert is __assertfail(message, file, line, function, size).
func builtinAssert(w *warp, lane int, args []uint64) (uint64, error) {
	if len(args) < 4 {
		return 0, errf(ErrInvalid, "__assertfail with %d arguments", len(args))
	}
	msg, ok1 := w.genericString(args[0], lane)
	file, ok2 := w.genericString(args[1], lane)
	fn, ok3 := w.genericString(args[3], lane)
	if !ok1 || !ok2 || !ok3 {
		return 0, w.err
	}
	return 0, errf(ErrAssert, "%s at %s:%d in %s", msg, file, uint32(args[2]), fn)
}
