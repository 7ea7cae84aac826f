package nvattach

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"nvtrace/fatbin"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx"
)

// RewriteOptions say what an image is rewritten for.
type RewriteOptions struct {
	// Arch is the GPU's architecture: its number, with the suffix 'a'.
	Arch fatbin.Arch
	// Compile makes a cubin of a module's text for Arch, as the driver would. Nil, and
	// an empty result, leave that to the driver: the image gets the woven text.
	Compile func(text string) ([]byte, error)
	// CompileBody makes a cubin of a [Body] with --compile-as-tools-patch: where the driver
	// would take machine code, programs are put there. Nil: they are put into PTX alone. An
	// empty result means that nothing can compile here.
	CompileBody func(text string) ([]byte, error)
	// Places gives a Body's text with the memory of maps at the upper halves of addresses
	// sass.PlaceA and sass.PlaceB; false if that can't be. High is the half that it has. What
	// is made of such bodies can be kept for other runs. May be nil.
	Places func(text string) (a, b string, ok bool)
	High   uint16
	// Store keeps machine code with programs; may be nil.
	Store Store
	// NoBody says why CompileBody is nil; "" stands for no reason but that.
	NoBody string
	// JIT says what the program's environment makes the driver take of an image.
	JIT JIT
	// Registers says how many registers a thread of a kernel takes without
	// programs, where the image has no machine code that says it; see
	// WeaveOptions. May be nil.
	Registers func(kernel string) int
	// Only, if it is not "", is the one kernel that gets programs. Of PTX it is woven and compiled without the others,
	// where that can be.
	Only string
	// Except are kernels that have their programs already, from what the image was linked of.
	Except map[string]bool
	// Twins says which kernels keep a copy without programs.
	Twins Twins
	// Progress is told, from any goroutine, of kernels that are going to be compiled, and of those that were; may be nil.
	Progress func(more, done int)
	// Beside: an image can be loaded beside the one with programs, see Original.
	Beside bool
	// MaxEntry bounds the content of an entry; see fatbin.Options.
	MaxEntry int64
}

// JIT says what a driver takes of images, where that is not as [Prefers] says. The zero value: it is.
type JIT struct {
	Forced    string // the variable that has it pass over machine code and compile PTX; ""
	Forbidden string // the variable that keeps it from compiling PTX; ""
}

// A Store keeps what depends on nothing but parts, and on nvtrace.
type Store interface {
	Kept(parts []string) (info string, data []byte, ok bool)
	Keep(parts []string, info string, data []byte)
}

// A Rewritten is an image with programs.
type Rewritten struct {
	// Image is what the driver is to load; the bytes that were given if Changed is
	// not set.
	Image   []byte
	Changed bool
	// Kernels are those that have programs now.
	Kernels []KernelReport
	// Unprobed are those that should have, and why they don't.
	Unprobed []Unprobed
	// Source and Text are the module's PTX before and after, "" if that did not change.
	Source, Text string
	// Original is for comparisons of kernels of which Image has no copies; nil if there are
	// none, or that was not asked for.
	Original *Original
}

// reasonSASS is said of kernels of which there is only machine code.
const reasonSASS = "only machine code for this GPU is in the image, and no PTX"

// noBody says why kernels of which there is only machine code get no programs.
func (r *rewriting) noBody() string {
	if r.o.NoBody == "" {
		return reasonSASS
	}
	return reasonSASS + ": " + r.o.NoBody
}

// Rewrite puts the plan's programs into an image as the driver's loaders take it: a
// fat binary container, a cubin or PTX. Images without a kernel that a program
// wants are passed through, and so are entries for other architectures. What keeps
// a kernel from getting its programs is no error but in Unprobed: the driver then
// loads the image as it is.
func (p *Plan) Rewrite(image []byte, maps *mapmem.Maps, o *RewriteOptions) (*Rewritten, error) {
	r := &rewriting{p: p, maps: maps, o: o, out: &Rewritten{Image: image}, registers: registersOf}
	var err error
	switch f := fatbin.Sniff(image); f {
	case fatbin.FormatPTX:
		err = r.text(image)
	case fatbin.FormatCubin:
		err = r.cubin(image)
	case fatbin.FormatContainer:
		err = r.container(image)
	default:
		return nil, fmt.Errorf("image of %d bytes: %v: %w", len(image), f, ErrNotWoven)
	}
	if err != nil {
		return nil, fmt.Errorf("image of %d bytes: %w", len(image), err)
	}
	return r.out, nil
}

// Unwoven returns the kernels in an image that programs want, where the image is
// loaded as it is, for a reason.
func (p *Plan) Unwoven(image []byte, reason string) []Unprobed {
	r := &rewriting{p: p, out: new(Rewritten)}
	var names []string
	add := func(kind fatbin.Kind, data []byte) {
		if kind == fatbin.KindPTX {
			names = append(names, fatbin.ScanPTX(data).Entries...)
		} else if c, err := fatbin.ParseCubin(data); err == nil {
			names = append(names, kernelNames(c)...)
		}
	}
	switch fatbin.Sniff(image) {
	case fatbin.FormatPTX:
		add(fatbin.KindPTX, image)
	case fatbin.FormatCubin:
		add(fatbin.KindELF, image)
	case fatbin.FormatContainer:
		c, _, err := fatbin.ParseContainer(image)
		if err != nil {
			return nil
		}
		for i := range c.Entries {
			if data, err := c.Entries[i].Data(nil); err == nil {
				add(c.Entries[i].Kind(), data)
			}
		}
	}
	slices.Sort(names)
	r.unprobed(slices.Compact(names), reason)
	return r.out.Unprobed
}

type rewriting struct {
	p    *Plan
	maps *mapmem.Maps
	o    *RewriteOptions
	out  *Rewritten
	// compiling is held to look up or compile a program's machine code, which many
	// kernels ask for at the same time.
	compiling sync.Mutex
	// fixed: a Body was compiled for the memory of this run.
	fixed bool
	// registers says how many registers the kernels of what was compiled take.
	registers func(cubin []byte) map[string]int
}

// unprobed notes the wanted kernels among names.
func (r *rewriting) unprobed(names []string, reason string) {
	for _, n := range names {
		if r.p.Wants(n, false) {
			r.out.Unprobed = append(r.out.Unprobed, Unprobed{n, reason})
		}
	}
}

// text rewrites bare PTX.
func (r *rewriting) text(image []byte) error {
	src := strings.TrimRight(string(image), "\x00")
	if v := r.o.JIT.Forbidden; v != "" {
		r.unprobed(fatbin.ScanPTX([]byte(src)).Entries, v+" is set, so the driver compiles no PTX")
		return nil
	}
	f, w := r.weave(src, &WeaveOptions{Registers: r.o.Registers, Except: r.o.Except})
	if w == nil {
		return nil
	}
	cubin, err := r.compileWoven(f, w)
	if err != nil {
		r.unprobed(entriesOf(w), err.Error())
		return nil
	}
	if cubin == nil {
		cubin = append([]byte(w.Text), 0)
	}
	r.done(cubin, f.Src, w)
	return nil
}

func (r *rewriting) done(image []byte, src string, w *Woven) {
	r.out.Image, r.out.Changed, r.out.Kernels = image, true, w.Kernels
	r.out.Source, r.out.Text = src, w.Text
}

func entriesOf(w *Woven) []string {
	var names []string
	for i := range w.Kernels {
		if !w.Kernels[i].Func {
			names = append(names, w.Kernels[i].Name)
		}
	}
	return names
}

// weave returns nil for a module without a wanted kernel, and for one that can't
// be woven, whose kernels are noted.
func (r *rewriting) weave(src string, o *WeaveOptions) (*ptx.File, *Woven) {
	f, err := ptx.Parse("image", src, nil)
	if err != nil {
		// The driver says what is wrong with it, if it is PTX at all.
		info := fatbin.ScanPTX([]byte(src))
		r.unprobed(info.Entries, err.Error())
		return nil, nil
	}
	f = r.onlyText(f)
	w, err := r.p.Weave(f, r.maps, o)
	if err != nil {
		var names []string
		for i := range f.Funcs {
			if fn := &f.Funcs[i]; fn.Kind == ptx.FuncEntry && fn.HasBody() {
				names = append(names, f.Text(fn.Name))
			}
		}
		r.unprobed(names, err.Error())
		return nil, nil
	}
	r.out.Unprobed = append(r.out.Unprobed, w.Unprobed...)
	if w.Text == f.Src {
		return nil, nil
	}
	return f, w
}

// progress tells of kernels.
func (r *rewriting) progress(more, done int) {
	if r.o.Progress != nil {
		r.o.Progress(more, done)
	}
}

func (r *rewriting) compile(text string) ([]byte, error) {
	if r.o.Compile == nil || r.o.JIT.Forced != "" { // the driver would pass over what it yields
		return nil, nil
	}
	b, err := r.o.Compile(text)
	if err != nil {
		return nil, fmt.Errorf("compiling: %w", err)
	}
	return b, nil
}

// cubin rewrites bare machine code.
func (r *rewriting) cubin(image []byte) error {
	c, err := fatbin.ParseCubin(image)
	if err != nil {
		return err
	}
	names := r.only(kernelNames(c))
	switch {
	case !r.p.wantsAny(names):
	case r.o.JIT.Forced != "":
		r.unprobed(names, r.passedOver())
	case r.o.CompileBody == nil:
		r.unprobed(names, r.noBody())
	default:
		if out := r.cubinCode(image, names); out != nil {
			r.out.Image, r.out.Changed = out, true
		}
	}
	return nil
}

// only returns those of some kernels that may get programs.
func (r *rewriting) only(names []string) []string {
	return slices.DeleteFunc(names, func(n string) bool { return r.o.Only != "" && n != r.o.Only || r.o.Except[n] })
}

func kernelNames(c *fatbin.Cubin) []string {
	names := make([]string, 0, len(c.Kernels))
	for i := range c.Kernels {
		names = append(names, c.Kernels[i].Name)
	}
	return names
}

// Loadable reports whether a GPU loads code for arch: machine code of its own
// major architecture up to its own minor one, PTX of all before it. A suffix 'a'
// is for exactly one architecture, 'f' for the later ones of its major one.
func Loadable(kind fatbin.Kind, arch, gpu fatbin.Arch) bool {
	sameMajor := arch.SM/10 == gpu.SM/10
	switch {
	case arch.SM > gpu.SM, arch.Suffix == 'a' && arch.SM != gpu.SM, arch.Suffix == 'f' && !sameMajor:
		return false
	case kind == fatbin.KindELF:
		return sameMajor
	}
	return kind == fatbin.KindPTX
}

// Prefers returns the index of the entry that the driver takes for a GPU: machine
// code before PTX, and of each kind the highest architecture. -1 if none can be
// loaded.
func Prefers(entries []fatbin.Entry, kind fatbin.Kind, gpu fatbin.Arch) int {
	best := -1
	for i := range entries {
		e := &entries[i]
		if e.Kind() != kind || !Loadable(kind, e.Arch(), gpu) {
			continue
		}
		if best < 0 || higher(e.Arch(), entries[best].Arch()) {
			best = i
		}
	}
	return best
}

func higher(a, b fatbin.Arch) bool {
	if a.SM != b.SM {
		return a.SM > b.SM
	}
	return a.Suffix == 'a' && b.Suffix != 'a' || a.Suffix == 'f' && b.Suffix == 0
}

func (r *rewriting) container(image []byte) error {
	c, n, err := fatbin.ParseContainer(image)
	if err != nil {
		return err
	}
	fo := &fatbin.Options{MaxEntry: r.o.MaxEntry}
	elf, text := Prefers(c.Entries, fatbin.KindELF, r.o.Arch), Prefers(c.Entries, fatbin.KindPTX, r.o.Arch)
	wo := WeaveOptions{Registers: r.o.Registers, Except: r.o.Except}
	var names []string
	if elf >= 0 {
		names = r.machineCode(&c.Entries[elf], fo, &wo)
	}
	if len(names) > 0 && !r.p.wantsAny(names) {
		return nil // its PTX, which is the same module, need not be looked at
	}
	if r.o.JIT != (JIT{}) {
		return r.containerOf(image, n, c, elf, text, names, fo, &wo)
	}
	if elf >= 0 && r.o.CompileBody != nil {
		err := r.entryCode(image, n, c, elf, names, fo)
		if text < 0 || err == nil && len(names) > 0 && r.complete() {
			return err
		}
		// Its PTX may get what its machine code can't.
		machine := r.out
		r.out = &Rewritten{Image: image}
		if c, n, err = fatbin.ParseContainer(image); err != nil {
			return err
		}
		if err := r.containerText(image, n, c, text, names, fo, &wo); err != nil || len(r.out.Unprobed) > len(machine.Unprobed) {
			r.out = machine
		}
		return nil
	}
	if text < 0 {
		r.unprobed(names, r.noBody())
		if elf < 0 {
			return fmt.Errorf("no entry for %v: %w", r.o.Arch, ErrNotWoven)
		}
		return nil
	}
	return r.containerText(image, n, c, text, names, fo, &wo)
}

// passedOver says why kernels of which there is only machine code get no programs.
func (r *rewriting) passedOver() string {
	return "only machine code for this GPU is in the image, which the driver passes over as " + r.o.JIT.Forced + " is set"
}

// containerOf is container where the environment says what the driver takes: PTX alone, or machine
// code alone.
func (r *rewriting) containerOf(image []byte, n int, c *fatbin.Container, elf, text int, names []string, fo *fatbin.Options, wo *WeaveOptions) error {
	switch j := r.o.JIT; {
	case j.Forced != "" && j.Forbidden != "":
		r.unprobed(names, j.Forced+" and "+j.Forbidden+" are set, so the driver accepts neither machine code nor PTX")
		return nil
	case j.Forced != "" && text < 0:
		r.unprobed(names, r.passedOver())
		return nil
	case j.Forced != "":
		return r.containerText(image, n, c, text, names, fo, wo)
	case elf < 0 && text >= 0:
		if src, err := c.Entries[text].Data(fo); err == nil {
			r.unprobed(fatbin.ScanPTX(src).Entries, j.Forbidden+" is set, so the driver compiles no PTX")
		}
		return nil
	case elf < 0:
		return nil
	case r.o.CompileBody != nil:
		return r.entryCode(image, n, c, elf, names, fo)
	case text < 0:
		r.unprobed(names, r.noBody())
		return nil
	}
	return r.containerText(image, n, c, text, names, fo, wo)
}

// complete reports whether machine code got all programs that want it.
func (r *rewriting) complete() bool {
	if len(r.out.Unprobed) > 0 || slices.ContainsFunc(r.p.Programs, func(q *proof.Program) bool { return q.Point.Func || q.AsksForLines() }) {
		return false
	}
	for i := range r.out.Kernels {
		// Of an opcode that machine code does not have, there may be PTX's.
		if slices.ContainsFunc(r.out.Kernels[i].Programs, func(p ProgramReport) bool { return p.Kind == object.KindInsn && p.Sites == 0 }) {
			return false
		}
	}
	return true
}

// containerText rewrites the PTX in an entry.
func (r *rewriting) containerText(image []byte, n int, c *fatbin.Container, text int, names []string, fo *fatbin.Options, wo *WeaveOptions) error {
	src, err := c.Entries[text].Data(fo)
	if err != nil {
		r.unprobed(names, err.Error())
		return nil
	}
	f, w := r.weave(string(src), wo)
	if w == nil {
		return nil
	}
	return r.replace(image, n, c, text, f, w)
}

// entryCode rewrites the machine code in an entry.
func (r *rewriting) entryCode(image []byte, n int, c *fatbin.Container, elf int, names []string, fo *fatbin.Options) error {
	old := &c.Entries[elf]
	data, err := old.Data(fo)
	if err != nil {
		return err
	}
	out := r.cubinCode(data, names)
	if out == nil {
		return nil
	}
	ours, err := fatbin.NewEntry(fatbin.KindELF, old.Arch(), out, &fatbin.EntryOptions{Ident: old.Ident(), Options: old.Options()})
	if err != nil {
		return err
	}
	c.Entries[elf] = ours
	r.out.Image, r.out.Changed = append(c.Append(nil), image[n:]...), true
	return nil
}

// machineCode returns the kernels of an entry and where it says how many registers
// they take.
func (r *rewriting) machineCode(e *fatbin.Entry, fo *fatbin.Options, wo *WeaveOptions) []string {
	data, err := e.Data(fo)
	if err != nil {
		return nil
	}
	c, err := fatbin.ParseCubin(data)
	if err != nil {
		return nil
	}
	regs := make(map[string]int, len(c.Kernels))
	for i := range c.Kernels {
		regs[c.Kernels[i].Name] = c.Kernels[i].Registers
	}
	wo.Registers = func(kernel string) int {
		if n := regs[kernel]; n != 0 || r.o.Registers == nil {
			return n
		}
		return r.o.Registers(kernel)
	}
	return r.only(kernelNames(c))
}

// replace puts the woven module in the place of everything that the driver could
// take for the GPU instead.
func (r *rewriting) replace(image []byte, n int, c *fatbin.Container, text int, f *ptx.File, w *Woven) error {
	cubin, err := r.compileWoven(f, w)
	if err != nil {
		r.unprobed(entriesOf(w), err.Error())
		return nil
	}
	if v := r.o.JIT.Forbidden; cubin == nil && v != "" {
		r.unprobed(entriesOf(w), v+" is set, so the driver compiles no PTX, and nvtrace has no compiler")
		return nil
	}
	old := &c.Entries[text]
	ours, err := fatbin.NewEntry(fatbin.KindPTX, old.Arch(), []byte(w.Text), &fatbin.EntryOptions{Ident: old.Ident(), Options: old.Options()})
	if cubin != nil && err == nil {
		arch := r.o.Arch
		if old.Arch().Suffix == 0 {
			arch.Suffix = 0
		}
		ours, err = fatbin.NewEntry(fatbin.KindELF, arch, cubin, &fatbin.EntryOptions{Ident: old.Ident()})
	}
	if err != nil {
		return err
	}
	// Machine code for exactly this GPU is preferred to all else, so the rest may
	// stay for other GPUs. PTX is taken only where there is no machine code at all.
	kept := slices.DeleteFunc(slices.Clone(c.Entries), func(e fatbin.Entry) bool {
		if cubin != nil {
			return e.Kind() == fatbin.KindELF && e.Arch().SM == r.o.Arch.SM
		}
		return e.Kind() == fatbin.KindELF && Loadable(e.Kind(), e.Arch(), r.o.Arch) || e.Kind() == fatbin.KindPTX && e.Arch() == old.Arch()
	})
	c.Entries = append(kept, ours)
	out := c.Append(nil)
	r.done(append(out, image[n:]...), f.Src, w)
	return nil
}

// onlyText is the module of which the one kernel that gets programs is alone, where that can be; f if all do.
func (r *rewriting) onlyText(f *ptx.File) *ptx.File {
	if r.o.Only == "" {
		return f
	}
	k := splitText(f)
	if k == nil || len(k.cuts) == 1 {
		return f
	}
	text, ok := k.alone(r.o.Only)
	if !ok {
		return f
	}
	one, err := ptx.Parse("image", text, nil)
	if err != nil {
		return f
	}
	return one
}
