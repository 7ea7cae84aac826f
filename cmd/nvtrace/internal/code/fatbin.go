package code

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/fatbin"
)

const fatbinUsage = `usage: nvtrace fatbin ls [flags] FILE...
           list the GPU code in executables, libraries, archives, objects,
           .fatbin, .cubin and .ptx files
       nvtrace fatbin extract [flags] --out DIR FILE...
           write each piece to a file of its own
nvtrace fatbin ls -h and nvtrace fatbin extract -h list the flags.
`

// FatbinVerb lists and extracts the GPU code of files.
func FatbinVerb(e *cli.Env, args, command []string) int {
	if len(args) == 0 {
		fmt.Fprint(e.Stderr, fatbinUsage)
		return cli.ExitUsage
	}
	if args[0] == "-h" || args[0] == "--help" {
		fmt.Fprint(e.Stdout, fatbinUsage)
		return cli.ExitOK
	}
	if command != nil {
		return e.Fail(cli.ExitUsage, "fatbin runs no command; leave -- out")
	}
	switch args[0] {
	case "ls":
		return fatbinList(e, args[1:])
	case "extract":
		return fatbinExtract(e, args[1:])
	}
	return e.Fail(cli.ExitUsage, "fatbin %s: want ls or extract", args[0])
}

// FatbinFlags are those of both verbs.
type FatbinFlags struct {
	Opts       fatbin.Options
	content    int64 // of a file, in bytes; 0: by the file's size
	kind, arch string
}

// EntryFilter selects entries.
type EntryFilter struct {
	kind    fatbin.Kind
	arch    fatbin.Arch
	AnyKind bool
	AnyArch bool
}

func (f *FatbinFlags) register(fs interface {
	StringVar(p *string, name, value, usage string)
	BoolVar(p *bool, name string, value bool, usage string)
	Int64Var(p *int64, name string, value int64, usage string)
},
) {
	fs.StringVar(&f.kind, "kind", "", "only entries of this `KIND`: ptx, cubin, lto-ir or a number")
	fs.StringVar(&f.arch, "arch", "", "only entries for this `ARCH`, e.g. sm_90a")
	fs.BoolVar(&f.Opts.Everywhere, "everywhere", false, "search the whole file, not just the sections that nvcc makes")
	fs.Int64Var(&f.Opts.MaxEntry, "max-entry", 0, "refuse to decompress entries above this many `BYTES` (0: 1 GiB)")
	fs.Int64Var(&f.content, "max-content", 0, "decompress at most this many `BYTES` of a file (0: 16 MiB and 256 times the file's size)")
}

// open opens a file, and returns it with what may be decompressed of it.
func (f *FatbinFlags) open(name string) (*fatbin.File, *fatbin.Options, error) {
	o := f.Opts
	file, err := fatbin.Open(name, &o)
	if err != nil {
		return nil, nil, err
	}
	if o.Budget = fatbin.NewBudget(f.content); f.content == 0 {
		o.Budget = fatbin.NewBudget(fatbin.DefaultBudget(file.Size()))
	}
	return file, &o, nil
}

// contentHint says what to do about an error.
func contentHint(err error) string {
	if errors.Is(err, fatbin.ErrBudget) {
		return "; --max-content raises the limit"
	}
	return ""
}

func (f *FatbinFlags) filter() (EntryFilter, error) {
	sel := EntryFilter{AnyKind: f.kind == "", AnyArch: f.arch == ""}
	var err1, err2 error
	if !sel.AnyKind {
		sel.kind, err1 = fatbin.ParseKind(f.kind)
	}
	if !sel.AnyArch {
		sel.arch, err2 = fatbin.ParseArch(f.arch)
	}
	return sel, errors.Join(err1, err2)
}

func (s *EntryFilter) match(en *fatbin.Entry) bool {
	return (s.AnyKind || s.kind == en.Kind()) && (s.AnyArch || s.arch == en.Arch())
}

// searchAny is what to do with a file of no known format.
const searchAny = "; --everywhere searches any file"

// KnownFormat reports a file that can't hold GPU code, with advice.
func KnownFormat(f *fatbin.File, everywhere bool, advice string) error {
	switch f.Format() {
	case fatbin.FormatUnknown, fatbin.FormatWrapper, fatbin.FormatLTOIR:
		if everywhere {
			return nil
		}
		begins := ""
		if f.Size() == 0 {
			begins = " (it is empty)"
		} else if f.Format() != fatbin.FormatUnknown {
			begins = fmt.Sprintf(" (it begins as: %s)", f.Format())
		}
		return fmt.Errorf("neither an ELF file, an archive, a fat binary, a cubin nor PTX%s%s", begins, advice)
	}
	return nil
}

func fatbinExtract(e *cli.Env, args []string) int {
	var ff FatbinFlags
	var out string
	fs := cli.NewFlagSet(e, "fatbin extract", "[flags] --out DIR FILE...")
	ff.register(fs)
	fs.StringVar(&out, "out", "", "write the files into `DIR`, which is made")
	if status, ok := cli.Parse(fs, args); !ok {
		return status
	}
	if err := e.Inputs(fs.Args()); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	sel, err := ff.filter()
	if err != nil {
		return e.Fail(cli.ExitUsage, "%v", err)
	}
	if out == "" || fs.NArg() == 0 {
		return e.Fail(cli.ExitUsage, "fatbin extract wants --out DIR and a file")
	}
	if err := os.MkdirAll(out, 0o777); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	x := extraction{e: e, dir: out, sel: sel, taken: make(map[string]bool)}
	for _, name := range fs.Args() {
		e.Reads(name)
	}
	for _, name := range fs.Args() {
		if err := x.file(name, &ff); err != nil {
			e.Notice("%v", err)
			x.failed = true
		}
	}
	if x.failed {
		return cli.ExitFailed
	}
	return cli.ExitOK
}

// extraction writes entries to files.
type extraction struct {
	e      *cli.Env
	dir    string
	sel    EntryFilter
	taken  map[string]bool // names written by this run, of all files
	failed bool
}

func (x *extraction) file(name string, ff *FatbinFlags) error {
	f, o, err := ff.open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := KnownFormat(f, o.Everywhere, searchAny); err != nil {
		return fmt.Errorf("%s: %w", f.Name(), err)
	}
	return f.Guard(func() error {
		inflater := fatbin.NewInflater(o)
		defer inflater.Close()
		names := fatbin.NewNamer(name)
		p := cli.NewProgress(x.e, name, f.Size(), "bytes")
		defer p.Clear()
		for c, err := range f.Containers() {
			if err != nil {
				p.Clear()
				x.e.Notice("%v", err)
				x.failed = true
			}
			if c == nil {
				continue
			}
			for i := range c.Entries {
				en := &c.Entries[i]
				to := names.Next(c, en)
				if !x.sel.match(en) {
					continue
				}
				if err := x.write(inflater, en, to); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				p.At(c.Offset + en.Offset())
			}
		}
		return nil
	})
}

// write writes one entry. An entry that can't be decompressed is told of, and
// the others go on; a file that can't be written ends the run.
func (x *extraction) write(inflater *fatbin.Inflater, en *fatbin.Entry, name string) error {
	data, err := inflater.Data(en)
	switch {
	case errors.Is(err, fatbin.ErrOpaque):
		data = en.Raw()
	case err != nil:
		x.e.Notice("%s: %v%s", name, err, contentHint(err))
		x.failed = true
		return nil
	}
	// Two files may hold entries of the same name.
	ext := filepath.Ext(name)
	for n := 2; x.taken[name]; n++ {
		name = fmt.Sprintf("%s.%d%s", strings.TrimSuffix(name, ext), n, ext)
	}
	x.taken[name] = true
	if err := x.e.WriteFile(filepath.Join(x.dir, name), data, cli.ModeFile); err != nil {
		return err
	}
	fmt.Fprintln(x.e.Stdout, name)
	return nil
}
