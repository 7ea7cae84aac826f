// build: nvcc13.0 sm_80
// build: nvrtc12.4 sm_60
// Recursive quicksort of one array by each thread: a real call stack.
__device__ void quick(int *a, int lo, int hi)
{
	if (lo >= hi)
		return;
	int p = a[(lo + hi) / 2], i = lo, j = hi;
	while (i <= j) {
		while (a[i] < p)
			i++;
		while (a[j] > p)
			j--;
		if (i <= j) {
			int t = a[i];
			a[i++] = a[j];
			a[j--] = t;
		}
	}
	quick(a, lo, j);
	quick(a, i, hi);
}
extern "C" __global__ void quicksort(int *data, int n)
{
	int id = blockIdx.x * blockDim.x + threadIdx.x;
	quick(data + id * n, 0, n - 1);
}
