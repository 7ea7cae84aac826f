// Routes through the functions that cuda.h declares.
#ifndef ROUTES_LOADERS_H
#define ROUTES_LOADERS_H
#include "images.h"

#ifdef LINKED
CUresult cuModuleLoadData(handle *, const void *);

static int linked(const char *route, const char *file) {
	handle m;
	CHECK(cuModuleLoadData(&m, ptx));
	use(m);
	return 0;
}
#endif

// with_library is for a library that the driver is linked with.
static int with_library(const char *route, const char *file) {
	void *h = dlopen("libneed.so", RTLD_NOW | (*route == 'd' ? RTLD_DEEPBIND : 0));
	if (!h) {
		fprintf(stderr, "routes: %s\n", dlerror());
		return 2;
	}
	int (*need)(const void *, const char *) = dlsym(h, "need_run");
	return need(ptx, "nothing");
}

static int load_own(const char *route, const char *file) { return once(ptx); }

static int load_image(const char *route, const char *file) {
	handle m;
	size_t n;
	CHECK(cu.load(&m, slurp(file, &n)));
	use(m);
	return 0;
}

static int load_ex(const char *route, const char *file) {
	handle m;
	CHECK(cu.loadex(&m, strdup(ptx), 0, 0, 0));
	use(m);
	return 0;
}

static int load_fatbin(const char *route, const char *file) {
	handle m;
	size_t n;
	CHECK(cu.loadfat(&m, container(&n)));
	use(m);
	return 0;
}

// load_wrapper2 loads what -rdc makes: nothing linked, a list of inputs.
static int load_wrapper2(const char *route, const char *file) {
	static unsigned char empty[16] = {0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0};
	handle m;
	size_t n;
	void *list[] = {container(&n), 0};
	struct wrapper w = wrap(2, empty, list);
	CHECK(cu.load(&m, &w));
	use(m);
	return 0;
}

static int load_file(const char *route, const char *file) {
	handle m;
	CHECK(cu.loadfile(&m, file));
	use(m);
	return 0;
}

static int load_missing(const char *route, const char *file) {
	handle m;
	return cu.loadfile(&m, "does/not/exist");
}

static int library_data(const char *route, const char *file) {
	handle lib, k, m, f;
	size_t n;
	struct wrapper *w = malloc(sizeof *w);
	int option = 1; // CU_LIBRARY_BINARY_IS_PRESERVED
	void *value = (void *)1;
	if (file) {
		CHECK(cu.libload(&lib, slurp(file, &n), 0, 0, 0, 0, 0, 0));
	} else {
		*w = wrap(1, container(&n), 0);
		CHECK(cu.libload(&lib, w, 0, 0, 0, &option, &value, 1));
	}
	CHECK(cu.kernel(&k, lib, "nothing"));
	launch(k);
	CHECK(cu.libmodule(&m, lib));
	CHECK(cu.function(&f, m, "nothing"));
	launch(f);
	CHECK(cu.libunload(lib));
	return 0;
}

static int library_file(const char *route, const char *file) {
	handle lib, k;
	CHECK(cu.libfile(&lib, file, 0, 0, 0, 0, 0, 0));
	CHECK(cu.kernel(&k, lib, "nothing"));
	launch(k);
	return 0;
}

static int link_code(const char *route, const char *file) {
	handle state, m;
	void *out;
	size_t n;
	CHECK(cu.linkcreate(0, 0, 0, &state));
	char *text = strdup(ptx); // the linker's copy may not be the program's
	if (file)
		CHECK(cu.linkfile(state, 1, file, 0, 0, 0));
	else
		CHECK(cu.linkadd(state, 1, text, sizeof ptx, "nothing.ptx", 0, 0, 0));
	memset(text, 'x', sizeof ptx - 1);
	CHECK(cu.linkcomplete(state, &out, &n));
	keep(getenv("ROUTES_LINKED"), out, n);
	CHECK(cu.load(&m, out));
	use(m);
	CHECK(cu.linkdestroy(state));
	return 0;
}

// What cuda.h has for other ways to launch.
struct launch_config {
	unsigned grid[3], block[3], shared;
	handle stream;
	void *attrs;
	unsigned n;
};

struct kernel_node {
	handle func;
	unsigned grid[3], block[3], shared;
	void **params, **extra;
	handle kern, ctx;
};

static int launch_ex(const char *route, const char *file) {
	handle m, f;
	CHECK(cu.load(&m, ptx));
	CHECK(cu.function(&f, m, "nothing"));
	CUresult (*launch)(void *, handle, void **, void **) = dlsym(RTLD_DEFAULT, "cuLaunchKernelEx");
	struct launch_config c = {{1, 1, 1}, {1, 1, 1}, 0, 0, 0, 0};
	if (!launch)
		launch = dlsym(dlopen(driver, RTLD_NOW), "cuLaunchKernelEx");
	for (int i = 0; i < 3; i++)
		CHECK(launch(&c, f, 0, 0));
	CHECK(cu.synchronize());
	return 0;
}

static int launch_graph(const char *route, const char *file) {
	handle m, f, g, node;
	CHECK(cu.load(&m, ptx));
	CHECK(cu.function(&f, m, "nothing"));
	void *h = dlopen(driver, RTLD_NOW);
	CUresult (*create)(handle *, unsigned) = dlsym(h, "cuGraphCreate");
	CUresult (*add)(handle *, handle, handle *, size_t, void *) = dlsym(h, "cuGraphAddKernelNode_v2");
	struct kernel_node k = {f, {1, 1, 1}, {1, 1, 1}, 0, 0, 0, 0, 0};
	CHECK(create(&g, 0));
	CHECK(add(&node, g, 0, 0, &k));
	return 0;
}

// launch_often launches one kernel 2000 times, as "often-ex" by cuLaunchKernelEx.
static int launch_often(const char *route, const char *file) {
	CUresult (*ex)(void *, handle, void **, void **) = dlsym(dlopen(driver, RTLD_NOW), "cuLaunchKernelEx");
	struct launch_config c = {{1, 1, 1}, {1, 1, 1}, 0, 0, 0, 0};
	handle m, f;
	CHECK(cu.load(&m, ptx));
	CHECK(cu.function(&f, m, "nothing"));
	for (int i = 0; i < 2000; i++)
		CHECK(route[5] ? ex(&c, f, 0, 0) : cu.launch(f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
	CHECK(cu.synchronize());
	return 0;
}

// found_often asks for a library's kernel before each of 2000 launches, as cuDNN does.
static int found_often(const char *route, const char *file) {
	CUresult (*function)(handle *, handle) = dlsym(dlopen(driver, RTLD_NOW), "cuKernelGetFunction");
	handle lib, k, f;
	CHECK(cu.libload(&lib, ptx, 0, 0, 0, 0, 0, 0));
	CHECK(cu.kernel(&k, lib, "nothing"));
	for (int i = 0; i < 2000; i++) {
		CHECK(function(&f, k));
		CHECK(cu.launch(f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
	}
	CHECK(cu.synchronize());
	return 0;
}

// looked_often looks a kernel up in its module, in a library and in the library's module before each of 2000 launches;
// three times, with other modules in the place of those before.
static int looked_often(const char *route, const char *file) {
	CUresult (*function)(handle *, handle) = dlsym(dlopen(driver, RTLD_NOW), "cuKernelGetFunction");
	CUresult (*module)(handle *, handle) = dlsym(dlopen(driver, RTLD_NOW), "cuLibraryGetModule");
	for (int k = 0; k < 3; k++) {
		char code[256];
		handle lib, m, k2, f;
		snprintf(code, sizeof code, "// %d\n%s", k, ptx);
		CHECK(cu.load(&m, code));
		CHECK(cu.libload(&lib, code, 0, 0, 0, 0, 0, 0));
		for (int i = 0; i < 2000; i++) {
			CHECK(cu.function(&f, m, "nothing"));
			CHECK(cu.launch(f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
			CHECK(cu.kernel(&k2, lib, "nothing"));
			CHECK(function(&f, k2));
			CHECK(cu.launch(f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
			if (module) {
				handle of;
				CHECK(module(&of, lib));
			}
		}
		CHECK(cu.unload(m));
	}
	CHECK(cu.synchronize());
	return 0;
}
#endif
