// Compiles a kernel at run time and gives its PTX to the driver.
#include <cstdio>
#include <cstdlib>
#include <cuda.h>
#include <nvrtc.h>
#include <vector>

#define CHECK(call)                                                            \
	do {                                                                   \
		int e_ = (int)(call);                                          \
		if (e_) {                                                      \
			printf("%s:%d: %s: %d\n", __FILE__, __LINE__, #call, e_); \
			exit(1);                                               \
		}                                                              \
	} while (0)

static const char source[] = "extern \"C\" __global__ void fill(int *v, int n)\n"
			     "{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) v[i] = 3 * i; }\n";

int main()
{
	nvrtcProgram prog;
	CHECK(nvrtcCreateProgram(&prog, source, "fill.cu", 0, nullptr, nullptr));
	const char *opts[] = {"--gpu-architecture=compute_80"};
	CHECK(nvrtcCompileProgram(prog, 1, opts));
	size_t size;
	CHECK(nvrtcGetPTXSize(prog, &size));
	std::vector<char> ptx(size);
	CHECK(nvrtcGetPTX(prog, ptx.data()));
	CUdevice dev;
	CUcontext ctx;
	CUmodule mod;
	CUfunction f;
	CUdeviceptr d;
	int n = 1000;
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuDevicePrimaryCtxRetain(&ctx, dev));
	CHECK(cuCtxSetCurrent(ctx));
	CHECK(cuModuleLoadData(&mod, ptx.data()));
	CHECK(cuModuleGetFunction(&f, mod, "fill"));
	CHECK(cuMemAlloc(&d, n * sizeof(int)));
	void *args[] = {&d, &n};
	CHECK(cuLaunchKernel(f, 8, 1, 1, 128, 1, 1, 0, nullptr, args, nullptr));
	std::vector<int> h(n);
	CHECK(cuMemcpyDtoH(h.data(), d, n * sizeof(int)));
	for (int i = 0; i < n; i++)
		if (h[i] != 3 * i) {
			printf("element %d is %d\n", i, h[i]);
			return 1;
		}
	printf("nvrtc launched %d\nPASSED\n", 8 * 128);
	return 0;
}
