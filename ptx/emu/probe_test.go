package emu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/ptx"
)

// nullProbe is code that changes nothing: half of the lanes branch over an
// instruction.
const nullProbe = `	.reg .b32 nvta; .reg .pred nvtq; mov.u32 nvta, %laneid; and.b32 nvta, nvta, 1; setp.eq.u32 nvtq, nvta, 0; @nvtq bra NVTX; add.u32 nvta, nvta, 1;
NVTX:`

// counter is a probe that counts the threads that come by.
const counter = nullProbe + " red.global.add.u32 [nvt_counter], 1;"

// A siteClass is a kind of places for probes. put weaves the null probe into
// all of them in one function and returns how many there were; count says that
// each thread of a kernel comes by exactly once.
type siteClass struct {
	name  string
	count bool
	put   func(w *ptx.Weaver, f *ptx.File, st *ptx.Sites) (int, error)
}

// siteClasses are all of them: entries, ways out, block starts, before and after
// calls, each kind of synchronisation and each class of memory access, and before
// and after every instruction.
func siteClasses() []siteClass {
	classes := []siteClass{
		{"entry", true, func(w *ptx.Weaver, f *ptx.File, st *ptx.Sites) (int, error) { return 1, w.Entry(st, codeFor(st)) }},
		{"exit", true, func(w *ptx.Weaver, f *ptx.File, st *ptx.Sites) (int, error) {
			for i := range st.Exits {
				if err := w.Exit(st, &st.Exits[i], codeFor(st)); err != nil {
					return 0, err
				}
			}
			return len(st.Exits), nil
		}},
		{"block", false, func(w *ptx.Weaver, f *ptx.File, st *ptx.Sites) (n int, err error) {
			for i := range st.Blocks {
				at := st.Blocks[i].First
				for at < st.Blocks[i].Last && f.Stmts[at].Kind != ptx.StmtInstr {
					at++
				}
				if f.Stmts[at].Kind != ptx.StmtInstr {
					continue
				}
				if err := w.Before(st, at, nullProbe); err != nil {
					return 0, err
				}
				n++
			}
			return n, nil
		}},
	}
	around := func(name string, sites func(f *ptx.File, st *ptx.Sites) []uint32) {
		classes = append(classes, siteClass{"before " + name, false, func(w *ptx.Weaver, f *ptx.File, st *ptx.Sites) (int, error) {
			list := sites(f, st)
			for _, i := range list {
				if err := w.Before(st, i, nullProbe); err != nil {
					return 0, err
				}
			}
			return len(list), nil
		}}, siteClass{"after " + name, false, func(w *ptx.Weaver, f *ptx.File, st *ptx.Sites) (n int, err error) {
			for _, i := range sites(f, st) {
				switch f.Stmts[i].Op {
				case ptx.OpBra, ptx.OpBrx, ptx.OpRet, ptx.OpExit, ptx.OpTrap:
					continue // nothing comes after
				}
				if err := w.After(st, i, nullProbe); err != nil {
					return 0, err
				}
				n++
			}
			return n, nil
		}})
	}
	around("calls", func(_ *ptx.File, st *ptx.Sites) (list []uint32) {
		for i := range st.Calls {
			if !st.Calls[i].Noreturn {
				list = append(list, st.Calls[i].Stmt)
			}
		}
		return list
	})
	for k := ptx.SyncCTA; k <= ptx.SyncDependent; k++ {
		around("sync "+k.String(), func(_ *ptx.File, st *ptx.Sites) (list []uint32) {
			for i := range st.Syncs {
				if st.Syncs[i].Kind == k {
					list = append(list, st.Syncs[i].Stmt)
				}
			}
			return list
		})
	}
	for c := ptx.AccessLoad; c <= ptx.AccessMap; c++ {
		around("memory "+c.String(), func(_ *ptx.File, st *ptx.Sites) (list []uint32) {
			for i := range st.Accesses {
				if st.Accesses[i].Class == c {
					list = append(list, st.Accesses[i].Stmt)
				}
			}
			return slices.Compact(list) // some instructions have two accesses
		})
	}
	around("every instruction", func(f *ptx.File, st *ptx.Sites) (list []uint32) {
		for i := st.Func.Open; i < st.Func.Close; i++ {
			if f.Stmts[i].Kind == ptx.StmtInstr && !noreturn(st, i) {
				list = append(list, i)
			}
		}
		return list
	})
	return classes
}

// codeFor returns the probe of the classes that count.
func codeFor(st *ptx.Sites) string {
	if st.Func.Kind == ptx.FuncEntry {
		return counter
	}
	return nullProbe
}

func noreturn(st *ptx.Sites, i uint32) bool {
	return slices.ContainsFunc(st.Calls, func(c ptx.Call) bool { return c.Stmt == i && c.Noreturn })
}

// weave puts the probe at all sites of a class; nil if f has none.
func (c *siteClass) weave(tb testing.TB, f *ptx.File, all []*ptx.Sites) *ptx.File {
	tb.Helper()
	w := ptx.NewWeaver(f)
	if c.count {
		w.Module(".global .align 4 .u32 nvt_counter;")
	}
	sites := 0
	for _, st := range all {
		n, err := c.put(w, f, st)
		if err != nil {
			tb.Fatal(err)
		}
		sites += n
	}
	if sites == 0 {
		return nil
	}
	return apply(tb, f, w.Edits())
}

// A launchable is a kernel of a file and a vector that launches it. The GPU's
// results are not compared here but those of the kernel without probes.
type launchable struct {
	kernel string
	text   string // of the vector
	base   map[string][]byte
}

// notLaunched are the kernels of the corpus that do not end well by themselves or
// have other results each time, and why.
var notLaunched = map[string]string{
	"dies":   "ends in a trap",
	"hopper": "hand-written to be parsed: waits at barriers that nobody set up",
	"timers": "its results are times",
	"alloc":  "its results are addresses",
}

// launches returns the kernels of a file with a vector of their own, or that of a
// kernel of the same name from another compiler, or a made-up one.
func launches(tb testing.TB, path string, f *ptx.File, vectors map[string][]launchable, byName map[string]string) []launchable {
	list := vectors[path]
	mod, err := New(nil).Load(f)
	if err != nil {
		return list
	}
	for _, name := range mod.Kernels() {
		if slices.ContainsFunc(list, func(l launchable) bool { return l.kernel == name }) || notLaunched[name] != "" {
			continue
		}
		k, err := mod.Kernel(name)
		if err != nil {
			tb.Fatal(err)
		}
		text := byName[name]
		if text == "" {
			text = madeUp(k)
		}
		list = append(list, launchable{kernel: name, text: text})
	}
	return list
}

// madeUp returns a vector for a kernel that has none: every 8-byte parameter is
// the address of a buffer of small numbers, every smaller one is 32.
func madeUp(k *Kernel) string {
	var b strings.Builder
	block := k.reqTid
	if block == (Dim3{}) {
		block = Dim3{64, 1, 1}
		if n := k.MaxThreads(); n != 0 {
			block.X = min(block.X, uint32(n))
		}
	}
	fmt.Fprintf(&b, "kernel %s\ngrid %d %d %d\n", k.Name(), 2*max(1, k.reqCta.X), max(1, k.reqCta.Y), max(1, k.reqCta.Z))
	fmt.Fprintf(&b, "block %d %d %d\nshared 49152\n", block.X, block.Y, block.Z)
	for i, p := range k.Params() {
		switch {
		case p.Size == 8:
			fmt.Fprintf(&b, "buffer b%d u32 16384 range %d 0 31\nparam buffer b%d 0\noutput b%d exact\n", i, i, i, i)
		case p.Size < 8 && p.Size&(p.Size-1) == 0:
			fmt.Fprintf(&b, "param u%d 32\n", 8*p.Size)
		default:
			fmt.Fprintf(&b, "param bytes %s\n", strings.Repeat("00", int(p.Size)))
		}
	}
	return b.String()
}

// TestNullProbe weaves the null probe into every vector and every kernel of the
// corpus that can be launched, at each class of sites in turn; the results must be
// those of the kernel as it is, and probes at entries and exits must have run once
// a thread. With -short or the race detector, each file gets a quarter of the
// classes.
func TestNullProbe(t *testing.T) {
	vectors, byName := map[string][]launchable{}, map[string]string{}
	for _, file := range vectorFiles(t) {
		text, err := os.ReadFile(filepath.Join("testdata/vectors", file))
		if err != nil {
			t.Fatal(err)
		}
		v := parseVector(string(text))
		path := filepath.Join("testdata/vectors", v.ptx)
		vectors[path] = append(vectors[path], launchable{kernel: v.kernel, text: string(text)})
		if strings.HasPrefix(file, "k_") {
			byName[v.kernel] = string(text)
		}
	}
	paths := corpusFiles(t)
	for path := range vectors {
		if !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	var mu sync.Mutex
	kernels, runs, byClass := 0, 0, map[string]int{}
	t.Run("files", func(t *testing.T) {
		for at, path := range paths {
			t.Run(filepath.Base(path), func(t *testing.T) {
				t.Parallel()
				k, done := probeFile(t, at, path, vectors, byName)
				mu.Lock()
				defer mu.Unlock()
				kernels += k
				for name, n := range done {
					byClass[name] += n
					runs += n
				}
			})
		}
	})
	t.Logf("%d kernels, %d runs: %v", kernels, runs, byClass)
	if kernels < 400 || runs < 2*kernels {
		t.Errorf("only %d kernels in %d runs", kernels, runs)
	}
}

// probeFile returns how many kernels of a file were launched, and how often with
// each class of probes.
func probeFile(t *testing.T, at int, path string, vectors map[string][]launchable, byName map[string]string) (kernels int, done map[string]int) {
	src, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := ptx.Parse(path, string(src), nil)
	if err != nil {
		t.Fatal(err)
	}
	list := launches(t, path, f, vectors, byName)
	for i := range list {
		l := &list[i]
		v := parseVector(l.text)
		err := v.runFile(f, 1)
		if errors.Is(err, ErrNotImplemented) && missingAllowed(err.Error()) {
			continue // refused on purpose
		}
		if err != nil {
			t.Errorf("%s without probes: %v", l.kernel, err)
			continue
		}
		l.base = map[string][]byte{}
		for _, rule := range v.outputs {
			l.base[rule[0]] = v.buffer(rule[0]).region.Data
		}
		kernels++
	}
	all := f.AllSites()
	leaves := slices.ContainsFunc(all, func(st *ptx.Sites) bool { // threads may end in a device function
		return st.Func.Kind != ptx.FuncEntry && slices.ContainsFunc(st.Exits, func(e ptx.Exit) bool { return e.Kind == ptx.ExitExit })
	})
	done = map[string]int{}
	for i, c := range siteClasses() {
		if (testing.Short() || need.Race) && (at+i)%4 != 0 {
			continue
		}
		g := c.weave(t, f, all)
		if g == nil {
			continue
		}
		for _, l := range list {
			if l.base == nil {
				continue
			}
			done[c.name]++
			v := parseVector(l.text)
			if err := v.runFile(g, 1); err != nil {
				t.Errorf("%s, %s: %v", l.kernel, c.name, err)
				continue
			}
			for _, rule := range v.outputs {
				if err := v.buffer(rule[0]).check(rule, slices.Clone(l.base[rule[0]])); err != nil {
					t.Errorf("%s, %s: %v", l.kernel, c.name, err)
				}
			}
			if c.count && !(leaves && c.name == "exit") {
				if n := v.counted(t); n != v.stats.Threads {
					t.Errorf("%s: the probe at the %s ran %d times in %d threads", l.kernel, c.name, n, v.stats.Threads)
				}
			}
		}
	}
	return kernels, done
}

// counted returns what the counter probes counted in the last run.
func (v *vector) counted(tb testing.TB) uint64 {
	tb.Helper()
	sym, ok := v.mod.Variable("nvt_counter")
	if !ok {
		tb.Fatal("no counter")
	}
	var b [4]byte
	if err := v.mod.machine.ReadMem(sym.Addr, b[:]); err != nil {
		tb.Fatal(err)
	}
	return uint64(binary.LittleEndian.Uint32(b[:]))
}

// TestFusedGauss checks what k_gauss.vec says of its tolerance: with every
// mul.f64 and the sub.f64 of its result fused, the machine's results are the
// GPU's bits.
func TestFusedGauss(t *testing.T) {
	v, f, want := loadVector(t, "k_gauss")
	product := map[string][]string{} // by register: its factors and how often it was fused
	e := ptx.NewEdits(f.Src)
	for i := range f.Stmts {
		s := &f.Stmts[i]
		op := f.FullOpcode(s)
		if s.Kind != ptx.StmtInstr || op != "mul.f64" && op != "sub.f64" {
			continue
		}
		var args []string
		for _, o := range f.Args(s) {
			args = append(args, f.Text(o.Span()))
		}
		if op == "mul.f64" {
			product[args[0]] = args[1:]
			e.Replace(s.Span(), "neg.f64 "+args[0]+", "+args[1]+";")
			continue
		}
		p := product[args[2]]
		if p == nil {
			t.Fatalf("%s: not the difference from a product", f.Position(s.Pos))
		}
		e.Replace(s.Span(), "fma.rn.f64 "+args[0]+", "+args[2]+", "+p[1]+", "+args[1]+";")
	}
	if err := v.runFile(apply(t, f, e), 0); err != nil {
		t.Fatal(err)
	}
	if err := v.buffer("out").check([]string{"out", "exact"}, want["out"]); err != nil {
		t.Error(err)
	}
}

// apply parses f with the edits.
func apply(tb testing.TB, f *ptx.File, e *ptx.Edits) *ptx.File {
	tb.Helper()
	src, err := e.Apply()
	if err != nil {
		tb.Fatal(err)
	}
	g, err := ptx.Parse(f.Name, src, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return g
}

// loadVector reads a vector, its module and the GPU's results, nil if there are
// none.
func loadVector(tb testing.TB, name string) (*vector, *ptx.File, map[string][]byte) {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join("testdata/vectors", name+".vec"))
	if err != nil {
		tb.Fatal(err)
	}
	v := parseVector(string(text))
	src, err := os.ReadFile(filepath.Join("testdata/vectors", v.ptx))
	if err != nil {
		tb.Fatal(err)
	}
	f, err := ptx.Parse(v.ptx, string(src), nil)
	if err != nil {
		tb.Fatal(err)
	}
	wantText, err := os.ReadFile(filepath.Join("testdata/vectors", name+".want"))
	if errors.Is(err, fs.ErrNotExist) {
		return v, f, nil
	}
	if err != nil {
		tb.Fatal(err)
	}
	want, err := readWant(string(wantText))
	if err != nil {
		tb.Fatal(err)
	}
	return v, f, want
}
