// Gives a GPU work of a kind, says "ready", and keeps it until its standard input ends:
// work idle|spin|queue|graph|event|copy. For snapshots of channels (internal/take).
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t u64;

static const char ptx[] =
	".version 7.0\n.target sm_75\n.address_size 64\n"
	// Waits until the word at `flag` isn't 0.
	".visible .entry wait_for_flag(.param .u64 flag, .param .u32 mark) {\n"
	" .reg .b64 %rd<3>; .reg .b32 %r<3>; .reg .pred %p;\n"
	" ld.param.u64 %rd1, [flag];\n"
	"L: ld.volatile.global.u32 %r1, [%rd1]; setp.eq.u32 %p, %r1, 0; @%p bra L; ret; }\n"
	".visible .entry add_one(.param .u64 data, .param .u32 n) {\n"
	" .reg .b64 %rd<4>; .reg .b32 %r<8>; .reg .pred %p;\n"
	" ld.param.u64 %rd1, [data]; ld.param.u32 %r1, [n];\n"
	" mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r5, %r2, %r3, %r4;\n"
	" setp.ge.u32 %p, %r5, %r1; @%p ret;\n"
	" mul.wide.u32 %rd2, %r5, 4; add.u64 %rd3, %rd1, %rd2; ld.global.u32 %r6, [%rd3]; add.u32 %r6, %r6, 1; st.global.u32 [%rd3], %r6; ret; }\n";

#define FN(name, ...) int (*name)(__VA_ARGS__) = dlsym(lib, #name); if (!name) { fprintf(stderr, "no " #name "\n"); return 1; }
#define OK(call) do { int r = call; if (r) { fprintf(stderr, "%s = %d\n", #call, r); return 1; } } while (0)

int main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "idle";
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	if (!lib) { fprintf(stderr, "%s\n", dlerror()); return 1; }
	FN(cuInit, unsigned) FN(cuDeviceGet, int *, int) FN(cuDevicePrimaryCtxRetain, void **, int) FN(cuCtxSetCurrent, void *)
	FN(cuModuleLoadData, void **, const void *) FN(cuModuleGetFunction, void **, void *, const char *)
	FN(cuStreamCreate, void **, unsigned) FN(cuStreamSynchronize, void *) FN(cuCtxSynchronize, void)
	FN(cuMemAlloc_v2, u64 *, size_t) FN(cuMemAllocHost_v2, void **, size_t) FN(cuMemsetD32_v2, u64, unsigned, size_t)
	FN(cuMemcpyHtoDAsync_v2, u64, const void *, size_t, void *) FN(cuMemcpyDtoHAsync_v2, void *, u64, size_t, void *)
	FN(cuEventCreate, void **, unsigned) FN(cuEventRecord, void *, void *) FN(cuStreamWaitEvent, void *, void *, unsigned)
	FN(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)
	FN(cuStreamBeginCapture_v2, void *, int) FN(cuStreamEndCapture, void *, void **) FN(cuGraphInstantiateWithFlags, void **, void *, u64) FN(cuGraphLaunch, void *, void *)
	int device;
	void *context, *module, *wait, *add, *a, *b, *event, *graph, *exec;
	u64 data;
	volatile unsigned *flag;
	void *host;
	OK(cuInit(0)); OK(cuDeviceGet(&device, 0)); OK(cuDevicePrimaryCtxRetain(&context, device)); OK(cuCtxSetCurrent(context));
	OK(cuModuleLoadData(&module, ptx)); OK(cuModuleGetFunction(&wait, module, "wait_for_flag")); OK(cuModuleGetFunction(&add, module, "add_one"));
	OK(cuStreamCreate(&a, 1)); OK(cuStreamCreate(&b, 1)); OK(cuEventCreate(&event, 2));
	OK(cuMemAlloc_v2(&data, 64 << 20)); OK(cuMemsetD32_v2(data, 0, 16 << 20));
	OK(cuMemAllocHost_v2((void **)&flag, 4096)); OK(cuMemAllocHost_v2(&host, 64 << 20));
	*flag = 0;
	unsigned n = 1000000, mark = 0x11223344;
	void *add_args[] = {&data, &n}, *wait_args[] = {(void *)&flag, &mark};
	for (int i = 0; i < 3; i++) {
		OK(cuLaunchKernel(add, (n + 255) / 256, 1, 1, 256, 1, 1, 0, a, add_args, 0));
		OK(cuLaunchKernel(add, (n + 127) / 128, 1, 1, 128, 1, 1, 0, b, add_args, 0));
	}
	OK(cuMemcpyHtoDAsync_v2(data, host, 64 << 20, a)); OK(cuMemcpyDtoHAsync_v2(host, data, 64 << 20, b));
	OK(cuCtxSynchronize());
	if (!strcmp(kind, "spin") || !strcmp(kind, "queue") || !strcmp(kind, "event"))
		OK(cuLaunchKernel(wait, 2, 3, 1, 32, 2, 1, 4096, a, wait_args, 0));
	if (!strcmp(kind, "queue"))
		for (int i = 0; i < 5; i++)
			OK(cuLaunchKernel(add, (n + 255) / 256, 1, 1, 256, 1, 1, 0, a, add_args, 0));
	if (!strcmp(kind, "event")) {
		OK(cuEventRecord(event, a)); OK(cuStreamWaitEvent(b, event, 0));
		OK(cuLaunchKernel(add, (n + 127) / 128, 1, 1, 128, 1, 1, 0, b, add_args, 0));
	}
	if (!strcmp(kind, "copy")) {
		OK(cuLaunchKernel(wait, 1, 1, 1, 1, 1, 1, 0, a, wait_args, 0)); OK(cuEventRecord(event, a)); OK(cuStreamWaitEvent(b, event, 0));
		OK(cuMemcpyHtoDAsync_v2(data, host, 64 << 20, b));
	}
	if (!strcmp(kind, "graph")) {
		OK(cuStreamBeginCapture_v2(a, 0));
		OK(cuLaunchKernel(add, (n + 255) / 256, 1, 1, 256, 1, 1, 0, a, add_args, 0));
		OK(cuLaunchKernel(wait, 1, 1, 1, 1, 1, 1, 0, a, wait_args, 0));
		OK(cuLaunchKernel(add, (n + 63) / 64, 1, 1, 64, 1, 1, 0, a, add_args, 0));
		OK(cuStreamEndCapture(a, &graph)); OK(cuGraphInstantiateWithFlags(&exec, graph, 0)); OK(cuGraphLaunch(exec, a));
	}
	usleep(200000);
	printf("ready\n");
	fflush(stdout);
	while (getchar() != EOF)
		;
	*flag = 1;
	OK(cuCtxSynchronize());
	printf("done\n");
	return 0;
}
