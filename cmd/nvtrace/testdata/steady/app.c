// steady KIND N: what a program does N times in its steady state; then how many calls returned what they should.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cuInit(unsigned), cuModuleLoadData(void **, const void *), cuModuleGetFunction(void **, void *, const char *),
	cuLibraryLoadData(void **, const void *, int *, void **, unsigned, int *, void **, unsigned),
	cuLibraryGetKernel(void **, void *, const char *), cuLibraryGetModule(void **, void *), cuKernelGetFunction(void **, void *),
	cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
	cuMemAlloc_v2(unsigned long *, unsigned long), cuMemFree_v2(unsigned long), cuMemcpyHtoD_v2(unsigned long, const void *, unsigned long),
	cuStreamSynchronize(void *), cuEventQuery(void *);

static const char ptx[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n";
static void *module, *library;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long n;

static int launch(void *f) { return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0); }

static long once(const char *kind)
{
	void *f = 0, *k = 0, *m = 0;
	unsigned long p = 0;
	long wrong = 0;
	switch (*kind) {
	case 'l': // look-ups: of the kernel at each launch
		wrong += cuModuleGetFunction(&f, module, "nothing") || launch(f);
		wrong += cuLibraryGetKernel(&k, library, "nothing") || cuKernelGetFunction(&f, k) || launch(f);
		wrong += cuLibraryGetModule(&m, library) || !m;
		break;
	case 'c': // copies
		wrong += cuMemcpyHtoD_v2(1, kind, 8) || cuStreamSynchronize(0);
		break;
	case 'a': // allocations
		wrong += cuMemAlloc_v2(&p, 64) || cuMemFree_v2(p);
		break;
	case 'f': // what fails, as polling does
		wrong += cuEventQuery(&p) != 600;
		break;
	}
	return wrong;
}

static void *thread(void *kind)
{
	long wrong = 0;
	for (long i = 0; i < n; i++) {
		pthread_mutex_lock(&lock); // one at a time, as in Python
		wrong += once("copies") + once("look-ups") + once("allocations");
		pthread_mutex_unlock(&lock);
	}
	return (void *)wrong;
}

int main(int argc, char **argv)
{
	long wrong = 0;
	n = atol(argv[2]);
	wrong += cuInit(0) || cuModuleLoadData(&module, ptx) || cuLibraryLoadData(&library, ptx, 0, 0, 0, 0, 0, 0);
	if (!strcmp(argv[1], "threads")) {
		pthread_t t[8];
		for (int i = 0; i < 8; i++)
			pthread_create(&t[i], 0, thread, 0);
		for (int i = 0; i < 8; i++) {
			void *r;
			pthread_join(t[i], &r);
			wrong += (long)r;
		}
	} else
		for (long i = 0; i < n; i++)
			wrong += once(argv[1]);
	printf("%ld wrong\n", wrong);
	return 0;
}
