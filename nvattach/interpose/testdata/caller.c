/* A library with a RUNPATH that its program doesn't have. */
#define _GNU_SOURCE
#include <dlfcn.h>
const char *who(void) { return "caller"; }
const char *call_open(const char *name)
{
	void *h = dlopen(name, RTLD_NOW);
	const char *(*f)(void) = h ? (const char *(*)(void))dlsym(h, "plug_name") : 0;
	return f ? f() : dlerror();
}
const char *call_next(const char *name)
{
	void *f = dlsym(RTLD_NEXT, name), *d = dlsym(RTLD_DEFAULT, name);
	return f ? "next found" : d ? "default found" : "not found";
}
