// build: nvcc13.0 sm_90
// build: nvrtc12.4 sm_70
// Matrix times vector, one warp a row, float4 loads.
extern "C" __global__ void gemv(const float4 *a, const float4 *x, float *y, int rows, int cols4)
{
	int row = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, lane = threadIdx.x & 31;
	if (row >= rows)
		return;
	float s = 0;
	for (int i = lane; i < cols4; i += 32) {
		float4 p = a[row * cols4 + i], q = x[i];
		s += p.x * q.x + p.y * q.y + p.z * q.z + p.w * q.w;
	}
	for (int d = 16; d; d >>= 1)
		s += __shfl_down_sync(~0u, s, d);
	if (lane == 0)
		y[row] = s;
}
