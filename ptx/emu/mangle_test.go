package emu

import (
	"math/rand/v2"
	"os"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/ptx"
)

// mangle changes a few instructions of f into others that still parse: operands
// and opcodes are exchanged for ones from elsewhere in the file, or removed.
func mangle(rnd *rand.Rand, f *ptx.File) string {
	var instrs []*ptx.Stmt
	for i := range f.Stmts {
		if f.Stmts[i].Kind == ptx.StmtInstr {
			instrs = append(instrs, &f.Stmts[i])
		}
	}
	if len(instrs) == 0 {
		return f.Src
	}
	e := ptx.NewEdits(f.Src)
	pick := func() *ptx.Stmt { return instrs[rnd.IntN(len(instrs))] }
	operand := func(s *ptx.Stmt) (ptx.Span, bool) {
		args := f.Args(s)
		if len(args) == 0 {
			return ptx.Span{}, false
		}
		return args[rnd.IntN(len(args))].Span(), true
	}
	done := map[*ptx.Stmt]bool{}
	for range 1 + rnd.IntN(6) {
		s := pick()
		if done[s] {
			continue
		}
		done[s] = true
		to, ok := operand(s)
		from, ok2 := operand(pick())
		other := pick()
		switch rnd.IntN(5) {
		case 0:
			if ok && ok2 {
				e.Replace(to, f.Text(from))
			}
		case 1:
			e.Replace(ptx.Span{Pos: s.Name.Pos, End: s.Mods}, f.FullOpcode(other))
		case 2:
			e.Replace(ptx.Span{Pos: s.Name.End, End: s.Mods}, f.Text(ptx.Span{Pos: other.Name.End, End: other.Mods}))
		case 3:
			if ok {
				e.Replace(to, "{"+f.Text(to)+", "+f.Text(from)+"}")
			}
		case 4:
			if args := f.Args(s); len(args) > 1 {
				e.Replace(ptx.Span{Pos: args[len(args)-2].End, End: args[len(args)-1].End}, "")
			} else if ok {
				e.Replace(to, "")
			}
		}
	}
	src, err := e.Apply()
	if err != nil {
		return f.Src
	}
	return src
}

// runAll executes all kernels of a file with pointers to one buffer, as far as
// the budget goes, and fails if the budget does not end a launch.
func runAll(t *testing.T, src string) {
	t.Helper()
	file, err := ptx.Parse("mangled.ptx", src, nil)
	if err != nil {
		return
	}
	m := New(&Options{Memory: newHeap(1 << 26), Workers: 1, StackLimit: 1 << 16, MaxDepth: 32})
	mod, err := m.Load(file)
	if err != nil {
		return
	}
	buf, err := m.Alloc(1<<16, "buffer")
	if err != nil {
		return
	}
	ctx := need.Limit(t)
	for i, name := range mod.Kernels() {
		k, err := mod.Kernel(name)
		if err != nil || i == 8 {
			continue
		}
		args := make([]byte, k.ParamBytes())
		for _, p := range k.Params() {
			if p.Size == 8 {
				copy(args[p.Offset:], le(buf.Base))
			} else {
				copy(args[p.Offset:][:p.Size], []byte{16})
			}
		}
		cfg := &LaunchConfig{Grid: Dim3{X: 2}, Block: Dim3{X: 64}, Params: args, Budget: 100_000, Cooperative: i&1 != 0}
		if k.reqTid != (Dim3{}) {
			cfg.Block = k.reqTid
		}
		if _, err := m.Launch(ctx, k, cfg); err != nil && ctx.Err() != nil {
			t.Fatalf("the budget did not end the launch: %v", err)
		}
	}
}

// TestMangled executes changed corpus files: instructions with the wrong number
// and kinds of operands must be errors, never panics.
func TestMangled(t *testing.T) {
	rnd := rand.New(rand.NewPCG(30, 31))
	var files []*ptx.File
	paths := corpusFiles(t)
	for _, v := range vectorFiles(t) {
		paths = append(paths, "testdata/vectors/"+v[:len(v)-len(".vec")]+".ptx")
	}
	for _, path := range paths {
		src, err := os.ReadFile(path)
		if err != nil || len(src) > 1<<16 {
			continue
		}
		f, err := ptx.Parse(path, string(src), nil)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	rounds := 6
	if testing.Short() {
		rounds = 1
	}
	for range rounds {
		for _, f := range files {
			src := mangle(rnd, f)
			func() {
				defer func() {
					if r := recover(); r != nil {
						t.Logf("source:\n%s", src)
						panic(r)
					}
				}()
				runAll(t, src)
			}()
		}
	}
}
