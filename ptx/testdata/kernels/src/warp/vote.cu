// build: nvcc13.0 sm_90
// build: nvrtc12.4 sm_70
// build: nvrtc13.5 sm_100 -lineinfo
// Votes, ballots, activemask and match, full and partial masks.
extern "C" __global__ void vote(const int *in, unsigned *out)
{
	unsigned l = threadIdx.x, *o = out + 7 * l;
	int v = in[l];
	o[0] = __all_sync(~0u, v > 0);
	o[1] = __any_sync(~0u, v > 100);
	o[2] = __ballot_sync(~0u, v & 1);
	o[3] = __match_any_sync(~0u, v & 3);
	int pred;
	o[4] = __match_all_sync(~0u, v >> 31, &pred);
	o[5] = pred;
	if (l & 1)
		o[6] = __ballot_sync(0xaaaaaaaau, v > 5);
	else
		o[6] = __ballot_sync(0x55555555u, v > 6);
	__syncwarp();
}
