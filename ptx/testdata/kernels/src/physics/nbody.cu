// build: nvcc13.0 sm_90
// build: nvrtc12.4 sm_70 -use_fast_math
// build: nvrtc12.9 sm_80 -lineinfo
// All-pairs gravity with bodies staged in shared memory.
extern "C" __global__ void nbody(const float4 *pos, float4 *acc, int n)
{
	extern __shared__ float4 tile[];
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	float4 p = pos[i];
	float ax = 0, ay = 0, az = 0;
	for (int t = 0; t < n; t += blockDim.x) {
		tile[threadIdx.x] = pos[t + threadIdx.x];
		__syncthreads();
		for (int j = 0; j < blockDim.x; j++) {
			float4 q = tile[j];
			float dx = q.x - p.x, dy = q.y - p.y, dz = q.z - p.z;
			float r = rsqrtf(dx * dx + dy * dy + dz * dz + 1e-3f);
			float f = q.w * r * r * r;
			ax += f * dx;
			ay += f * dy;
			az += f * dz;
		}
		__syncthreads();
	}
	acc[i] = make_float4(ax, ay, az, 0);
}
