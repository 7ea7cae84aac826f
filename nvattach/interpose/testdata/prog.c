/*
 * Programs for tests: prog ROUTE. All say what they see, with nothing in it that
 * differs from run to run, so that runs with and without the shim compare.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <link.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int R;
typedef void *P;
typedef R (*load_t)(P *, const void *);
typedef R (*gpa_t)(const char *, void **, int, unsigned long long, int *);

static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n";
static char **args;

#ifdef LINKED
R cuModuleLoadData(P *, const void *);
R cuModuleGetFunction(P *, P, const char *);
R cuLaunchKernel(P, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, P, void **, void **);
static load_t in_data = cuModuleLoadData;
#endif
#ifdef WEAK
R cuInit(unsigned) __attribute__((weak));
R cuModuleLoadData(P *, const void *) __attribute__((weak));
static R (*volatile weak_data)(P *, const void *) = cuModuleLoadData;
#endif

static void *cuda;
static void *sym(const char *name)
{
	void *f = dlsym(cuda, name);
	if (!f)
		printf("%s: %s\n", name, dlerror());
	return f;
}
#define say(what, call, p) do { R r_ = (call); printf("%s = %d, %p\n", what, r_, r_ ? 0 : (P)(p)); } while (0)
static void use(load_t f)
{
	P m = 0;
	R r = f(&m, ptx);
	say("load", r, m);
}
static void explain(const char *what, void *p)
{
	Dl_info i;
	memset(&i, 0, sizeof i);
	int r = dladdr(p, &i);
	const char *base = i.dli_fname ? strrchr(i.dli_fname, '/') : 0;
	printf("%s: %d %s %s +%lx\n", what, r, base ? base + 1 : "-", i.dli_sname ? i.dli_sname : "-", i.dli_saddr ? (long)((char *)i.dli_saddr - (char *)i.dli_fbase) : 0);
	struct link_map *m = 0;
	r = dladdr1(p, &i, (void **)&m, RTLD_DL_LINKMAP);
	base = m ? strrchr(m->l_name, '/') : 0;
	printf("  %d %s %s\n", r, base ? base + 1 : "-", i.dli_sname ? i.dli_sname : "-");
}
static void error(const char *what)
{
	const char *e = dlerror();
	printf("%s: %s\n", what, e ? e : "no error");
}

static void launches(void)
{
	P f = (P)0x4000, n, exec = (P)0x5000;
	uint64_t p1[10] = {0x4101}, p2[10] = {0}, pg[34] = {0}, multi[14] = {0x4201, 0, 0, 0, 0, 0, 0, 0x4202};
	p2[7] = 0x4102;
	pg[2] = 0x4103;
	R (*k)(P, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, P, void *, void *);
	for (int i = 0; i < 3; i++) {
		k = sym("cuLaunchKernel"), printf("%d", k(f, 1, 2, 3, 4, 5, 6, 7, (P)8, (P)9, (P)10));
		k = sym("cuLaunchKernel_ptsz"), printf(" %d", k(f + 1, 1, 2, 3, 4, 5, 6, 7, (P)8, (P)9, (P)10));
		k = sym("cuLaunchCooperativeKernel"), printf(" %d", k(f + 2, 1, 2, 3, 4, 5, 6, 7, (P)8, (P)9, 0));
		k = sym("cuLaunchCooperativeKernel_ptsz"), printf(" %d", k(f + 3, 1, 2, 3, 4, 5, 6, 7, (P)8, (P)9, 0));
		printf(" %d", ((R(*)(P, P, P, P))sym("cuLaunchKernelEx"))((P)1, f + 4, (P)3, (P)4));
		printf(" %d", ((R(*)(P, P, P, P))sym("cuLaunchKernelEx_ptsz"))((P)1, f + 5, (P)3, (P)4));
		printf(" %d", ((R(*)(P, unsigned, unsigned))sym("cuLaunchCooperativeKernelMultiDevice"))(multi, 2, 0));
		printf(" %d", ((R(*)(P))sym("cuLaunch"))(f + 6));
		printf(" %d", ((R(*)(P, int, int))sym("cuLaunchGrid"))(f + 7, 2, 3));
		printf(" %d", ((R(*)(P, int, int, P))sym("cuLaunchGridAsync"))(f + 8, 2, 3, (P)8));
		printf(" %d", ((R(*)(P, P))sym("cuGraphLaunch"))((P)0x6000, (P)8));
		printf(" %d", ((R(*)(P *, P, P, size_t, P))sym("cuGraphAddKernelNode"))(&n, f, 0, 0, p1));
		printf(" %d", ((R(*)(P *, P, P, size_t, P))sym("cuGraphAddKernelNode_v2"))(&n, f, 0, 0, p2));
		printf(" %d", ((R(*)(P *, P, P, P, size_t, P))sym("cuGraphAddNode_v2"))(&n, f, 0, 0, 0, pg));
		p1[0] = 0x4111, p2[7] = 0x4112, pg[2] = 0, pg[9] = 0x4113;
		printf(" %d", ((R(*)(P, P))sym("cuGraphKernelNodeSetParams"))(n, p1));
		printf(" %d", ((R(*)(P, P, P))sym("cuGraphExecKernelNodeSetParams_v2"))(exec, n, p2));
		printf(" %d", ((R(*)(P, P, P))sym("cuGraphExecNodeSetParams"))(exec, n, pg));
		printf(" %d\n", ((R(*)(P, P))sym("cuGraphNodeSetParams"))(n, 0));
		p1[0] = 0x4101, p2[7] = 0x4102, pg[2] = 0x4103, pg[9] = 0;
	}
	say("null launch", ((R(*)(P, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, P, void *, void *))sym("cuLaunchKernel"))(0, 1, 2, 3, 4, 5, 6, 7, (P)8, (P)9, (P)10), 0);
}

static void formats(void)
{
	struct { unsigned magic, version; const void *data, *list; } w = {0x466243b1, 1, 0, 0}, w2 = {0x466243b1, 2, 0, 0};
	struct { unsigned magic; unsigned short version, header; unsigned long long size; char b[48]; } fat = {0xba55ed50, 1, 16, 48, "the entries of a container"}, pre = fat, bad = fat;
	const void *list[3] = {&pre, 0, 0};
	unsigned char elf[64 + 2 * 64 + 32] = "\x7f" "ELF";
	P m = 0;
	strcpy(pre.b, "what was there before the link");
	bad.size = 1ull << 31;
	w.data = &fat, w2.data = &fat, w2.list = list;
	*(uint64_t *)(elf + 40) = 64, *(uint16_t *)(elf + 58) = 64, *(uint16_t *)(elf + 60) = 2;
	*(uint64_t *)(elf + 128 + 24) = 192, *(uint64_t *)(elf + 128 + 32) = 32;
	R (*ll)(P *, const void *, P, P, unsigned, P, P, unsigned) = sym("cuLibraryLoadData");
	load_t ld = (load_t)sym("cuModuleLoadData");
	say("wrapper", ll(&m, &w, 0, 0, 0, (P)0x61, (P)0x71, 81), m);
	say("wrapper 2", ll(&m, &w2, 0, 0, 0, (P)0x61, (P)0x71, 81), m);
	say("container", ld(&m, &fat), m);
	say("cubin", ld(&m, elf), m);
	say("text", ld(&m, ptx), m);
	say("null", ld(&m, 0), 0);
	R (*create)(unsigned, P, P, P *) = sym("cuLinkCreate_v2");
	R (*add)(P, int, const void *, size_t, const char *, unsigned, P, P) = sym("cuLinkAddData_v2");
	R (*addf)(P, int, const char *, unsigned, P, P) = sym("cuLinkAddFile_v2");
	R (*done)(P, void **, size_t *) = sym("cuLinkComplete");
	P s = 0;
	void *out = 0;
	size_t size = 0;
	say("link", create(0, 0, 0, &s), s);
	say("add", add(s, 1, ptx, sizeof ptx, "part", 51, (P)0x61, (P)0x71), 0);
	say("add file", addf(s, 1, args[2], 0, 0, 0), 0);
	say("complete", done(s, &out, &size), (P)size);
	for (size_t i = 0; i < size; i++)
		printf("%02x", ((unsigned char *)out)[i]);
	puts("");
	say("destroy", ((R(*)(P))sym("cuLinkDestroy"))(s), 0);
	say("file", ((R(*)(P *, const char *))sym("cuModuleLoad"))(&m, args[2]), m);
	say("library file", ((R(*)(P *, const char *, P, P, unsigned, P, P, unsigned))sym("cuLibraryLoadFromFile"))(&m, args[2], 0, 0, 0, 0, 0, 81), m);
	say("no file", ((R(*)(P *, const char *))sym("cuModuleLoad"))(&m, "/nonexistent"), 0);
	P f = 0, names[4] = {0};
	unsigned long long d = 0;
	size_t b = 0;
	say("function", ((R(*)(P *, P, const char *))sym("cuModuleGetFunction"))(&f, m, "k"), f);
	say("missing", ((R(*)(P *, P, const char *))sym("cuModuleGetFunction"))(&f, m, "missing"), 0);
	say("no name", ((R(*)(P *, P, const char *))sym("cuModuleGetFunction"))(&f, m, 0), 0);
	say("global", ((R(*)(P, size_t *, P, const char *))sym("cuModuleGetGlobal_v2"))(&d, &b, m, "g"), (P)d);
	say("enumerate", ((R(*)(P *, unsigned, P))sym("cuLibraryEnumerateKernels"))(names, 4, m), names[3]);
	say("context", ((R(*)(P *, unsigned, int))sym("cuCtxCreate_v2"))(&f, 1, 2), f);
	say("primary", ((R(*)(P *, int))sym("cuDevicePrimaryCtxRetain"))(&f, 3), f);
	say("destroy", ((R(*)(P))sym("cuCtxDestroy_v2"))((P)0xc003), 0);
	say("unload", ((R(*)(P))sym("cuModuleUnload"))(m), 0);
}

static void lookups(void)
{
	static const struct { const char *name; int version; unsigned long long flags; } ask[] = {
		{"cuModuleLoadData", 2000, 0}, {"cuModuleLoadData", 1000, 0}, {"cuNoSuch", 12000, 0}, {"cuModuleGetGlobal", 2000, 0}, {"cuModuleGetGlobal", 13000, 0},
		{"cuLaunchKernel", 12000, 0}, {"cuLaunchKernel", 12000, 2}, {"cuLaunchKernel", 5000, 2}, {"cuLinkAddData", 6000, 0}, {"cuLinkAddData", 7000, 0},
		{"cuGraphAddNode", 12020, 0}, {"cuGraphAddNode", 12030, 0}, {"cuLibraryLoadData", 11000, 0}, {"cuModuleLoadFatBinary", 12000, 0},
		{"cuGetProcAddress", 11030, 0}, {"cuGetProcAddress", 12000, 0}, {"cuGetExportTable", 3000, 0}, {"", 0, 0},
	};
	static const char *const same[] = {"cuModuleLoadData", "cuModuleGetGlobal", "cuModuleGetGlobal_v2", "cuLaunchKernel", "cuLaunchKernel_ptsz", "cuLinkAddData",
		"cuLinkAddData_v2", "cuGraphAddNode", "cuGraphAddNode_v2", "cuGetProcAddress", "cuGetProcAddress_v2", "cuGetExportTable", "cuInit", 0};
	gpa_t gpa = (gpa_t)sym("cuGetProcAddress_v2");
	for (unsigned i = 0; i < sizeof ask / sizeof *ask; i++) {
		void *p = (P)0x1;
		int status = -1;
		R r = gpa(ask[i].name, &p, ask[i].version, ask[i].flags, &status);
		printf("%s %d %llu: %d status %d", ask[i].name, ask[i].version, ask[i].flags, r, status);
		for (int j = 0; same[j]; j++)
			if (p == dlsym(cuda, same[j]))
				printf(" = %s", same[j]);
		puts(p == (P)1 ? " untouched" : p ? " set" : " null");
	}
	say("probe", gpa("", 0, 0, 0, 0), 0);
	void *p = 0;
	say("no status", gpa("cuModuleLoadData", &p, 12000, 0, 0), 0);
	use((load_t)p);
	gpa("cuGetProcAddress", &p, 12000, 0, 0);
	((gpa_t)p)("cuModuleLoadFatBinary", &p, 12000, 0, 0);
	use((load_t)p);
	const void *const *t, *const *t2;
	unsigned char id[16] = {0}, id2[16] = {9};
	R (*et)(const void *, const void *) = sym("cuGetExportTable");
	printf("tables %d %d", et(&t, id), et(&t2, id));
	printf(" %d %d\n", t == t2, et(&t2, id2));
	Dl_info i;
	dladdr(t, &i);
	printf("table %ld\n", (long)((char *)t - (char *)i.dli_fbase));
	for (int k = 1; k < 4; k++)
		printf("slot %d %ld\n", k, t[k] ? (long)((char *)t[k] - (char *)i.dli_fbase) : 0);
	P m = 0;
	struct { unsigned a, b; const void *d; void *x; } w = {0x466243b1, 1, ptx, 0};
	say("slot", ((R(*)(P *, P, P, P, unsigned))t[1])(&m, &w, 0, 0, 0), m);
}

static void errors(void)
{
	void *m = dlopen("libm.so.6", RTLD_NOW);
	dlerror();
	error("none");
	dlopen("libnothing.so.7", RTLD_NOW), error("dlopen");
	dlsym(m, "cuModuleLoadData"), error("dlsym other");
	dlsym(m, "nosuch"), error("dlsym");
	dlsym(cuda, "cuNoSuch"), error("dlsym cuda");
	dlsym(RTLD_DEFAULT, "cuModuleLoadData") ? puts("found") : 0, error("default");
	dlsym(RTLD_NEXT, "cuModuleLoadData") ? puts("found") : 0, error("next");
	dlsym(RTLD_NEXT, "cuModuleUnloadx") ? puts("found") : 0, error("next other");
	dlvsym(cuda, "cuModuleLoadData", "NO_1") ? puts("found") : 0, error("dlvsym");
	dlvsym(m, "cos", "GLIBC_9.9") ? puts("found") : 0, error("dlvsym");
	dlmopen(LM_ID_NEWLM, "libnothing.so.8", RTLD_NOW), error("dlmopen");
	dlsym(m, "cuModuleLoad");
	errno = 77;
	sym("cuModuleUnload");
	printf("errno %d\n", errno);
	error("after");
	dlsym(m, "pending");
	errno = 78;
	use((load_t)dlsym(cuda, "cuModuleLoadData"));
	printf("errno %d\n", errno);
	error("pending was overwritten");
	explain("loader", dlsym(cuda, "cuModuleLoadData"));
	explain("launch", dlsym(cuda, "cuLaunchKernel"));
	explain("init", dlsym(cuda, "cuInit"));
	explain("inside", (char *)dlsym(cuda, "cuInit") + 1);
	explain("dlsym", dlsym(m, "cos"));
	explain("stack", &m);
}

static void *many(void *p)
{
	load_t f = (load_t)sym("cuModuleLoadData");
	char text[128];
	long bad = 0;
	for (int i = 0; i < 2000; i++) {
		P m = 0;
		snprintf(text, sizeof text, ".version 7.0\n// %d\n", ((int)(intptr_t)p * 7 + i) % 500);
		bad += f(&m, text) != 0;
	}
	return (P)bad;
}

/* Opens and closes drivers while others do. */
static void *churn(void *p)
{
	long bad = 0;
	for (int i = 0; i < 150; i++) {
		char name[32];
		P m = 0;
		snprintf(name, sizeof name, "libcopy%d.so", ((int)(intptr_t)p + i) % 4);
		void *h = dlopen(name, i % 3 ? RTLD_NOW : RTLD_LAZY);
		load_t f = h ? (load_t)dlsym(h, "cuModuleLoadData") : 0;
		bad += !f || f(&m, ptx) || dlsym(RTLD_DEFAULT, "cuModuleUnload") || !dlsym(RTLD_NEXT, "dlsym");
		Dl_info di;
		bad += !dladdr((void *)f, &di) || strcmp(di.dli_sname, "cuModuleLoadData");
		h ? dlclose(h) : 0;
	}
	return (P)bad;
}

static sigjmp_buf out;
static void leap(void) { siglongjmp(out, 1); }

/* Calls from far down the stack. */
static __attribute__((noinline)) void deep(int n, void (*f)(void))
{
	volatile char pad[300];
	pad[0] = (char)n;
	if (n)
		deep(n - 1, f);
	else
		f();
	pad[1] = 0;
}
static void load_again(void) { use((load_t)sym("cuModuleLoadData")); }

int main(int argc, char **argv)
{
	const char *r = argc > 1 ? argv[1] : "";
	P m = 0;
	args = argv;
	setvbuf(stdout, 0, _IOLBF, 0);
#ifdef WEAK
	printf("weak %d %d %d\n", cuInit != 0, cuModuleLoadData != 0, weak_data != 0);
	if (cuModuleLoadData)
		use(cuModuleLoadData);
	return 3;
#endif
#ifdef LINKED
	if (!strcmp(r, "linked")) {
		P f = 0;
		R e = cuModuleLoadData(&m, ptx);
		say("load", e, m);
		e = cuModuleGetFunction(&f, m, "k");
		say("function", e, f);
		for (int i = 0; i < 3; i++)
			say("launch", cuLaunchKernel(f, 1, 2, 3, 4, 5, 6, 7, (P)8, (P)9, (P)10), 0);
		use(in_data);
		use((load_t)dlsym(RTLD_DEFAULT, "cuModuleLoadData"));
		use((load_t)dlsym(RTLD_NEXT, "cuModuleLoadData"));
		printf("same %d %d\n", in_data == cuModuleLoadData, dlsym(RTLD_DEFAULT, "cuModuleGetFunction") == dlsym(RTLD_NEXT, "cuModuleGetFunction"));
		return 4;
	}
#endif
	if (!strcmp(r, "needlib") || !strcmp(r, "deepbind")) {
		void *h = dlopen("libneed.so", RTLD_NOW | (r[0] == 'd' ? RTLD_DEEPBIND : 0));
		if (!h)
			return puts(dlerror()), 1;
		use((load_t)dlsym(h, "need_load"));
		use((load_t)dlsym(h, "need_load_dlsym"));
		use((load_t)dlsym(h, "need_load_next"));
		return 5;
	}
	if (!strcmp(r, "runpath")) {
		/* The plugin is found by the RUNPATH of the library that asks, with $ORIGIN, and not by ours. */
		printf("direct %d\n", dlopen("libplug.so", RTLD_NOW) != 0);
		error("direct");
		void *h = dlopen("libcaller.so", RTLD_NOW);
		if (!h)
			return puts(dlerror()), 1;
		printf("%s\n", ((const char *(*)(const char *))dlsym(h, "call_open"))("libplug.so"));
		printf("%s\n", ((const char *(*)(const char *))dlsym(h, "call_open"))("$ORIGIN/sub/libplug.so"));
		printf("%s\n", ((const char *(*)(const char *))dlsym(h, "call_next"))("who"));
		return 6;
	}
	if (!strcmp(r, "dlmopen")) {
		void *h = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW), *h0 = dlopen("libcuda.so.1", RTLD_NOW);
		if (!h || !h0)
			return puts(dlerror()), 1;
		load_t f = (load_t)dlsym(h, "cuModuleLoadData"), f0 = (load_t)dlsym(h0, "cuModuleLoadData");
		printf("differ %d\n", f != f0);
		use(f), use(f0), use(f);
		unsigned long long a = 0, b = 0;
		((R(*)(unsigned long long *))dlsym(h, "cuFakeLoads"))(&a);
		((R(*)(unsigned long long *))dlsym(h0, "cuFakeLoads"))(&b);
		printf("%llu %llu\n", a, b);
		explain("loader", (void *)f);
		gpa_t g = (gpa_t)dlsym(h, "cuGetProcAddress_v2");
		void *p = 0;
		say("gpa", g("cuModuleLoadData", &p, 12000, 0, 0), 0);
		printf("same %d\n", p == (void *)f);
		return 7;
	}
	cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (!cuda)
		return puts(dlerror()), 1;
	if (!strcmp(r, "dlsym"))
		use((load_t)sym("cuModuleLoadData"));
	if (!strcmp(r, "dlvsym")) {
		void *v = dlopen("libcudav.so", RTLD_NOW);
		use((load_t)dlvsym(v, "cuModuleLoadData", "CUDA_1"));
		printf("same %d\n", dlvsym(v, "cuModuleLoadData", "CUDA_1") == dlsym(v, "cuModuleLoadData"));
	}
	if (!strcmp(r, "formats"))
		formats();
	if (!strcmp(r, "lookups"))
		lookups();
	if (!strcmp(r, "errors"))
		errors();
	if (!strcmp(r, "launches"))
		launches();
	if (!strcmp(r, "backtrace")) {
		/* cuLinkCreate calls back from inside the driver. */
		Dl_info i;
		dladdr(main, &i);
		say("backtrace", ((R(*)(P, P))sym("cuFakeBacktrace"))((P)main, (char *)main + 4096), 0);
	}
	if (!strcmp(r, "leap")) {
		R (*create)(unsigned, P, P, P *) = sym("cuLinkCreate");
		if (!sigsetjmp(out, 1))
			create(99, 0, (P)leap, &m);
		load_again();
		deep(20, load_again);
		puts("landed");
	}
	if (!strcmp(r, "fork")) {
		use((load_t)sym("cuModuleLoadData"));
		pid_t p = fork();
		if (!p) {
			P f;
			load_t l = (load_t)sym("cuModuleLoadData");
			_exit(l(&f, ".version 7.1\n// child"));
		}
		int s = 0;
		waitpid(p, &s, 0);
		printf("child %x\n", s);
		load_t l = (load_t)sym("cuModuleLoadData");
		say("after", l(&m, ".version 7.2\n// parent"), m);
	}
	if (!strcmp(r, "exec")) {
		use((load_t)sym("cuModuleLoadData"));
		execl("/proc/self/exe", argv[0], "dlsym", (char *)0);
	}
	if (!strcmp(r, "daemon")) {
		use((load_t)sym("cuModuleLoadData"));
		for (int fd = 3; fd < 1024; fd++)
			close(fd);
		/* The program's own files now have those numbers. */
		int p[2];
		if (pipe(p))
			return 1;
		for (int i = 0; i < 4; i++)
			fcntl(p[1], F_DUPFD, 955 + i * 3);
		load_t l = (load_t)sym("cuModuleLoadData");
		say("after", l(&m, ".version 7.3\n// daemon"), m);
		fcntl(p[0], F_SETFL, O_NONBLOCK);
		char b[8];
		printf("read %zd\n", read(p[0], b, sizeof b));
	}
	if (!strcmp(r, "churn")) {
		pthread_t t[4];
		long bad = 0;
		for (int i = 0; i < 4; i++)
			pthread_create(&t[i], 0, churn, (P)(intptr_t)i);
		for (int i = 0; i < 4; i++) {
			void *p;
			pthread_join(t[i], &p);
			bad += (long)p;
		}
		printf("%ld bad\n", bad);
	}
	if (!strcmp(r, "threads")) {
		pthread_t t[8];
		long bad = 0;
		for (int i = 0; i < 8; i++)
			pthread_create(&t[i], 0, many, (P)(intptr_t)i);
		for (int i = 0; i < 8; i++) {
			void *p;
			pthread_join(t[i], &p);
			bad += (long)p;
		}
		unsigned long long n;
		((R(*)(unsigned long long *))sym("cuFakeLoads"))(&n);
		printf("%ld failed of %llu\n", bad, n);
	}
	if (!strcmp(r, "slow")) {
		/* Loads until its input ends. */
		load_t l = (load_t)sym("cuModuleLoadData");
		char text[64], c;
		int i = 0;
		while (read(0, &c, 1) == 1) {
			snprintf(text, sizeof text, ".version 7.0\n// slow %d\n", i++);
			say("load", l(&m, text), m);
			puts("ok");
		}
	}
	if (!strcmp(r, "edge") || !strcmp(r, "sandbox")) {
		/* A text that ends where its mapping does; and a container that claims what isn't there, which the driver refuses unread. */
		long page = sysconf(_SC_PAGESIZE);
		char *map = mmap(0, (size_t)(3 * page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		munmap(map + 2 * page, (size_t)page);
		memset(map, '/', (size_t)(2 * page));
		map[2 * page - 1] = 0;
		unsigned *fat = (unsigned *)(map + 16);
		if (r[0] == 's') {
			struct sock_filter code[] = {
				BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
				BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 310, 0, 1),
				BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
				BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
			};
			struct sock_fprog filter = {4, code};
			prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
			if (prctl(PR_SET_SECCOMP, 2, &filter, 0, 0))
				return 1;
		}
		use((load_t)sym("cuModuleLoadData"));
		load_t l = (load_t)sym("cuModuleLoadData");
		say("edge", l(&m, map), m);
		say("short edge", l(&m, map + 2 * page - 10), m);
		fat[0] = 0xba55ed50, fat[1] = 0x100001, fat[2] = 1u << 31, fat[3] = 0;
		say("refused", ((R(*)(P *, P, unsigned, P, P))sym("cuModuleLoadDataEx"))(&m, fat, 3, (P)1, (P)1), m);
		memcpy(map + 2 * page - 64, "\x7f" "ELF", 4);
		*(uint64_t *)(map + 2 * page - 64 + 40) = 1ull << 40;
		say("refused", ((R(*)(P *, P, unsigned, P, P))sym("cuModuleLoadDataEx"))(&m, map + 2 * page - 64, 3, (P)1, (P)1), m);
		say("nowhere", ((R(*)(P *, P, unsigned, P, P))sym("cuModuleLoadDataEx"))(&m, (P)64, 3, (P)1, (P)1), m);
	}
	if (!strcmp(r, "copies")) {
		/* More functions than there are wrappers for. */
		static const char *const names[] = {FUNCTIONS};
		int found = 0, ok = 0;
		for (int i = 0; i < 24; i++) {
			char name[32];
			snprintf(name, sizeof name, "libcopy%d.so", i);
			void *h = dlopen(name, RTLD_NOW);
			for (unsigned j = 0; h && j < sizeof names / sizeof *names; j++)
				found += dlsym(h, names[j]) != 0;
			load_t f = h ? (load_t)dlsym(h, "cuModuleLoadData") : 0;
			ok += f && f(&m, ptx) == 0;
		}
		printf("%d functions, %d work\n", found, ok);
	}
	if (!strcmp(r, "kernels")) {
		R (*k)(P, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, P, void *, void *) = sym("cuLaunchKernel");
		int bad = 0;
		for (uintptr_t i = 1; i <= 40000; i++)
			bad += k((P)(i * 64), 1, 2, 3, 4, 5, 6, 7, (P)8, (P)9, (P)10) != 0;
		printf("%d bad\n", bad);
	}
	if (!strcmp(r, "bench")) {
		R (*k)(P, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, P, void *, void *) = sym("cuLaunchKernel");
		struct timespec a, b;
		long n = 20000000, bad = 0;
		k((P)0x4000, 1, 2, 3, 4, 5, 6, 7, (P)8, (P)9, (P)10);
		clock_gettime(CLOCK_MONOTONIC, &a);
		for (long i = 0; i < n; i++)
			bad += k((P)0x4000, 1, 2, 3, 4, 5, 6, 7, (P)8, (P)9, (P)10) != 0;
		clock_gettime(CLOCK_MONOTONIC, &b);
		printf("launch %.2f ns\n", ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / (double)n);
		load_t l = (load_t)sym("cuModuleLoadData");
		clock_gettime(CLOCK_MONOTONIC, &a);
		for (long i = 0; i < 20000; i++)
			bad += l(&m, ptx) != 0;
		clock_gettime(CLOCK_MONOTONIC, &b);
		printf("load %.2f ns\n", ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / 20000);
		clock_gettime(CLOCK_MONOTONIC, &a);
		for (long i = 0; i < 200000; i++)
			bad += dlsym(cuda, "cuInit") == 0;
		clock_gettime(CLOCK_MONOTONIC, &b);
		printf("dlsym %.2f ns\n", ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / 200000);
		return bad != 0;
	}
	return 8;
}
