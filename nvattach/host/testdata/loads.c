// A library, and a program, that load and look for what only their own code finds: by its RUNPATH, and behind itself.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#ifdef LIBRARY

void *malloc_of_next(void) { return dlsym(RTLD_NEXT, "malloc") ? dlvsym(RTLD_NEXT, "malloc", "GLIBC_2.2.5") : 0; }
void *open_plugin(const char *name) { return dlopen(name, RTLD_NOW); }

#else

void *malloc_of_next(void);
void *open_plugin(const char *name);

int main(void)
{
	void *next = malloc_of_next();
	printf("next %d\n", next != 0);
	void *plugin = open_plugin("libplugin.so");
	printf("plugin %d\n", plugin != 0);
	return 0;
}

#endif
