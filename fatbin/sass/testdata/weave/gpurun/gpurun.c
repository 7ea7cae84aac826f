// gpurun runs woven kernels on a GPU and compares them with the same kernels without
// probes: their output must be the same bit by bit, and what the probes counted must be
// what threads and the kernels that count for themselves say.
//
//	gpurun FOLDER
//
// FOLDER has what TestWriteGPUFiles wrote: SET.cubin, SET.truth.cubin, the woven
// SET.HOW.cubin, and "cases" with lines
//
//	SET KERNEL HOW ENTRIES EXITS ACCESSES
//
// where the last three say whether the woven kernel counts threads that begin, threads
// that end, and accesses to global memory. Only the driver is needed: libcuda is opened at run time.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;
typedef void *Handle;

static CUresult (*cuInit)(unsigned), (*cuDeviceGet)(int *, int), (*cuDevicePrimaryCtxRetain)(Handle *, int), (*cuCtxSetCurrent)(Handle);
static CUresult (*cuModuleLoad)(Handle *, const char *), (*cuModuleUnload)(Handle), (*cuModuleGetFunction)(Handle *, Handle, const char *);
static CUresult (*cuMemAlloc)(CUdeviceptr *, size_t), (*cuMemcpyHtoD)(CUdeviceptr, const void *, size_t);
static CUresult (*cuMemcpyDtoH)(void *, CUdeviceptr, size_t), (*cuMemsetD8)(CUdeviceptr, unsigned char, size_t), (*cuCtxSynchronize)(void);
static CUresult (*cuLaunchKernel)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **);
static CUresult (*cuFuncGetAttribute)(int *, int, Handle);

enum { N = 1 << 20, BLOCK = 256, GRID = N / BLOCK + 3, TIMES = 50 };

static void must(CUresult r, const char *what) {
	if (r) {
		printf("%s: error %d\n", what, r);
		exit(1);
	}
}

static void *sym(void *lib, const char *name) {
	void *p = dlsym(lib, name);
	if (!p) {
		printf("libcuda has no %s\n", name);
		exit(1);
	}
	return p;
}

static CUdeviceptr x, idx, y, counters;
static float *out, *want;

typedef struct {
	uint64_t count[8];
	double us;
	int regs;
	CUresult err;
} Run;

static Run run(const char *folder, const char *file, const char *kernel, float *to) {
	char path[4096];
	Handle m, f;
	Run r = {0};
	snprintf(path, sizeof path, "%s/%s", folder, file);
	if ((r.err = cuModuleLoad(&m, path))) return r;
	must(cuModuleGetFunction(&f, m, kernel), kernel);
	cuFuncGetAttribute(&r.regs, 4, f);
	int n = N;
	void *params[] = {&x, &idx, &y, &n, &counters};
	must(cuMemsetD8(y, 0, N * 4), "memset");
	must(cuMemsetD8(counters, 0, sizeof r.count), "memset");
	if ((r.err = cuLaunchKernel(f, GRID, 1, 1, BLOCK, 1, 1, 0, 0, params, 0)) || (r.err = cuCtxSynchronize())) return r;
	must(cuMemcpyDtoH(to, y, N * 4), "copy");
	must(cuMemcpyDtoH(r.count, counters, sizeof r.count), "copy");
	struct timespec a, b;
	clock_gettime(CLOCK_MONOTONIC, &a);
	for (int i = 0; i < TIMES; i++) cuLaunchKernel(f, GRID, 1, 1, BLOCK, 1, 1, 0, 0, params, 0);
	if ((r.err = cuCtxSynchronize())) return r;
	clock_gettime(CLOCK_MONOTONIC, &b);
	r.us = ((b.tv_sec - a.tv_sec) * 1e9 + b.tv_nsec - a.tv_nsec) / 1e3 / TIMES;
	cuModuleUnload(m);
	return r;
}

int main(int argc, char **argv) {
	if (argc != 2) return puts("usage: gpurun FOLDER"), 2;
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	if (!lib) return puts(dlerror()), 1;
	cuInit = sym(lib, "cuInit"), cuDeviceGet = sym(lib, "cuDeviceGet"), cuDevicePrimaryCtxRetain = sym(lib, "cuDevicePrimaryCtxRetain");
	cuCtxSetCurrent = sym(lib, "cuCtxSetCurrent"), cuModuleLoad = sym(lib, "cuModuleLoad"), cuModuleUnload = sym(lib, "cuModuleUnload");
	cuModuleGetFunction = sym(lib, "cuModuleGetFunction"), cuMemAlloc = sym(lib, "cuMemAlloc_v2"), cuMemcpyHtoD = sym(lib, "cuMemcpyHtoD_v2");
	cuMemcpyDtoH = sym(lib, "cuMemcpyDtoH_v2"), cuMemsetD8 = sym(lib, "cuMemsetD8_v2"), cuCtxSynchronize = sym(lib, "cuCtxSynchronize");
	cuLaunchKernel = sym(lib, "cuLaunchKernel"), cuFuncGetAttribute = sym(lib, "cuFuncGetAttribute");
	int dev;
	Handle ctx;
	must(cuInit(0), "cuInit");
	must(cuDeviceGet(&dev, 0), "cuDeviceGet");
	must(cuDevicePrimaryCtxRetain(&ctx, dev), "context");
	must(cuCtxSetCurrent(ctx), "context");
	must(cuMemAlloc(&x, N * 4 + 64), "memory");
	must(cuMemAlloc(&idx, N * 4), "memory");
	must(cuMemAlloc(&y, N * 4), "memory");
	must(cuMemAlloc(&counters, 4096), "memory");
	float *hx = malloc(N * 4 + 64);
	int *hi = malloc(N * 4);
	uint32_t s = 1;
	for (int i = 0; i < N + 16; i++) {
		s = s * 1664525 + 1013904223;
		hx[i] = (float)(s >> 8) / (1 << 24);
		if (i < N) hi[i] = (s >> 5) & 0xfffff;
	}
	must(cuMemcpyHtoD(x, hx, N * 4 + 64), "copy");
	must(cuMemcpyHtoD(idx, hi, N * 4), "copy");
	out = malloc(N * 4), want = malloc(N * 4);

	char path[4096], set[64], kernel[64], how[64], plainFile[256], truthFile[256], file[256];
	int entries, exits, accesses, bad = 0, cases = 0;
	snprintf(path, sizeof path, "%s/cases", argv[1]);
	FILE *c = fopen(path, "r");
	if (!c) return perror(path), 1;
	while (fscanf(c, "%63s %63s %63s %d %d %d", set, kernel, how, &entries, &exits, &accesses) == 6) {
		snprintf(plainFile, sizeof plainFile, "%s.cubin", set);
		snprintf(truthFile, sizeof truthFile, "%s.truth.cubin", set);
		snprintf(file, sizeof file, "%s.%s.cubin", set, how);
		Run plain = run(argv[1], plainFile, kernel, want);
		Run truth = run(argv[1], truthFile, kernel, out);
		if (plain.err || truth.err) return printf("%s: error %d, %d without probes\n", kernel, plain.err, truth.err), 1;
		memset(out, 0xff, N * 4);
		Run w = run(argv[1], file, kernel, out);
		cases++;
		if (w.err) return printf("FAIL %s %s: error %d; %d cases before it\n", kernel, file, w.err, cases - 1), 1;
		uint64_t threads = (uint64_t)GRID * BLOCK, e[4] = {entries ? threads : 0, exits ? threads : 0, accesses ? truth.count[2] : 0, accesses ? truth.count[3] : 0};
		int same = !memcmp(out, want, N * 4), ok = same;
		for (int i = 0; i < 4; i++) ok &= w.count[i] == e[i];
		bad += !ok;
		printf("%s %-8s %-22s output %s, %llu %llu %llu %llx (want %llu %llu %llu %llx), %llu at all sites, registers %d -> %d, %.1f -> %.1f us\n", ok ? "ok  " : "FAIL",
			kernel, file, same ? "same" : "DIFFERENT", (unsigned long long)w.count[0], (unsigned long long)w.count[1], (unsigned long long)w.count[2],
			(unsigned long long)w.count[3], (unsigned long long)e[0], (unsigned long long)e[1], (unsigned long long)e[2], (unsigned long long)e[3],
			(unsigned long long)w.count[4], plain.regs, w.regs, plain.us, w.us);
	}
	printf("%d cases, %d failed\n", cases, bad);
	return bad || !cases;
}
