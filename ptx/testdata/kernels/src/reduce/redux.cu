// build: nvcc13.0 sm_80
// build: nvrtc12.9 sm_90
// Warp reductions in one instruction (sm_80).
extern "C" __global__ void redux(const unsigned *in, unsigned *out)
{
	unsigned v = in[threadIdx.x];
	unsigned *o = out + threadIdx.x * 8;
	o[0] = __reduce_add_sync(~0u, v);
	o[1] = __reduce_min_sync(~0u, v);
	o[2] = __reduce_max_sync(~0u, v);
	o[3] = __reduce_and_sync(~0u, v);
	o[4] = __reduce_or_sync(~0u, v);
	o[5] = __reduce_xor_sync(~0u, v);
	o[6] = (unsigned)__reduce_min_sync(~0u, (int)v);
	o[7] = (unsigned)__reduce_max_sync(~0u, (int)v);
}
