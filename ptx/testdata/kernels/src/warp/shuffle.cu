// build: nvcc13.0 sm_80
// build: nvrtc12.4 sm_70
// build: nvrtc11.8 sm_35
// build: nvrtc12.9 sm_90 -G
// All shuffles, widths below 32, 64-bit values.
extern "C" __global__ void shuffle(const int *in, int *out, const double *din, double *dout)
{
	int l = threadIdx.x, v = in[l], *o = out + 8 * l;
	o[0] = __shfl_sync(~0u, v, l * 7 + 3);
	o[1] = __shfl_up_sync(~0u, v, 3);
	o[2] = __shfl_down_sync(~0u, v, 5);
	o[3] = __shfl_xor_sync(~0u, v, 9);
	o[4] = __shfl_sync(~0u, v, l ^ 1, 8);
	o[5] = __shfl_up_sync(~0u, v, 2, 16);
	o[6] = __shfl_down_sync(~0u, v, 1, 4);
	o[7] = __shfl_xor_sync(~0u, v, 3, 2);
	dout[l] = __shfl_xor_sync(~0u, din[l], 16);
}
