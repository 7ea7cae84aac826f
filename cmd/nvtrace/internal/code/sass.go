package code

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/fatbin"
	"nvtrace/fatbin/sass"
	"nvtrace/traces/glob"
)

const sassUsage = `usage: nvtrace sass dis [flags] FILE...
           print machine code with live registers and scoreboards
       nvtrace sass sites [flags] FILE...
           count the instructions that a probe can take the place of
       nvtrace sass check [flags] FILE...
           look for instructions that don't wait for what they depend on
FILE is a cubin, a fat binary, or an executable or library that holds some.
nvtrace sass dis -h, sites -h and check -h list the flags.
`

// SassVerb prints and checks machine code, and lists where probes can be.
func SassVerb(e *cli.Env, args, command []string) int {
	if len(args) == 0 {
		fmt.Fprint(e.Stderr, sassUsage)
		return cli.ExitUsage
	}
	if args[0] == "-h" || args[0] == "--help" {
		fmt.Fprint(e.Stdout, sassUsage)
		return cli.ExitOK
	}
	if command != nil {
		return e.Fail(cli.ExitUsage, "sass runs no command; leave -- out")
	}
	s := sassRun{e: e, verb: args[0]}
	var show func(*sassCode) error
	switch args[0] {
	case "dis":
		show = s.dis
	case "sites":
		show = s.sites
	case "check":
		show = s.check
	default:
		return e.Fail(cli.ExitUsage, "sass %s: want dis, sites or check", args[0])
	}
	return s.run(args[1:], show)
}

type sassRun struct {
	e      *cli.Env
	verb   string
	ff     FatbinFlags
	kernel string
	all    bool
	out    *bufio.Writer

	code, words, unknown, sitesFound, findings int
	why                                        map[sass.Reason]int
	foreign                                    map[sass.Arch]int // functions of architectures that are not known
}

// sassCode is a section of machine code of a file.
type sassCode struct {
	file    string
	cubin   *fatbin.Cubin
	section string
	names   map[uint32]string // by offset
	listed  []uint32
	regs    int
	a       *sass.Analysis
}

func (s *sassRun) run(args []string, show func(*sassCode) error) int {
	fs := cli.NewFlagSet(s.e, "sass "+s.verb, "[flags] FILE...")
	s.ff.register(fs)
	fs.StringVar(&s.kernel, "kernel", "*", "only kernels and functions whose mangled name matches `GLOB`")
	fs.BoolVar(&s.all, "all", false, "print each instruction (sites), go on after 20 findings in a function (check)")
	if status, ok := cli.Parse(fs, args); !ok {
		return status
	}
	if err := s.e.Inputs(fs.Args()); err != nil {
		return s.e.Fail(cli.ExitFailed, "%v", err)
	}
	sel, err := s.ff.filter()
	if err != nil {
		return s.e.Fail(cli.ExitUsage, "%v", err)
	}
	if fs.NArg() == 0 {
		return s.e.Fail(cli.ExitUsage, "sass %s wants a file: nvtrace sass %s FILE, a cubin, or an executable or library with GPU code", s.verb, s.verb)
	}
	s.out = bufio.NewWriter(s.e.Stdout)
	s.why, s.foreign = make(map[sass.Reason]int), make(map[sass.Arch]int)
	status := cli.ExitOK
	for _, name := range fs.Args() {
		if err := s.file(name, sel, show); err != nil {
			s.e.Notice("%v", err)
			status = cli.ExitFailed
		}
	}
	if s.verb == "dis" && s.code == 0 && status == cli.ExitOK {
		s.e.Notice("no machine code that matches is in %s; what a driver compiles of PTX is in no file", strings.Join(fs.Args(), ", "))
	}
	s.total()
	if err := s.out.Flush(); err != nil {
		return s.e.Fail(cli.ExitFailed, "%v", err)
	}
	if s.verb == "check" && s.findings > 0 {
		status = cli.ExitFailed
	}
	return status
}

func (s *sassRun) file(name string, sel EntryFilter, show func(*sassCode) error) error {
	f, o, err := s.ff.open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := KnownFormat(f, o.Everywhere, searchAny); err != nil {
		return fmt.Errorf("%s: %w", f.Name(), err)
	}
	return f.Guard(func() error {
		x := fatbin.NewInflater(o)
		defer x.Close()
		var failed []error
		for c, err := range f.Containers() {
			if err != nil {
				failed = append(failed, err)
			}
			if c == nil {
				continue
			}
			for i := range c.Entries {
				en := &c.Entries[i]
				if en.Kind() != fatbin.KindELF || !sel.match(en) {
					continue
				}
				data, err := x.Data(en)
				if err != nil {
					failed = append(failed, fmt.Errorf("%s: %w", name, err))
					continue
				}
				if err := s.cubin(name, data, show); err != nil {
					failed = append(failed, fmt.Errorf("%s: %w", name, err))
				}
			}
		}
		return errors.Join(failed...)
	})
}

// offsetLists are the attributes that hold offsets of instructions.
var offsetLists = []fatbin.AttrID{0x1d, 0x25, 0x27, 0x28, 0x31, 0x39, 0x46, 0x47, 0x57, 0x59}

func (s *sassRun) cubin(file string, data []byte, show func(*sassCode) error) error {
	c, err := fatbin.ParseCubin(data)
	if err != nil {
		return err
	}
	codes := make(map[uint32]*sassCode)
	matched := make(map[uint32]bool)
	add := func(section uint32, name string, offset uint64) *sassCode {
		k := codes[section]
		if k == nil {
			k = &sassCode{file: file, cubin: c, names: make(map[uint32]string)}
			codes[section] = k
		}
		k.names[uint32(offset)] = name
		if glob.Match(s.kernel, name) {
			matched[section] = true
		}
		return k
	}
	for i := range c.Kernels {
		k := &c.Kernels[i]
		code := add(k.Section, k.Name, k.Offset)
		code.regs = max(code.regs, k.Registers)
		for j := range k.Attrs {
			if slices.Contains(offsetLists, k.Attrs[j].ID) {
				code.listed = append(code.listed, k.Attrs[j].Words()...)
			}
		}
	}
	for i := range c.Functions {
		add(c.Functions[i].Section, c.Functions[i].Name, c.Functions[i].Offset)
	}
	for i, sec := range c.Sections {
		k := codes[uint32(i)]
		if k == nil || !matched[uint32(i)] || sec.Offset > uint64(len(data)) || sec.Size > uint64(len(data))-sec.Offset {
			continue
		}
		k.section = sec.Name
		f := sass.Func{Arch: sass.Arch(c.Arch.SM), Name: sec.Name, Code: sass.Words(data[sec.Offset:][:sec.Size]), Registers: k.regs, Callable: c.Relocatable || k.regs == 0}
		for off := range k.names {
			f.Entries = append(f.Entries, off)
		}
		slices.Sort(f.Entries)
		if k.a, err = sass.Analyze(&f); err != nil {
			return err
		}
		if k.a.Foreign() && s.verb != "dis" {
			s.foreign[f.Arch]++
			continue
		}
		s.code++
		s.words += len(f.Code)
		s.unknown += k.a.Unknown
		if err := show(k); err != nil {
			return err
		}
	}
	return nil
}

func (s *sassRun) head(k *sassCode) {
	fmt.Fprintf(s.out, "%s %s: %d instructions", k.a.Func.Arch, strings.TrimPrefix(k.section, ".text."), len(k.a.Insts))
	if k.regs > 0 {
		fmt.Fprintf(s.out, ", %d registers", k.regs)
	}
	if k.a.Unknown > 0 {
		fmt.Fprintf(s.out, ", %d unknown", k.a.Unknown)
	}
	fmt.Fprintln(s.out)
}

func (s *sassRun) dis(k *sassCode) error {
	s.head(k)
	a := k.a
	var b []byte
	for i := range a.Insts {
		if name, ok := k.names[uint32(i*sass.WordSize)]; ok {
			fmt.Fprintf(s.out, "%s:\n", name)
		}
		if blk := &a.Blocks[a.BlockOf[i]]; blk.Start == i && i > 0 {
			fmt.Fprintln(s.out)
		}
		b = AppendInst(append(b[:0], ' '), a, i)
		if _, err := s.out.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// AppendInst appends an instruction's line: where it is, its control half, its text, what is
// live before it and what is on its way.
func AppendInst(b []byte, a *sass.Analysis, i int) []byte {
	in := &a.Insts[i]
	b = fmt.Appendf(b, " %05x  %s  ", i*sass.WordSize, in.Word.Control())
	at := len(b)
	b = in.AppendText(b, i*sass.WordSize)
	for len(b) < at+44 {
		b = append(b, ' ')
	}
	b = append(b, "  live "...)
	b = a.LiveIn[i].Append(b)
	if !a.PendWrite[i].Empty() {
		b = append(b, "  to be written "...)
		b = a.PendWrite[i].Append(b)
	}
	if !a.PendRead[i].Empty() {
		b = append(b, "  to be read "...)
		b = a.PendRead[i].Append(b)
	}
	return append(b, '\n')
}

func (s *sassRun) sites(k *sassCode) error {
	s.head(k)
	why := k.a.Sites(k.listed)
	n := 0
	for i, r := range why {
		if r == "" {
			n++
		} else {
			s.why[r]++
		}
		if s.all {
			free := ""
			if r == "" && k.regs > 0 {
				free = fmt.Sprintf("%d registers free", k.regs-k.a.LiveIn[i].Len(sass.GPR))
			}
			fmt.Fprintf(s.out, "  %05x  %-40s %s%s\n", i*sass.WordSize, k.a.Insts[i].AppendText(nil, i*sass.WordSize), string(r), free)
		}
	}
	s.sitesFound += n
	fmt.Fprintf(s.out, "  %d sites\n", n)
	return nil
}

func (s *sassRun) check(k *sassCode) error {
	limit := 20
	if s.all {
		limit = 0
	}
	found := k.a.Check(limit)
	s.findings += len(found)
	if len(found) > 0 {
		s.head(k)
	}
	for _, f := range found {
		fmt.Fprintf(s.out, "  %s: %s\n", f, k.a.Insts[f.Index].AppendText(nil, f.Index*sass.WordSize))
	}
	return nil
}

// total ends the output of sites and check.
func (s *sassRun) total() {
	switch s.verb {
	case "sites":
		fmt.Fprintf(s.out, "%d sites of %d instructions in %d functions\n", s.sitesFound, s.words, s.code)
		reasons := make([]sass.Reason, 0, len(s.why))
		for r := range s.why {
			reasons = append(reasons, r)
		}
		slices.SortFunc(reasons, func(x, y sass.Reason) int { return s.why[y] - s.why[x] })
		for _, r := range reasons {
			fmt.Fprintf(s.out, "%10d: %s\n", s.why[r], string(r))
		}
	case "check":
		fmt.Fprintf(s.out, "%d findings in %d functions, %d instructions (%d unknown)\n", s.findings, s.code, s.words, s.unknown)
	}
	for _, a := range slices.Sorted(maps.Keys(s.foreign)) {
		fmt.Fprintf(s.out, "%d functions of %s left out: its instructions are not known\n", s.foreign[a], a)
	}
}
