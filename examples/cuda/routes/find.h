// Ways to find the driver's functions.
#ifndef ROUTES_FIND_H
#define ROUTES_FIND_H
#include "images.h"

typedef void *(*finder)(const char *);

static const char *const names[] = {ROUTES_NAMES};

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

static void *library; // the driver, as by_dlsym and by_dlmopen have opened it

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

// by_self puts a library into memory as a loader does, but of its own: without
// relocations, of which FILE needs none. It copies it (memory), or maps it and
// makes it executable afterwards (protect).
static int by_self(const char *route, const char *file) {
	char how = *route;
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
#endif
