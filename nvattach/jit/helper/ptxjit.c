// ptxjit compiles PTX with the driver's compiler library, in a process of its
// own: a crash or an endless compile of the library ends this process alone.
//
//   ptxjit MEMORY SECONDS SIZE OPTION... <ptx >answer 4<library
//
// MEMORY is the limit of the address space in bytes, SECONDS that of processor
// time, SIZE the number of bytes on stdin, all in decimal. Descriptor 3 is this
// program's file, 4 the library's; the library is loaded after the process has
// given up its privileges (confine.h). The answer is a header of
// five little-endian words (magic, result, sizes of program, information log
// and error log) and then these three. Without options, and SIZE 0, the result
// is the library's version, major<<16|minor, and nothing follows.
//
// It is linked without the C library's start files and against stubs without
// symbol versions, so that one file runs with every glibc.
#include <stddef.h>
#include <stdint.h>

void *dlopen(const char *name, int flags);
void *dlsym(void *handle, const char *name);
char *dlerror(void);

enum { SYS_read = 0, SYS_write = 1, SYS_mmap = 9, SYS_exit_group = 231 };
enum { RTLD_NOW = 2 };
enum { MAGIC = 0x4a58544e }; // "NTXJ"
enum { LIBRARY = 4 };        // the library's descriptor

static long syscall6(long n, long a, long b, long c, long d, long e, long f)
{
	long ret;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "=a"(ret) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return ret;
}

__attribute__((noreturn)) static void quit(int status)
{
	for (;;)
		syscall6(SYS_exit_group, status, 0, 0, 0, 0, 0);
}

static void put(int fd, const void *data, size_t n)
{
	const char *p = data;
	while (n > 0) {
		long w = syscall6(SYS_write, fd, (long)p, (long)n, 0, 0, 0);
		if (w == -4) // EINTR
			continue;
		if (w <= 0)
			quit(3);
		p += w;
		n -= (size_t)w;
	}
}

__attribute__((noreturn)) static void fail(const char *what)
{
	size_t n = 0;
	if (what == NULL)
		what = "unknown error";
	while (what[n] != 0)
		n++;
	put(2, what, n);
	quit(2);
}

#include "confine.h"

static char *room(size_t n)
{
	long p = syscall6(SYS_mmap, 0, (long)n + 1, 3, 0x22, -1, 0); // PROT_READ|WRITE, MAP_PRIVATE|ANONYMOUS
	if (p < 0 && p > -4096)
		fail("no memory");
	return (char *)p;
}

static char *input(size_t n)
{
	char *b = room(n);
	for (size_t at = 0; at < n;) {
		long r = syscall6(SYS_read, 0, (long)(b + at), (long)(n - at), 0, 0, 0);
		if (r == -4)
			continue;
		if (r <= 0)
			fail("the PTX on stdin is cut short");
		at += (size_t)r;
	}
	return b;
}

static void *find(void *lib, const char *name)
{
	void *f = dlsym(lib, name);
	if (f == NULL)
		fail(dlerror());
	return f;
}

typedef int (*size_fn)(void *, size_t *);
typedef int (*data_fn)(void *, char *);

// log_of returns one of the compiler's texts.
static char *log_of(void *lib, void *h, const char *size_name, const char *name, size_t *n)
{
	size_fn size = (size_fn)find(lib, size_name);
	data_fn data = (data_fn)find(lib, name);
	char *b;
	*n = 0;
	if (size(h, n) != 0 || *n == 0) {
		*n = 0;
		return NULL;
	}
	b = room(*n);
	if (data(h, b) != 0)
		*n = 0;
	return b;
}

static size_t number(const char *p)
{
	size_t n = 0;
	for (; *p >= '0' && *p <= '9'; p++)
		n = n * 10 + (size_t)(*p - '0');
	return n;
}

__attribute__((used, noreturn)) static void start(long argc, char **argv)
{
	if (argc < 4)
		fail("usage: ptxjit MEMORY SECONDS SIZE OPTION... <ptx 4<library");
	size_t size = number(argv[3]);
	confine(LIBRARY, number(argv[1]), number(argv[2]));
	void *lib = dlopen("/proc/self/fd/4", RTLD_NOW);
	if (lib == NULL)
		fail(dlerror());
	uint32_t head[5] = {MAGIC};
	if (size == 0 && argc == 4) {
		int (*version)(unsigned *, unsigned *) = (int (*)(unsigned *, unsigned *))find(lib, "nvPTXCompilerGetVersion");
		unsigned major = 0, minor = 0;
		if (version(&major, &minor) != 0)
			fail("the library does not tell its version");
		head[1] = major << 16 | minor;
		put(1, head, sizeof head);
		quit(0);
	}
	char *ptx = input(size);
	int (*create)(void **, size_t, const char *) = (int (*)(void **, size_t, const char *))find(lib, "nvPTXCompilerCreate");
	int (*compile)(void *, int, const char *const *) = (int (*)(void *, int, const char *const *))find(lib, "nvPTXCompilerCompile");
	void *h = NULL;
	int result = create(&h, size, ptx);
	char *text[3] = {NULL, NULL, NULL};
	size_t n[3] = {0, 0, 0};
	if (result == 0) {
		result = compile(h, (int)argc - 4, (const char *const *)(argv + 4));
		if (result == 0)
			text[0] = log_of(lib, h, "nvPTXCompilerGetCompiledProgramSize", "nvPTXCompilerGetCompiledProgram", &n[0]);
		text[1] = log_of(lib, h, "nvPTXCompilerGetInfoLogSize", "nvPTXCompilerGetInfoLog", &n[1]);
		text[2] = log_of(lib, h, "nvPTXCompilerGetErrorLogSize", "nvPTXCompilerGetErrorLog", &n[2]);
	}
	head[1] = (uint32_t)result;
	for (int i = 0; i < 3; i++)
		head[2 + i] = (uint32_t)n[i];
	put(1, head, sizeof head);
	for (int i = 0; i < 3; i++)
		put(1, text[i], n[i]);
	quit(0);
}

__asm__(".globl _start\n_start:\n\tmov (%rsp), %rdi\n\tlea 8(%rsp), %rsi\n\txor %ebp, %ebp\n\tand $-16, %rsp\n\tcall start\n\thlt\n");
