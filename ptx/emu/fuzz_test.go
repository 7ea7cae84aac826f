package emu

import (
	"os"
	"strings"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/ptx"
)

// FuzzRun executes every kernel of any file that parses: there may be errors, but
// no panic, and the budget ends every launch.
func FuzzRun(f *testing.F) {
	f.Add(recursive)
	f.Add(wrapBody("L: add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 10; @%p1 bra L; st.global.u32 [%rd1], %r2;"))
	f.Add(wrapBody("bar.sync 0; shfl.sync.idx.b32 %r2, %r1, 0, 31, -1; vote.sync.any.pred %p1, %p2, -1; atom.global.add.u32 %r3, [%rd1], 1;"))
	for _, path := range corpusFiles(f) {
		if src, err := os.ReadFile(path); err == nil && len(src) < 4000 {
			f.Add(string(src))
		}
	}
	for _, file := range vectorFiles(f) {
		if src, err := os.ReadFile("testdata/vectors/" + strings.TrimSuffix(file, ".vec") + ".ptx"); err == nil && len(src) < 3000 {
			f.Add(string(src))
		}
	}
	f.Fuzz(func(t *testing.T, src string) {
		if len(src) > 1<<16 {
			return
		}
		file, err := ptx.Parse("fuzz.ptx", src, nil)
		if err != nil {
			return
		}
		m := New(&Options{Memory: newHeap(1 << 24), Workers: 1, StackLimit: 1 << 16, MaxDepth: 32})
		mod, err := m.Load(file)
		if err != nil {
			return
		}
		ctx := need.Limit(t)
		buf, err := m.Alloc(4096, "buffer")
		if err != nil {
			return
		}
		for i, name := range mod.Kernels() {
			k, err := mod.Kernel(name)
			if err != nil || i == 8 {
				continue
			}
			args := make([]byte, k.ParamBytes())
			for _, p := range k.Params() {
				if p.Size == 8 {
					copy(args[p.Offset:], le(buf.Base))
				}
			}
			cfg := &LaunchConfig{Grid: Dim3{X: 2}, Block: Dim3{X: 40}, Params: args, Budget: 200_000}
			if _, err := m.Launch(ctx, k, cfg); err != nil && ctx.Err() != nil {
				t.Fatalf("the budget did not end the launch: %v", err)
			}
		}
	})
}
