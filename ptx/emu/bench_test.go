package emu

import (
	"context"
	"encoding/binary"
	"math"
	"testing"
)

// benchKernel launches a kernel repeatedly on one worker and reports thread
// instructions a second; check verifies the output buffer after each launch.
func benchKernel(b *testing.B, body string, grid, block uint32, bytes int, check func(out []byte) bool) {
	mod := mustModule(b, "bench", wrapBody(body), &Options{Workers: 1})
	r := mustAlloc(b, mod.machine, make([]byte, bytes))
	k := mustKernel(b, mod, "k")
	var total uint64
	for b.Loop() {
		clear(r.Data)
		st, err := mod.machine.Launch(context.Background(), k, &LaunchConfig{Grid: Dim3{X: grid}, Block: Dim3{X: block}, Params: params(r.Base)})
		if err != nil {
			b.Fatal(err)
		}
		total += st.ThreadInstructions
		if !check(r.Data) {
			b.Fatal("wrong result")
		}
	}
	b.ReportMetric(float64(total)/b.Elapsed().Seconds()/1e6, "Minstr/s")
}

// BenchmarkIntegerLoop is a dense integer loop of full warps.
func BenchmarkIntegerLoop(b *testing.B) {
	body := `
mov.u32 %r2, 0; mov.u32 %r3, %r1;
L:
mad.lo.s32 %r3, %r3, 1664525, 1013904223;
xor.b32 %r4, %r3, %r2; shr.u32 %r5, %r4, 7; add.u32 %r3, %r3, %r5;
add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 256;
@%p1 bra L;
mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r3;`
	benchKernel(b, body, 16, 256, 1024, func(out []byte) bool {
		for t := range uint32(256) {
			v := t
			for i := range uint32(256) {
				v = v*1664525 + 1013904223
				v += (v ^ i) >> 7
			}
			if binary.LittleEndian.Uint32(out[4*t:]) != v {
				return false
			}
		}
		return true
	})
}

// BenchmarkFloatLoop is a chain of fused multiply-adds in single precision.
func BenchmarkFloatLoop(b *testing.B) {
	body := `
mov.u32 %r2, 0; cvt.rn.f32.u32 %f1, %r1; mov.f32 %f2, 0f3F7FF000;
L:
fma.rn.f32 %f1, %f1, %f2, 0f3F800000; add.f32 %f3, %f1, %f2; mul.f32 %f4, %f3, 0f3F000000; sub.f32 %f1, %f4, %f2;
add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 256;
@%p1 bra L;
mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2; st.global.f32 [%rd3], %f1;`
	benchKernel(b, body, 16, 256, 1024, func(out []byte) bool {
		c := math.Float32frombits(0x3F7FF000)
		for t := range 256 {
			v := float32(t)
			for range 256 {
				v = float32(math.FMA(float64(v), float64(c), 1)) // exact: 48 bits and one more
				v = float32((v + c) * 0.5)
				v -= c
			}
			if math.Float32frombits(binary.LittleEndian.Uint32(out[4*t:])) != v {
				return false
			}
		}
		return true
	})
}

// BenchmarkMemory copies and adds through global and shared memory.
func BenchmarkMemory(b *testing.B) {
	body := `
.shared .align 4 .b32 s[256];
mov.u32 %r3, s; shl.b32 %r4, %r1, 2; add.u32 %r3, %r3, %r4; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2;
mov.u32 %r2, 0;
L:
ld.global.u32 %r5, [%rd3]; add.u32 %r5, %r5, %r1; st.shared.u32 [%r3], %r5; ld.shared.u32 %r6, [%r3]; st.global.u32 [%rd3], %r6;
add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 64;
@%p1 bra L;`
	benchKernel(b, body, 1, 256, 1024, func(out []byte) bool {
		for t := range uint32(256) {
			if binary.LittleEndian.Uint32(out[4*t:]) != 64*t {
				return false
			}
		}
		return true
	})
}

// BenchmarkDivergent has lanes of one warp go round a loop different numbers of
// times.
func BenchmarkDivergent(b *testing.B) {
	body := `
mov.u32 %r2, 0; mov.u32 %r3, 0; and.b32 %r6, %r1, 31; shl.b32 %r6, %r6, 3;
L:
setp.gt.u32 %p1, %r2, %r6; @%p1 bra E;
and.b32 %r4, %r2, 1; setp.eq.u32 %p2, %r4, 0; @%p2 bra A;
add.u32 %r3, %r3, 3; bra N;
A: add.u32 %r3, %r3, 5;
N: add.u32 %r2, %r2, 1; bra L;
E: mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r3;`
	benchKernel(b, body, 16, 256, 1024, func(out []byte) bool {
		for t := range uint32(256) {
			n := t&31*8 + 1
			if binary.LittleEndian.Uint32(out[4*t:]) != (n+1)/2*5+n/2*3 {
				return false
			}
		}
		return true
	})
}

// BenchmarkAtomic counts in one word by all threads.
func BenchmarkAtomic(b *testing.B) {
	body := `
mov.u32 %r2, 0;
L:
atom.global.add.u32 %r3, [%rd1], 1; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 64; @%p1 bra L;`
	benchKernel(b, body, 16, 256, 4, func(out []byte) bool { return binary.LittleEndian.Uint32(out) == 16*256*64 })
}

// BenchmarkCompile loads and compiles a kernel.
func BenchmarkCompile(b *testing.B) {
	src := wrapBody("add.u32 %r2, %r1, 1; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r2;")
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		mod := mustModule(b, "bench", src, nil)
		mustKernel(b, mod, "k")
	}
}
