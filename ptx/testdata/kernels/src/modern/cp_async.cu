// build: nvcc13.0 sm_80
// build: nvcc13.0 sm_90
// Asynchronous copies to shared memory in two stages.
extern "C" __global__ void cp_async(const float4 *in, float4 *out, int tiles)
{
	__shared__ __align__(16) float4 s[2][64];
	int t = threadIdx.x;
	auto issue = [&](int k) {
		unsigned d = (unsigned)__cvta_generic_to_shared(&s[k & 1][t]);
		asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(d), "l"(in + k * 64 + t) : "memory");
		asm volatile("cp.async.commit_group;" ::: "memory");
	};
	issue(0);
	float4 a = make_float4(0, 0, 0, 0);
	for (int k = 0; k < tiles; k++) {
		if (k + 1 < tiles) {
			issue(k + 1);
			asm volatile("cp.async.wait_group 1;" ::: "memory");
		} else
			asm volatile("cp.async.wait_all;" ::: "memory");
		__syncthreads();
		float4 v = s[k & 1][63 - t];
		a.x += v.x; a.y += v.y; a.z += v.z; a.w += v.w;
		__syncthreads();
	}
	out[t] = a;
}
