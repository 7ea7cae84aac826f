// Programs that give code to the CUDA driver by one route each. They are what
// nvtrace's capture is tested with: against a driver that logs what it is given
// (no GPU), and against the real one.
//
//   routes ROUTE [FILE]             FILE: an image, or what a route wants of one
//   routes dump FILE.ptx FILE.fatbin  writes the images that are loaded without FILE
//
// Compiled with -DLINKED -lcuda, the routes "linked" and "next" exist, too.
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

typedef void *(*finder)(const char *);

static const char *const names[] = {ROUTES_NAMES};
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

// fill finds all functions by one route.
static void fill(struct api *api, finder find) {
	void **to = (void **)api;
	_Static_assert(sizeof *api == sizeof names, "a name for each function");
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		to[i] = find(names[i]);
		if (!to[i])
			die(names[i], -1);
	}
}

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

// other_launch uses a launching function that is not cuLaunchKernel.
static int other_launch(const char *how) {
	handle m, f, g, node;
	CHECK(cu.load(&m, ptx));
	CHECK(cu.function(&f, m, "nothing"));
	if (!strcmp(how, "ex")) {
		CUresult (*launch)(void *, handle, void **, void **) = dlsym(RTLD_DEFAULT, "cuLaunchKernelEx");
		struct launch_config c = {{1, 1, 1}, {1, 1, 1}, 0, 0, 0, 0};
		if (!launch)
			launch = dlsym(dlopen(driver, RTLD_NOW), "cuLaunchKernelEx");
		for (int i = 0; i < 3; i++)
			CHECK(launch(&c, f, 0, 0));
		CHECK(cu.synchronize());
		return 0;
	}
	void *h = dlopen(driver, RTLD_NOW);
	CUresult (*create)(handle *, unsigned) = dlsym(h, "cuGraphCreate");
	CUresult (*add)(handle *, handle, handle *, size_t, void *) = dlsym(h, "cuGraphAddKernelNode_v2");
	struct kernel_node k = {f, {1, 1, 1}, {1, 1, 1}, 0, 0, 0, 0, 0};
	CHECK(create(&g, 0));
	CHECK(add(&node, g, 0, 0, &k));
	return 0;
}

// once loads, launches and unloads.
static int once(const void *image) {
	handle m;
	CHECK(cu.load(&m, image));
	use(m);
	CHECK(cu.unload(m));
	return 0;
}

static void *library; // of by_dlsym and those that need it

static void *open_driver(void) {
	if (!library && !(library = dlopen(driver, RTLD_NOW))) {
		fprintf(stderr, "routes: %s\n", dlerror());
		exit(2);
	}
	return library;
}

static void *by_dlsym(const char *name) { return dlsym(open_driver(), name); }

static void *by_gpa(const char *name) {
	int (*get)(const char *, void **, int, unsigned long long, int *) = dlsym(open_driver(), "cuGetProcAddress_v2");
	char base[64];
	void *p = 0;
	int status = -1;
	snprintf(base, sizeof base, "%s", name);
	if (strlen(base) > 3 && !strcmp(base + strlen(base) - 3, "_v2"))
		base[strlen(base) - 3] = 0;
	// As of CUDA 12.0: from 13.0 on cuCtxSynchronize is one that takes a context.
	if (!get || get(base, &p, 12000, 0, &status) || !p)
		return dlsym(library, name); // cuGetProcAddress does not give out all
	return p;
}

// by_hand reads the driver's symbol table.
static void *by_hand(const char *name) {
	struct link_map *lm = open_driver();
	ElfW(Dyn) *d = lm->l_ld;
	ElfW(Sym) *symbols = 0;
	const char *strings = 0;
	for (; d->d_tag; d++) {
		if (d->d_tag == DT_SYMTAB)
			symbols = (void *)d->d_un.d_ptr;
		if (d->d_tag == DT_STRTAB)
			strings = (void *)d->d_un.d_ptr;
	}
	for (ElfW(Sym) *s = symbols + 1; (char *)s < strings; s++)
		if (!strcmp(strings + s->st_name, name))
			return (char *)lm->l_addr + s->st_value;
	return 0;
}

static void *by_dlmopen(const char *name) {
	if (!library && !(library = dlmopen(LM_ID_NEWLM, driver, RTLD_NOW))) {
		fprintf(stderr, "routes: %s\n", dlerror());
		exit(2);
	}
	return dlsym(library, name);
}

#ifdef LINKED
CUresult cuModuleLoadData(handle *, const void *);
static void *by_next(const char *name) { return dlsym(RTLD_NEXT, name); }
#endif

// container makes a fat binary with one entry of PTX, as nvcc 12 does.
static unsigned char *container(size_t *size) {
	size_t text = sizeof ptx, padded = (text + 7) & ~7ul;
	*size = 16 + 88 + padded;
	unsigned char *b = calloc(1, *size);
	*(uint32_t *)b = 0xBA55ED50;
	*(uint16_t *)(b + 4) = 1;
	*(uint16_t *)(b + 6) = 16;
	*(uint64_t *)(b + 8) = 88 + padded;
	unsigned char *e = b + 16;
	*(uint16_t *)e = 1; // PTX
	*(uint16_t *)(e + 2) = 0x101;
	*(uint32_t *)(e + 4) = 88;
	*(uint64_t *)(e + 8) = padded;
	*(uint32_t *)(e + 20) = 72;
	*(uint16_t *)(e + 26) = 7; // PTX 7.0
	*(uint32_t *)(e + 28) = 80;
	*(uint32_t *)(e + 32) = 64;
	*(uint64_t *)(e + 40) = 0x11;
	*(uint32_t *)(e + 72) = 80;
	memcpy(e + 88, ptx, text);
	return b;
}

struct wrapper {
	int32_t magic, version;
	const void *data;
	void *more;
};

static struct wrapper wrap(int version, const void *data, void *more) {
	return (struct wrapper){0x466243B1, version, data, more};
}

// keep writes bytes to a file, for who wants to compare.
static void keep(const char *name, const void *b, size_t n) {
	FILE *f = name ? fopen(name, "wb") : 0;
	if (!f)
		return;
	if (fwrite(b, 1, n, f) != n)
		die(name, -3);
	fclose(f);
}

static char *slurp(const char *name, size_t *size) {
	FILE *f = fopen(name, "rb");
	if (!f)
		die(name, -1);
	fseek(f, 0, SEEK_END);
	*size = ftell(f);
	rewind(f);
	char *b = calloc(1, *size + 1);
	if (fread(b, 1, *size, f) != *size)
		die(name, -2);
	fclose(f);
	return b;
}

static const unsigned char cudart_id[16] = {0x6B, 0xD5, 0xFB, 0x6C, 0x5B, 0xF4, 0xE7, 0x4A, 0x89, 0x87, 0xD9, 0x39, 0x12, 0xFD, 0x9D, 0xF9};

// slot calls a hidden loader.
static int slot(int which) {
	const void *const *t;
	size_t n;
	handle m;
	CHECK(cu.table((const void **)&t, cudart_id));
	unsigned char *c = container(&n);
	struct wrapper *w = malloc(sizeof *w);
	*w = wrap(1, c, 0);
	if (which == 8) {
		int (*load)(const void *, handle *, void *, void *, unsigned) = t[8];
		CHECK(load(c, &m, 0, 0, 0));
	} else if (which == 6) {
		int (*load)(handle *, const void *, void *, void *, unsigned) = t[6];
		CHECK(load(&m, w, 0, 0, 0));
	} else {
		int (*load)(handle *, const void *) = t[1];
		CHECK(load(&m, w));
	}
	use(m);
	return 0;
}

static int loops = 2000;
static const char *given; // what the threads load

static void *loop(void *arg) {
	handle ctx = arg;
	CHECK(cu.current(ctx));
	// On the heap, and another in each thread and turn, unless it is FILE's.
	char *text = malloc(sizeof ptx + 64);
	for (int i = 0; i < loops; i++) {
		handle m;
		if (given) {
			CHECK(cu.load(&m, given));
			CHECK(cu.unload(m));
			continue;
		}
		sprintf(text, "%s// thread %lx turn %d\n", ptx, (unsigned long)pthread_self(), i);
		CHECK(cu.load(&m, text));
		CHECK(cu.unload(m));
	}
	free(text);
	return 0;
}

static int threads(int n, void *(*loop)(void *)) {
	pthread_t t[64];
	handle ctx;
	CHECK(cu.retain(&ctx, 0));
	for (int i = 0; i < n; i++)
		pthread_create(&t[i], 0, loop, ctx);
	for (int i = 0; i < n; i++)
		pthread_join(t[i], 0);
	return 0;
}

static const void *const *hidden; // the table of slots that nobody knows

// loop_hidden launches kernels that a hidden slot finds.
static void *loop_hidden(void *arg) {
	char text[sizeof ptx + 64];
	CHECK(cu.current(arg));
	for (int i = 0; i < loops; i++) {
		handle m, f;
		sprintf(text, "%s// thread %lx turn %d\n", ptx, (unsigned long)pthread_self(), i);
		CHECK(cu.load(&m, text));
		CHECK(((int (*)(handle *, handle))hidden[2])(&f, m));
		launch(f);
		CHECK(cu.unload(m));
	}
	return 0;
}

static volatile int stop, going;

// scribble changes a comment in the image again and again.
static void *scribble(void *arg) {
	volatile char *at = arg;
	for (unsigned i = 0; !stop; i++, going = 1)
		*at = 'a' + i % 26;
	return 0;
}

static int race(void) {
	char *text = malloc(sizeof ptx + 64);
	pthread_t t;
	sprintf(text, "%s// slow x\n", ptx);
	pthread_create(&t, 0, scribble, text + strlen(text) - 2);
	while (!going)
		usleep(100);
	for (int i = 0; i < 50; i++)
		once(text);
	stop = 1;
	pthread_join(t, 0);
	return 0;
}

static int library_data(const char *file) {
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

static int link_code(const char *file) {
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

// hostile gives the driver what is no image; the program goes on as the driver
// decides, or dies of it.
static int hostile(const char *what) {
	handle m = 0;
	if (!strcmp(what, "null"))
		return cu.load(&m, 0);
	if (!strcmp(what, "unmapped"))
		return cu.load(&m, (void *)0x1000);
	char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(page + 4096, 4096);
	if (!strcmp(what, "edge")) { // text that no NUL ends
		memset(page, ' ', 4096);
		memcpy(page, ptx, sizeof ptx - 1);
		return cu.load(&m, page);
	}
	if (!strcmp(what, "size")) {
		uint32_t head[4] = {0xBA55ED50, 1 | 16 << 16, 0xfffffff0, 0x7fffffff};
		memcpy(page, head, sizeof head);
		return cu.load(&m, page);
	}
	if (!strcmp(what, "elf")) { // the magic word, and no machine: 224 bytes by its sections
		*(uint32_t *)page = 0x464c457f;
		*(uint64_t *)(page + 40) = 64, *(uint16_t *)(page + 58) = 64, *(uint16_t *)(page + 60) = 2;
		*(uint64_t *)(page + 128 + 24) = 192, *(uint64_t *)(page + 128 + 32) = 32;
		strcpy(page + 192, "what is behind the first NUL");
		return cu.load(&m, page);
	}
	if (!strcmp(what, "new") || !strcmp(what, "newrefused")) { // a format that nobody knows yet
		uint32_t head[2] = {0x4657454e, 4096};
		memcpy(page, head, sizeof head);
		strcpy(page + 100, what[3] ? "// refuse" : "what is behind the first NUL");
		return cu.load(&m, page);
	}
	if (!strcmp(what, "list")) { // a wrapper whose list has no end
		struct wrapper *w = (void *)page;
		void **list = (void **)(page + 64);
		size_t n;
		void *c = container(&n);
		*w = wrap(2, c, list);
		for (; (char *)list < page + 4096; list++)
			*list = c;
		return cu.load(&m, page);
	}
	return 9;
}

// by_self puts a library into memory as a loader does, but of its own: without
// relocations. FILE needs none. how: 'm' copies it, 'p' maps it and makes it
// executable afterwards.
static int by_self(const char *file, char how) {
	size_t n;
	char *b = slurp(file, &n), *base;
	Elf64_Ehdr *e = (void *)b;
	Elf64_Phdr *p = (void *)(b + e->e_phoff);
	int fd = open(file, O_RDONLY);
	base = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const char *strings = 0;
	Elf64_Sym *symbols = 0;
	for (int i = 0; i < e->e_phnum; i++) {
		if (p[i].p_type == PT_LOAD && how == 'm')
			memcpy(base + p[i].p_vaddr, b + p[i].p_offset, p[i].p_filesz);
		else if (p[i].p_type == PT_LOAD && mmap(base + (p[i].p_vaddr & ~0xfff), p[i].p_filesz + (p[i].p_vaddr & 0xfff), PROT_READ | PROT_WRITE,
							MAP_PRIVATE | MAP_FIXED, fd, p[i].p_offset & ~0xfff) == MAP_FAILED)
			die("mmap", i);
	}
	for (int i = 0; i < e->e_phnum; i++) {
		if (p[i].p_type == PT_DYNAMIC)
			for (Elf64_Dyn *d = (void *)(base + p[i].p_vaddr); d->d_tag; d++) {
				if (d->d_tag == DT_SYMTAB)
					symbols = (void *)(base + d->d_un.d_ptr);
				if (d->d_tag == DT_STRTAB)
					strings = base + d->d_un.d_ptr;
			}
		if (p[i].p_type == PT_LOAD && p[i].p_flags & PF_X)
			mprotect(base + (p[i].p_vaddr & ~0xfff), p[i].p_memsz + (p[i].p_vaddr & 0xfff), PROT_READ | PROT_EXEC);
	}
	for (Elf64_Sym *s = symbols + 1; (char *)s < strings; s++)
		if (!strcmp(strings + s->st_name, "cuModuleLoadData")) {
			handle m;
			return ((CUresult(*)(handle *, const void *))(base + s->st_value))(&m, ptx);
		}
	return 9;
}

// overwrite puts a loader's first byte back to what its file has.
static int overwrite(void) {
	Dl_info info;
	char first;
	dladdr(cu.load, &info);
	int fd = open(info.dli_fname, O_RDONLY);
	if (pread(fd, &first, 1, (char *)cu.load - (char *)info.dli_fbase) != 1)
		return 9;
	mprotect((void *)((uintptr_t)cu.load & ~0xffful), 8192, PROT_READ | PROT_WRITE | PROT_EXEC);
	*(volatile char *)cu.load = first;
	return once(ptx);
}

static int run(const char *route, const char *file) {
	handle m;
	size_t n;
	if (!strcmp(route, "memory") || !strcmp(route, "protect"))
		return by_self(file, route[0]);
	if (!strcmp(route, "dlmopen"))
		fill(&cu, by_dlmopen);
	else if (!strcmp(route, "gpa"))
		fill(&cu, by_gpa);
	else if (!strcmp(route, "hand"))
		fill(&cu, by_hand);
#ifdef LINKED
	else if (!strcmp(route, "next"))
		fill(&cu, by_next);
#endif
	else
		fill(&cu, by_dlsym);
	if (!strcmp(route, "alone")) { // for programs in which the driver can't be initialised: it refuses
		printf("cuModuleLoadData: %d\n", cu.load(&m, ptx));
		return 0;
	}
	if (!strcmp(route, "fork")) { // the driver is there and was not used yet: later, a child can't
		pid_t p = fork();
		if (!p) {
			start();
			_exit(once(strdup(ptx)));
		}
		int st;
		waitpid(p, &st, 0);
		return st ? 4 : 0;
	}
	start();
#ifdef LINKED
	if (!strcmp(route, "linked")) {
		CHECK(cuModuleLoadData(&m, ptx));
		use(m);
		return 0;
	}
#endif
	if (!strcmp(route, "needed") || !strcmp(route, "deepbind")) {
		void *h = dlopen("libneed.so", RTLD_NOW | (route[0] == 'd' ? RTLD_DEEPBIND : 0));
		if (!h) {
			fprintf(stderr, "routes: %s\n", dlerror());
			return 2;
		}
		int (*need)(const void *, const char *) = dlsym(h, "need_run");
		return need(ptx, "nothing");
	}
	if (!strncmp(route, "slot", 4))
		return slot(atoi(route + 4));
	if (!strncmp(route, "threads", 7))
		return given = file ? slurp(file, &n) : 0, threads(atoi(route + 7), loop);
	if (!strcmp(route, "race"))
		return race();
	if (!strcmp(route, "image")) {
		CHECK(cu.load(&m, slurp(file, &n)));
		use(m);
		return 0;
	}
	if (!strcmp(route, "ex")) {
		CHECK(cu.loadex(&m, strdup(ptx), 0, 0, 0));
		use(m);
		return 0;
	}
	if (!strcmp(route, "fatbin")) {
		CHECK(cu.loadfat(&m, container(&n)));
		use(m);
		return 0;
	}
	if (!strcmp(route, "wrapper2")) { // as -rdc makes it: nothing linked, a list of inputs
		static unsigned char empty[16] = {0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0};
		void *list[] = {container(&n), 0};
		struct wrapper w = wrap(2, empty, list);
		CHECK(cu.load(&m, &w));
		use(m);
		return 0;
	}
	if (!strcmp(route, "file")) {
		CHECK(cu.loadfile(&m, file));
		use(m);
		return 0;
	}
	if (!strcmp(route, "many")) { // modules one after the other; the driver may use a handle again
		char text[sizeof ptx + 32];
		for (int i = 0; i < 20; i++) {
			sprintf(text, "%s// module %d\n", ptx, i);
			once(text);
		}
		return 0;
	}
	if (!strcmp(route, "wait")) { // for a tracer to attach meanwhile
		char c;
		once(ptx);
		puts("ready");
		fflush(stdout);
		if (read(0, &c, 1) < 0)
			return 9;
	}
	if (!strncmp(route, "launch-", 7))
		return other_launch(route + 7);
	if (!strcmp(route, "overwrite"))
		return overwrite();
	if (!strcmp(route, "reopen")) { // the same addresses may come back, with other code behind them
		char text[sizeof ptx + 32];
		for (int i = 0; i < 3; i++) {
			sprintf(text, "%s// turn %d\n", ptx, i);
			once(text);
			dlclose(library);
			library = 0;
			void *between = mmap(0, i << 12 | 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			fill(&cu, by_dlsym);
			start();
			munmap(between, i << 12 | 4096);
		}
		return once(ptx);
	}
	if (!strcmp(route, "missing"))
		return cu.loadfile(&m, "does/not/exist");
	if (!strcmp(route, "libdata"))
		return library_data(file);
	if (!strcmp(route, "libfile")) {
		handle lib, k;
		CHECK(cu.libfile(&lib, file, 0, 0, 0, 0, 0, 0));
		CHECK(cu.kernel(&k, lib, "nothing"));
		launch(k);
		return 0;
	}
	if (!strcmp(route, "link"))
		return link_code(file);
	if (!strncmp(route, "bad-", 4))
		return hostile(route + 4);
	if (!strcmp(route, "hidden-threads")) {
		static const unsigned char id[16] = {0xEE, 0xEE};
		CHECK(cu.table((const void **)&hidden, id));
		return threads(8, loop_hidden);
	}
	if (!strcmp(route, "hidden-again")) { // modules come and go, and a hidden slot finds their kernels
		static const unsigned char id[16] = {0xEE, 0xEE};
		const void *const *t;
		char text[sizeof ptx + 32];
		handle f;
		CHECK(cu.table((const void **)&t, id));
		for (int i = 0; i < 5; i++) {
			sprintf(text, "%s// module %d\n", ptx, i);
			CHECK(cu.load(&m, text));
			CHECK(((int (*)(handle *, handle))t[6])(&f, m));
			launch(f);
			launch(f);
			CHECK(cu.unload(m));
		}
		return 0;
	}
	if (!strncmp(route, "hidden-", 7)) { // kernels that a hidden slot finds
		static const unsigned char id[16] = {0xEE, 0xEE};
		const void *const *t;
		handle owner, f;
		int which = route[7] == 'f' ? 2 : route[7] == 'k' ? 3 : 4;
		CHECK(cu.table((const void **)&t, id));
		for (int i = 0; i < 3; i++) {
			if (which == 2)
				CHECK(cu.load(&owner, ptx));
			else
				CHECK(cu.libload(&owner, ptx, 0, 0, 0, 0, 0, 0));
			CHECK(((int (*)(handle *, handle))t[which])(&f, owner));
			launch(f);
			launch(f);
		}
		return 0;
	}
	if (!strcmp(route, "bypass")) { // a loader that nobody knows
		static const unsigned char id[16] = {0xEE, 0xEE};
		const void *const *t;
		CHECK(cu.table((const void **)&t, id));
		const void *given[] = {ptx};
		CHECK(((int (*)(handle *, const void **))t[1])(&m, given));
		use(m);
		return 0;
	}
	if (!strncmp(route, "often", 5)) { // one kernel, 2000 times
		CUresult (*ex)(void *, handle, void **, void **) = dlsym(library, "cuLaunchKernelEx");
		struct launch_config c = {{1, 1, 1}, {1, 1, 1}, 0, 0, 0, 0};
		handle f;
		CHECK(cu.load(&m, ptx));
		CHECK(cu.function(&f, m, "nothing"));
		for (int i = 0; i < 2000; i++)
			CHECK(route[5] ? ex(&c, f, 0, 0) : cu.launch(f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
		CHECK(cu.synchronize());
		return 0;
	}
	if (!strcmp(route, "unknown")) { // a linker that nobody knows
		static const unsigned char id[16] = {0xEE, 0xEE};
		const void *const *t;
		CHECK(cu.table((const void **)&t, id));
		int (*add)(handle, int, const void *) = t[5];
		CHECK(add(0, 1, ptx));
		CHECK(add(0, 2, container(&n)));
		int (*end)(handle, char *) = t[7];
		CHECK(end(0, strdup(ptx)));
		return add(0, 1, "// refuse\n.version 7.0\n") == 200 ? 0 : 4;
	}
	return once(ptx);
}

int main(int argc, char **argv) {
	const char *route = argc > 1 ? argv[1] : "dlsym";
	if (argc == 4 && !strcmp(route, "dump")) { // the images: as PTX and as a fat binary
		size_t n;
		unsigned char *c = container(&n);
		keep(argv[2], ptx, sizeof ptx - 1);
		keep(argv[3], c, n);
		return 0;
	}
	if (getenv("ROUTES_DRIVER"))
		driver = getenv("ROUTES_DRIVER");
	if (getenv("ROUTES_LOOPS"))
		loops = atoi(getenv("ROUTES_LOOPS"));
	if (!strcmp(route, "execscrub")) { // nothing of the environment but what finds the driver
		char path[4096], which[4096];
		snprintf(path, sizeof path, "LD_LIBRARY_PATH=%s", getenv("LD_LIBRARY_PATH") ? getenv("LD_LIBRARY_PATH") : "");
		snprintf(which, sizeof which, "ROUTES_DRIVER=%s", driver);
		char *env[] = {path, which, 0}, *args[] = {argv[0], "dlsym", 0};
		execve("/proc/self/exe", args, env);
		return 5;
	}
	return run(route, argc > 2 ? argv[2] : 0);
}
