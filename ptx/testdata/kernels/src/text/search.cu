// build: nvcc13.0 sm_80
// build: nvrtc12.4 sm_52
// Substring search, byte loads; the first match by atomicMin.
extern "C" __global__ void search(const char *text, int n, const char *pat, int m, int *first, unsigned char *hit)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i + m > n)
		return;
	int k = 0;
	while (k < m && text[i + k] == pat[k])
		k++;
	hit[i] = k == m;
	if (k == m)
		atomicMin(first, i);
}
