/* A library that is linked with the driver. */
#define _GNU_SOURCE
#include <dlfcn.h>
int cuModuleLoadData(void **, const void *);
int need_load(void **m, const void *i) { return cuModuleLoadData(m, i); }
int need_load_dlsym(void **m, const void *i)
{
	void *h = dlopen("libcuda.so.1", RTLD_NOW);
	return ((int (*)(void **, const void *))dlsym(h, "cuModuleLoadData"))(m, i);
}
int need_load_next(void **m, const void *i)
{
	return ((int (*)(void **, const void *))dlsym(RTLD_NEXT, "cuModuleLoadData"))(m, i);
}
