// build: nvcc13.0 sm_80
// build: nvrtc11.8 sm_50
// Bit intrinsics: counts, reversal, funnel shifts, byte permutation, population.
extern "C" __global__ void bits(const unsigned *in, unsigned *out)
{
	int i = threadIdx.x;
	unsigned v = in[i], w = in[i + 1], *o = out + 16 * i;
	unsigned long long q = (unsigned long long)v << 32 | w;
	o[0] = __popc(v);
	o[1] = __clz(v);
	o[2] = __ffs(v);
	o[3] = __brev(v);
	o[4] = __popcll(q);
	o[5] = __clzll(q);
	o[6] = __ffsll(q);
	o[7] = (unsigned)__brevll(q);
	o[8] = __funnelshift_l(v, w, i);
	o[9] = __funnelshift_rc(v, w, i * 2);
	o[10] = __byte_perm(v, w, 0x7531 ^ i);
	o[11] = __mulhi((int)v, (int)w);
	o[12] = __umulhi(v, w);
	o[13] = __mul24((int)v, (int)w);
	o[14] = __sad((int)v, (int)w, 7u) + __usad(v, w, 1u);
	o[15] = __hadd((int)v, (int)w) ^ __rhadd((int)v, (int)w) ^ __uhadd(v, w);
}
