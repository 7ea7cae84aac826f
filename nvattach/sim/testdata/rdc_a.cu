#include "test.h"

// Device code in two files, linked (-rdc=true): a function and a variable of the
// other file, a virtual call and recursion.
extern __device__ int other(int x);
extern __device__ int shared;

struct Shape {
	__device__ virtual int area(int x) const { return x; }
};
struct Square : Shape {
	__device__ int area(int x) const override { return x * x; }
};

__device__ int factorial(int n) { return n <= 1 ? 1 : n * factorial(n - 1); }

__global__ void kernel(int *out)
{
	Square q;
	Shape s;
	const Shape *p = threadIdx.x % 2 ? (const Shape *)&q : &s;
	out[threadIdx.x] = other(threadIdx.x) + shared + p->area(threadIdx.x) + factorial(threadIdx.x % 8);
}

__global__ void heap(int *out)
{
	int *v = (int *)malloc(16 * sizeof(int));
	for (int i = 0; i < 16; i++)
		v[i] = i * threadIdx.x;
	int sum = 0;
	for (int i = 0; i < 16; i++)
		sum += v[i];
	free(v);
	out[threadIdx.x] = sum;
}

int main()
{
	int *d, h[32], f[8] = {1, 1, 2, 6, 24, 120, 720, 5040};
	CHECK(cudaMalloc(&d, sizeof h));
	kernel<<<1, 32>>>(d);
	CHECK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
	for (int i = 0; i < 32; i++)
		EXPECT(h[i] == i * 10 + 77 + (i % 2 ? i * i : i) + f[i % 8]);
	heap<<<1, 32>>>(d);
	CHECK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
	for (int i = 0; i < 32; i++)
		EXPECT(h[i] == 120 * i);
	return passed();
}
