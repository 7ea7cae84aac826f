// Routes on which it matters when things happen: in threads, after a fork, while
// the image changes, when the driver was closed meanwhile.
#ifndef ROUTES_TURNS_H
#define ROUTES_TURNS_H
#include "find.h"
#include "hidden.h"

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

static int run_threads(int n, void *(*loop)(void *)) {
	pthread_t t[64];
	handle ctx;
	CHECK(cu.retain(&ctx, 0));
	for (int i = 0; i < n; i++)
		pthread_create(&t[i], 0, loop, ctx);
	for (int i = 0; i < n; i++)
		pthread_join(t[i], 0);
	return 0;
}

// threads is "threadsN".
static int threads(const char *route, const char *file) {
	size_t n;
	given = file ? slurp(file, &n) : 0;
	return run_threads(atoi(route + 7), loop);
}

static finds hidden;

// loop_hidden launches kernels that a hidden slot finds.
static void *loop_hidden(void *arg) {
	char text[sizeof ptx + 64];
	CHECK(cu.current(arg));
	for (int i = 0; i < loops; i++) {
		handle m, f;
		sprintf(text, "%s// thread %lx turn %d\n", ptx, (unsigned long)pthread_self(), i);
		CHECK(cu.load(&m, text));
		CHECK(hidden(&f, m));
		launch(f);
		CHECK(cu.unload(m));
	}
	return 0;
}

static int hidden_threads(const char *route, const char *file) {
	hidden = unknown()[FUNCTION];
	return run_threads(8, loop_hidden);
}

static volatile int stop, going;

// scribble changes a comment in the image again and again.
static void *scribble(void *arg) {
	volatile char *at = arg;
	for (unsigned i = 0; !stop; i++, going = 1)
		*at = 'a' + i % 26;
	return 0;
}

static int race(const char *route, const char *file) {
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

// alone is for programs in which the driver can't be initialised: it refuses.
static int alone(const char *route, const char *file) {
	handle m;
	printf("cuModuleLoadData: %d\n", cu.load(&m, ptx));
	return 0;
}

// in_child loads after a fork: the driver is there and was not used yet. Later, a
// child can't.
static int in_child(const char *route, const char *file) {
	pid_t p = fork();
	if (!p) {
		start();
		_exit(once(strdup(ptx)));
	}
	int st;
	waitpid(p, &st, 0);
	return st ? 4 : 0;
}

// many loads modules one after the other; the driver may use a handle again.
static int many(const char *route, const char *file) {
	char text[sizeof ptx + 32];
	for (int i = 0; i < 20; i++) {
		sprintf(text, "%s// module %d\n", ptx, i);
		once(text);
	}
	return 0;
}

// pause_between gives a tracer time to attach.
static int pause_between(const char *route, const char *file) {
	char c;
	once(ptx);
	puts("ready");
	fflush(stdout);
	if (read(0, &c, 1) < 0)
		return 9;
	return once(ptx);
}

// reopen closes the driver: the same addresses may come back, with other code
// behind them.
static int reopen(const char *route, const char *file) {
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

// overwrite puts a loader's first byte back to what its file has.
static int overwrite(const char *route, const char *file) {
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
#endif
