package emu

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"nvtrace/ptx"
)

// store is code that stores %r2 in the thread's word.
const store = "\nmul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r2;\n"

// expect runs body with 64 threads and compares each thread's word with want(tid).
func expect(t *testing.T, body string, want func(tid uint32) uint32) {
	t.Helper()
	out, err := runBody(t, body+store, 64, make([]byte, 256))
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range u32s(out) {
		if v != want(uint32(i)) {
			t.Fatalf("thread %d got %#x, want %#x", i, v, want(uint32(i)))
		}
	}
}

func TestControlFlow(t *testing.T) {
	t.Run("nested divergence reconverges", func(t *testing.T) {
		expect(t, `
and.b32 %r3, %r1, 3; setp.eq.u32 %p1, %r3, 0; @%p1 bra A; setp.eq.u32 %p2, %r3, 1; @%p2 bra B;
mov.u32 %r2, 30; bra E;
B: mov.u32 %r2, 20; bra E;
A: mov.u32 %r2, 10;
E: activemask.b32 %r4; popc.b32 %r4, %r4; add.u32 %r2, %r2, %r4;`, func(tid uint32) uint32 {
			return []uint32{10, 20, 30, 30}[tid%4] + 32
		})
	})
	t.Run("loops of different length", func(t *testing.T) {
		expect(t, "mov.u32 %r2, 0; mov.u32 %r3, 0;\nL: add.u32 %r2, %r2, %r3; add.u32 %r3, %r3, 1; setp.le.u32 %p1, %r3, %r1; @%p1 bra L;",
			func(tid uint32) uint32 { return tid * (tid + 1) / 2 })
	})
	t.Run("branch table", func(t *testing.T) {
		expect(t, `
and.b32 %r3, %r1, 1;
T: .branchtargets A, B;
brx.idx %r3, T;
A: mov.u32 %r2, 7; bra E;
B: mov.u32 %r2, 8;
E:`, func(tid uint32) uint32 { return 7 + tid%2 })
	})
	t.Run("exit of some lanes", func(t *testing.T) {
		expect(t, "setp.ge.u32 %p1, %r1, 40; @%p1 exit; bar.sync 0; activemask.b32 %r2;", func(tid uint32) uint32 {
			switch {
			case tid < 32:
				return 0xffffffff
			case tid < 40:
				return 0xff
			}
			return 0
		})
	})
	t.Run("guarded instruction", func(t *testing.T) {
		expect(t, "mov.u32 %r2, 5; and.b32 %r3, %r1, 1; setp.ne.u32 %p1, %r3, 0; @!%p1 mov.u32 %r2, 6;",
			func(tid uint32) uint32 { return 6 - tid%2 })
	})
}

func TestWarpOperations(t *testing.T) {
	t.Run("shfl waits for diverged lanes", func(t *testing.T) {
		expect(t, `
and.b32 %r3, %r1, 1; setp.eq.u32 %p1, %r3, 0; @%p1 bra A;
shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1; bra E;
A: shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;
E:`, func(tid uint32) uint32 { return tid ^ 1 })
	})
	t.Run("shfl.up", func(t *testing.T) {
		expect(t, "shfl.sync.up.b32 %r2|%p1, %r1, 3, 0, -1; @!%p1 mov.u32 %r2, 99;", func(tid uint32) uint32 {
			if tid%32 < 3 {
				return 99
			}
			return tid - 3
		})
	})
	t.Run("vote of half a warp", func(t *testing.T) {
		expect(t, `
and.b32 %r4, %r1, 16; setp.eq.u32 %p1, %r4, 0; setp.lt.u32 %p2, %r1, 5; mov.u32 %r2, 0;
@%p1 vote.sync.ballot.b32 %r2, %p2, 0xffff;`, func(tid uint32) uint32 {
			switch {
			case tid%32 >= 16:
				return 0
			case tid < 32:
				return 31
			}
			return 0
		})
	})
	t.Run("match", func(t *testing.T) {
		expect(t, "and.b32 %r3, %r1, 3; match.any.sync.b32 %r2, %r3, -1;", func(tid uint32) uint32 { return 0x11111111 << (tid % 4) })
	})
	t.Run("redux", func(t *testing.T) {
		expect(t, "redux.sync.add.u32 %r2, %r1, -1;", func(tid uint32) uint32 { return 496 + tid/32*1024 })
	})
	t.Run("elect", func(t *testing.T) {
		expect(t, "elect.sync %r2|%p1, 0xffffffff; @%p1 add.u32 %r2, %r2, 100;", func(tid uint32) uint32 {
			if tid%32 == 0 {
				return 100
			}
			return 0
		})
	})
	if _, err := runBody(t, "shfl.sync.idx.b32 %r2, %r1, 0, 31, 1;", 32, make([]byte, 8)); !errors.Is(err, ErrInvalid) {
		t.Errorf("lanes outside of their membermask: %v", err)
	}
}

func TestBarriers(t *testing.T) {
	t.Run("exchange between warps", func(t *testing.T) {
		expect(t, `
.shared .align 4 .b32 s[64];
mov.u32 %r3, s; shl.b32 %r4, %r1, 2; add.u32 %r5, %r3, %r4; st.shared.u32 [%r5], %r1;
bar.sync 0;
xor.b32 %r6, %r4, 0xfc; add.u32 %r6, %r3, %r6; ld.shared.u32 %r2, [%r6];`, func(tid uint32) uint32 { return 63 - tid })
	})
	t.Run("reduction", func(t *testing.T) {
		expect(t, "setp.lt.u32 %p1, %r1, 10; bar.red.popc.u32 %r2, 0, %p1; bar.red.or.pred %p2, 0, %p1; @%p2 add.u32 %r2, %r2, 100;",
			func(uint32) uint32 { return 110 })
	})
	t.Run("producer and consumer", func(t *testing.T) {
		expect(t, `
.shared .align 4 .b32 v;
mov.u32 %r2, 0; setp.lt.u32 %p1, %r1, 32; @%p1 bra P;
bar.sync 1, 64; ld.shared.u32 %r2, [v]; bra E;
P: st.shared.u32 [v], 77; bar.arrive 1, 64;
E:`, func(tid uint32) uint32 { return tid / 32 * 77 })
	})
	_, err := runBody(t, "setp.eq.u32 %p1, %r1, 0; @%p1 bar.sync 1, 64;\nbar.sync 0;", 64, make([]byte, 8))
	var f *Fault
	if !errors.Is(err, ErrDeadlock) || !errors.As(err, &f) {
		t.Errorf("barrier that never completes: %v", err)
	}
}

// TestSpinLock has the lanes of a warp, and several blocks, take turns with a
// lock: the order lowest-pc-first alone would starve the holder.
func TestSpinLock(t *testing.T) {
	body := `
add.u64 %rd4, %rd1, 8;
L: atom.global.cas.b32 %r3, [%rd1], 0, 1; setp.ne.u32 %p1, %r3, 0; @%p1 bra L;
membar.gl; ld.volatile.global.u32 %r4, [%rd4]; add.u32 %r4, %r4, 1; st.volatile.global.u32 [%rd4], %r4; membar.gl;
atom.global.exch.b32 %r3, [%rd1], 0;`
	for _, workers := range []int{1, 2} {
		mod := mustModule(t, "lock.ptx", wrapBody(body), &Options{Workers: workers})
		r := mustAlloc(t, mod.machine, make([]byte, 16))
		mustLaunch(t, mod, "k", &LaunchConfig{Grid: Dim3{X: 4}, Block: Dim3{X: 64}, Params: params(r.Base), Budget: 200_000_000})
		if got := u32s(r.Data)[2]; got != 256 {
			t.Errorf("%d workers: counter %d, want 256", workers, got)
		}
	}
}

// TestGridBarrier has blocks wait for one another, which needs all of them to be
// resident.
func TestGridBarrier(t *testing.T) {
	body := `
bar.sync 0; setp.ne.u32 %p1, %r1, 0; @%p1 bra W;
atom.global.add.u32 %r3, [%rd1], 1;
S: ld.acquire.gpu.global.u32 %r4, [%rd1]; mov.u32 %r5, %nctaid.x; setp.lt.u32 %p2, %r4, %r5; @%p2 bra S;
W: bar.sync 0;`
	for _, cooperative := range []bool{true, false} {
		mod := mustModule(t, "grid.ptx", wrapBody(body), nil)
		r := mustAlloc(t, mod.machine, make([]byte, 4))
		mustLaunch(t, mod, "k", &LaunchConfig{Grid: Dim3{X: 60}, Block: Dim3{X: 64}, Params: params(r.Base), Cooperative: cooperative, Budget: 500_000_000})
		if got := u32s(r.Data)[0]; got != 60 {
			t.Errorf("cooperative=%v: %d blocks arrived", cooperative, got)
		}
	}
}

func TestAtomics(t *testing.T) {
	const n = 8 * 128
	body := `
atom.global.add.u32 %r2, [%rd1], 1;
red.global.max.u32 [%rd1+4], %r1;
red.global.add.u64 [%rd1+8], 3;
red.global.add.f32 [%rd1+16], 0f3F000000;
red.global.add.f64 [%rd1+24], 0d3FE0000000000000;
atom.global.inc.u32 %r3, [%rd1+32], 9;
red.global.xor.b32 [%rd1+36], 1;
red.global.add.noftz.f16x2 [%rd1+40], %r4;
red.global.and.b32 [%rd1+44], 0xfffffff0;`
	mod := mustModule(t, "atom.ptx", wrapBody("mov.u32 %r4, 0x3c000000;"+body), nil)
	r := mustAlloc(t, mod.machine, append(make([]byte, 44), le(uint32(0xff))...))
	mustLaunch(t, mod, "k", &LaunchConfig{Grid: Dim3{X: 8}, Block: Dim3{X: 128}, Params: params(r.Base)})
	want := le(uint32(n), uint32(127), uint64(3*n), float32(n/2), uint32(0), float64(n/2), uint32(n%10), uint32(0), uint32(0x64000000), uint32(0xf0))
	if !bytes.Equal(r.Data, want) {
		t.Errorf("got  %x\nwant %x", r.Data, want)
	}
}

const recursive = header + `
.func (.param .b32 r) fact(.param .b32 n) {
	.reg .b32 %r<5>; .reg .pred %p;
	ld.param.u32 %r1, [n];
	setp.gt.u32 %p, %r1, 1; @%p bra M;
	st.param.b32 [r], 1; ret;
M:	sub.u32 %r2, %r1, 1;
	{ .param .b32 a; .param .b32 v; st.param.b32 [a], %r2; call.uni (v), fact, (a); ld.param.b32 %r3, [v]; }
	mul.lo.u32 %r4, %r3, %r1; st.param.b32 [r], %r4; ret;
}
.func (.reg .b32 o) twice(.reg .b32 i) { add.u32 o, i, i; ret; }
.func (.reg .b32 o) thrice(.reg .b32 i) { mad.lo.u32 o, i, 2, i; ret; }
.visible .global .align 8 .u64 table[2] = {twice, thrice};
.visible .entry k(.param .u64 p, .param .u32 depth) {
	.reg .b32 %r<8>; .reg .b64 %rd<6>;
	ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; ld.param.u32 %r6, [depth]; and.b32 %r2, %r1, %r6;
	{ .param .b32 a; .param .b32 v; st.param.b32 [a], %r2; call (v), fact, (a); ld.param.b32 %r3, [v]; }
	and.b32 %r4, %r1, 1; mul.wide.u32 %rd2, %r4, 8; mov.u64 %rd3, table; add.u64 %rd3, %rd3, %rd2; ld.global.u64 %rd4, [%rd3];
	proto: .callprototype (.reg .b32 _) _ (.reg .b32 _);
	call (%r5), %rd4, (%r3), proto;
	mul.wide.u32 %rd2, %r1, 4; add.u64 %rd5, %rd1, %rd2; st.global.u32 [%rd5], %r5;
	ret;
}`

func TestCalls(t *testing.T) {
	mod := mustModule(t, "calls.ptx", recursive, nil)
	r := mustAlloc(t, mod.machine, make([]byte, 128))
	mustLaunch(t, mod, "k", &LaunchConfig{Block: Dim3{X: 32}, Params: params(r.Base, uint32(7))})
	for i, v := range u32s(r.Data) {
		want := uint32(1)
		for k := uint32(2); k <= uint32(i&7); k++ {
			want *= k
		}
		if want *= uint32(2 + i&1); v != want {
			t.Errorf("thread %d got %d, want %d", i, v, want)
		}
	}
	err := launchErr(mod, mustKernel(t, mod, "k"), &LaunchConfig{Block: Dim3{X: 4096 / 128}, Params: params(r.Base, uint32(0xffff))})
	if err != nil {
		t.Errorf("31 nested calls: %v", err)
	}
	deep := mustModule(t, "deep.ptx", recursive, &Options{MaxDepth: 10})
	r = mustAlloc(t, deep.machine, make([]byte, 128))
	err = launchErr(deep, mustKernel(t, deep, "k"), &LaunchConfig{Block: Dim3{X: 32}, Params: params(r.Base, uint32(31))})
	var f *Fault
	if !errors.Is(err, ErrStack) || !errors.As(err, &f) || f.Func != "fact" || f.Pos.Line != 11 {
		t.Errorf("endless recursion: %v", err)
	}
}

func TestPrintf(t *testing.T) {
	src := header + `
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.global .align 1 .b8 fmt[40] = {104,105,32,37,100,32,37,48,52,120,32,37,46,50,102,32,37,115,32,37,99,32,37,37,32,37,108,108,117,32,37,103,10,0};
.global .align 1 .b8 str[4] = {97,98,99,0};
.visible .entry k() {
	.local .align 8 .b8 args[48]; .reg .b64 %rd<8>; .reg .b32 %r<4>;
	mov.u64 %rd1, args; cvta.local.u64 %rd2, %rd1;
	mov.u32 %r1, %tid.x; neg.s32 %r1, %r1; st.local.u32 [%rd1], %r1; st.local.u32 [%rd1+4], 0xbeef; st.local.f64 [%rd1+8], 0d400921FB54442D18;
	mov.u64 %rd3, str; cvta.global.u64 %rd3, %rd3; st.local.u64 [%rd1+16], %rd3; st.local.u32 [%rd1+24], 33; st.local.u64 [%rd1+32], 12345678901; st.local.f64 [%rd1+40], 0d3FF8000000000000;
	mov.u64 %rd4, fmt; cvta.global.u64 %rd4, %rd4;
	{ .param .b64 a; .param .b64 b; .param .b32 v; st.param.b64 [a], %rd4; st.param.b64 [b], %rd2; call.uni (v), vprintf, (a, b); ld.param.b32 %r2, [v]; }
	ret;
}`
	var out bytes.Buffer
	mod := mustModule(t, "printf.ptx", src, &Options{Printf: &out})
	mustLaunch(t, mod, "k", &LaunchConfig{Block: Dim3{X: 2}})
	want := "hi 0 beef 3.14 abc ! % 12345678901 1.5\nhi -1 beef 3.14 abc ! % 12345678901 1.5\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name, body string
		want       error
	}{
		{"misaligned", "st.global.u32 [%rd1+2], 0;", ErrMisaligned},
		{"null", "mov.u64 %rd2, 0; ld.global.u32 %r2, [%rd2];", ErrAddress},
		{"generic null", "mov.u64 %rd2, 0; ld.u32 %r2, [%rd2];", ErrAddress},
		{"shared bounds", ".shared .align 4 .b8 s[16];\nmov.u32 %r2, s; ld.shared.u32 %r3, [%r2+16];", ErrAddress},
		{"local bounds", ".local .align 4 .b8 s[16];\nmov.u64 %rd2, s; ld.local.u32 %r3, [%rd2+64];", ErrAddress},
		{"negative displacement", "ld.global.u32 %r2, [%rd1+-4];", ErrAddress},
		{"wrapping vector", "mov.u64 %rd2, -8; ld.global.u64 %rd3, [%rd2];", ErrAddress},
		{"trap", "trap;", ErrTrap},
		{"written with tabs", "bar.sync \t 16\t;", ErrInvalid},
		{"call of data", "call %rd1, (%r1), P;\nP: .callprototype _ (.reg .b32 _);", ErrAddress},
		{"branch index", "T: .branchtargets A;\nbrx.idx 5, T;\nA:", ErrInvalid},
		{"unknown opcode", "frobnicate.u32 %r1, %r2;", ErrNotImplemented},
		{"unknown modifier", "add.sparkling.u32 %r1, %r2, %r3;", ErrInvalid},
		{"texture", "tex.1d.v4.f32.s32 {%f1,%f2,%f3,%f4}, [t, {%r1}];", ErrNotImplemented},
		{"unknown register", "add.u32 %q1, %r2, %r3;", ErrInvalid},
		{"endless loop", "L: bra L;", ErrBudget},
		{"barrier number", "bar.sync 16;", ErrInvalid},
		{"store to const", "st.const.u32 [%rd1], 0;", ErrInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := runBody(t, c.body, 32, make([]byte, 64))
			var f *Fault
			if !errors.Is(err, c.want) || !errors.As(err, &f) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if f.Pos.Line < 7 || f.Text == "" || f.Kernel != "k" {
				t.Errorf("no position in %v", err)
			}
			if strings.ContainsAny(err.Error(), "\t\n") {
				t.Errorf("more than a line: %q", err)
			}
		})
	}
	// A path that is not taken may hold anything.
	if _, err := runBody(t, "bra E;\ntex.1d.v4.f32.s32 {%f1,%f2,%f3,%f4}, [t, {%r1}];\nE:", 32, make([]byte, 8)); err != nil {
		t.Errorf("unreachable texture fetch: %v", err)
	}
}

// TestContextEnds: a launch whose context ends says where it was, whether it had begun or not.
func TestContextEnds(t *testing.T) {
	text := header + `.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.global .b8 fmt[2] = {46,0};
.visible .entry k() {
	.reg .b64 %f; mov.u64 %f, fmt; cvta.global.u64 %f, %f;
	{ .param .b64 a; .param .b64 b; .param .b32 v; st.param.b64 [a], %f; st.param.b64 [b], 0; call.uni (v), vprintf, (a, b); }
L: bra L;
}`
	loop := strings.Count(text[:strings.Index(text, "L: bra")], "\n") + 1
	for _, begun := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		if !begun {
			cancel()
		}
		mod := mustModule(t, "loop.ptx", text, &Options{Printf: writerFunc(func() { cancel() })})
		_, err := mod.machine.Launch(ctx, mustKernel(t, mod, "k"), &LaunchConfig{Grid: Dim3{X: 4}, Block: Dim3{X: 64}})
		var f *Fault
		if !errors.Is(err, context.Canceled) || !errors.As(err, &f) || f.Pos.Line < loop-2 || f.Pos.Line > loop {
			t.Errorf("begun %v: got %v", begun, err)
		}
		cancel()
	}
}

// TestContextEndsBetweenBlocks: nor does a launch pass for whole whose context ends when all that
// has begun is over, as it mostly is with many short blocks.
func TestContextEndsBetweenBlocks(t *testing.T) {
	text := header + `.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.global .b8 fmt[2] = {46,0};
.visible .entry k() {
	.reg .b64 %f; mov.u64 %f, fmt; cvta.global.u64 %f, %f;
	{ .param .b64 a; .param .b64 b; .param .b32 v; st.param.b64 [a], %f; st.param.b64 [b], 0; call.uni (v), vprintf, (a, b); }
	ret;
}`
	for range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		mod := mustModule(t, "short.ptx", text, &Options{Printf: writerFunc(func() { cancel() }), Workers: 1})
		_, err := mod.machine.Launch(ctx, mustKernel(t, mod, "k"), &LaunchConfig{Grid: Dim3{X: 1<<31 - 1}, Block: Dim3{X: 1}})
		if f, ok := errors.AsType[*Fault](err); !ok || !errors.Is(err, context.Canceled) || f.Pos.Line == 0 {
			t.Errorf("got %v", err)
		}
	}
}

// writerFunc is called when something is written.
type writerFunc func()

func (f writerFunc) Write(b []byte) (int, error) {
	f()
	return len(b), nil
}

func TestLaunchChecks(t *testing.T) {
	mod := mustModule(t, "k.ptx", header+".visible .entry k(.param .u64 p) .reqntid 32 { ret; }\n.visible .entry free() .maxntid 512, 2, 1 { ret; }", nil)
	if n, m := mustKernel(t, mod, "k").MaxThreads(), mustKernel(t, mod, "free").MaxThreads(); n != 32 || m != 1024 {
		t.Errorf("thread limits %d and %d", n, m)
	}
	k, free := mustKernel(t, mod, "k"), mustKernel(t, mod, "free")
	for _, c := range []struct {
		name string
		k    *Kernel
		cfg  LaunchConfig
	}{
		{"parameters", k, LaunchConfig{Block: Dim3{X: 32}}},
		{"reqntid", k, LaunchConfig{Block: Dim3{X: 64}, Params: make([]byte, 8)}},
		{"threads", free, LaunchConfig{Block: Dim3{X: 2048}}},
		{"shared", free, LaunchConfig{SharedBytes: 1 << 20}},
		{"cluster", free, LaunchConfig{Grid: Dim3{X: 3}, Cluster: Dim3{X: 2}}},
		{"grid", free, LaunchConfig{Grid: Dim3{Y: 1 << 20}}},
	} {
		if err := launchErr(mod, c.k, &c.cfg); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := mod.Kernel("none"); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "[k free]") {
		t.Errorf("unknown kernel: %v", err)
	}
}

func TestVariables(t *testing.T) {
	mod := mustModule(t, "vars.ptx", header+`
.visible .global .align 4 .f32 g[3] = {1.5, 0f40000000};
.visible .const .align 8 .u64 c[2] = {generic(g)+4, 0xFF00(g)};
.visible .entry k(.param .u64 p) {
	.reg .b64 %rd<5>; .reg .f32 %f1; .reg .b32 %r1;
	ld.param.u64 %rd1, [p]; ld.const.u64 %rd2, [c]; ld.f32 %f1, [%rd2]; st.global.f32 [%rd1], %f1;
	mov.u64 %rd3, c; cvta.const.u64 %rd3, %rd3; ld.u64 %rd4, [%rd3+8]; st.global.u64 [%rd1+8], %rd4;
	ret;
}`, nil)
	g, ok := mod.Variable("g")
	if !ok || g.Size != 12 {
		t.Fatalf("g = %+v", g)
	}
	c, _ := mod.Variable("c")
	reg, ok := mod.machine.Memory().Region(c.Addr)
	if !ok || loadBytes(reg.Data[c.Addr-reg.Base:], 8) != g.Addr+4 {
		t.Errorf("c[0] is not the address of g[1]")
	}
	r := mustAlloc(t, mod.machine, make([]byte, 16))
	mustLaunch(t, mod, "k", &LaunchConfig{Params: params(r.Base)})
	if want := le(float32(2), uint32(0), g.Addr>>8&0xff); !bytes.Equal(r.Data, want) {
		t.Errorf("got %x, want %x", r.Data, want)
	}
	used := mod.machine.Memory().(*Heap).Used()
	mod.Unload()
	if now := mod.machine.Memory().(*Heap).Used(); now != used-12-16 {
		t.Errorf("unload left %d of %d bytes", now, used)
	}
}

func TestLinking(t *testing.T) {
	main, err := ptx.Parse("main.ptx", header+`
.extern .func (.param .b32 r) f(.param .b32 a);
.extern .global .align 4 .u32 shared_count;
.visible .entry k(.param .u64 p) {
	.reg .b32 %r<3>; .reg .b64 %rd1; ld.param.u64 %rd1, [p]; ld.global.u32 %r1, [shared_count];
	{ .param .b32 a; .param .b32 v; st.param.b32 [a], %r1; call (v), f, (a); ld.param.b32 %r2, [v]; }
	st.global.u32 [%rd1], %r2; ret;
}`, nil)
	if err != nil {
		t.Fatal(err)
	}
	lib, err := ptx.Parse("lib.ptx", header+`
.visible .global .align 4 .u32 shared_count = 20;
.visible .func (.param .b32 r) f(.param .b32 a) { .reg .b32 %r1; ld.param.b32 %r1, [a]; add.u32 %r1, %r1, 1; st.param.b32 [r], %r1; ret; }`, nil)
	if err != nil {
		t.Fatal(err)
	}
	mod, err := New(nil).Load(main, lib)
	if err != nil {
		t.Fatal(err)
	}
	r := mustAlloc(t, mod.machine, make([]byte, 4))
	mustLaunch(t, mod, "k", &LaunchConfig{Params: params(r.Base)})
	if got := u32s(r.Data)[0]; got != 21 {
		t.Errorf("got %d, want 21", got)
	}
}

func TestRaces(t *testing.T) {
	race := func(body string, blocks uint32) []Race {
		t.Helper()
		mod := mustModule(t, "race.ptx", wrapBody(body), nil)
		r := mustAlloc(t, mod.machine, make([]byte, 1024))
		log := &RaceLog{}
		mustLaunch(t, mod, "k", &LaunchConfig{Grid: Dim3{X: blocks}, Block: Dim3{X: 64}, Params: params(r.Base), Race: log})
		return log.Races()
	}
	exchange := `
.shared .align 4 .b32 s[64];
mov.u32 %r3, s; shl.b32 %r4, %r1, 2; add.u32 %r5, %r3, %r4; st.shared.u32 [%r5], %r1;
@BAR@
xor.b32 %r6, %r4, 0xfc; add.u32 %r6, %r3, %r6; ld.shared.u32 %r2, [%r6];`
	if got := race(strings.Replace(exchange, "@BAR@", "bar.sync 0;", 1), 1); len(got) != 0 {
		t.Errorf("with a barrier: %v", &got[0])
	}
	got := race(strings.Replace(exchange, "@BAR@", "", 1), 1)
	if len(got) != 1 || got[0].Space != ptx.SpaceShared || got[0].First.Pos.Line == 0 || got[0].First.Kind == got[0].Second.Kind {
		t.Errorf("without a barrier: %v", got)
	}
	if got := race("st.global.u32 [%rd1], %r1;", 1); len(got) != 1 {
		t.Errorf("all threads store one word: %v", got)
	}
	if got := race("mov.u32 %r2, %ctaid.x; setp.eq.u32 %p1, %r1, 0; @%p1 st.global.u32 [%rd1], %r2;", 2); len(got) != 1 {
		t.Errorf("two blocks store one word: %v", got)
	}
	if got := race("red.global.add.u32 [%rd1], 1;", 2); len(got) != 0 {
		t.Errorf("atomics: %v", got)
	}
}

// TestCluster passes values around a cluster: by mapa and ordinary stores, and by
// st.async and red.async that an mbarrier of the receiver counts.
func TestCluster(t *testing.T) {
	body := `
.shared .align 8 .b64 bar; .shared .align 8 .b8 v[16]; .shared .align 4 .b32 w;
mov.u32 %r2, %cluster_ctarank; mov.u32 %r3, %cluster_nctarank; add.u32 %r4, %r2, 1; rem.u32 %r4, %r4, %r3;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra W;
mbarrier.init.shared.b64 [bar], 1; mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 12; st.shared.u32 [v+8], 100;
W: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
@%p1 bra X;
mov.u32 %r5, bar; mapa.shared::cluster.u32 %r5, %r5, %r4; mov.u32 %r6, v; mapa.shared::cluster.u32 %r6, %r6, %r4; mov.u32 %r7, w; mapa.shared::cluster.u32 %r7, %r7, %r4;
getctarank.shared::cluster.u32 %r8, %r6; mov.u32 %r9, %ctaid.x;
st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r6], {%r9, %r8}, [%r5];
red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r6+8], %r2, [%r5];
st.shared::cluster.u32 [%r7], %r9;
mbarrier.arrive.shared.b64 _, [bar];
S: mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0; @!%p2 bra S;
X: barrier.cluster.arrive; barrier.cluster.wait;
@%p1 bra E;
ld.shared.v2.u32 {%r10, %r11}, [v]; ld.shared.u32 %r12, [v+8]; ld.shared.u32 %r13, [w];
mul.wide.u32 %rd2, %r9, 16; add.u64 %rd3, %rd1, %rd2; st.global.v4.u32 [%rd3], {%r10, %r11, %r12, %r13};
E:`
	mod := mustModule(t, "cluster.ptx", wrapBody(body), nil)
	r := mustAlloc(t, mod.machine, make([]byte, 8*16))
	mustLaunch(t, mod, "k", &LaunchConfig{Grid: Dim3{X: 8}, Block: Dim3{X: 48}, Cluster: Dim3{X: 4}, Params: params(r.Base), Budget: 10_000_000})
	got := u32s(r.Data)
	for b := range uint32(8) {
		from := b&^3 + (b+3)&3
		want := []uint32{from, b & 3, 100 + from&3, from}
		for i, v := range want {
			if got[4*b+uint32(i)] != v {
				t.Errorf("block %d word %d is %d, want %d", b, i, got[4*b+uint32(i)], v)
			}
		}
	}
}

// TestDeterministic runs a kernel that depends on its clock and on the order of
// blocks twice on one worker.
func TestDeterministic(t *testing.T) {
	body := `
atom.global.add.u32 %r2, [%rd1], 1; and.b32 %r2, %r2, 15; mov.u64 %rd5, %clock64; mov.u64 %rd6, %globaltimer; xor.b64 %rd5, %rd5, %rd6;
mul.wide.u32 %rd2, %r2, 8; add.u64 %rd3, %rd1, %rd2; st.global.u64 [%rd3+8], %rd5;`
	var first []byte
	var stats Stats
	for i := range 2 {
		mod := mustModule(t, "det.ptx", wrapBody(body), &Options{Workers: 1})
		r := mustAlloc(t, mod.machine, make([]byte, 8+16*8))
		st := mustLaunch(t, mod, "k", &LaunchConfig{Grid: Dim3{X: 7}, Block: Dim3{X: 50}, Params: params(r.Base)})
		if i == 0 {
			first, stats = r.Data, st
		} else if !bytes.Equal(first, r.Data) || stats != st {
			t.Errorf("%x %+v, then %x %+v", first, stats, r.Data, st)
		}
	}
}

func TestHostMemory(t *testing.T) {
	m := New(nil)
	r := mustAlloc(t, m, []byte("device"))
	if err := m.WriteMem(r.Base+1, []byte("EV")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 6)
	if err := m.ReadMem(r.Base, got); err != nil || string(got) != "dEVice" {
		t.Errorf("%q %v", got, err)
	}
	if err := m.ReadMem(r.Base+1, got); !errors.Is(err, ErrAddress) {
		t.Errorf("past the end: %v", err)
	}
}

func TestHeap(t *testing.T) {
	h := newHeap(4096)
	a, err := h.Alloc(1000, 0, "a")
	if err != nil {
		t.Fatal(err)
	}
	b, err := h.Alloc(8, 512, "b")
	if err != nil || b.Base%512 != 0 || b.Base < a.Base+1000 {
		t.Fatalf("%v %v", b, err)
	}
	if _, err := h.Alloc(4000, 0, "c"); !errors.Is(err, ErrOutOfMemory) {
		t.Errorf("got %v", err)
	}
	for addr, ok := range map[uint64]bool{a.Base: true, a.Base + 999: true, a.Base + 1000: false, b.Base: true, b.Base + 7: true, b.Base + 8: false, 0: false, ^uint64(0): false} {
		if _, got := h.Region(addr); got != ok {
			t.Errorf("Region(%#x) = %v", addr, got)
		}
	}
	if err := h.Free(a.Base + 4); !errors.Is(err, ErrAddress) {
		t.Errorf("free inside: %v", err)
	}
	if err := h.Free(a.Base); err != nil || h.Used() != 8 {
		t.Errorf("free: %v, %d left", err, h.Used())
	}
}

// TestEnvironmentRegisters checks that a launch's words reach the kernel, where
// cooperative groups look for the address of the grid's barrier.
func TestEnvironmentRegisters(t *testing.T) {
	mod := mustModule(t, "env", wrapBody("mov.b32 %r2, %envreg1; mov.b32 %r3, %envreg2; mov.b32 %r4, %envreg4; st.global.v4.u32 [%rd1], {%r2, %r3, %r4, %r1};"), nil)
	r := mustAlloc(t, mod.machine, make([]byte, 16))
	mustLaunch(t, mod, "k", &LaunchConfig{Params: params(r.Base), EnvRegs: [4]uint32{1, 0x12345678, 0x9abcdef0, 4}})
	if got := u32s(r.Data); got[0] != 0x12345678 || got[1] != 0x9abcdef0 || got[2] != 0 {
		t.Errorf("environment registers 1, 2, 4 = %#x", got[:3])
	}
}

// TestOperandForms: a displacement is added at the register's width, as ptxas does; a
// form that means nothing where it stands is an error and not dropped.
func TestOperandForms(t *testing.T) {
	tid := func(f func(tid uint32) uint32) func(uint32) uint32 { return f }
	for _, tt := range []struct {
		code string
		want func(tid uint32) uint32
	}{
		{"mov.u32 %r2, %r1+5;", tid(func(tid uint32) uint32 { return tid + 5 })},
		{"mov.b32 %r2, %r1+5+1;", tid(func(tid uint32) uint32 { return tid + 6 })},
		{"add.u32 %r2, %r1+0xffffffffffffffff, %r1 + 2;", tid(func(tid uint32) uint32 { return 2*tid + 1 })},
		{"cvt.u16.u32 %h1, %r1; cvt.u32.u16 %r2, %h1+65535;", tid(func(tid uint32) uint32 { return uint32(uint16(tid - 1)) })},
		{"cvt.u64.u32 %rd4, %r1; cvt.u32.u64 %r2, %rd4+7;", tid(func(tid uint32) uint32 { return tid + 7 })},
		{"setp.eq.u32 %p1, %r1+1, 8; selp.u32 %r2, %r1+3, 1, %p1;", tid(func(tid uint32) uint32 {
			if tid == 7 {
				return 10
			}
			return 1
		})},
		{"mov.u32 %r2, 9; @!%p1 mov.u32 %r2, %r2+1;", tid(func(uint32) uint32 { return 10 })},
		{
			".local .b64 l; cvt.u64.u32 %rd4, %r1; st.local.u64 [l], %rd4 + 0x100000001; ld.local.u32 %r2, [l]; ld.local.u32 %r3, [l+4]; add.u32 %r2, %r2, %r3;",
			tid(func(tid uint32) uint32 { return tid + 2 }),
		},
	} {
		t.Run(tt.code, func(t *testing.T) { expect(t, tt.code, tt.want) })
	}
	for _, code := range []string{
		"mov.f32 %f1, %f2+1;", "add.f64 %fd1, %fd2+1, %fd2;", "mov.u32 %r2, -%r1;", "add.u32 %r2, !%r1, 1;", "mov.u32 %r2+4, %r1;",
		"mov.u32 %r2, %tid.x+1;", "setp.eq.u32 %p1+1, %r1, 2;", "selp.u32 %r2, 1, 2, %p1+1;", "bra E+4; E:", "mov.u32 %r2, %r1.b0;",
		"add.u32 %r2.h1, %r1, 1;", "bra !E; E:", "mov.b64 %rd4, {-%r1, %r2};",
	} {
		t.Run(code, func(t *testing.T) {
			f, err := ptx.Parse("t.ptx", wrapBody(code), nil)
			if err != nil {
				return // no PTX at all
			}
			mod, err := New(nil).Load(f)
			if err == nil {
				var k *Kernel
				if k, err = mod.Kernel("k"); err == nil && len(k.missing()) == 0 {
					t.Errorf("%s runs", code)
				}
			}
		})
	}
}

// TestVectorRegisters: a register of several elements as a value.
func TestVectorRegisters(t *testing.T) {
	const src = header + `
.func (.reg .v2 .b32 o, .reg .b32 n) swap(.reg .v2 .b32 i, .reg .b32 by) { add.u32 o.x, i.y, by; mov.b32 o.y, i.x; mov.u32 n, 100; ret; }
.func (.reg .b128 o) same(.reg .b128 i) { mov.b128 o, i; ret; }
.visible .entry k(.param .u64 p) {
	.reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .v2 .b32 v, u; .reg .v4 .b32 w; .reg .v2 .b16 h; .reg .v4 .b8 c; .reg .v2 .b64 z; .reg .b128 q, q2;
	ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x;
	mov.b64 v, 0x200000001;
	add.u32 v.x, v.x, %r1;
	mov.b64 %rd2, v; mov.b64 {%r2, %r3}, %rd2; st.global.v2.u32 [%rd1], {%r2, %r3};
	mov.b32 h, 0x00050004; mov.b32 %r4, h; st.global.u32 [%rd1+8], %r4;
	mov.b32 c, 0x04030201; mov.b32 %r4, c; st.global.u32 [%rd1+12], %r4;
	call (u, %r5), swap, (v, 10); st.global.v2.b32 [%rd1+16], u; st.global.u32 [%rd1+24], %r5;
	mov.v4.b32 w, {7, 8, %r1, 9}; mov.v2.b32 v, u; st.global.u32 [%rd1+28], w.w;
	mov.b64 %rd4, 0x1111; mov.b64 %rd5, 0x2222; mov.b128 q, {%rd4, %rd5}; call (q2), same, (q); mov.b128 {%rd6, %rd7}, q2;
	st.global.v2.u64 [%rd1+32], {%rd6, %rd7};
	mov.v2.b64 z, {%rd7, %rd6}; mov.b128 q, z; mov.b128 z, q; st.global.v2.u64 [%rd1+48], z;
	ret;
}`
	mod := mustModule(t, "v.ptx", src, nil)
	r := mustAlloc(t, mod.machine, make([]byte, 64))
	mustLaunch(t, mod, "k", &LaunchConfig{Block: Dim3{X: 1}, Params: params(r.Base)})
	want := []uint32{1, 2, 0x00050004, 0x04030201, 12, 1, 100, 9, 0x1111, 0, 0x2222, 0, 0x2222, 0, 0x1111, 0}
	if got := u32s(r.Data); !slices.Equal(got, want) {
		t.Errorf("got  %#x\nwant %#x", got, want)
	}
}
