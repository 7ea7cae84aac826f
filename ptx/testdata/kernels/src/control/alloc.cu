// build: nvcc13.0 sm_80
// Device malloc and free, placement of results, alloca.
extern "C" __global__ void alloc(int n, int **out)
{
	int *p = (int *)malloc(n * sizeof(int));
	if (!p)
		return;
	for (int i = 0; i < n; i++)
		p[i] = i;
	if (threadIdx.x & 1)
		free(p);
	else
		out[threadIdx.x] = p;
}
