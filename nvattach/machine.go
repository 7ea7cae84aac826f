package nvattach

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"nvtrace/fatbin"
	"nvtrace/fatbin/sass"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
	"nvtrace/traces/glob"
)

// machine puts the plan's programs into the machine code of a kernel.
type machine struct {
	r      *rewriting
	editor *fatbin.CubinEditor
	arch   fatbin.Arch
	name   string

	kernel *fatbin.KernelCode
	weaver *sass.Weaver
	report KernelReport
	sites  []Site
	// skipped are counted in the report's notes, which it has in the same order.
	skipped []skipped
	others  map[string]int // places by reasons beyond mostReasons
	change  *fatbin.CodeChange
	halves  []int // offsets in it; see sass.Woven
	own     map[*object.Object]sass.Variables
	sums    map[*proof.Program]*sums
	keys    map[*proof.Program]*kernelKeys
	lines   map[*proof.Program]map[*sass.Body]bool // the bodies of programs of KindCapture
	err     error                                  // why it gets none
}

// EditCode opens machine code that a GPU is to run for a change. Cubins for sm_100 and later
// hold the code in a second form (Mercury), of which a driver makes code for other GPUs of
// the family. For the very GPU that the first form is for, the second one is dropped; for
// others such a cubin can't be changed.
func EditCode(cubin []byte, gpu fatbin.Arch) (*fatbin.CubinEditor, error) {
	c, err := fatbin.ParseCubin(cubin)
	if err != nil {
		return nil, err
	}
	return fatbin.NewCubinEditor(cubin, &fatbin.CubinEditOptions{DropMercury: c.Arch.SM == gpu.SM})
}

// cubinCode puts programs into the kernels of a cubin, whose names are given, and returns
// the new one; nil if no kernel got one. What came of each kernel is noted.
func (r *rewriting) cubinCode(data []byte, names []string) []byte {
	editor, err := EditCode(data, r.o.Arch)
	if err != nil {
		r.unprobed(names, err.Error())
		return nil
	}
	var reports []KernelReport
	var unprobed []Unprobed
	changed := false
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	parts := r.storeParts(data, names, editor.Cubin().Arch)
	if out, ok := r.stored(parts); ok {
		return out
	}
	firstSite, firstUnprobed, firstKeys := len(r.p.sites), len(r.out.Unprobed), r.p.takenKeys()
	halves := make(map[string][]int)
	var wanted []string
	for _, name := range names {
		if r.p.Wants(name, false) {
			wanted = append(wanted, name)
		}
	}
	r.progress(len(wanted), 0)
	// What an analysis takes is a multiple of the code, so that not all kernels are at
	// hand at once.
	for batch := range slices.Chunk(wanted, 2*runtime.GOMAXPROCS(0)) {
		kernels := make([]*machine, len(batch))
		for i, name := range batch {
			kernels[i] = &machine{r: r, editor: editor, arch: editor.Cubin().Arch, name: name}
		}
		parallel(kernels, (*machine).analyze)
		parallel(kernels, (*machine).programs)
		for _, m := range kernels {
			m.number()
		}
		parallel(kernels, (*machine).finish)
		r.progress(0, len(batch))
		for _, m := range kernels {
			if m.change != nil {
				changed = true
				m.err = editor.Set(m.name, m.change)
				halves[m.name] = m.halves
			}
			if m.err != nil {
				unprobed = append(unprobed, Unprobed{m.name, m.err.Error()})
				continue
			}
			reports = append(reports, m.report)
		}
	}
	var out []byte
	if changed {
		if out, err = editor.Bytes(); err != nil {
			r.unprobed(names, err.Error())
			return nil
		}
		r.besideCode(data, editor, reports)
	}
	r.out.Kernels, r.out.Unprobed = reports, append(r.out.Unprobed, unprobed...)
	if changed && !r.fixed {
		r.store(parts, &storedCode{Kernels: reports, Unprobed: r.out.Unprobed[firstUnprobed:], Sites: r.p.sites[firstSite:], Keys: r.p.keysSince(firstKeys)}, out, halves)
	}
	return out
}

// parallel has f called for each kernel, by as many threads as there are processors.
func parallel(kernels []*machine, f func(*machine)) {
	var wait sync.WaitGroup
	next := make(chan *machine)
	for range min(len(kernels), runtime.GOMAXPROCS(0)) {
		wait.Go(func() {
			for m := range next {
				f(m)
			}
		})
	}
	for _, m := range kernels {
		next <- m
	}
	close(next)
	wait.Wait()
}

// analyze reads the kernel's code.
func (m *machine) analyze() {
	k, err := m.editor.Code(m.name)
	if err != nil {
		m.err = err
		return
	}
	m.kernel, m.report = k, KernelReport{Name: m.name, Machine: true, Bounded: true}
	fn := &sass.Func{Arch: sass.Arch(m.arch.SM), Name: m.name, Code: sass.Words(k.Code), Targets: k.Targets, Registers: k.Registers, NoReturn: m.editor.OnlyAsserts(m.name)}
	m.weaver, m.err = sass.NewWeaver(fn, &sass.KernelFacts{Registers: k.Registers, Listed: k.Listed, Special: k.Special})
}

// programs puts all programs that want the kernel at their places.
func (m *machine) programs() {
	if m.err != nil {
		return
	}
	var wanted []*proof.Program
	for _, q := range m.r.p.Programs {
		if m.r.p.kernelWanted(q, m.name, false) {
			wanted = append(wanted, q)
		}
	}
	if m.err = m.reserve(wanted); m.err != nil {
		return
	}
	m.prepareKeys(wanted)
	m.prepareSums(wanted)
	for _, q := range wanted {
		n, err := m.program(q)
		if err != nil {
			m.err = fmt.Errorf("program %s: %w", q.Name, err)
			return
		}
		if n == 0 && q.Point.Kind == object.KindCapture {
			continue
		}
		m.report.Programs = append(m.report.Programs, ProgramReport{Program: q.Name, Object: q.Object.Name, Kind: q.Point.Kind, Sites: n})
	}
	if m.report.Sites() == 0 {
		// A kernel that has no such place at all is as it should be.
		if m.weaver = nil; len(m.report.Notes) > 0 {
			m.err = errors.New(strings.Join(m.report.Notes, "; "))
		}
	}
}

// number gives the kernel's places their numbers, which are behind those of all others.
func (m *machine) number() {
	if m.err != nil || m.weaver == nil {
		return
	}
	m.weaver.Base = uint32(len(m.r.p.sites))
	m.nameKeys()
	m.r.p.sites = append(m.r.p.sites, m.sites...)
}

// reserve gives the variables of each thread registers that are theirs in all of the
// kernel: those of an object, which its programs share.
func (m *machine) reserve(programs []*proof.Program) error {
	m.own = make(map[*object.Object]sass.Variables)
	for _, q := range programs {
		words := q.OwnWords()
		if _, ok := m.own[q.Object]; ok || len(words) == 0 {
			continue
		}
		v, err := m.weaver.Reserve(words)
		if err != nil {
			return fmt.Errorf("program %s: %w", q.Name, err)
		}
		m.own[q.Object] = v
	}
	return nil
}

// finish writes the kernel's new code.
func (m *machine) finish() {
	if m.err != nil || m.weaver == nil {
		return
	}
	woven, err := m.weaver.Finish()
	m.weaver.Free()
	m.weaver = nil
	if err != nil {
		m.err = err
		return
	}
	code := make([]byte, 0, len(woven.Code)*sass.WordSize)
	for _, w := range woven.Code {
		code = w.Append(code)
	}
	m.halves = woven.Halves
	m.change = &fatbin.CodeChange{Code: code, Registers: woven.Registers, Exits: woven.Exits, Stack: woven.Stack}
}

// program puts one program at all its places and returns how many these are.
func (m *machine) program(q *proof.Program) (int, error) {
	if s := m.sums[q]; s != nil {
		return m.addSums(q, s)
	}
	a := m.weaver.Analysis()
	n := 0
	switch q.Point.Kind {
	case object.KindEntry:
		form, at := m.form(q), m.site(q, 0, 0, 0)
		put := func() error {
			b, err := m.body(q, "", form)
			if err == nil {
				err = m.weaver.Entry(b.code, m.args(q, b, at, nil)...)
			}
			return err
		}
		err := put()
		if _, ok := errors.AsType[*sass.SiteError](err); ok && q.Report.Once > 0 {
			form.each = true // one thread for others is a branch, which not every kernel has the means for
			err = put()
		}
		// A kernel whose threads were not all counted would be a wrong answer.
		return 1, err
	case object.KindExit:
		for i := range a.Insts {
			if a.Insts[i].Flow().Kind == sass.FlowExit {
				n++
			}
		}
		form, at := m.form(q), m.site(q, 0, 0, 0)
		put := func() error {
			b, err := m.body(q, "", form)
			if err == nil {
				err = m.weaver.Exits(b.code, m.args(q, b, at, nil)...)
			}
			return err
		}
		form.leave = q.Report.Once > 0 && !m.r.p.endsThreads() && codeLeaves(a)
		err := put()
		if _, ok := errors.AsType[*sass.SiteError](err); ok && form.leave {
			form.leave = false // as above
			err = put()
		}
		return n, err
	case object.KindMem, object.KindInsn, object.KindBlock:
		for _, s := range m.spots(q) {
			if ok, err := m.before(q, s, ""); err != nil {
				return n, err
			} else if ok {
				n++
			}
		}
	case object.KindCapture:
		for i := range a.Insts {
			line, ok := a.Insts[i].AccessText()
			if !ok {
				continue
			}
			// In PTX it runs behind the access. It sees nothing that differs between the two.
			if ok, err := m.before(q, spot{i, int(a.BlockOf[i]), 0}, line); err != nil {
				return n, err
			} else if ok {
				n++
			}
		}
	default:
		return 0, fmt.Errorf("BUG: kind %s", q.Point.Kind)
	}
	return n, nil
}

// spots are the places of a program.
func (m *machine) spots(q *proof.Program) (list []spot) {
	a := m.weaver.Analysis()
	if q.Point.Kind == object.KindBlock {
		for b := range a.Blocks {
			if blk := &a.Blocks[b]; b == 0 || len(blk.Pred) > 0 || blk.Entry {
				list = append(list, spot{blk.Start, b, blk.End - blk.Start})
			}
		}
		return list
	}
	for i := range a.Insts {
		is := false
		if q.Point.Kind == object.KindMem {
			_, is = a.Insts[i].Access()
		} else {
			is = isOpcode(&q.Point, &a.Insts[i])
		}
		if is {
			list = append(list, spot{i, int(a.BlockOf[i]), 0})
		}
	}
	return list
}

// mostLines bounds the differing texts of instructions for which a program of KindCapture is
// compiled in a kernel: each takes some hundredths of a second.
const mostLines = 512

// isOpcode says whether the glob of a KindInsn is of the instruction: of its name, LDG, or, as only that has
// dots, of its name with modifiers, LDG.E.64.
func isOpcode(p *object.Point, in *sass.Inst) bool {
	return in.Known() && (glob.Match(p.Opcode, in.Name()) || strings.Contains(p.Opcode, ".") && glob.Match(p.Opcode, in.FullName()))
}

// before puts a program before instruction i. A place that can't be had is noted. line is the
// instruction's text for a program of KindCapture.
func (m *machine) before(q *proof.Program, s spot, line string) (bool, error) {
	i := s.insn
	in := &m.weaver.Analysis().Insts[i]
	pred, negated, guarded := in.Guard()
	if guarded && pred == sass.PT && negated && q.Point.Kind != object.KindBlock {
		return false, nil // it never runs: compilers put such loads before others
	}
	// A guard keeps no thread from the block, nor from bpftime's calls behind accesses.
	form := m.form(q)
	form.guarded = guarded && q.Point.Kind != object.KindBlock && q.Point.Kind != object.KindCapture
	if q.ReadsValue() {
		form.copies = in.Copies()
		_, form.rows = in.Rows()
	}
	if len(m.lines[q]) == mostLines {
		m.skip(fmt.Sprintf("%s at +%#x", in.Name(), i*sass.WordSize), fmt.Sprintf("the instructions of more than %d places differ", mostLines))
		return false, nil
	}
	b, err := m.body(q, line, form)
	if err != nil {
		return false, err
	}
	if q.Point.Kind == object.KindCapture {
		if m.lines == nil {
			m.lines = make(map[*proof.Program]map[*sass.Body]bool)
		}
		if m.lines[q] == nil {
			m.lines[q] = make(map[*sass.Body]bool)
		}
		m.lines[q][b.code] = true
	}
	put := m.weaver.Before
	if slices.ContainsFunc(b.params, func(p proof.BodyParam) bool { return p.What == proof.BodyStored }) && in.Loads() {
		put = m.weaver.After
	}
	sites := len(m.sites)
	err = put(i*sass.WordSize, b.code, m.args(q, b, m.site(q, i, s.block, s.insns), in)...)
	if se, ok := errors.AsType[*sass.SiteError](err); ok {
		m.sites = m.sites[:sites]
		m.keys[q].giveBack()
		m.noted(i, se)
		return false, nil
	}
	return err == nil, err
}

// noted notes why there is no program at instruction i, if that ever runs.
func (m *machine) noted(i int, why error) {
	se, ok := errors.AsType[*sass.SiteError](why)
	if !ok || strings.HasSuffix(se.Reason, string(sass.ReasonUnreached)) || strings.HasSuffix(se.Reason, string(sass.ReasonPadding)) {
		return
	}
	m.skip(fmt.Sprintf("%s at +%#x", m.weaver.Analysis().Insts[i].Name(), i*sass.WordSize), se.Reason)
}

// site describes a place. Its number is one of the kernel's; see number.
func (m *machine) site(q *proof.Program, i, block, insns int) *proof.Place {
	at := &proof.Place{Number: uint32(len(m.sites) + 1), Insn: uint32(i), Block: uint32(block), Insns: uint32(insns)}
	s := Site{Kernel: m.report.Name, Program: q.Name, Kind: q.Point.Kind, Insn: uint32(i)}
	if q.Point.Kind != object.KindEntry && q.Point.Kind != object.KindExit {
		s.Text = m.weaver.Analysis().Insts[i].Name()
	}
	m.sites = append(m.sites, s)
	if keys := m.keys[q]; keys != nil {
		at.Slots = m.takeKeys(q, keys, at, i)
	}
	return at
}

// args returns what a place gives a body; in is nil at entry and exits.
func (m *machine) args(q *proof.Program, b *compiledBody, at *proof.Place, in *sass.Inst) []sass.Arg {
	var access sass.Access
	if in != nil {
		access, _ = in.Access()
	}
	list := make([]sass.Arg, len(b.params), len(b.params)+1)
	for i, p := range b.params {
		switch p.What {
		case proof.BodyAddr:
			list[i] = sass.SiteAddress()
		case proof.BodyStored:
			list[i] = sass.SiteValue()
		case proof.BodyActive:
			list[i] = sass.Active()
		case proof.BodyCopied:
			list[i] = sass.Copied()
		case proof.BodyArg:
			list[i] = sass.ConstWord(0, m.kernel.ParamBase+p.Offset)
			if p.Wide {
				list[i] = sass.ConstWide(0, m.kernel.ParamBase+p.Offset)
			}
		case proof.BodySite:
			list[i] = sass.Number(at.Number)
		case proof.BodySize, proof.BodySpace, proof.BodyAccess, proof.BodyInsn, proof.BodyBlock, proof.BodyCount:
			list[i] = sass.Imm(numberAt(at, p.What, access))
		case proof.BodySum:
			list[i] = sass.Imm(uint32(at.Sums[p.Offset]))
		case proof.BodySlot:
			list[i] = sass.Imm(uint32(at.Slots[p.Offset]) * uint32(m.r.maps.Of(q.SlotMap(p.Offset)).Stride))
		default: // a line or file, which machine code is not asked for
			list[i] = sass.Imm(0)
		}
	}
	if v, ok := m.own[q.Object]; ok {
		list = append(list, v.Arg())
	}
	return list
}

// skip notes why a place has no program, with how many have none for that reason. The last note
// counts the places for all reasons beyond mostReasons.
func (m *machine) skip(place, reason string) {
	k := slices.IndexFunc(m.skipped, func(k skipped) bool { return k.reason == reason })
	switch {
	case k >= 0:
	case len(m.skipped) == mostReasons:
		if m.others == nil {
			m.others = make(map[string]int)
			m.report.Notes = append(m.report.Notes, "")
		}
		m.others[reason]++
		m.report.Notes[mostReasons] = othersNote(m.others)
		return
	default:
		k = len(m.skipped)
		m.skipped = append(m.skipped, skipped{reason: reason, first: place})
		m.report.Notes = append(m.report.Notes, "")
	}
	m.skipped[k].n++
	m.report.Notes[k] = m.skipped[k].String()
}

// othersNote says how many places have no program for reasons that are not listed.
func othersNote(reasons map[string]int) string {
	places := 0
	for _, n := range reasons {
		places += n
	}
	return fmt.Sprintf("places without programs for reasons that are not listed: %d; such reasons: %d", places, len(reasons))
}

// mostReasons bounds the reasons that are listed of a kernel.
const mostReasons = 32

// skipped are places of a kernel without a program, for one reason.
type skipped struct {
	reason, first string
	n             int
}

func (s skipped) String() string {
	if s.n == 1 {
		return s.reason + " (" + s.first + ")"
	}
	return fmt.Sprintf("%s (%d places, the first %s)", s.reason, s.n, s.first)
}

// paramsKey is a kernel's parameters as text.
func paramsKey(params []fatbin.Param) string {
	var b strings.Builder
	for _, p := range params {
		b.WriteString(strconv.Itoa(p.Offset) + ":" + strconv.Itoa(p.Size) + " ")
	}
	return b.String()
}

// body returns a program's machine code, which is compiled once.
func (m *machine) body(q *proof.Program, line string, f bodyForm) (*compiledBody, error) {
	key := bodyKey{q: q, maps: m.r.maps, sm: m.arch.SM, line: line, form: f}
	if q.AsksForArguments() {
		key.params = paramsKey(m.kernel.Params)
	}
	m.r.compiling.Lock()
	defer m.r.compiling.Unlock()
	b := m.r.p.kept.bodies[key]
	if b == nil {
		b = m.compile(q, line, f)
		if m.r.p.kept.bodies == nil || len(m.r.p.kept.bodies) >= mostKept {
			m.r.p.kept.bodies = make(map[bodyKey]*compiledBody)
		}
		m.r.p.kept.bodies[key] = b
	}
	m.r.fixed = m.r.fixed || b.fixed
	return b, b.err
}

func (m *machine) compile(q *proof.Program, line string, f bodyForm) *compiledBody {
	b, err := m.r.p.bodyText(q, m.r.maps, m.arch, m.kernel.Params, line, f)
	if err != nil {
		return &compiledBody{err: err}
	}
	if q.Point.Kind != object.KindCapture {
		return m.compileBody(b)
	}
	// Most programs look at little of a text, so that few of their codes differ.
	key := codeKey{b.Text, m.arch.SM}
	c := m.r.p.kept.codes[key]
	if c == nil {
		c = m.compileBody(b)
		if m.r.p.kept.codes == nil || len(m.r.p.kept.codes) >= mostKept {
			m.r.p.kept.codes = make(map[codeKey]*compiledBody)
		}
		m.r.p.kept.codes[key] = c
	}
	return c
}

func (m *machine) compileBody(b *Body) *compiledBody {
	if m.r.o.Places != nil {
		if placeA, placeB, ok := m.r.o.Places(b.Text); ok {
			if code, ok := m.movable(placeA, placeB); ok {
				return &compiledBody{params: b.Params, code: code}
			}
		}
	}
	code, err := m.compileText(b.Text)
	return &compiledBody{params: b.Params, code: code, err: err, fixed: true}
}

// movable compiles a program for two places at which its memory is not; false if what
// comes of it differs by more than the places.
func (m *machine) movable(placeA, placeB string) (*sass.Body, bool) {
	var b *sass.Body
	var errB error
	var wait sync.WaitGroup
	wait.Go(func() { b, errB = m.compileText(placeB) })
	a, errA := m.compileText(placeA)
	wait.Wait()
	if errA != nil || errB != nil {
		return nil, false // the text as it is gives the message
	}
	return sass.Movable(a, b, m.r.o.High)
}

func (m *machine) compileText(text string) (*sass.Body, error) {
	cubin, err := m.r.o.CompileBody(text)
	if err != nil {
		return nil, fmt.Errorf("compiling: %w", err)
	}
	if len(cubin) == 0 {
		return nil, errors.New("the driver's compiler can't be used here, and machine code needs it")
	}
	return sass.BodyFromCubin(cubin, BodyName)
}

// spaces are the values of a context's field for state spaces.
var spaces = map[sass.Space]uint32{sass.Generic: proof.SpaceGeneric, sass.Global: proof.SpaceGlobal, sass.SharedMemory: proof.SpaceShared, sass.LocalMemory: proof.SpaceLocal}

// kindOf returns the value of a context's field for what an access does.
func kindOf(a sass.Access) uint32 {
	switch {
	case a.Atomic:
		return proof.AccessAtomic
	case a.Store:
		return proof.AccessStore
	}
	return proof.AccessLoad
}
