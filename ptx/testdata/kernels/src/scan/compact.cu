// build: nvcc13.0 sm_90
// build: nvrtc12.4 sm_75
// Stream compaction of one warp by ballot and popc.
extern "C" __global__ void compact(const int *in, int *out, int *count)
{
	int v = in[threadIdx.x];
	unsigned m = __ballot_sync(~0u, v > 0);
	if (v > 0)
		out[__popc(m & ((1u << threadIdx.x) - 1))] = v;
	if (threadIdx.x == 0)
		*count = __popc(m);
}
