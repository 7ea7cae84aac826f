// gpurun times woven kernels on a GPU against the same kernels without programs, in one run, and checks results and counts.
//
//	gpurun [-lib LIBCUDA] FOLDER [CASE...]
//
// FOLDER has what TestWriteGPUFiles wrote: plain.ptx, NAME.ptx, and "cases", a text of lines:
//
//	base ADDRESS THREADS        where the woven code expects the maps; threads of the grid
//	case NAME BYTES             BYTES of memory for maps
//	write OFFSET HEX            what is in it at first
//	sum OFFSET BYTES N WHAT     the 64-bit words there sum to N after each launch
//
// With names of cases, only those run. Only the driver is needed: libcuda is opened at run time.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;
typedef struct {
	int type, handles;
	struct {
		int type, id;
	} location;
	void *meta;
	struct {
		unsigned char compression, rdma;
		unsigned short usage;
		unsigned char reserved[4];
	} flags;
} Prop; // CUmemAllocationProp
typedef struct {
	struct {
		int type, id;
	} location;
	int flags;
} Access; // CUmemAccessDesc

#define API(X) \
	X(cuInit, "cuInit", (unsigned)) \
	X(cuDeviceGet, "cuDeviceGet", (int *, int)) \
	X(cuDeviceGetName, "cuDeviceGetName", (char *, int, int)) \
	X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (void **, int)) \
	X(cuCtxSetCurrent, "cuCtxSetCurrent", (void *)) \
	X(cuCtxSynchronize, "cuCtxSynchronize", (void)) \
	X(cuModuleLoadData, "cuModuleLoadData", (void **, const void *)) \
	X(cuModuleUnload, "cuModuleUnload", (void *)) \
	X(cuModuleGetFunction, "cuModuleGetFunction", (void **, void *, const char *)) \
	X(cuFuncGetAttribute, "cuFuncGetAttribute", (int *, int, void *)) \
	X(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr *, size_t)) \
	X(cuMemcpyHtoD, "cuMemcpyHtoD_v2", (CUdeviceptr, const void *, size_t)) \
	X(cuMemcpyDtoH, "cuMemcpyDtoH_v2", (void *, CUdeviceptr, size_t)) \
	X(cuMemsetD8, "cuMemsetD8_v2", (CUdeviceptr, unsigned char, size_t)) \
	X(cuLaunchKernel, "cuLaunchKernel", (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)) \
	X(cuEventCreate, "cuEventCreate", (void **, unsigned)) \
	X(cuEventRecord, "cuEventRecord", (void *, void *)) \
	X(cuEventSynchronize, "cuEventSynchronize", (void *)) \
	X(cuEventElapsedTime, "cuEventElapsedTime", (float *, void *, void *)) \
	X(cuMemAddressReserve, "cuMemAddressReserve", (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
	X(cuMemCreate, "cuMemCreate", (unsigned long long *, size_t, const Prop *, unsigned long long)) \
	X(cuMemMap, "cuMemMap", (CUdeviceptr, size_t, size_t, unsigned long long, unsigned long long)) \
	X(cuMemSetAccess, "cuMemSetAccess", (CUdeviceptr, size_t, const Access *, size_t)) \
	X(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity", (size_t *, const Prop *, int)) \
	X(cuGetErrorName, "cuGetErrorName", (CUresult, const char **))
#define X(name, symbol, params) static CUresult(*name) params;
API(X)
#undef X

static void check(CUresult r, const char *what)
{
	const char *name = "?";
	if (!r)
		return;
	cuGetErrorName(r, &name);
	fprintf(stderr, "gpurun: %s: %s (%d)\n", what, name, r);
	exit(1);
}
#define OK(call) check(call, #call)

enum { BLOCK = 256, ROUNDS = 7, LAUNCHES = 20, NREGS = 4, LOCAL = 3 };

static const char *folder;
static CUdeviceptr a, b, c;
static CUdeviceptr base, written; // where the maps are, and where the texts believe them
static unsigned threads;
static void *start, *stop;

static char *slurp(const char *name)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *f = fopen(path, "rb");
	if (!f) {
		perror(path);
		exit(1);
	}
	fseek(f, 0, SEEK_END);
	long n = ftell(f);
	rewind(f);
	char *s = calloc(n + 1, 1);
	if (fread(s, 1, n, f) != (size_t)n)
		exit(1);
	fclose(f);
	return s;
}

// moved makes the addresses in a text those of the memory that there is.
static void moved(char *text)
{
	char prefix[24], digits[24];
	snprintf(prefix, sizeof prefix, "0x%04lx", (unsigned long)(written >> 32));
	for (char *p = text; base != written && (p = strstr(p, prefix)); p += 14) {
		if (strspn(p + 2, "0123456789abcdef") != 12)
			continue;
		snprintf(digits, sizeof digits, "0x%012lx", strtoul(p, NULL, 16) - written + base);
		memcpy(p, digits, 14);
	}
}

static void *load(const char *name, void **module)
{
	char *text = slurp(name);
	void *fn;
	moved(text);
	OK(cuModuleLoadData(module, text));
	OK(cuModuleGetFunction(&fn, *module, "_Z9vectorAddPKfS0_Pf"));
	free(text);
	return fn;
}

static void launch(void *fn)
{
	void *params[] = {&a, &b, &c};
	OK(cuLaunchKernel(fn, threads / BLOCK, 1, 1, BLOCK, 1, 1, 0, NULL, params, NULL));
}

static float timed(void *fn)
{
	float ms;
	OK(cuEventRecord(start, NULL));
	for (int i = 0; i < LAUNCHES; i++)
		launch(fn);
	OK(cuEventRecord(stop, NULL));
	OK(cuEventSynchronize(stop));
	OK(cuEventElapsedTime(&ms, start, stop));
	return ms * 1000 / LAUNCHES;
}

static void result(const char *name)
{
	float *v = malloc(4ul * threads);
	OK(cuMemcpyDtoH(v, c, 4ul * threads));
	for (unsigned i = 0; i < threads; i++)
		if (v[i] != 3.0f * (i % 1000)) {
			printf("%s: WRONG RESULT: element %u is %g\n", name, i, v[i]);
			exit(1);
		}
	free(v);
	OK(cuMemsetD8(c, 0, 4ul * threads));
}

struct sum {
	uint64_t off, bytes, each;
	char what[64];
};

static int run_case(const char *name, uint64_t bytes, char writes[][2048], int nwrites, struct sum *sums, int nsums, void *plain)
{
	char file[256];
	void *module, *fn;
	int regs = 0, local = 0, bad = 0;
	float best = 1e9, best_plain = 1e9;
	uint64_t launches = 0;

	OK(cuMemsetD8(base, 0, bytes));
	for (int i = 0; i < nwrites; i++) {
		uint64_t off;
		int at;
		sscanf(writes[i], "write %lu %n", &off, &at);
		unsigned char buf[1024];
		size_t n = 0;
		for (const char *h = writes[i] + at; h[0] > ' ' && n < sizeof buf; h += 2) {
			unsigned v;
			sscanf(h, "%2x", &v);
			buf[n++] = v;
		}
		OK(cuMemcpyHtoD(base + off, buf, n));
	}
	snprintf(file, sizeof file, "%s.ptx", name);
	struct timespec before, after;
	clock_gettime(CLOCK_MONOTONIC, &before);
	fn = load(file, &module);
	clock_gettime(CLOCK_MONOTONIC, &after);
	cuFuncGetAttribute(&regs, NREGS, fn);
	cuFuncGetAttribute(&local, LOCAL, fn);
	launch(fn);
	launches++;
	OK(cuCtxSynchronize());
	result(name);
	for (int r = 0; r < ROUNDS; r++) {
		float t = timed(plain);
		best_plain = t < best_plain ? t : best_plain;
		t = timed(fn);
		best = t < best ? t : best;
		launches += LAUNCHES;
	}
	result(name);
	printf("%-24s %9u threads: %8.2f us, alone %8.2f us: %6.3fx, %3d registers, %d local, loaded in %.0f ms", name, threads, best, best_plain,
	       best / best_plain, regs, local, (after.tv_sec - before.tv_sec) * 1e3 + (after.tv_nsec - before.tv_nsec) * 1e-6);
	for (int i = 0; i < nsums; i++) {
		uint64_t *w = malloc(sums[i].bytes), total = 0;
		OK(cuMemcpyDtoH(w, base + sums[i].off, sums[i].bytes));
		for (uint64_t k = 0; k < sums[i].bytes / 8; k++)
			total += w[k];
		free(w);
		if (total == sums[i].each * launches) {
			printf(", %s exact", sums[i].what);
		} else {
			printf(", %s WRONG: %lu, want %lu", sums[i].what, total, sums[i].each * launches);
			bad = 1;
		}
	}
	printf("\n");
	fflush(stdout);
	OK(cuModuleUnload(module));
	return bad;
}

static int wanted(const char *name, int n, char **names)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(name, names[i]))
			return 1;
	return n == 0;
}

int main(int argc, char **argv)
{
	const char *lib = "libcuda.so.1";
	if (argc > 2 && !strcmp(argv[1], "-lib")) {
		lib = argv[2];
		argc -= 2, argv += 2;
	}
	if (argc < 2) {
		fprintf(stderr, "usage: gpurun [-lib LIBCUDA] FOLDER [CASE...]\n");
		return 2;
	}
	folder = argv[1];
	void *h = dlopen(lib, RTLD_NOW);
	if (!h) {
		fprintf(stderr, "gpurun: %s\n", dlerror());
		return 1;
	}
#define X(name, symbol, params) \
	if (!(*(void **)&name = dlsym(h, symbol))) { \
		fprintf(stderr, "gpurun: no %s\n", symbol); \
		return 1; \
	}
	API(X)
#undef X
	void *ctx;
	int dev;
	char gpu[256];
	OK(cuInit(0));
	OK(cuDeviceGet(&dev, 0));
	OK(cuDeviceGetName(gpu, sizeof gpu, dev));
	OK(cuDevicePrimaryCtxRetain(&ctx, dev));
	OK(cuCtxSetCurrent(ctx));
	OK(cuEventCreate(&start, 0));
	OK(cuEventCreate(&stop, 0));

	char *text = slurp("cases"), *save = NULL;
	sscanf(text, "base %lu %u", &written, &threads);
	Prop prop = {.type = 1, .location = {1, dev}}; // pinned, on the device
	Access access = {.location = {1, dev}, .flags = 3};
	size_t grain, size = 2ul << 30;
	unsigned long long handle;
	OK(cuMemGetAllocationGranularity(&grain, &prop, 0));
	OK(cuMemAddressReserve(&base, size, 0, written, 0));
	printf("%s, maps at %#lx\n", gpu, (unsigned long)base);
	OK(cuMemCreate(&handle, size, &prop, 0));
	OK(cuMemMap(base, size, 0, handle, 0));
	OK(cuMemSetAccess(base, size, &access, 1));
	OK(cuMemAlloc(&a, 4ul * threads));
	OK(cuMemAlloc(&b, 4ul * threads));
	OK(cuMemAlloc(&c, 4ul * threads));
	float *v = malloc(4ul * threads);
	for (unsigned i = 0; i < threads; i++)
		v[i] = i % 1000;
	OK(cuMemcpyHtoD(a, v, 4ul * threads));
	for (unsigned i = 0; i < threads; i++)
		v[i] *= 2;
	OK(cuMemcpyHtoD(b, v, 4ul * threads));
	free(v);
	void *module, *plain = load("plain.ptx", &module);
	timed(plain);
	result("plain");

	static char writes[64][2048];
	struct sum sums[16];
	char name[128] = "";
	uint64_t bytes = 0;
	int nwrites = 0, nsums = 0, bad = 0;
	for (char *line = strtok_r(text, "\n", &save);; line = strtok_r(NULL, "\n", &save)) {
		if (!line || !strncmp(line, "case ", 5)) {
			if (name[0] && wanted(name, argc - 2, argv + 2))
				bad |= run_case(name, bytes, writes, nwrites, sums, nsums, plain);
			if (!line)
				break;
			nwrites = nsums = 0;
			sscanf(line, "case %127s %lu", name, &bytes);
		} else if (!strncmp(line, "write ", 6) && nwrites < 64) {
			snprintf(writes[nwrites++], sizeof writes[0], "%s", line);
		} else if (!strncmp(line, "sum ", 4) && nsums < 16) {
			struct sum *s = &sums[nsums++];
			sscanf(line, "sum %lu %lu %lu %63s", &s->off, &s->bytes, &s->each, s->what);
		}
	}
	printf(bad ? "FAILED\n" : "all counts and results are right\n");
	return bad;
}
