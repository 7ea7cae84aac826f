package proof

import (
	"fmt"
	"strings"

	"nvtrace/nvattach/emit"
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// formatted refuses texts that are too long for a record of bpf_printk.
func (u *Unit) formatted(c *bpf.CallInfo) error {
	if c.Size[0] > mapmem.MaxFormat {
		return fmt.Errorf("a format of %d bytes; %d is the most", c.Size[0], mapmem.MaxFormat)
	}
	return nil
}

// arguments counts the conversions of a format that take an argument.
func arguments(format string) int {
	n := 0
	for i := 0; i < len(format); {
		if format[i] != '%' {
			i++
			continue
		}
		c, size := mapmem.ParseConversion(format[i:])
		if c.Verb != '%' && c.Verb != 0 {
			n++
		}
		i += size
	}
	return n
}

// A format is that of a call of bpf_printk: a text that is known, with its number,
// or bytes that the record takes along.
type format struct {
	id   uint32
	args int // conversions with an argument, all that there may be if the text is not known
	text emit.BytesArg
	size uint64
}

// format looks at argument 0, a text. most is the number of arguments there may be.
func (u *Unit) format(k *emit.Code, c *bpf.Call, most int) (format, error) {
	v := &c.Args[0]
	if v.Size() > mapmem.MaxFormat {
		return format{}, fmt.Errorf("a format of %d bytes; %d is the most", v.Size(), mapmem.MaxFormat)
	}
	b, ok := v.Bytes()
	if !ok {
		// Compilers put the texts of two calls into one place.
		return format{args: most, text: argBytes{k, v}, size: uint64(v.Size())}, nil
	}
	s, _, _ := strings.Cut(string(b), "\x00")
	return format{id: u.Formats.Number(s), args: min(arguments(s), most), size: uint64(len(s))}, nil
}

// Most arguments of bpf_trace_printk.
const printkArgs = 3

func (u *Unit) printk(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k := u.Code(g)
	f, err := u.format(k, c, printkArgs)
	if err != nil {
		return ptx.Arg{}, err
	}
	var args []string
	for i := range f.args {
		args = append(args, c.Args[2+i].Reg().String())
	}
	return Register64(k.Print(f.id, args, f.text, f.size, false, int64(f.size))), nil
}

func (u *Unit) vprintk(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k := u.Code(g)
	size, _ := c.Args[3].Const()
	if size%8 != 0 || size/8 > mapmem.MaxPrintArgs {
		return ptx.Imm(helper.EINVAL), nil
	}
	f, err := u.format(k, c, int(size/8))
	if err != nil {
		return ptx.Arg{}, err
	}
	var args []string
	for i := range f.args {
		args = append(args, c.Args[2].Load(8*i, 8).String())
	}
	return Register64(k.Print(f.id, args, f.text, f.size, false, int64(f.size))), nil
}

func (u *Unit) puts(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	b, ok := c.Args[0].Bytes()
	if !ok || len(b) > mapmem.MaxFormat {
		return ptx.Arg{}, fmt.Errorf("the text must be a constant of at most %d bytes", mapmem.MaxFormat)
	}
	return Register64(u.Code(g).Print(u.Formats.Number(string(b)), nil, nil, 0, true, int64(len(b)))), nil
}
