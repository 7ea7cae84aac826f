// build: nvrtc11.8 sm_50
// build: nvrtc11.8 sm_60
// Votes and shuffles without .sync, as PTX before 6.4 on chips before Volta had them.
extern "C" __global__ void legacy(const int *in, unsigned *out)
{
	int l = threadIdx.x, v = in[l];
	unsigned b, a, n, u;
	int s, t;
	asm volatile("{ .reg .pred p; setp.gt.s32 p, %1, 0; vote.ballot.b32 %0, p; }" : "=r"(b) : "r"(v));
	asm volatile("{ .reg .pred p, q; setp.gt.s32 p, %1, 0; vote.all.pred q, p; selp.u32 %0, 1, 0, q; }" : "=r"(a) : "r"(v));
	asm volatile("{ .reg .pred p, q; setp.gt.s32 p, %1, 0; vote.any.pred q, !p; selp.u32 %0, 1, 0, q; }" : "=r"(n) : "r"(v));
	asm volatile("{ .reg .pred p, q; setp.gt.s32 p, %1, 0; vote.uni.pred q, p; selp.u32 %0, 1, 0, q; }" : "=r"(u) : "r"(v));
	asm volatile("shfl.bfly.b32 %0, %1, 1, 0x1f;" : "=r"(s) : "r"(v));
	asm volatile("{ .reg .pred p; shfl.up.b32 %0|p, %1, 4, 0; @!p mov.u32 %0, -1; }" : "=r"(t) : "r"(v));
	unsigned *o = out + 6 * l;
	o[0] = b; o[1] = a; o[2] = n; o[3] = u; o[4] = s; o[5] = t;
}
