// Launches kernels in one of many ways, checks what they computed, and prints how
// many threads it launched: what a probe that counts threads must find.
#include <cooperative_groups.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <thread>
#include <unistd.h>
#include <vector>
#include <sys/wait.h>

#define CHECK(call)                                                                                      \
	do {                                                                                             \
		cudaError_t e_ = (call);                                                                 \
		if (e_ != cudaSuccess) {                                                                 \
			printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(e_));      \
			exit(1);                                                                         \
		}                                                                                        \
	} while (0)
#define EXPECT(cond)                                                              \
	do {                                                                      \
		if (!(cond)) {                                                    \
			printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #cond); \
			exit(1);                                                  \
		}                                                                 \
	} while (0)

namespace cg = cooperative_groups;

__constant__ int addend = 7;
__device__ int total;
__managed__ int managed = 3;

__global__ void early(int *v, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= n)
		return;
	if (v[i] & 1) {
		v[i] += addend;
		return;
	}
	v[i] += 1;
}

__global__ void looping(int *v, int n)
{
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		v[i] += 1;
}

__device__ __noinline__ int twice(int x) { return 2 * x + addend; }

__global__ void functions(int *v) { v[blockIdx.x * blockDim.x + threadIdx.x] = twice(threadIdx.x); }

__global__ void globals() { atomicAdd(&total, managed); }

__global__ void shared(int *v)
{
	extern __shared__ int s[];
	s[threadIdx.x] = threadIdx.x;
	__syncthreads();
	v[blockIdx.x * blockDim.x + threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}

__global__ void together(int *v)
{
	cg::grid_group g = cg::this_grid();
	atomicAdd(v, 1);
	g.sync();
	if (g.thread_rank() == 0)
		v[1] = v[0];
}

__global__ void clustered(int *v)
{
#if __CUDA_ARCH__ >= 900
	cg::cluster_group c = cg::this_cluster();
	c.sync();
	atomicAdd(&v[c.block_rank()], 1);
#endif
}

template <typename T> __global__ void generic(T *v) { v[threadIdx.x] = (T)threadIdx.x; }

static int *ints(int n)
{
	int *d;
	CHECK(cudaMalloc(&d, n * sizeof(int)));
	CHECK(cudaMemset(d, 0, n * sizeof(int)));
	return d;
}

static std::vector<int> back(int *d, int n)
{
	std::vector<int> h(n);
	CHECK(cudaMemcpy(h.data(), d, n * sizeof(int), cudaMemcpyDeviceToHost));
	return h;
}

static long runEarly()
{
	int n = 1000, *d = ints(n);
	early<<<7, 256>>>(d, n);
	early<<<5, 33>>>(d, n); // partial warps
	auto h = back(d, n);
	for (int i = 0; i < n; i++)
		EXPECT(h[i] == (i < 165 ? 8 : 1));
	return 7 * 256 + 5 * 33;
}

static long runLoop()
{
	int n = 100000, *d = ints(n);
	looping<<<3, 128>>>(d, n);
	for (int v : back(d, n))
		EXPECT(v == 1);
	return 3 * 128;
}

static long runFunctions()
{
	int *d = ints(256);
	functions<<<4, 64>>>(d);
	auto h = back(d, 256);
	for (int i = 0; i < 256; i++)
		EXPECT(h[i] == 2 * (i % 64) + 7);
	return 256;
}

static long runGlobals()
{
	int one = 40, got;
	CHECK(cudaMemcpyToSymbol(addend, &one, sizeof one));
	CHECK(cudaMemcpyFromSymbol(&got, addend, sizeof got));
	EXPECT(got == 40);
	managed = 5;
	globals<<<2, 50>>>();
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaMemcpyFromSymbol(&got, total, sizeof got));
	EXPECT(got == 500);
	int *d = ints(64);
	functions<<<1, 64>>>(d);
	EXPECT(back(d, 64)[1] == 42);
	return 164;
}

static long runShared()
{
	int *d = ints(1024), blocks = 0;
	int bytes = 100 << 10;
	CHECK(cudaFuncSetAttribute(shared, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
	shared<<<1, 1024, bytes>>>(d);
	CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, shared, 256, 0));
	EXPECT(blocks > 0);
	auto h = back(d, 1024);
	for (int i = 0; i < 1024; i++)
		EXPECT(h[i] == 1023 - i);
	return 1024;
}

static long runStreams()
{
	const int threads = 4, rounds = 25;
	int *d = ints(threads * 64);
	std::vector<std::thread> all;
	for (int t = 0; t < threads; t++)
		all.emplace_back([=] {
			cudaStream_t s;
			CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
			for (int i = 0; i < rounds; i++)
				looping<<<1, 64, 0, s>>>(d + 64 * t, 64);
			CHECK(cudaStreamSynchronize(s));
			CHECK(cudaStreamDestroy(s));
		});
	for (auto &t : all)
		t.join();
	for (int v : back(d, threads * 64))
		EXPECT(v == rounds);
	return (long)threads * rounds * 64;
}

static long runGraph()
{
	const int rounds = 50;
	int *d = ints(96);
	cudaStream_t s;
	cudaGraph_t g;
	cudaGraphExec_t x;
	CHECK(cudaStreamCreate(&s));
	// The kernel's module is loaded in the middle of a capture.
	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
	for (int i = 0; i < 3; i++)
		looping<<<1, 96, 0, s>>>(d, 96);
	CHECK(cudaStreamEndCapture(s, &g));
	CHECK(cudaGraphInstantiate(&x, g, 0));
	for (int i = 0; i < rounds; i++)
		CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaStreamSynchronize(s));
	for (int v : back(d, 96))
		EXPECT(v == 3 * rounds);
	return 3L * rounds * 96;
}

static long runCooperative()
{
	int *d = ints(2), blocks = 0, sms = 0;
	void *args[] = {&d};
	CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
	CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, together, 128, 0));
	blocks *= sms;
	CHECK(cudaLaunchCooperativeKernel((void *)together, blocks, 128, args));
	EXPECT(back(d, 2)[1] == blocks * 128);
	return blocks * 128L;
}

static long runClusters()
{
	int *d = ints(4);
	cudaLaunchConfig_t c = {};
	cudaLaunchAttribute a[1];
	c.gridDim = 16, c.blockDim = 64;
	a[0].id = cudaLaunchAttributeClusterDimension;
	a[0].val.clusterDim.x = 4, a[0].val.clusterDim.y = 1, a[0].val.clusterDim.z = 1;
	c.attrs = a, c.numAttrs = 1;
	CHECK(cudaLaunchKernelEx(&c, clustered, d));
	for (int v : back(d, 4))
		EXPECT(v == 256);
	return 16 * 64;
}

static long runMany()
{
	int *d = ints(1024);
	for (int i = 0; i < 5000; i++)
		looping<<<4, 256>>>(d, 1024);
	for (int v : back(d, 1024))
		EXPECT(v == 5000);
	return 5000L * 1024;
}

static long runTemplates()
{
	int *d = ints(64);
	generic<<<1, 64>>>(d);
	generic<<<1, 32>>>((float *)d);
	generic<<<1, 16>>>((unsigned short *)d);
	CHECK(cudaDeviceSynchronize());
	return 112;
}

static long runReset()
{
	int *d = ints(64);
	looping<<<1, 64>>>(d, 64);
	CHECK(cudaDeviceReset());
	d = ints(64);
	looping<<<1, 64>>>(d, 64);
	EXPECT(back(d, 64)[63] == 1);
	return 128;
}

static long runUnsynced()
{
	int *d = ints(64);
	looping<<<1, 64>>>(d, 64);
	return 64; // and the program ends
}

static long runFork()
{
	pid_t p = fork();
	if (p == 0) {
		runLoop();
		exit(0);
	}
	int st;
	waitpid(p, &st, 0);
	EXPECT(st == 0);
	return runLoop() * 2;
}

static long runDevices()
{
	int n = 0;
	CHECK(cudaGetDeviceCount(&n));
	for (int i = 0; i < n; i++) {
		CHECK(cudaSetDevice(i));
		int *d = ints(256);
		looping<<<2, 128>>>(d, 256);
		for (int v : back(d, 256))
			EXPECT(v == 1);
	}
	return 256L * n;
}

__global__ void joining(int *mine, const int *other, int n, unsigned long long *all)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= n)
		return;
	mine[i] += other[i] + 1;
	atomicAdd_system(all, 1ull);
}

// All GPUs at once, each from a thread and two streams of its own, with the memory of the next
// one where it can be reached, and one managed counter for all.
static long runPeers()
{
	const int blocks = 7, block = 96, n = blocks * block - 5, rounds = 50;
	int gpus = 0;
	CHECK(cudaGetDeviceCount(&gpus));
	std::vector<int *> from(gpus);
	std::vector<std::thread> threads;
	unsigned long long *all;
	bool direct = true;
	CHECK(cudaMallocManaged(&all, sizeof *all));
	*all = 0;
	for (int i = 0; i < gpus; i++) {
		int can = 0, concurrent = 0;
		CHECK(cudaSetDevice(i));
		CHECK(cudaMalloc(&from[i], n * sizeof(int)));
		CHECK(cudaMemset(from[i], 0, n * sizeof(int)));
		CHECK(cudaDeviceSynchronize());
		CHECK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, i));
		if (gpus > 1)
			CHECK(cudaDeviceCanAccessPeer(&can, i, (i + 1) % gpus));
		direct = direct && can && concurrent;
	}
	for (int i = 0; i < gpus; i++)
		threads.emplace_back([&, i] {
			cudaStream_t s[2];
			int *mine[2], *next = from[direct ? (i + 1) % gpus : i];
			CHECK(cudaSetDevice(i));
			if (direct)
				CHECK(cudaDeviceEnablePeerAccess((i + 1) % gpus, 0));
			for (int k = 0; k < 2; k++) {
				CHECK(cudaStreamCreate(&s[k]));
				CHECK(cudaMalloc(&mine[k], n * sizeof(int)));
				CHECK(cudaMemset(mine[k], 0, n * sizeof(int)));
			}
			CHECK(cudaDeviceSynchronize());
			for (int r = 0; r < rounds; r++)
				for (int k = 0; k < 2; k++)
					joining<<<blocks, block, 0, s[k]>>>(mine[k], next, n, all);
			CHECK(cudaDeviceSynchronize());
			for (int k = 0; k < 2; k++)
				for (int v : back(mine[k], n))
					EXPECT(v == rounds);
		});
	for (auto &t : threads)
		t.join();
	EXPECT(*all == 2ull * rounds * n * gpus);
	printf("%d GPUs, memory of others %s\n", gpus, direct ? "read" : "left alone");
	return 2L * rounds * blocks * block * gpus;
}

static long runQuick()
{
	long n = runLoop();
	printf("quick launched %ld\nPASSED\n", n);
	fflush(stdout);
	_exit(0);
}

static const struct {
	const char *name;
	long (*run)();
} modes[] = {{"early", runEarly}, {"loop", runLoop}, {"functions", runFunctions}, {"globals", runGlobals}, {"shared", runShared},
	{"streams", runStreams}, {"graph", runGraph}, {"cooperative", runCooperative}, {"clusters", runClusters}, {"many", runMany},
	{"templates", runTemplates}, {"reset", runReset}, {"unsynced", runUnsynced}, {"fork", runFork}, {"devices", runDevices}, {"peers", runPeers}, {"quick", runQuick}};

int main(int argc, char **argv)
{
	for (auto &m : modes)
		if (argc > 1 && !strcmp(argv[1], m.name)) {
			long n = m.run();
			printf("%s launched %ld\nPASSED\n", m.name, n);
			return 0;
		}
	printf("modes:");
	for (auto &m : modes)
		printf(" %s", m.name);
	printf("\n");
	return 2;
}
