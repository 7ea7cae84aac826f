// build: nvcc13.0 sm_90
// build: nvrtc12.4 sm_52
// build: clang19 sm_60
// Module variables: initialised, constant, pointers to each other, managed-like arrays, statics.
struct Node { int v; const Node *next; };
__device__ Node tail = {3, nullptr}, mid = {2, &tail}, head = {1, &mid};
__constant__ float coef[4] = {1.0f, 0.5f, 0.25f, 0.125f};
__device__ unsigned long long counter = 7;
__device__ short grid2[3][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12}};
__device__ char message[] = "module text";
static __device__ int hidden = 42;
extern "C" __global__ void globals(float *out, int k)
{
	float s = 0;
	for (const Node *p = &head; p; p = p->next)
		s = s * 10 + p->v;
	out[threadIdx.x] = s + coef[threadIdx.x & 3] + grid2[threadIdx.x % 3][k & 3] + message[threadIdx.x % 11] + hidden;
	if (threadIdx.x == 0) {
		atomicAdd(&counter, 1ull);
		hidden++;
	}
}
