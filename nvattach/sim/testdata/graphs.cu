#include "test.h"

__global__ void add(int *v, int x) { v[blockIdx.x * blockDim.x + threadIdx.x] += x; }
__global__ void mul(int *v, int x) { v[blockIdx.x * blockDim.x + threadIdx.x] *= x; }

static void CUDART_CB count(void *arg) { ++*(int *)arg; }

int main()
{
	const int n = 256;
	int *d, *e, h[n], calls = 0;
	cudaStream_t s, t;
	cudaEvent_t fork, join;
	cudaGraph_t g;
	cudaGraphExec_t x;
	CHECK(cudaMalloc(&d, sizeof h));
	CHECK(cudaMalloc(&e, sizeof h));
	CHECK(cudaMemset(d, 0, sizeof h));
	CHECK(cudaMemset(e, 0, sizeof h));
	CHECK(cudaStreamCreate(&s));
	CHECK(cudaStreamCreate(&t));
	CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
	CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));

	// Captured from two streams.
	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
	add<<<2, 128, 0, s>>>(d, 1);
	CHECK(cudaEventRecord(fork, s));
	CHECK(cudaStreamWaitEvent(t, fork, 0));
	mul<<<2, 128, 0, s>>>(d, 3);
	add<<<2, 128, 0, t>>>(e, 10);
	CHECK(cudaLaunchHostFunc(t, count, &calls));
	CHECK(cudaEventRecord(join, t));
	CHECK(cudaStreamWaitEvent(s, join, 0));
	add<<<2, 128, 0, s>>>(d, 5);
	CHECK(cudaStreamEndCapture(s, &g));
	size_t nodes = 0;
	CHECK(cudaGraphGetNodes(g, nullptr, &nodes));
	EXPECT(nodes == 5);
	CHECK(cudaGraphInstantiate(&x, g, 0));
	CHECK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
	EXPECT(h[0] == 0); // nothing has run
	for (int i = 0; i < 3; i++)
		CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaStreamSynchronize(s));
	int want = 0;
	for (int i = 0; i < 3; i++)
		want = (want + 1) * 3 + 5;
	CHECK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
	for (int i = 0; i < n; i++)
		EXPECT(h[i] == want);
	CHECK(cudaMemcpy(h, e, sizeof h, cudaMemcpyDeviceToHost));
	EXPECT(h[n - 1] == 30 && calls == 3);

	// Built node by node.
	cudaGraph_t b;
	cudaGraphNode_t set, kern, copy;
	CHECK(cudaGraphCreate(&b, 0));
	cudaMemsetParams ms = {};
	ms.dst = e;
	ms.elementSize = 4;
	ms.value = 7;
	ms.width = n;
	ms.height = 1;
	CHECK(cudaGraphAddMemsetNode(&set, b, nullptr, 0, &ms));
	int by = 6;
	void *args[] = {&e, &by};
	cudaKernelNodeParams kp = {};
	kp.func = (void *)mul;
	kp.gridDim = dim3(2);
	kp.blockDim = dim3(128);
	kp.kernelParams = args;
	CHECK(cudaGraphAddKernelNode(&kern, b, &set, 1, &kp));
	CHECK(cudaGraphAddMemcpyNode1D(&copy, b, &kern, 1, d, e, sizeof h, cudaMemcpyDeviceToDevice));
	cudaGraphExec_t y;
	CHECK(cudaGraphInstantiate(&y, b, 0));
	CHECK(cudaGraphLaunch(y, s));
	by = 9;
	CHECK(cudaGraphExecKernelNodeSetParams(y, kern, &kp));
	CHECK(cudaMemcpyAsync(h, d, sizeof h, cudaMemcpyDeviceToHost, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT(h[0] == 42 && h[n - 1] == 42);
	CHECK(cudaGraphLaunch(y, s));
	CHECK(cudaMemcpyAsync(h, d, sizeof h, cudaMemcpyDeviceToHost, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT(h[0] == 63);
	CHECK(cudaGraphExecDestroy(x));
	CHECK(cudaGraphExecDestroy(y));
	CHECK(cudaGraphDestroy(g));
	CHECK(cudaGraphDestroy(b));
	return passed();
}
