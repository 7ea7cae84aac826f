// build: nvcc13.0 sm_80
// One stable 4-bit counting pass of a warp: match_any, ballot and shuffle.
extern "C" __global__ void radix_pass(const unsigned *in, unsigned *out, int shift)
{
	unsigned lane = threadIdx.x, v = in[lane], d = v >> shift & 15;
	unsigned peers = __match_any_sync(~0u, d);
	unsigned rank = __popc(peers & ((1u << lane) - 1));
	unsigned base = 0;
	for (unsigned k = 0; k < 15; k++) {
		unsigned n = __popc(__ballot_sync(~0u, d == k));
		if (k < d)
			base += n;
	}
	out[base + rank] = v;
}
