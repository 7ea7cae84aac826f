// build: nvcc13.0 sm_90
// build: nvrtc12.4 sm_50
// Packed byte and halfword intrinsics and the Kepler video instructions by inline assembly.
extern "C" __global__ void simd_video(const unsigned *a, const unsigned *b, unsigned *out)
{
	int i = threadIdx.x;
	unsigned x = a[i], y = b[i], r, *o = out + 8 * i;
	o[0] = __vadd4(x, y);
	o[1] = __vabsdiffu4(x, y);
	o[2] = __vmaxs2(x, y);
	o[3] = __vcmpgtu4(x, y);
	o[4] = __vsadu4(x, y);
	asm("vadd.u32.s32.u32.sat %0, %1.b1, %2.h0;" : "=r"(r) : "r"(x), "r"(y));
	o[5] = r;
	asm("vmad.s32.s32.u32.shr7 %0, %1, %2, %1;" : "=r"(r) : "r"(x), "r"(y));
	o[6] = r;
	asm("vset.u32.u32.lt %0, %1.b0, %2.b3;" : "=r"(r) : "r"(x), "r"(y));
	o[7] = r;
}
