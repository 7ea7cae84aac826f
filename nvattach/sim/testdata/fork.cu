#include "test.h"
#include <sys/wait.h>
#include <unistd.h>

__global__ void twice(int *v) { v[threadIdx.x] *= 2; }

static int work()
{
	int h[32], *d;
	for (int i = 0; i < 32; i++)
		h[i] = i;
	if (cudaMalloc(&d, sizeof h) != cudaSuccess)
		return 10 + (int)cudaGetLastError();
	CHECK(cudaMemcpy(d, h, sizeof h, cudaMemcpyHostToDevice));
	twice<<<1, 32>>>(d);
	CHECK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
	for (int i = 0; i < 32; i++)
		EXPECT(h[i] == 2 * i);
	return 0;
}

static int child()
{
	int st;
	pid_t p = fork();
	if (p == 0) {
		int r = work();
		_exit(r);
	}
	waitpid(p, &st, 0);
	return WIFEXITED(st) ? WEXITSTATUS(st) : -1;
}

int main()
{
	fflush(stdout);
	EXPECT(child() == 0); // the first use is in the child
	EXPECT(child() == 0);
	pid_t p = fork(); // both begin at the same time
	if (p == 0)
		_exit(work());
	EXPECT(work() == 0);
	int st;
	waitpid(p, &st, 0);
	EXPECT(WIFEXITED(st) && WEXITSTATUS(st) == 0);
	EXPECT(child() == 10 + cudaErrorInitializationError); // the parent has used it
	EXPECT(work() == 0);
	return passed();
}
