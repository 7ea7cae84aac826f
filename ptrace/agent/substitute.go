package agent

import (
	"encoding/binary"

	"nvtrace/ptrace"
)

// Substitutes has functions that are called with a handle of something go on with another
// handle in its place, inside a process. It is a table in memory that the process and this
// one share: the code at the functions' entries finds the handle there, or puts it there, so
// that one learns which handles there are, and how often functions were called with each.
//
// The table belongs to one process. A child that is forked from it finds none.
//
// It is a hash table with open addressing. The code in the process adds handles, by a
// compare-and-exchange of an entry's first word, and counts; this side sets what stands for them and
// takes handles out. A handle that is gone leaves a mark, so that a search does not end there.
type Substitutes struct {
	b    []byte
	addr uint64
	seen uint64 // handles that New has looked for
}

// SubstitutesSize is the size of the memory of Substitutes.
const SubstitutesSize = substEntries + numSubst*substSize

// What is in the table: a word that is 0 if nothing is substituted at the moment, the number
// of calls of the functions that have not returned, that of handles in the table, and that of
// calls with handles that found no room there; then the entries.
const (
	substOn    = 0
	substOpen  = 8
	substCount = 16
	substFull  = 24

	substEntries = 4096
	numSubst     = 1 << 16
	substSize    = 32

	entryHandle = 0 // 0: there is none
	entryOther  = 8 // 0: the handle stays; see fitsBit
	entryCalls  = 16
	entryDone   = 24 // calls with the other handle
)

// NewSubstitutes makes a table in memory of this size that is zero, and that processes have at
// addr: a part of Programs.Data.
func NewSubstitutes(b []byte, addr uint64) *Substitutes {
	return &Substitutes{b: b[:SubstitutesSize:SubstitutesSize], addr: addr}
}

// A Substituted is a handle in the table.
type Substituted struct {
	Handle uint64
	Calls  uint64 // with it
	Done   uint64 // of these, with the other handle in its place
	Graph  bool   // it is a graph's
}

// Handles and what stands for them are addresses, whose lowest bits are 0. In the table they
// say more.
const (
	fitsBit  = 1 // of entryOther: as many blocks fit of it
	graphBit = 2 // of entryHandle: it is a graph's
)

// On says whether handles are substituted from now on. Calls that have begun go on with what
// they have.
func (s *Substitutes) On(on bool) {
	v := uint64(0)
	if on {
		v = 1
	}
	store64(s.b, substOn, v)
}

// Open is how many calls have not returned.
func (s *Substitutes) Open() uint64 { return load64(s.b, substOpen) }

// Full is how many calls there were with handles that found no room.
func (s *Substitutes) Full() uint64 { return load64(s.b, substFull) }

// Changed reports whether there are other handles than when All was called last.
func (s *Substitutes) Changed() bool { return load64(s.b, substCount) != s.seen }

// All returns what is in the table.
func (s *Substitutes) All() []Substituted {
	s.seen = load64(s.b, substCount)
	var list []Substituted
	for at := substEntries; at < SubstitutesSize; at += substSize {
		if h := load64(s.b, at+entryHandle); h != 0 && h != goneHandle {
			list = append(list, Substituted{h &^ graphBit, load64(s.b, at+entryCalls), load64(s.b, at+entryDone), h&graphBit != 0})
		}
	}
	return list
}

// Done is how many calls went on with another handle in place of theirs.
func (s *Substitutes) Done() (n uint64) {
	for at := substEntries; at < SubstitutesSize; at += substSize {
		n += load64(s.b, at+entryDone)
	}
	return n
}

// goneHandle stands for a handle that means nothing any more. A free place would end the
// search for others.
const goneHandle = 1

// Set has a handle that is in the table replaced by another one, 0: by none. fits says that as
// many blocks of it fit on a GPU: calls that want all blocks to run at a time go on with it, too.
func (s *Substitutes) Set(handle, other uint64, fits bool) {
	if at := s.find(handle); at != 0 {
		if fits {
			other |= fitsBit
		}
		store64(s.b, at+entryOther, other)
	}
}

// Forget takes a handle out of the table: it may mean something else now.
func (s *Substitutes) Forget(handle uint64) {
	if at := s.find(handle); at != 0 {
		store64(s.b, at+entryOther, 0)
		store64(s.b, at+entryHandle, goneHandle)
	}
}

// find returns where a handle is, 0 if it is not there.
func (s *Substitutes) find(handle uint64) int {
	i := handle * substHash >> substShift
	for range substTries {
		at := substEntries + int(i%numSubst)*substSize
		switch load64(s.b, at+entryHandle) {
		case handle:
			return at
		case 0:
			return 0
		}
		i++
	}
	return 0
}

// How the code looks for a handle.
const (
	substHash  = 0x1e3779b1
	substShift = 20
	substTries = 64
)

// A HandleFunc is a function that Process.Substitute is for.
type HandleFunc struct {
	Name string
	Addr uint64 // as in Target
	Form HandleForm
}

// HandleForm is where a function has its handle, and what may be put there.
type HandleForm uint8

// The forms.
const (
	HandleFirst  HandleForm = iota // the first argument is the handle
	HandleAll                      // it is, and all blocks are to run at a time
	HandleConfig                   // the second is, and the first points to the CUDA driver's struct CUlaunchConfig
	HandleGraph                    // the first is a graph's, of which calls are counted
	handleForms
)

// Substitute has calls of functions go on with the handles that s says. They are hooked, also
// where others are. t must be as for Process.HookAll. missed has an error for each function that can't be hooked, nil for
// the others: their calls go on as they were.
func (p *Process) Substitute(t *ptrace.Task, s *Substitutes, list []HandleFunc) (missed []error, err error) {
	if err := p.Runs(t); err != nil {
		return nil, err
	}
	if err := p.write64(substAddr, s.addr); err != nil {
		return nil, err
	}
	g := p.a.programs
	var refs [handleForms + 1]ProgramRef
	for i := range refs {
		code := substituted()
		if f := HandleForm(i); f < handleForms {
			code = substituting(f)
		}
		var err error
		// Nothing ends these programs early, and returns that can't be seen are counted where
		// they are told apart from nothing: the call stays open.
		if refs[i], err = g.Add(&Code{Code: code, Counts: s.addr + substFull + 8}); err != nil {
			return nil, err
		}
	}
	var targets []Target
	for _, f := range list {
		probe, err := g.Probe([]ProgramRef{refs[f.Form]}, []ProgramRef{refs[handleForms]})
		if err != nil {
			return nil, err
		}
		targets = append(targets, Target{Addr: f.Addr, Hook: &Hook{Name: f.Name, Probe: probe, Returns: true, Beside: true}})
	}
	if err := p.HookAll(t, targets); err != nil {
		return nil, err
	}
	missed = make([]error, len(list))
	for i := range targets {
		missed[i] = targets[i].Err
	}
	return missed, nil
}

// substituting is the program at a function's entry, see [Programs]; it has the registers at
// rdi, as struct pt_regs has them.
func substituting(form HandleForm) []byte {
	c := new(substCode)
	c.begin()
	c.add(0xf0, 0x49, 0xff, 0x40, substOpen) // lock incq open(%r8)
	handle := byte(112)                      // rdi
	if form == HandleConfig {
		handle = 104 // rsi
	}
	c.add(0x48, 0x8b, 0x57, handle) // mov handle(%rdi),%rdx
	c.add(0x48, 0x85, 0xd2)         // test %rdx,%rdx
	c.jump("out", 0x0f, 0x84)       // jz
	if form == HandleGraph {
		c.add(0x48, 0x83, 0xca, graphBit) // or $graphBit,%rdx
	}
	c.add(0x48, 0x69, 0xca) // imul $hash,%rdx,%rcx
	c.b = binary.LittleEndian.AppendUint32(c.b, substHash)
	c.add(0x48, 0xc1, 0xe9, substShift)        // shr $shift,%rcx
	c.add(0x41, 0xb9, substTries, 0, 0, 0)     // mov $tries,%r9d
	c.label("search")                          //
	c.add(0x81, 0xe1, 0xff, 0xff, 0, 0)        // and $0xffff,%ecx
	c.add(0x49, 0x89, 0xca)                    // mov %rcx,%r10
	c.add(0x49, 0xc1, 0xe2, 5)                 // shl $5,%r10
	c.add(0x4f, 0x8d, 0x94, 0x10, 0, 16, 0, 0) // lea entries(%r8,%r10),%r10
	c.add(0x49, 0x8b, 0x02)                    // mov (%r10),%rax
	c.add(0x48, 0x39, 0xd0)                    // cmp %rdx,%rax
	c.jump("found", 0x0f, 0x84)                // je
	c.add(0x48, 0x85, 0xc0)                    // test %rax,%rax
	c.jump("next", 0x0f, 0x85)                 // jnz
	c.add(0xf0, 0x49, 0x0f, 0xb1, 0x12)        // lock cmpxchg %rdx,(%r10)
	c.jump("new", 0x0f, 0x84)                  // jz
	c.add(0x48, 0x39, 0xd0)                    // cmp %rdx,%rax
	c.jump("found", 0x0f, 0x84)                // je: another thread was faster
	c.label("next")                            //
	c.add(0xff, 0xc1)                          // inc %ecx
	c.add(0x41, 0xff, 0xc9)                    // dec %r9d
	c.jump("search", 0x0f, 0x85)               // jnz
	c.add(0xf0, 0x49, 0xff, 0x40, substFull)   // lock incq full(%r8)
	c.jump("out", 0xe9)                        // jmp
	c.label("new")                             //
	c.add(0xf0, 0x49, 0xff, 0x40, substCount)  // lock incq count(%r8)
	c.label("found")                           //
	c.add(0xf0, 0x49, 0xff, 0x42, entryCalls)  // lock incq calls(%r10)
	c.add(0x49, 0x8b, 0x42, entryOther)        // mov other(%r10),%rax
	c.add(0x48, 0x85, 0xc0)                    // test %rax,%rax
	c.jump("out", 0x0f, 0x84)                  // jz
	c.add(0x49, 0x83, 0x38, 0)                 // cmpq $0,(%r8)
	c.jump("out", 0x0f, 0x84)                  // je
	switch form {
	case HandleConfig:
		c.fitsOrAlone()
	case HandleAll:
		c.fits()
	}
	c.add(0x48, 0x83, 0xe0, 0x100-1-fitsBit) // and $~fitsBit,%rax
	c.add(0x48, 0x89, 0x47, handle)          // mov %rax,handle(%rdi)
	c.add(0xf0, 0x49, 0xff, 0x42, entryDone) // lock incq done(%r10)
	return c.end()
}

// fits goes on if as many blocks fit.
func (c *substCode) fits() {
	c.add(0xa8, fitsBit)      // test $fitsBit,%al
	c.jump("out", 0x0f, 0x84) // jz
}

// fitsOrAlone goes on if a struct CUlaunchConfig does not say that all blocks are to run at
// a time, or as many fit.
func (c *substCode) fitsOrAlone() {
	c.add(0xa8, fitsBit)          // test $fitsBit,%al
	c.jump("alone", 0x0f, 0x85)   // jnz
	c.add(0x48, 0x8b, 0x4f, 112)  // mov rdi(%rdi),%rcx
	c.add(0x48, 0x85, 0xc9)       // test %rcx,%rcx
	c.jump("out", 0x0f, 0x84)     // jz
	c.add(0x44, 0x8b, 0x49, 48)   // mov numAttrs(%rcx),%r9d
	c.add(0x48, 0x8b, 0x49, 40)   // mov attrs(%rcx),%rcx
	c.label("attribute")          //
	c.add(0x45, 0x85, 0xc9)       // test %r9d,%r9d
	c.jump("alone", 0x0f, 0x84)   // jz
	c.add(0x83, 0x39, 2)          // cmpl $CU_LAUNCH_ATTRIBUTE_COOPERATIVE,(%rcx)
	c.jump("another", 0x0f, 0x85) // jne
	c.add(0x83, 0x79, 8, 0)       // cmpl $0,value(%rcx)
	c.jump("out", 0x0f, 0x85)     // jne
	c.label("another")            //
	c.add(0x48, 0x83, 0xc1, 72)   // add $sizeof(CUlaunchAttribute),%rcx
	c.add(0x41, 0xff, 0xc9)       // dec %r9d
	c.jump("attribute", 0xe9)     // jmp
	c.label("alone")
}

// substituted is the program at a function's return.
func substituted() []byte {
	c := new(substCode)
	c.begin()
	c.add(0xf0, 0x49, 0xff, 0x48, substOpen) // lock decq open(%r8)
	return c.end()
}

// substCode makes machine code.
type substCode struct {
	b      []byte
	labels map[string]int
	jumps  map[int]string // by where they are relative to
}

// add appends bytes of an instruction.
func (c *substCode) add(b ...byte) { c.b = append(c.b, b...) }

// label names the place that the code has come to.
func (c *substCode) label(name string) {
	if c.labels == nil {
		c.labels = make(map[string]int)
	}
	c.labels[name] = len(c.b)
}

// jump adds one to a label, with 4 bytes of distance.
func (c *substCode) jump(to string, op ...byte) {
	c.add(append(op, 0, 0, 0, 0)...)
	if c.jumps == nil {
		c.jumps = make(map[int]string)
	}
	c.jumps[len(c.b)] = to
}

// begin loads the table's address into r8, and leaves where there is none.
func (c *substCode) begin() {
	c.add(0x55, 0x48, 0x89, 0xe5) // push %rbp; mov %rsp,%rbp
	c.add(0xb8)                   // mov $substAddr,%eax
	c.b = binary.LittleEndian.AppendUint32(c.b, substAddr)
	c.add(0x4c, 0x8b, 0x00)   // mov (%rax),%r8
	c.add(0x4d, 0x85, 0xc0)   // test %r8,%r8
	c.jump("out", 0x0f, 0x84) // jz
}

// end has the program return that nothing has ended it.
func (c *substCode) end() []byte {
	c.label("out")
	c.add(0x31, 0xc0, 0x31, 0xd2, 0x5d, 0xc3) // xor %eax,%eax; xor %edx,%edx; pop %rbp; ret
	for at, to := range c.jumps {
		binary.LittleEndian.PutUint32(c.b[at-4:], uint32(int32(c.labels[to]-at)))
	}
	return c.b
}
