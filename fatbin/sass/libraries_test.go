package sass

import (
	"bytes"
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"nvtrace/fatbin"
)

// libraries are files with code for GPUs: the fixtures of package fatbin, and those in the
// folder that NVTRACE_LIBRARIES names.
func libraries(tb testing.TB) []string {
	tb.Helper()
	var files []string
	patterns := []string{"../testdata/*.cubin", "../testdata/*.fatbin", "../testdata/*.so"}
	if dir := os.Getenv("NVTRACE_LIBRARIES"); dir != "" {
		patterns = []string{filepath.Join(dir, "*")}
	}
	for _, p := range patterns {
		m, err := filepath.Glob(p)
		if err != nil || len(m) == 0 {
			tb.Fatalf("%s: no files, %v", p, err)
		}
		files = append(files, m...)
	}
	return files
}

// eachCubin gives f the cubins of a file, one after the other, in the same memory.
func eachCubin(tb testing.TB, name string, f func(c *fatbin.Cubin, image []byte)) {
	tb.Helper()
	file, err := fatbin.Open(name, nil)
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	x := fatbin.NewInflater(nil)
	defer x.Close()
	for c, err := range file.Containers() {
		if err != nil {
			tb.Error(err)
		}
		if c == nil {
			continue
		}
		for i := range c.Entries {
			if c.Entries[i].Kind() != fatbin.KindELF {
				continue
			}
			image, err := x.Data(&c.Entries[i])
			if err != nil {
				tb.Errorf("%s: %v", name, err)
				continue
			}
			cubin, err := fatbin.ParseCubin(image)
			if err != nil {
				tb.Errorf("%s: %v", name, err)
				continue
			}
			f(cubin, image)
		}
	}
}

// sectionCode returns the code in a section, nil if it holds none.
func sectionCode(s *fatbin.Section, image []byte) []byte {
	const progbits = 1
	if s.Type != progbits || !strings.HasPrefix(s.Name, ".text.") {
		return nil
	}
	return image[s.Offset:][:s.Size]
}

// again encodes an instruction anew from what was decoded: the registers, guard, target and
// control half are cleared first, so that nothing of them is left of the word. Of an unknown
// word only the control half is known.
func again(in *Inst, ops []Operand) Word {
	control, flow := in.Word.Control(), in.Flow()
	x := *in
	x.Word = x.Word.WithControl(Control{})
	for i := range ops {
		if o := &ops[i]; o.Len > 0 {
			x.Word = x.Word.SetBits(uint(o.Pos), uint(o.Len), 0)
		}
	}
	guard, negated, _ := in.Guard()
	if in.Known() {
		x.Word = x.Word.Guarded(0, false)
		if flow.HasTarget {
			x.Word, _ = x.withTarget(0)
			x.Word, _ = x.withTarget(flow.Target)
		}
		x.Word = x.Word.Guarded(guard, negated)
	}
	for i := range ops {
		if o := &ops[i]; o.Len > 0 {
			x.Word = x.Set(o, o.Reg)
		}
	}
	return x.Word.WithControl(control)
}

// libraryTally is what a test has seen of an architecture.
type libraryTally struct {
	cubins, functions, words, unknown, wrong int
	took                                     time.Duration
	hazards                                  map[Hazard]int
	byHand, known                            int // functions with findings that are not counted
}

func (c *libraryTally) log(tb testing.TB, name, arch, wrong string) {
	tb.Helper()
	tb.Logf("%s %s: %d cubins, %d functions, %d instructions (%d unknown), %d %s, %.0f MB/s", name, arch,
		c.cubins, c.functions, c.words, c.unknown, c.wrong, wrong, float64(c.words)*WordSize/1e6/max(c.took.Seconds(), 1e-9))
	if c.byHand+c.known > 0 {
		tb.Logf("  not counted: %d functions written by hand, %d that are known", c.byHand, c.known)
	}
	for _, h := range slices.Sorted(maps.Keys(c.hazards)) {
		tb.Logf("  %d: %s", c.hazards[h], h)
	}
}

// overLibraries adds up by architecture what look sees of the code of libraries, and logs it.
func overLibraries(t *testing.T, wrong string, look func(t *testing.T, c *fatbin.Cubin, image []byte, sum *libraryTally)) {
	for _, name := range libraries(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			sums := make(map[fatbin.Arch]*libraryTally)
			var all libraryTally
			eachCubin(t, name, func(c *fatbin.Cubin, image []byte) {
				sum := sums[c.Arch]
				if sum == nil {
					sum = &libraryTally{hazards: make(map[Hazard]int)}
					sums[c.Arch] = sum
				}
				sum.cubins++
				look(t, c, image, sum)
			})
			for _, a := range slices.SortedFunc(maps.Keys(sums), func(a, b fatbin.Arch) int {
				return cmp.Or(cmp.Compare(a.SM, b.SM), cmp.Compare(a.String(), b.String()))
			}) {
				s := sums[a]
				s.log(t, filepath.Base(name), a.String(), wrong)
				all.cubins += s.cubins
				all.functions += s.functions
				all.words += s.words
				all.unknown += s.unknown
				all.wrong += s.wrong
				all.byHand += s.byHand
				all.known += s.known
				all.took += s.took
			}
			all.log(t, filepath.Base(name), "all", wrong)
		})
	}
}

// All code of libraries is the same, byte for byte, when it is decoded and encoded again.
func TestRoundTrip(t *testing.T) {
	var out []byte
	var ops []Operand
	overLibraries(t, "different", func(t *testing.T, c *fatbin.Cubin, image []byte, sum *libraryTally) {
		out = append(out[:0], image...)
		for i := range c.Sections {
			s := &c.Sections[i]
			code := sectionCode(s, image)
			if code == nil {
				continue
			}
			sum.functions++
			begin := time.Now()
			tail := len(code) % WordSize
			back := out[s.Offset:s.Offset]
			for at := 0; at+WordSize <= len(code); at += WordSize {
				in, ok := Decode(Arch(c.Arch.SM), WordAt(code[at:]))
				if !ok {
					sum.unknown++
				}
				ops = in.Operands(ops[:0])
				back = again(&in, ops).Append(back)
			}
			sum.took += time.Since(begin)
			sum.words += len(back) / WordSize
			if tail != 0 {
				t.Errorf("%s %s: %d bytes behind the last instruction", c.Arch, s.Name, tail)
			}
			if bytes.Equal(back, code[:len(code)-tail]) {
				continue
			}
			for at := 0; at+WordSize <= len(code); at += WordSize {
				if was, is := WordAt(code[at:]), WordAt(back[at:]); was != is {
					if sum.wrong++; sum.wrong <= 5 {
						t.Errorf("%s %s %#x: %v is %v when it is encoded again", c.Arch, s.Name, at, was, is)
					}
				}
			}
		}
		if !bytes.Equal(out, image) && sum.wrong == 0 {
			t.Errorf("%s: a cubin of %d bytes differs", c.Arch, len(image))
		}
	})
}

// byHand are names of kernels that were not compiled but written in machine code, and known are
// those of compilers' kernels with findings: see [Analysis.Check].
var (
	byHand = regexp.MustCompile(`^\.text\.(volta|turing|ampere)_`)
	known  = regexp.MustCompile(`d884gemm`)
)

// Code of libraries waits for all that it depends on, as the check sees it.
func TestLibrariesUnmodified(t *testing.T) {
	overLibraries(t, "findings", func(t *testing.T, c *fatbin.Cubin, image []byte, sum *libraryTally) {
		entries, registers := make(map[uint32][]uint32), make(map[uint32]int)
		for i := range c.Kernels {
			k := &c.Kernels[i]
			entries[k.Section] = append(entries[k.Section], uint32(k.Offset))
			registers[k.Section] = max(registers[k.Section], k.Registers)
		}
		for i := range c.Functions {
			entries[c.Functions[i].Section] = append(entries[c.Functions[i].Section], uint32(c.Functions[i].Offset))
		}
		for i := range c.Sections {
			s := &c.Sections[i]
			code := sectionCode(s, image)
			if code == nil {
				continue
			}
			regs := registers[uint32(i)]
			begin := time.Now()
			a, err := Analyze(&Func{Arch: Arch(c.Arch.SM), Name: s.Name, Code: Words(code), Registers: regs, Entries: entries[uint32(i)], Callable: c.Relocatable || regs == 0})
			if err != nil {
				t.Fatal(err)
			}
			found := a.Check(20)
			sum.took += time.Since(begin)
			sum.functions++
			sum.words += len(a.Insts)
			sum.unknown += a.Unknown
			switch {
			case len(found) > 0 && byHand.MatchString(s.Name):
				sum.byHand++
				found = nil
			case len(found) > 0 && known.MatchString(s.Name):
				sum.known++
				found = nil
			}
			for _, f := range found {
				sum.hazards[f.Hazard]++
				if sum.wrong++; sum.wrong <= 20 {
					t.Errorf("%s %s: %s: %s", c.Arch, s.Name, f, a.Insts[f.Index].AppendText(nil, f.Index*WordSize))
				}
			}
			a.free()
		}
	})
}
