// build: nvcc13.0 sm_90
// build: nvrtc12.9 sm_80
// Inline assembly in many shapes: constraints, scopes, labels, predicates, comments.
extern "C" __global__ void inline_asm(const unsigned *in, unsigned *out, unsigned short *h, double *d, float *f)
{
	unsigned t = threadIdx.x, v = in[t], r, q;
	asm("lop3.b32 %0, %1, %2, %3, 0xE8; // majority" : "=r"(r) : "r"(v), "r"(v >> 1), "r"(v << 1));
	asm("bfe.u32 %0, %1, %2, 7;" : "=r"(q) : "r"(v), "r"(t & 31));
	r += q;
	asm("{\n\t.reg .u32 t1; /* scoped */\n\tmul.lo.u32 t1, %1, %1;\n\tmad.lo.u32 %0, t1, %1, 5;\n\t}" : "=r"(q) : "r"(v));
	r ^= q;
	asm volatile("{ .reg .pred %%p; setp.lt.u32 %%p, %1, 77; @%%p add.u32 %0, %0, 1; @!%%p sub.u32 %0, %0, 1; }" : "+r"(r) : "r"(v));
	unsigned short s = (unsigned short)v;
	asm("mul.wide.u16 %0, %1, %1;" : "=r"(q) : "h"(s));
	h[t] = s;
	double x = d[t];
	asm("fma.rn.f64 %0, %0, %0, 0d3FF0000000000000;" : "+d"(x));
	d[t] = x;
	float y = f[t];
	asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(y));
	f[t] = y;
	asm volatile("{\n\t.reg .pred p;\nloop%=:\n\tshr.u32 %0, %0, 1;\n\tsetp.gt.u32 p, %0, 1000;\n\t@p bra loop%=;\n\t}" : "+r"(r));
	asm volatile("membar.gl;" ::: "memory");
	out[t] = r + q;
}
