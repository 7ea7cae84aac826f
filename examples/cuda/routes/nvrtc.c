// Compiles at run time and loads what came of it: nvrtc OUT.ptx writes it there.
#include "cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call) \
	do { \
		int r_ = (call); \
		if (r_) { \
			fprintf(stderr, "nvrtc: %s: %d\n", #call, r_); \
			exit(3); \
		} \
	} while (0)

static void *need(void *h, const char *name) {
	void *p = h ? dlsym(h, name) : 0;
	if (!p) {
		fprintf(stderr, "nvrtc: %s: %s\n", name, dlerror());
		exit(2);
	}
	return p;
}

int main(int argc, char **argv) {
	const char *lib = getenv("ROUTES_NVRTC") ? getenv("ROUTES_NVRTC") : "libnvrtc.so";
	void *h = dlopen(lib, RTLD_NOW), *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	int (*create)(handle *, const char *, const char *, int, const char **, const char **) = need(h, "nvrtcCreateProgram");
	int (*compile)(handle, int, const char **) = need(h, "nvrtcCompileProgram");
	int (*size)(handle, size_t *) = need(h, "nvrtcGetPTXSize");
	int (*get)(handle, char *) = need(h, "nvrtcGetPTX");
	int (*init)(unsigned) = need(cuda, "cuInit");
	int (*retain)(handle *, int) = need(cuda, "cuDevicePrimaryCtxRetain");
	int (*current)(handle) = need(cuda, "cuCtxSetCurrent");
	int (*load)(handle *, const void *) = need(cuda, "cuModuleLoadData");
	int (*function)(handle *, handle, const char *) = need(cuda, "cuModuleGetFunction");
	int (*launch)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **) =
		need(cuda, "cuLaunchKernel");
	int (*sync)(void) = need(cuda, "cuCtxSynchronize");
	handle program, ctx, m, f;
	size_t n;
	CHECK(create(&program, "extern \"C\" __global__ void nothing() {}", "nothing.cu", 0, 0, 0));
	const char *options[] = {"--gpu-architecture=compute_90"};
	CHECK(compile(program, 1, options));
	CHECK(size(program, &n));
	char *ptx = malloc(n);
	CHECK(get(program, ptx));
	FILE *out = argc > 1 ? fopen(argv[1], "wb") : 0;
	if (out) {
		fwrite(ptx, 1, strlen(ptx), out);
		fclose(out);
	}
	CHECK(init(0));
	CHECK(retain(&ctx, 0));
	CHECK(current(ctx));
	CHECK(load(&m, ptx));
	CHECK(function(&f, m, "nothing"));
	CHECK(launch(f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
	CHECK(sync());
	puts("nvrtc: ok");
	return 0;
}
