// What all routes use: the driver's functions, once they are found, and a kernel's
// load and launch.
#ifndef ROUTES_PROGRAM_H
#define ROUTES_PROGRAM_H
#define _GNU_SOURCE
#include "cuda.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const char ptx[] = ROUTES_PTX("nothing");
static const char *driver = "libcuda.so.1";
static struct api cu;

static void die(const char *what, int r) {
	fprintf(stderr, "routes: %s: %d\n", what, r);
	exit(3);
}

#define CHECK(call) \
	do { \
		int r_ = (call); \
		if (r_) \
			die(#call, r_); \
	} while (0)

// start makes a context current.
static void start(void) {
	handle ctx;
	int dev;
	CHECK(cu.init(0));
	CHECK(cu.device(&dev, 0));
	CHECK(cu.retain(&ctx, dev));
	CHECK(cu.current(ctx));
}

static void launch(handle f) {
	CHECK(cu.launch(f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
	CHECK(cu.synchronize());
}

// use launches the kernel of a module.
static void use(handle module) {
	handle f;
	CHECK(cu.function(&f, module, "nothing"));
	launch(f);
}

// once loads, launches and unloads.
static int once(const void *image) {
	handle m;
	CHECK(cu.load(&m, image));
	use(m);
	CHECK(cu.unload(m));
	return 0;
}

#endif
