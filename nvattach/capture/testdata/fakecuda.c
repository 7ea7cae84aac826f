// A CUDA driver that runs nothing, and logs (LOG, a file) what it is given: the
// independent view in the tests. A line is "load FUNCTION SHA256 SIZE" for each
// image of which a module was made or that a linker was given, or "launch KERNEL".
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int CUresult;
enum { OK = 0, INVALID_VALUE = 1, INVALID_IMAGE = 200, FILE_NOT_FOUND = 301, INVALID_HANDLE = 400, NOT_FOUND = 500 };

#define HIDDEN static __attribute__((noinline))

static const uint32_t K[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
	0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
	0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
	0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
	0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
	0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t ror(uint32_t v, int n) { return v >> n | v << (32 - n); }

static void sha_block(uint32_t h[8], const unsigned char *p) {
	uint32_t w[64], s[8];
	for (int i = 0; i < 16; i++)
		w[i] = (uint32_t)p[4 * i] << 24 | p[4 * i + 1] << 16 | p[4 * i + 2] << 8 | p[4 * i + 3];
	for (int i = 16; i < 64; i++)
		w[i] = w[i - 16] + (ror(w[i - 15], 7) ^ ror(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
		       (ror(w[i - 2], 17) ^ ror(w[i - 2], 19) ^ w[i - 2] >> 10);
	memcpy(s, h, sizeof s);
	for (int i = 0; i < 64; i++) {
		uint32_t a = s[0], e = s[4];
		uint32_t t1 = s[7] + (ror(e, 6) ^ ror(e, 11) ^ ror(e, 25)) + ((e & s[5]) ^ (~e & s[6])) + K[i] + w[i];
		uint32_t t2 = (ror(a, 2) ^ ror(a, 13) ^ ror(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
		memmove(s + 1, s, 28);
		s[4] += t1;
		s[0] = t1 + t2;
	}
	for (int i = 0; i < 8; i++)
		h[i] += s[i];
}

static void sha256(const unsigned char *p, size_t n, char hex[65]) {
	uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
	unsigned char last[128] = {0};
	size_t left = n;
	for (; left >= 64; left -= 64, p += 64)
		sha_block(h, p);
	memcpy(last, p, left);
	last[left] = 0x80;
	size_t end = left < 56 ? 64 : 128;
	for (int i = 0; i < 8; i++)
		last[end - 1 - i] = (uint64_t)n * 8 >> 8 * i;
	for (size_t i = 0; i < end; i += 64)
		sha_block(h, last + i);
	for (int i = 0; i < 8; i++)
		sprintf(hex + 8 * i, "%08x", h[i]);
}

// say appends a line in one write, so that threads don't mix.
static void say(const char *format, ...) {
	char line[512];
	va_list ap;
	va_start(ap, format);
	int n = vsnprintf(line, sizeof line, format, ap);
	va_end(ap);
	int fd = open(LOG, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
	if (fd >= 0 && write(fd, line, n) != n)
		abort();
	close(fd);
}

struct module {
	char sum[65];
	struct function *own; // of a library: the function of its module, which is another handle
};

struct function {
	struct module *m;
	char name[64];
	int kernel; // a CUkernel, whose module has no name
};

// seen logs an image.
static CUresult seen(const char *who, const unsigned char *p, size_t n, char sum[65]) {
	sha256(p, n, sum);
	say("load %s %s %zu\n", who, sum, n);
	return OK;
}

static size_t elf_size(const unsigned char *p) {
	uint64_t shoff = *(uint64_t *)(p + 40);
	size_t end = shoff + (size_t) * (uint16_t *)(p + 58) * *(uint16_t *)(p + 60);
	for (int i = 0; i < *(uint16_t *)(p + 60); i++) {
		const unsigned char *s = p + shoff + 64 * i;
		size_t e = *(uint64_t *)(s + 24) + *(uint64_t *)(s + 32);
		if (*(uint32_t *)(s + 4) != 8 && e > end)
			end = e;
	}
	return end;
}

// load makes a module of an image of any kind.
HIDDEN CUresult load(const char *who, struct module **out, const void *image) {
	const unsigned char *p = image;
	struct module *m = calloc(1, sizeof *m);
	if (!p)
		return INVALID_VALUE;
	if (*(uint32_t *)p == 0x466243B1) {
		int version = *(int32_t *)(p + 4);
		void **list = *(void ***)(p + 16);
		CUresult r = load(who, &m, *(void **)(p + 8));
		if (version == 2 && list)
			for (; *list && !r; list++) {
				struct module *part;
				r = load(who, &part, *list);
			}
		*out = m;
		return r;
	}
	size_t n;
	if (*(uint32_t *)p == 0xBA55ED50)
		n = *(uint16_t *)(p + 6) + *(uint64_t *)(p + 8);
	else if (*(uint32_t *)p == 0x464c457f)
		n = elf_size(p);
	else if (!memcmp(p, "NEWF", 4)) // a format of its own: its size follows
		n = *(uint32_t *)(p + 4);
	else
		n = strlen((const char *)p);
	if (n > 1ul << 40)
		return INVALID_IMAGE;
	if (n > 8 && memmem(p, n, "// refuse", 9))
		return INVALID_IMAGE;
	if (n > 8 && memmem(p, n, "// slow", 7))
		for (int i = 0; i < 20; i++) // the program's other threads get a chance
			sched_yield();
	*out = m;
	return seen(who, p, n, m->sum);
}

static CUresult load_file(const char *who, struct module **out, const char *name) {
	FILE *f = name ? fopen(name, "rb") : 0;
	if (!f)
		return FILE_NOT_FOUND;
	static __thread char buf[1 << 20];
	size_t n = fread(buf, 1, sizeof buf, f);
	fclose(f);
	*out = calloc(1, sizeof **out);
	if (memmem(buf, n, "// refuse", 9))
		return INVALID_IMAGE;
	return seen(who, (unsigned char *)buf, n, (*out)->sum);
}

// find gives the same few handles again and again, as a driver does whose modules
// come and go.
static CUresult find(struct function **out, struct module *m, const char *name) {
	static struct function used[2];
	static unsigned next;
	*out = &used[__atomic_fetch_add(&next, 1, __ATOMIC_RELAXED) % 2];
	(*out)->m = m, (*out)->kernel = 0;
	snprintf((*out)->name, sizeof (*out)->name, "%s", name);
	return OK;
}

CUresult cuInit(unsigned f) { return OK; }
CUresult cuDriverGetVersion(int *v) { return *v = 13000, OK; }
CUresult cuDeviceGet(int *d, int i) { return *d = i, OK; }
CUresult cuDevicePrimaryCtxRetain(void **c, int d) { return *c = (void *)0x1000, OK; }
CUresult cuCtxSetCurrent(void *c) { return OK; }
CUresult cuCtxSynchronize(void) { return OK; }
CUresult cuModuleLoadData(struct module **m, const void *image) { return load("cuModuleLoadData", m, image); }
CUresult cuModuleLoadDataEx(struct module **m, const void *image, unsigned n, int *o, void **v) {
	return load("cuModuleLoadDataEx", m, image);
}
// One exported loader calls another, as the real one's may.
CUresult cuModuleLoadFatBinary(struct module **m, const void *image) { return cuModuleLoadData(m, image); }
CUresult cuModuleLoad(struct module **m, const char *name) { return load_file("cuModuleLoad", m, name); }
CUresult cuModuleUnload(struct module *m) { return free(m), OK; }
CUresult cuModuleGetFunction(struct function **f, struct module *m, const char *name) { return find(f, m, name); }
CUresult cuModuleEnumerateFunctions(struct function **f, unsigned n, struct module *m) {
	for (unsigned i = 0; i < n; i++)
		find(&f[i], m, "nothing");
	return OK;
}
CUresult cuLibraryLoadData(struct module **m, const void *image, int *jo, void **jv, unsigned jn, int *lo, void **lv, unsigned ln) {
	return load("cuLibraryLoadData", m, image);
}
CUresult cuLibraryLoadFromFile(struct module **m, const char *name, int *jo, void **jv, unsigned jn, int *lo, void **lv, unsigned ln) {
	return load_file("cuLibraryLoadFromFile", m, name);
}
CUresult cuLibraryUnload(struct module *m) { return OK; }
CUresult cuLibraryGetKernel(struct function **f, struct module *m, const char *name) { return find(f, m, name); }
CUresult cuLibraryGetModule(struct module **m, struct module *l) { return *m = l, OK; }
CUresult cuLibraryEnumerateKernels(struct function **f, unsigned n, struct module *m) { return cuModuleEnumerateFunctions(f, n, m); }
CUresult cuKernelGetFunction(struct function **f, struct function *k) {
	if (k->m->own)
		return *f = k->m->own, OK;
	return find(f, k->m, k->name);
}
CUresult cuFuncGetModule(struct module **m, struct function *f) {
	say("asked\n");
	return f->kernel ? INVALID_HANDLE : (*m = f->m, OK);
}
CUresult cuFuncGetName(const char **name, struct function *f) { return f->kernel ? INVALID_HANDLE : (*name = f->name, OK); }
CUresult cuKernelGetLibrary(struct module **m, struct function *f) { return f->kernel ? (*m = f->m, OK) : INVALID_HANDLE; }
CUresult cuKernelGetName(const char **name, struct function *f) { return f->kernel ? (*name = f->name, OK) : INVALID_HANDLE; }

CUresult cuLaunchKernel(struct function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned sh,
			void *stream, void **params, void **extra) {
	say("launch %s\n", f->name);
	return OK;
}
CUresult cuLaunchKernelEx(void *config, struct function *f, void **params, void **extra) {
	say("launch %s\n", f->name);
	return OK;
}

CUresult cuGraphCreate(void **g, unsigned flags) { return *g = (void *)0x2000, OK; }
CUresult cuGraphAddKernelNode_v2(void **node, void *g, void **deps, size_t n, struct function **params) {
	say("launch %s\n", params[0] ? params[0]->name : params[7]->name);
	return OK;
}

// A linker whose result is the last input with a comment.
struct linker {
	char *out;
	size_t n;
};
CUresult cuLinkCreate_v2(unsigned n, int *o, void **v, struct linker **out) { return *out = calloc(1, sizeof **out), OK; }
CUresult cuLinkAddData_v2(struct linker *l, int type, void *data, size_t size, const char *name, unsigned n, int *o, void **v) {
	char sum[65];
	size_t text = size && !((char *)data)[size - 1] ? size - 1 : size;
	if (memmem(data, size, "// refuse", 9))
		return INVALID_IMAGE;
	static const char comment[] = "// linked\n";
	l->out = realloc(l->out, text + sizeof comment);
	memcpy(l->out, data, text);
	memcpy(l->out + text, comment, sizeof comment);
	l->n = text + sizeof comment;
	return seen("cuLinkAddData_v2", data, type == 1 ? text : size, sum);
}
CUresult cuLinkAddData(struct linker *l, int type, void *data, size_t size, const char *name, unsigned n, int *o, void **v) {
	return cuLinkAddData_v2(l, type, data, size, name, n, o, v);
}
CUresult cuLinkAddFile_v2(struct linker *l, int type, const char *path, unsigned n, int *o, void **v) {
	struct module *m;
	l->out = strdup(".version 7.0\n// linked of a file\n");
	l->n = strlen(l->out) + 1;
	return load_file("cuLinkAddFile_v2", &m, path);
}
CUresult cuLinkComplete(struct linker *l, void **out, size_t *n) { return *out = l->out, *n = l->n, OK; }
CUresult cuLinkDestroy(struct linker *l) { return OK; }

HIDDEN CUresult slot1(struct module **m, const void *w) { return load("slot1", m, w); }
HIDDEN CUresult slot6(struct module **m, const void *w, void *a, void *b, unsigned n) { return load("slot6", m, w); }
HIDDEN void slot7(struct module *m) { say("slot7\n"); }
HIDDEN CUresult slot8(const void *c, struct module **m, void *a, void *b, unsigned n) { return load("slot8", m, c); }
HIDDEN CUresult slot9(struct function *f) { return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0); }
HIDDEN CUresult other(void) { return OK; }
// It is given a structure, as nobody knows.
HIDDEN CUresult bypass(struct module **m, const void **image) { return load("bypass", m, *image); }

// Hidden lookups: of a module's function, of a library's kernel, and of the
// function of a library's module.
HIDDEN CUresult hidden_function(struct function **f, struct module *m) {
	*f = calloc(1, sizeof **f);
	(*f)->m = m;
	strcpy((*f)->name, "nothing");
	return OK;
}
HIDDEN CUresult hidden_kernel(struct function **f, struct module *m) { return hidden_function(f, m), (*f)->kernel = 1, OK; }
HIDDEN CUresult hidden_library(struct function **f, struct module *m) {
	struct module *in = malloc(sizeof *in);
	*in = *m;
	return hidden_function(f, in), m->own = *f, OK;
}
// As find does, the same handle again and again.
HIDDEN CUresult hidden_again(struct function **f, struct module *m) {
	static struct function used;
	used.m = m;
	strcpy(used.name, "nothing");
	return *f = &used, OK;
}
// A linker's input.
HIDDEN CUresult hidden_add(void *linker, int kind, const void *image) {
	struct module *m;
	return load("hidden_add", &m, image);
}
// The end of a linker, that gives up what it made.
HIDDEN CUresult hidden_end(void *linker, char *image) {
	struct module *m;
	CUresult r = load("hidden_end", &m, image);
	return memset(image, 0, strlen(image)), r;
}

static const void *const cudart[] = {(void *)96, slot1, other, other, other, other, slot6, slot7, slot8, slot9, other, other};
static const void *const unknown[] = {(void *)64, bypass, hidden_function, hidden_kernel, hidden_library, hidden_add, hidden_again, hidden_end};

CUresult cuGetExportTable(const void **table, const unsigned char *id) {
	static const unsigned char cudart_id[16] = {0x6B, 0xD5, 0xFB, 0x6C, 0x5B, 0xF4, 0xE7, 0x4A,
						    0x89, 0x87, 0xD9, 0x39, 0x12, 0xFD, 0x9D, 0xF9};
	if (!memcmp(id, cudart_id, 16))
		*table = cudart;
	else if (id[0] == 0xEE)
		*table = unknown;
	else
		return INVALID_VALUE;
	return OK;
}

CUresult cuGetProcAddress_v2(const char *name, void **p, int version, unsigned long long flags, int *status) {
	static const struct {
		const char *name;
		void *p;
	} known[] = {
		{"cuInit", cuInit}, {"cuModuleLoadData", cuModuleLoadData}, {"cuModuleGetFunction", cuModuleGetFunction},
		{"cuLaunchKernel", cuLaunchKernel}, {"cuGetExportTable", cuGetExportTable},
	};
	for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
		if (!strcmp(known[i].name, name))
			return *p = known[i].p, *status = 0, OK;
	return *status = 1, NOT_FOUND;
}

#ifdef SELF
int main(void) {
	struct module *m;
	struct function *f;
	return cuModuleLoadData(&m, ".version 7.0\n") || cuModuleGetFunction(&f, m, "nothing") || cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
}
#endif
