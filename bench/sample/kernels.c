// Runs kernels that note when they began and ended by the GPU's clock, for bench/sample.py:
// kernels MODE NANOSECONDS COUNT, where MODE is queue (one after the other, all handed over at once),
// apart (each when the one before is over and the GPU has been idle) or graph (in graphs of four).
// Prints a line "BEGIN END" for each launch.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;

static const char ptx[] =
	".version 7.0\n.target sm_75\n.address_size 64\n"
	".visible .entry spin(.param .u64 out, .param .u64 ns) {\n"
	" .reg .b64 %rd<8>; .reg .pred %p;\n"
	" mov.u64 %rd1, %globaltimer; ld.param.u64 %rd2, [out]; ld.param.u64 %rd3, [ns]; add.u64 %rd4, %rd1, %rd3;\n"
	"L: mov.u64 %rd5, %globaltimer; setp.lt.u64 %p, %rd5, %rd4; @%p bra L;\n"
	" st.global.u64 [%rd2], %rd1; st.global.u64 [%rd2+8], %rd5; ret; }\n";

#define FN(name, ...) int (*name)(__VA_ARGS__) = dlsym(lib, #name); if (!name) { fprintf(stderr, "no " #name "\n"); return 1; }
#define OK(call) do { int r = call; if (r) { fprintf(stderr, "%s = %d\n", #call, r); return 1; } } while (0)

int main(int argc, char **argv)
{
	if (argc != 4) { fprintf(stderr, "usage: kernels queue|apart|graph NANOSECONDS COUNT\n"); return 2; }
	const char *mode = argv[1];
	u64 ns = strtoull(argv[2], 0, 10);
	int n = atoi(argv[3]);
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	if (!lib) { fprintf(stderr, "%s\n", dlerror()); return 1; }
	FN(cuInit, unsigned) FN(cuDeviceGet, int *, int) FN(cuDevicePrimaryCtxRetain, void **, int) FN(cuCtxSetCurrent, void *)
	FN(cuModuleLoadData, void **, const void *) FN(cuModuleGetFunction, void **, void *, const char *)
	FN(cuStreamCreate, void **, unsigned) FN(cuStreamSynchronize, void *)
	FN(cuMemAlloc_v2, u64 *, size_t) FN(cuMemcpyDtoH_v2, void *, u64, size_t)
	FN(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)
	FN(cuStreamBeginCapture_v2, void *, int) FN(cuStreamEndCapture, void *, void **) FN(cuGraphInstantiateWithFlags, void **, void *, u64) FN(cuGraphLaunch, void *, void *)
	int device;
	void *context, *module, *spin, *stream, *graph, *exec = 0;
	u64 out;
	OK(cuInit(0)); OK(cuDeviceGet(&device, 0)); OK(cuDevicePrimaryCtxRetain(&context, device)); OK(cuCtxSetCurrent(context));
	OK(cuModuleLoadData(&module, ptx)); OK(cuModuleGetFunction(&spin, module, "spin")); OK(cuStreamCreate(&stream, 1));
	OK(cuMemAlloc_v2(&out, 16 * (size_t)(n + 4)));
	u64 at = out, *got = malloc(16 * (size_t)n);
	void *args[] = {&at, &ns};
	for (int i = 0; i < 50; i++) { // so that whoever looks has found the channel
		OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, args, 0)); OK(cuStreamSynchronize(stream));
		usleep(10000);
	}
	if (!strcmp(mode, "graph")) {
		OK(cuStreamBeginCapture_v2(stream, 0));
		for (int i = 0; i < 4; i++, at += 16)
			OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, args, 0));
		OK(cuStreamEndCapture(stream, &graph)); OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	}
	for (int i = 0; i < n; i++, at += 16) {
		if (exec) {
			OK(cuGraphLaunch(exec, stream)); OK(cuStreamSynchronize(stream));
			OK(cuMemcpyDtoH_v2(got, out, 64));
			printf("%lu %lu\n", got[0], got[7]);
			continue;
		}
		OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, args, 0));
		if (!strcmp(mode, "apart")) { OK(cuStreamSynchronize(stream)); usleep(100); }
	}
	OK(cuStreamSynchronize(stream));
	usleep(100000);
	if (exec)
		return 0;
	OK(cuMemcpyDtoH_v2(got, out, 16 * (size_t)n));
	for (int i = 0; i < n; i++)
		printf("%lu %lu\n", got[2 * i], got[2 * i + 1]);
	return 0;
}
