package probe

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/code"
	"nvtrace/cmd/nvtrace/internal/cprobe"
	"nvtrace/fatbin"
	"nvtrace/nvattach"
	"nvtrace/nvattach/gpu"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/sim"
	"nvtrace/traces/escape"
)

// DryFlags are those of attach --dry-run.
type DryFlags struct {
	On         bool
	Require    bool // that a wanted kernel can't be probed is a failure
	Machine    gpu.MachineCode
	out        string
	arch       string
	ptxas, jit string
	block      uint64
}

// Register adds the flags to a verb's.
func (f *DryFlags) Register(fs *flag.FlagSet) {
	fs.BoolVar(&f.On, "dry-run", false, "show what attaching the probes to images (PTX, fat binaries, executables, libraries) would do, without running anything")
	fs.StringVar(&f.out, "o", "", "with --dry-run, write the PTX with probes, of machine code its disassembly, to `FILE` (-: standard output; of further modules to FILE.2, …)")
	fs.StringVar(&f.arch, "arch", "", "with --dry-run, the GPU's `ARCH`, e.g. sm_90 (default: the newest that the image has PTX, or else machine code, for)")
	fs.StringVar(&f.ptxas, "ptxas", "", "with --dry-run, compile with the ptxas at `PATH` and not with the driver's compiler")
	fs.StringVar(&f.jit, "jit", "", "with --dry-run, the driver's compiler library is at `PATH`")
	fs.Uint64Var(&f.block, "block", 256, "with --dry-run, `THREADS` of a block, for the occupancy")
}

// IsProbeObject reports whether a file is an eBPF object, an ELF file for EM_BPF, or the source of one.
func IsProbeObject(name string) bool {
	if cprobe.IsSource(name) {
		return true
	}
	f, err := os.Open(name)
	if err != nil {
		return true // who opens it as an object says why it can't be read
	}
	defer f.Close()
	var head [20]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return filepath.Ext(name) == ".o"
	}
	const machineBPF = 247
	le, be := binary.LittleEndian.Uint16(head[18:]), binary.BigEndian.Uint16(head[18:])
	return bytes.HasPrefix(head[:], []byte("\x7fELF")) && (le == machineBPF || be == machineBPF)
}

// dryRun is the work of attach --dry-run.
type dryRun struct {
	e        *cli.Env
	f        *DryFlags
	plan     *nvattach.Plan
	maps     *mapmem.Maps
	arch     fatbin.Arch // 0: the image's newest
	compiler resourceCompiler
	why      string // there is no compiler
	out      bytes.Buffer
	modules  int  // with probes
	said     bool // something about the file at hand
	failed   bool
}

// dryMaps is an address for the maps; a driver gives others, of the same size.
const dryMaps = 0x7f00_0000_0000

// Run does all of it and returns the exit status.
func (f *DryFlags) Run(e *cli.Env, plan *nvattach.Plan, o *mapmem.MapOptions, images []string) int {
	d := &dryRun{e: e, f: f, plan: plan}
	var err error
	if f.arch != "" {
		if d.arch, err = fatbin.ParseArch(f.arch); err != nil {
			return e.Fail(cli.ExitUsage, "--arch: %v", err)
		}
	}
	if d.maps, err = plan.NewMaps(o); err == nil {
		err = d.maps.Place(dryMaps)
	}
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if d.compiler, err = f.openCompiler(); err != nil {
		if f.ptxas != "" || f.jit != "" {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
		d.why = err.Error()
	}
	for _, name := range images {
		e.Reads(name)
	}
	for _, name := range images {
		d.program(name)
	}
	if _, err := d.out.WriteTo(e.Stdout); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if d.failed {
		return cli.ExitFailed
	}
	return cli.ExitOK
}

// program looks at a file, and at the libraries that it is linked with.
func (d *dryRun) program(name string) {
	d.said = false
	found, fails := 0, d.failed
	done := map[string]bool{name: true}
	for files := []string{name}; len(files) > 0; files = files[1:] {
		images, err := d.file(files[0], files[0] == name)
		found += images
		if err != nil {
			d.e.Notice("%s: %v", files[0], err)
			d.failed = true
			continue
		}
		for _, lib := range LinkedWith(files[0]) {
			if !done[lib] {
				done[lib] = true
				d.e.Reads(lib)
				files = append(files, lib)
			}
		}
	}
	switch {
	case d.failed && !fails:
	case found == 0 && len(done) > 1:
		d.e.Notice("%s: no code for GPUs is in it, nor in the libraries that it is linked with", name)
		d.failed = true
	case found == 0:
		d.e.Notice("%s: no code for GPUs is in it", name)
		d.failed = true
	case !d.said:
		d.out.WriteString(escape.Line("%s: no kernel that a program wants; images: %d", name, found))
	}
}

// file looks at one file, and returns how many images are in it. Of one that was not named, images
// that are not for the GPU are none.
func (d *dryRun) file(name string, named bool) (images int, err error) {
	f, err := fatbin.Open(name, nil)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	err = f.Guard(func() error {
		if err := code.KnownFormat(f, false, ""); err != nil {
			return err
		}
		said := d.said
		d.said = false
		defer func() { d.said = d.said || said }()
		var errs, without []error
		look := func(c *fatbin.Container, text int64) {
			images++
			switch err := d.image(name, images, c, text); {
			case errors.Is(err, errNoCode):
				without = append(without, err)
			case err != nil:
				errs = append(errs, err)
			}
		}
		for c, err := range f.Containers() {
			if err != nil {
				errs = append(errs, err)
				continue
			}
			look(c, -1)
		}
		if images == 0 && len(errs) == 0 && f.Format() == fatbin.FormatHost {
			texts, err := ptxTexts(name)
			if err != nil {
				return err
			}
			for _, t := range texts {
				for c, err := range fatbin.NewFile(name, t.text, nil).Containers() {
					if err == nil {
						look(c, t.offset)
					}
				}
			}
		}
		if !d.said && named {
			errs = append(errs, without...)
		}
		return errors.Join(errs...)
	})
	return images, err
}

// image does to one image what happens when a program loads it. text is where in the file it lies as
// text, -1 if that is not so.
func (d *dryRun) image(name string, number int, c *fatbin.Container, text int64) error {
	arch := d.arch
	if arch.SM == 0 {
		arch = newest(c, fatbin.KindPTX)
	}
	if arch.SM == 0 {
		arch = newest(c, fatbin.KindELF)
	}
	if arch.Suffix == 0 && arch.SM >= 90 {
		arch.Suffix = 'a' // a GPU runs what is for it alone
	}
	switch {
	case len(c.Entries) == 0: // what nvcc leaves where it has linked
		return nil
	case nvattach.Prefers(c.Entries, fatbin.KindPTX, arch) < 0 && nvattach.Prefers(c.Entries, fatbin.KindELF, arch) < 0:
		return fmt.Errorf("image %d %w%s", number, errNoCode, forArch(arch))
	}
	sites := len(d.plan.Sites())
	image := c.Append(nil)
	o := &nvattach.RewriteOptions{Arch: arch, NoBody: d.f.Machine.Without(arch)}
	if o.NoBody == "" {
		o.CompileBody = func(text string) ([]byte, error) {
			if d.compiler == nil {
				return nil, errors.New(d.why + "; name one with --ptxas or --jit")
			}
			return d.compiler.body(text, fatbin.Arch{SM: arch.SM}.String())
		}
	}
	r, err := d.plan.Rewrite(image, d.maps, o)
	if err != nil {
		return err
	}
	if !r.Changed && len(r.Unprobed) == 0 {
		return nil
	}
	d.said = true
	where := "as a whole"
	switch {
	case text >= 0:
		where = fmt.Sprintf("text at offset %#x", text)
	case c.Offset >= 0:
		where = fmt.Sprintf("at offset %#x", c.Offset)
	}
	d.out.WriteString(escape.Line("%s: image %d, %s, on sm_%d", name, number, where, arch.SM))
	d.failed = d.failed || d.f.Require && len(r.Unprobed) > 0
	for _, u := range r.Unprobed {
		fmt.Fprintf(&d.out, "  %s\n    not probed: %s\n", demangled(u.Kernel), cli.Printable(u.Reason))
	}
	if !r.Changed {
		return nil
	}
	d.modules++
	all := d.plan.Sites()[sites:]
	if len(r.Kernels) > 0 && r.Kernels[0].Machine {
		return d.machineCode(image, r, arch, all)
	}
	before, after, err := d.resources(r, arch)
	if err != nil {
		d.out.WriteString(escape.Line("  registers, stack and occupancy are not known: %v", err))
	}
	for i := range r.Kernels {
		d.kernel(&r.Kernels[i], all)
		name := r.Kernels[i].Name
		if a, b := before[name], after[name]; a != nil && b != nil {
			d.change(a, b, arch)
		}
	}
	return d.write(r.Text, "PTX")
}

// errNoCode: an image that a GPU can't load; others of the file may be for it.
var errNoCode = errors.New("has neither PTX nor machine code")

func forArch(arch fatbin.Arch) string {
	if arch.SM == 0 {
		return ""
	}
	return fmt.Sprintf(" for sm_%d", arch.SM)
}

// newest returns the highest architecture that a container has code of a kind for.
func newest(c *fatbin.Container, kind fatbin.Kind) fatbin.Arch {
	var best fatbin.Arch
	for i := range c.Entries {
		if a := c.Entries[i].Arch(); c.Entries[i].Kind() == kind && a.SM >= best.SM {
			best = a
		}
	}
	return best
}

// resources compiles the module without and with probes.
func (d *dryRun) resources(r *nvattach.Rewritten, arch fatbin.Arch) (before, after map[string]*resources, err error) {
	if d.compiler == nil {
		return nil, nil, errors.New(d.why + "; name one with --ptxas or --jit")
	}
	target := compileTarget(r.Text, arch)
	if before, err = d.compiler.resources(r.Source, target); err != nil {
		return nil, nil, fmt.Errorf("compiling the module without probes for %s: %w", target, err)
	}
	if after, err = d.compiler.resources(r.Text, target); err != nil {
		d.failed = true
		return nil, nil, fmt.Errorf("compiling the module with probes for %s: %w", target, err)
	}
	return before, after, nil
}

// compileTarget names what to compile a module for: the GPU, with the suffix that
// the module's own target has.
func compileTarget(text string, arch fatbin.Arch) string {
	word, _, _ := strings.Cut(fatbin.ScanPTX([]byte(text)).Target, ",")
	a, _ := fatbin.ParseArch(strings.TrimSpace(word))
	return fatbin.Arch{SM: arch.SM, Suffix: a.Suffix}.String()
}

// kernel writes a kernel's places.
func (d *dryRun) kernel(k *nvattach.KernelReport, sites []nvattach.Site) {
	what := ""
	if k.Func {
		what = " (device function)"
	}
	d.out.WriteString(escape.Line("  %s%s", demangled(k.Name), what))
	for i := range sites {
		s := &sites[i]
		if s.Kernel != k.Name {
			continue
		}
		text := cmp.Or(strings.Join(strings.Fields(s.Text), " "), "-")
		if s.Kind == object.KindEntry {
			text = "entry"
		}
		fmt.Fprintf(&d.out, "    %-20s %-7s at instruction %-5d %s", s.Program, s.Kind, s.Insn, text)
		if s.Line != 0 {
			fmt.Fprintf(&d.out, "  # %s:%d", filepath.Base(s.File), s.Line)
		}
		d.out.WriteByte('\n')
	}
	for _, n := range k.Notes {
		d.out.WriteString(escape.Line("    note: %s", n))
	}
}

// change writes what becomes of a kernel's resources.
func (d *dryRun) change(a, b *resources, arch fatbin.Arch) {
	fmt.Fprintf(&d.out, "    registers %d -> %d, stack %d -> %d bytes", a.registers, b.registers, a.stack, b.stack)
	if a.code > 0 {
		fmt.Fprintf(&d.out, ", code %d -> %d bytes", a.code, b.code)
	} else {
		fmt.Fprintf(&d.out, ", spilled %d -> %d bytes", a.spilled, b.spilled)
	}
	for _, g := range sim.GPUs() {
		if uint32(g.Major*10+g.Minor) != arch.SM || d.f.block == 0 {
			continue
		}
		share := func(r *resources) (int, float64) {
			n := g.Occupancy(d.f.block, r.shared, r.registers)
			return n, 100 * float64(uint64(n)*d.f.block) / float64(g.ThreadsPerSM)
		}
		n, p := share(a)
		m, q := share(b)
		fmt.Fprintf(&d.out, "; blocks of %d threads on a multiprocessor %d -> %d, occupancy %.0f%% -> %.0f%%", d.f.block, n, m, p, q)
		break
	}
	d.out.WriteByte('\n')
}

// write writes the module with probes to where it is wanted.
func (d *dryRun) write(text, what string) error {
	switch {
	case d.f.out == "":
		return nil
	case d.f.out == "-":
		d.out.WriteString(text)
		return nil
	}
	name := d.f.out
	if d.modules > 1 {
		name = fmt.Sprintf("%s.%d", name, d.modules)
	}
	if err := d.e.WriteFile(name, []byte(text), cli.ModeFile); err != nil {
		return err
	}
	d.out.WriteString(escape.Line("  written to %s: %d bytes of %s", name, len(text), what))
	return nil
}

// demangled returns a kernel's name for people, and what the driver calls it.
func demangled(name string) string {
	s := fatbin.Demangle(name)
	name = cli.Printable(name)
	if s == name {
		return name
	}
	const most = 200 // templates' names may fill pages
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s + "  [" + name + "]"
}
