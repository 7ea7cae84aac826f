// gpurun runs the vectors of ../vectors on a GPU and records what the kernels computed.
//
//	gpurun [-lib LIBCUDA] [-timeout SECONDS] -o RESULTS VEC...   run; write one archive
//	gpurun -unpack RESULTS DIR                                   write NAME.want and DEVICE of an archive into DIR
//	gpurun -inputs VEC                                           print the generated inputs, to check another implementation
//
// Only the driver is needed: libcuda is opened at run time. A child process does the work and reports over a pipe; after a fault, a
// crash or a time-out the parent starts another child with the next vector. The archive is text in the txtar manner: sections
// "-- NAME.want --", "-- NAME.err --" (it did not run), "-- NAME.note --" (its results are not stable) and "-- DEVICE --".
#include "cuda.h"
#include "vec.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define X(name, symbol, params) static CUresult(*cu##name) params;
CUDA_API(X)
#undef X

// ---- growing text

struct text {
	char *s;
	size_t n, cap;
};

static void add(struct text *t, const char *s, size_t n)
{
	if (t->n + n + 1 > t->cap) {
		t->cap = 2 * (t->n + n + 1);
		t->s = realloc(t->s, t->cap);
		if (!t->s) {
			perror("gpurun");
			exit(1);
		}
	}
	memcpy(t->s + t->n, s, n);
	t->n += n;
	t->s[t->n] = 0;
}

__attribute__((format(printf, 2, 3))) static void addf(struct text *t, const char *fmt, ...)
{
	char line[8192];
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	add(t, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
}

static void add_base64(struct text *t, const unsigned char *p, size_t n)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	size_t column = 0;
	for (size_t i = 0; i < n; i += 3) {
		unsigned v = (unsigned)p[i] << 16 | (i + 1 < n ? (unsigned)p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0);
		char q[4] = {digits[v >> 18], digits[v >> 12 & 63], i + 1 < n ? digits[v >> 6 & 63] : '=', i + 2 < n ? digits[v & 63] : '='};
		add(t, q, 4);
		column += 4;
		if (column == 96 || i + 3 >= n) {
			add(t, "\n", 1);
			column = 0;
		}
	}
}

// ---- the child's reports

enum kind { START, WANT, ERR, NOTE, DEVICE, END };

static int pipe_out;

// failure is what a failed step is reported as: ERR, or NOTE once the results are safe.
static enum kind failure = ERR;

static void report(int index, enum kind kind, const struct text *t)
{
	uint32_t head[3] = {(uint32_t)index, kind, t ? (uint32_t)t->n : 0};
	const char *parts[2] = {(const char *)head, t ? t->s : NULL};
	size_t sizes[2] = {sizeof head, head[2]};
	for (int i = 0; i < 2; i++)
		for (size_t k = 0; k < sizes[i];) {
			ssize_t w = write(pipe_out, parts[i] + k, sizes[i] - k);
			if (w <= 0)
				_exit(3);
			k += (size_t)w;
		}
}

// fail reports that a vector did not run. dead says that the context may be unusable: the child ends.
static int fail(int index, int dead, const char *step, CUresult rc, const char *log)
{
	struct text t = {0};
	const char *name = NULL;
	if (rc && cuGetErrorName)
		cuGetErrorName(rc, &name);
	addf(&t, "%s: error %d %s\n", step, rc, name ? name : "");
	if (log && log[0]) {
		addf(&t, "%s", log);
		if (t.s[t.n - 1] != '\n')
			add(&t, "\n", 1);
	}
	report(index, failure, &t);
	if (dead)
		_exit(1);
	return -1;
}

// ---- running

// setup loads libcuda and makes a context. On failure the whole run is pointless: exit status 2.
static void setup(const char *lib, int index)
{
	struct text t = {0};
	void *so = dlopen(lib, RTLD_NOW | RTLD_GLOBAL);
	if (!so) {
		fprintf(stderr, "gpurun: %s\n", dlerror());
		_exit(2);
	}
#define X(name, symbol, params)                                                                                                          \
	*(void **)&cu##name = dlsym(so, symbol);                                                                                         \
	if (!cu##name) {                                                                                                                 \
		fprintf(stderr, "gpurun: %s has no %s\n", lib, symbol);                                                                  \
		_exit(2);                                                                                                                \
	}
	CUDA_API(X)
#undef X
	CUdevice dev;
	CUcontext ctx;
	char name[256] = "";
	int major = 0, minor = 0, driver = 0;
	CUresult rc = cuInit(0);
	if (!rc)
		rc = cuDeviceGet(&dev, 0);
	if (!rc)
		rc = cuDevicePrimaryCtxRetain(&ctx, dev);
	if (!rc)
		rc = cuCtxSetCurrent(ctx);
	if (!rc)
		rc = cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 32768);
	if (rc) {
		fprintf(stderr, "gpurun: no context: error %d\n", rc);
		_exit(2);
	}
	cuDeviceGetName(name, sizeof name - 1, dev);
	cuDeviceGetAttribute(&major, CU_DEVICE_MAJOR, dev);
	cuDeviceGetAttribute(&minor, CU_DEVICE_MINOR, dev);
	cuDriverGetVersion(&driver);
	addf(&t, "gpu %s\ncapability %d.%d\ncuda %d.%d\n", name, major, minor, driver / 1000, driver % 1000 / 10);
	report(index, DEVICE, &t);
	free(t.s);
}

static char *load_log;

// load compiles the module at the given optimisation level: 4 is the driver's default and is not asked for, since it is refused for a
// module with debug information.
static CUresult load(CUmodule *mod, const char *ptx, unsigned level)
{
	enum { LOG = 1 << 16 };
	static char info[LOG], errors[LOG];
	memset(info, 0, sizeof info);
	memset(errors, 0, sizeof errors);
	int options[] = {CU_JIT_INFO_LOG, CU_JIT_INFO_LOG_SIZE, CU_JIT_ERROR_LOG, CU_JIT_ERROR_LOG_SIZE, CU_JIT_OPTIMIZATION_LEVEL};
	void *values[] = {info, (void *)(uintptr_t)(LOG - 1), errors, (void *)(uintptr_t)(LOG - 1), (void *)(uintptr_t)level};
	load_log = errors;
	return cuModuleLoadDataEx(mod, ptx, level == 4 ? 4 : 5, options, values);
}

static int prepare(struct vec *v, int index, CUmodule mod)
{
	CUresult rc;
	for (int i = 0; i < v->nbuffers; i++) {
		struct buffer *b = &v->buffers[i];
		size_t size = b->size;
		if (b->symbol) {
			rc = cuModuleGetGlobal(&b->device, &size, mod, b->name);
			if (!rc && size < b->size) {
				fail(index, 0, "symbol is smaller than its description", 0, b->name);
				return -1;
			}
		} else
			rc = cuMemAlloc(&b->device, b->size);
		if (!rc && !b->keep)
			rc = cuMemcpyHtoD(b->device, b->init, b->size);
		if (rc)
			return fail(index, 0, b->name, rc, NULL);
	}
	for (int i = 0; i < v->nparams; i++) {
		struct param *p = &v->params[i];
		if (p->buffer >= 0) {
			uint64_t a = v->buffers[p->buffer].device + p->offset;
			memcpy(p->bytes, &a, 8);
		}
	}
	return 0;
}

// once runs v and leaves the outputs in the buffers' result. It returns 0, or -1 after having reported.
static int once(struct vec *v, int index, const char *ptx, unsigned level)
{
	CUmodule mod;
	CUfunction f;
	CUresult rc = load(&mod, ptx, level);
	if (rc)
		return fail(index, 0, "load", rc, load_log);
	rc = cuModuleGetFunction(&f, mod, v->kernel);
	if (!rc && v->shared > 48 * 1024)
		rc = cuFuncSetAttribute(f, CU_FUNC_MAX_DYNAMIC_SHARED, (int)v->shared);
	if (rc) {
		cuModuleUnload(mod);
		return fail(index, 0, v->kernel, rc, NULL);
	}
	if (prepare(v, index, mod))
		_exit(1); // allocations would leak: a new child is cheaper than undoing
	void *args[MAX_PARAMS + 1] = {0};
	for (int i = 0; i < v->nparams; i++)
		args[i] = v->params[i].bytes;
	rc = cuLaunchKernel(f, v->grid[0], v->grid[1], v->grid[2], v->block[0], v->block[1], v->block[2], v->shared, NULL, args, NULL);
	if (rc)
		return fail(index, 1, "launch", rc, NULL);
	rc = cuCtxSynchronize();
	if (rc)
		return fail(index, 1, "run", rc, NULL);
	for (int i = 0; i < v->nbuffers; i++) {
		struct buffer *b = &v->buffers[i];
		if (b->compare != NOT_COMPARED)
			rc = cuMemcpyDtoH(b->result, b->device, b->size);
		if (!rc && !b->symbol)
			rc = cuMemFree(b->device);
		if (rc)
			return fail(index, 1, "copy back", rc, NULL);
	}
	cuModuleUnload(mod);
	return 0;
}

static size_t sort_width;

static int by_value(const void *a, const void *b)
{
	uint64_t x = 0, y = 0;
	memcpy(&x, a, sort_width); // little-endian hosts only, as every host of a CUDA driver
	memcpy(&y, b, sort_width);
	return x < y ? -1 : x > y;
}

// differ compares the results of two runs and returns the first differing byte, or -1.
static long differ(const struct buffer *b, const unsigned char *old)
{
	unsigned char *p = malloc(b->size), *q = malloc(b->size);
	long at = -1;
	if (!p || !q)
		_exit(3);
	memcpy(p, b->result, b->size);
	memcpy(q, old, b->size);
	sort_width = type_width(b->type);
	if (b->compare == SORTED) {
		qsort(p, b->count, sort_width, by_value);
		qsort(q, b->count, sort_width, by_value);
	}
	for (size_t i = 0; i < b->size && at < 0 && b->compare != ULP; i++)
		if (p[i] != q[i])
			at = (long)i;
	free(p);
	free(q);
	return at;
}

static void want(const struct vec *v, struct text *t)
{
	for (int i = 0; i < v->noutputs; i++) {
		const struct buffer *b = &v->buffers[v->outputs[i]];
		addf(t, "output %s %zu\n", b->name, b->size);
		add_base64(t, b->result, b->size);
	}
	addf(t, "end\n");
}

// one runs v at full optimisation, then repeats it at full and at no optimisation: what differs is not fit for a vector.
static void one(struct vec *v, int index)
{
	size_t len;
	char *ptx = file_read(v->ptx, &len);
	struct text t = {0}, note = {0};
	unsigned char *first[MAX_BUFFERS] = {0};
	failure = ERR;
	if (!ptx) {
		fail(index, 0, v->ptx, 0, strerror(errno));
		return;
	}
	if (once(v, index, ptx, 4) == 0) {
		want(v, &t);
		report(index, WANT, &t);
		failure = NOTE;
		for (int i = 0; i < v->noutputs; i++) {
			struct buffer *b = &v->buffers[v->outputs[i]];
			first[i] = malloc(b->size);
			if (!first[i])
				_exit(3);
			memcpy(first[i], b->result, b->size);
		}
		static const struct { unsigned level; const char *what; } again[] = {{4, "two runs"}, {0, "optimised and unoptimised code"}};
		for (int k = 0; k < 2; k++) {
			if (once(v, index, ptx, again[k].level))
				break;
			for (int i = 0; i < v->noutputs; i++) {
				struct buffer *b = &v->buffers[v->outputs[i]];
				long at = differ(b, first[i]);
				if (at >= 0)
					addf(&note, "%s: %s differ at byte %ld: %02x, %02x\n", b->name, again[k].what, at, first[i][at], b->result[at]);
			}
		}
		if (note.n)
			report(index, NOTE, &note);
	}
	for (int i = 0; i < v->noutputs; i++)
		free(first[i]);
	free(ptx);
	free(t.s);
	free(note.s);
}

static void child(const char *lib, char **paths, int n, int from)
{
	setup(lib, from);
	for (int i = from; i < n; i++) {
		char err[8192];
		report(i, START, NULL);
		struct vec *v = vec_read(paths[i], err, sizeof err);
		if (!v) {
			failure = ERR;
			fail(i, 0, "description", 0, err);
		} else
			one(v, i);
		vec_free(v);
		report(i, END, NULL);
	}
	_exit(0);
}

// ---- the parent

static const char *base_name(const char *path)
{
	static char name[256];
	const char *b = strrchr(path, '/');
	snprintf(name, sizeof name, "%s", b ? b + 1 : path);
	char *dot = strstr(name, ".vec");
	if (dot)
		*dot = 0;
	return name;
}

// get reads exactly n bytes; it returns 0 at the end, -1 when nothing came within the time limit.
static int get(int fd, void *p, size_t n, int seconds)
{
	for (size_t k = 0; k < n;) {
		struct pollfd pfd = {.fd = fd, .events = POLLIN};
		int rc = poll(&pfd, 1, seconds * 1000);
		if (rc == 0)
			return -1;
		ssize_t r = read(fd, (char *)p + k, n - k);
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			return 0;
		k += (size_t)r;
	}
	return 1;
}

struct run {
	const char *lib;
	int timeout;
	FILE *out;
	int device_known, wanted, failed, noted;
};

static void section(struct run *r, const char *path, enum kind kind, const char *s, size_t n)
{
	static const char *const ext[] = {"", "want", "err", "note", "", ""};
	if (kind == DEVICE) {
		if (r->device_known++)
			return;
		fprintf(r->out, "-- DEVICE --\n");
	} else
		fprintf(r->out, "-- %s.%s --\n", base_name(path), ext[kind]);
	fwrite(s, 1, n, r->out);
	r->wanted += kind == WANT;
	r->failed += kind == ERR;
	r->noted += kind == NOTE;
	if (kind == ERR || kind == NOTE)
		fprintf(stderr, "%s: %.*s", base_name(path), (int)n, s);
}

// batch runs one child from vector `from`; it returns the vector to go on with, or -1 when no child can work.
static int batch(struct run *r, char **paths, int n, int from)
{
	int fds[2];
	if (pipe(fds)) {
		perror("gpurun: pipe");
		return -1;
	}
	pid_t pid = fork();
	if (pid < 0) {
		perror("gpurun: fork");
		return -1;
	}
	if (pid == 0) {
		close(fds[0]);
		pipe_out = fds[1];
		child(r->lib, paths, n, from);
	}
	close(fds[1]);
	int current = from, rc, status;
	enum kind open = END; // what of the current vector has come: START, WANT; END when nothing more will
	uint32_t head[3];
	while ((rc = get(fds[0], head, sizeof head, r->timeout)) > 0) {
		if (head[0] >= (uint32_t)n || head[2] > 1u << 28)
			break;
		char *s = malloc(head[2] + 1);
		if (!s || get(fds[0], s, head[2], r->timeout) <= 0) {
			if (head[2] || !s) {
				free(s);
				break;
			}
		}
		if (head[1] == START) {
			current = (int)head[0];
			open = START;
		} else if (head[1] == END)
			open = END;
		else {
			section(r, paths[head[0]], (enum kind)head[1], s, head[2]);
			if (head[1] == WANT)
				open = WANT;
			else if (head[1] == ERR)
				open = END;
		}
		free(s);
	}
	if (rc < 0)
		kill(pid, SIGKILL);
	close(fds[0]);
	waitpid(pid, &status, 0);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
		return -1;
	if (open != END && !(WIFEXITED(status) && WEXITSTATUS(status) == 1)) { // 1: it gave up after having said why
		char why[128];
		int len = rc < 0 ? snprintf(why, sizeof why, "no end after %d s\n", r->timeout)
				 : snprintf(why, sizeof why, "the child ended with status %#x\n", (unsigned)status);
		section(r, paths[current], open == WANT ? NOTE : ERR, why, (size_t)len);
	}
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? n : current + 1;
}

static int run(struct run *r, char **paths, int n)
{
	for (int from = 0; from < n;) {
		from = batch(r, paths, n, from);
		fflush(r->out);
		if (from < 0)
			return 1;
	}
	fprintf(stderr, "gpurun: %d vectors: %d ran, %d failed, %d not stable\n", n, r->wanted, r->failed, r->noted);
	return fclose(r->out) ? 1 : 0;
}

// ---- unpacking

static int safe_name(const char *s)
{
	if (!strcmp(s, "DEVICE"))
		return 1;
	size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.");
	return s[n] == 0 && n > 5 && s[0] != '.' && !strcmp(s + n - 5, ".want");
}

static int unpack(const char *archive, const char *dir)
{
	char *s = file_read(archive, NULL), name[256], path[4096];
	int files = 0, bad = 0;
	if (!s) {
		perror(archive);
		return 1;
	}
	for (char *p = s; *p;) {
		int used = 0;
		if (sscanf(p, "-- %255[^ \n] --%n", name, &used) != 1 || p[used] != '\n') {
			fprintf(stderr, "gpurun: %s: not an archive of results\n", archive);
			return 1;
		}
		char *body = p + used + 1, *end = strncmp(body, "-- ", 3) ? strstr(body, "\n-- ") : body - 1;
		end = end ? end + 1 : body + strlen(body);
		if (safe_name(name)) {
			snprintf(path, sizeof path, "%s/%s", dir, name);
			FILE *f = fopen(path, "wb");
			if (!f || fwrite(body, 1, (size_t)(end - body), f) != (size_t)(end - body) || fclose(f)) {
				perror(path);
				return 1;
			}
			files++;
		} else {
			fprintf(stderr, "%s: %.*s", name, (int)(end - body), body);
			bad++;
			// What no longer runs must not keep an old result, and what differs from run to run is no result.
			char *ext = strstr(name, ".err"), *races = strstr(body, "two runs differ");
			if (!ext && races && races < end)
				ext = strstr(name, ".note");
			if (ext && !strchr(name, '/')) {
				snprintf(path, sizeof path, "%s/%.*s.want", dir, (int)(ext - name), name);
				unlink(path);
			}
		}
		p = end;
	}
	fprintf(stderr, "gpurun: %d files written, %d sections with problems\n", files, bad);
	free(s);
	return 0;
}

static int inputs(const char *path)
{
	char err[8192];
	struct text t = {0};
	struct vec *v = vec_read(path, err, sizeof err);
	if (!v) {
		fprintf(stderr, "gpurun: %s\n", err);
		return 1;
	}
	for (int i = 0; i < v->nbuffers; i++) {
		addf(&t, "input %s %zu\n", v->buffers[i].name, v->buffers[i].size);
		add_base64(&t, v->buffers[i].init, v->buffers[i].size);
	}
	addf(&t, "end\n");
	fputs(t.s, stdout);
	free(t.s);
	vec_free(v);
	return 0;
}

int main(int argc, char **argv)
{
	struct run r = {.lib = "libcuda.so.1", .timeout = 60};
	const char *out = NULL;
	int i = 1;
	if (argc == 4 && !strcmp(argv[1], "-unpack"))
		return unpack(argv[2], argv[3]);
	if (argc == 3 && !strcmp(argv[1], "-inputs"))
		return inputs(argv[2]);
	for (; i + 1 < argc && argv[i][0] == '-'; i += 2)
		if (!strcmp(argv[i], "-lib"))
			r.lib = argv[i + 1];
		else if (!strcmp(argv[i], "-timeout"))
			r.timeout = atoi(argv[i + 1]);
		else if (!strcmp(argv[i], "-o"))
			out = argv[i + 1];
		else
			break;
	if (!out || i >= argc || argv[i][0] == '-' || r.timeout <= 0) {
		fprintf(stderr, "usage: gpurun [-lib LIBCUDA] [-timeout SECONDS] -o RESULTS VEC...\n"
				"       gpurun -unpack RESULTS DIR\n"
				"       gpurun -inputs VEC\n");
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	r.out = fopen(out, "wb");
	if (!r.out) {
		perror(out);
		return 1;
	}
	return run(&r, argv + i, argc - i);
}
