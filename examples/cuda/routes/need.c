// A library that is linked with the driver: what it calls is bound by ld.so.
#include "cuda.h"

CUresult cuModuleLoadData(handle *, const void *);
CUresult cuModuleGetFunction(handle *, handle, const char *);
CUresult cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);

CUresult need_run(const void *image, const char *kernel) {
	handle m, f;
	CUresult r = cuModuleLoadData(&m, image);
	if (!r)
		r = cuModuleGetFunction(&f, m, kernel);
	if (!r)
		r = cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
	return r;
}
