package emu

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"nvtrace/ptx"
)

// header begins every module written inside a test.
const header = ".version 8.0\n.target sm_90\n.address_size 64\n"

// mustModule parses src and loads it into a new machine.
func mustModule(tb testing.TB, name, src string, o *Options) *Module {
	tb.Helper()
	f, err := ptx.Parse(name, src, nil)
	if err != nil {
		tb.Fatal(err)
	}
	mod, err := New(o).Load(f)
	if err != nil {
		tb.Fatal(err)
	}
	return mod
}

func mustKernel(tb testing.TB, mod *Module, name string) *Kernel {
	tb.Helper()
	k, err := mod.Kernel(name)
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

// mustAlloc allocates device memory with the given contents.
func mustAlloc(tb testing.TB, m *Machine, data []byte) Region {
	tb.Helper()
	r, err := m.Alloc(uint64(len(data)), tb.Name())
	if err != nil {
		tb.Fatal(err)
	}
	copy(r.Data, data)
	return r
}

// params packs kernel parameters with their natural alignment.
func params(args ...any) []byte {
	var b []byte
	for _, a := range args {
		size := binary.Size(a)
		for len(b)%size != 0 {
			b = append(b, 0)
		}
		b, _ = binary.Append(b, binary.LittleEndian, a)
	}
	return b
}

// le packs numbers.
func le(args ...any) []byte {
	var b []byte
	for _, a := range args {
		b, _ = binary.Append(b, binary.LittleEndian, a)
	}
	return b
}

func u32s(b []byte) []uint32 {
	out := make([]uint32, len(b)/4)
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return out
}

// launchErr launches and returns the error.
func launchErr(mod *Module, k *Kernel, cfg *LaunchConfig) error {
	_, err := mod.machine.Launch(context.Background(), k, cfg)
	return err
}

// mustLaunch launches and fails the test on error.
func mustLaunch(tb testing.TB, mod *Module, kernel string, cfg *LaunchConfig) Stats {
	tb.Helper()
	st, err := mod.machine.Launch(context.Background(), mustKernel(tb, mod, kernel), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return st
}

// runBody executes a kernel whose body is given; it gets one pointer, %rd1 in
// global space, and %r1 = tid.x; registers %r %rd %f %fd %h %p are declared. The
// result is the memory, which begins as in.
func runBody(tb testing.TB, body string, threads uint32, in []byte) ([]byte, error) {
	tb.Helper()
	mod := mustModule(tb, tb.Name(), wrapBody(body), nil)
	r := mustAlloc(tb, mod.machine, in)
	err := launchErr(mod, mustKernel(tb, mod, "k"), &LaunchConfig{Block: Dim3{X: threads}, Params: params(r.Base), Budget: 50_000_000})
	return r.Data, err
}

func wrapBody(body string) string {
	return header + `.visible .entry k(.param .u64 p) {
.reg .b32 %r<64>; .reg .b64 %rd<64>; .reg .f32 %f<32>; .reg .f64 %fd<32>; .reg .b16 %h<32>; .reg .pred %p<32>;
ld.param.u64 %rd1, [p]; cvta.to.global.u64 %rd1, %rd1; mov.u32 %r1, %tid.x;
` + body + "\nret;\n}\n"
}

func TestVectorAdd(t *testing.T) {
	mod := mustModule(t, "add.ptx", header+`
.visible .entry vadd(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n) {
	.reg .pred %p<2>; .reg .f32 %f<4>; .reg .b32 %r<6>; .reg .b64 %rd<11>;
	ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c]; ld.param.u32 %r2, [n];
	mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;
	mad.lo.s32 %r1, %r3, %r4, %r5;
	setp.ge.s32 %p1, %r1, %r2;
	@%p1 bra $L__BB0_2;
	cvta.to.global.u64 %rd4, %rd1; mul.wide.s32 %rd5, %r1, 4; add.s64 %rd6, %rd4, %rd5;
	cvta.to.global.u64 %rd7, %rd2; add.s64 %rd8, %rd7, %rd5;
	ld.global.f32 %f1, [%rd8]; ld.global.f32 %f2, [%rd6];
	add.f32 %f3, %f2, %f1;
	cvta.to.global.u64 %rd9, %rd3; add.s64 %rd10, %rd9, %rd5;
	st.global.f32 [%rd10], %f3;
$L__BB0_2:
	ret;
}`, nil)
	const n = 1000
	var a, b, want []byte
	for i := range n {
		a, b, want = append(a, le(float32(i))...), append(b, le(float32(2*i))...), append(want, le(float32(3*i))...)
	}
	ra, rb, rc := mustAlloc(t, mod.machine, a), mustAlloc(t, mod.machine, b), mustAlloc(t, mod.machine, make([]byte, 4*n))
	st := mustLaunch(t, mod, "vadd", &LaunchConfig{Grid: Dim3{X: 4}, Block: Dim3{X: 256}, Params: params(ra.Base, rb.Base, rc.Base, uint32(n))})
	if string(rc.Data) != string(want) {
		t.Error("wrong sums")
	}
	// 9 instructions up to the branch for all, the branch for those at n and above,
	// 11 more for those below, and ret.
	if want := uint64(1024*9 + 24 + n*11 + 1024); st.ThreadInstructions != want {
		t.Errorf("%d thread instructions, want %d", st.ThreadInstructions, want)
	}
}

func TestOutOfBounds(t *testing.T) {
	_, err := runBody(t, "mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2;\nst.global.u32 [%rd3], %r1;", 64, make([]byte, 4*40))
	var f *Fault
	if !errors.As(err, &f) || !errors.Is(err, ErrAddress) {
		t.Fatalf("got %v", err)
	}
	if f.Thread.X != 40 || f.Pos.Line != 8 || f.Kernel != "k" {
		t.Errorf("got %v", f)
	}
}
