// build: nvcc13.0 sm_75
// build: nvrtc12.4 sm_50
// Local arrays with dynamic indexing and addresses that escape into a function.
__device__ __noinline__ void fill(int *p, int n, int k)
{
	for (int i = 0; i < n; i++)
		p[i] = i * k;
}
extern "C" __global__ void local_array(const int *idx, int *out)
{
	int a[40];
	unsigned char b[16];
	fill(a, 40, threadIdx.x + 1);
	for (int i = 0; i < 16; i++)
		b[i] = (unsigned char)(a[i] ^ 0x5a);
	int s = 0;
	for (int i = 0; i < 8; i++)
		s += a[idx[(threadIdx.x + i) & 31] % 40] + b[idx[i] & 15];
	out[threadIdx.x] = s;
}
