// A stand-in for libnccl.so.2, for tests without GPUs that can talk to each other: NCCL's signatures, a barrier in
// shared memory in place of a network, and a kernel of a name like NCCL's that is launched by libcuda. It moves no
// data. A rank waits for the others in the call, before its kernel is launched.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST 64

typedef struct { char internal[128]; } ncclUniqueId;
typedef struct shared {
	int arrived, generation;
	int color[MOST], key[MOST];
} shared;
typedef struct comm {
	char name[160];
	int rank, size, splits;
	shared *s;
} *ncclComm_t;
typedef struct { ncclComm_t comm; void *stream; } pending;

static __thread int depth, queued;
static __thread pending queue[64];

static const char ptx[] = ".version 6.4\n.target sm_75\n.address_size 64\n"
	".visible .entry ncclDevKernel_AllReduce_Sum_f32_RING_LL()\n{\n ret;\n}\n";
static int (*load)(void **, const void *), (*find)(void **, void *, const char *);
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static void *kernel;

static int ready(void)
{
	void *lib, *module;
	if (kernel)
		return 0;
	getenv("NCCL_ALGO");
	if (!(lib = dlopen("libcuda.so.1", RTLD_NOW)))
		return 2;
	load = dlsym(lib, "cuModuleLoadData");
	find = dlsym(lib, "cuModuleGetFunction");
	launch = dlsym(lib, "cuLaunchKernel");
	return load(&module, ptx) || find(&kernel, module, "ncclDevKernel_AllReduce_Sum_f32_RING_LL") ? 1 : 0;
}

// All ranks of a communicator have come when it returns.
static void barrier(ncclComm_t c)
{
	int now = __atomic_load_n(&c->s->generation, __ATOMIC_ACQUIRE);
	if (__atomic_add_fetch(&c->s->arrived, 1, __ATOMIC_ACQ_REL) == c->size) {
		__atomic_store_n(&c->s->arrived, 0, __ATOMIC_RELEASE);
		__atomic_add_fetch(&c->s->generation, 1, __ATOMIC_ACQ_REL);
		syscall(SYS_futex, &c->s->generation, FUTEX_WAKE, MOST, 0, 0, 0);
		return;
	}
	while (__atomic_load_n(&c->s->generation, __ATOMIC_ACQUIRE) == now)
		syscall(SYS_futex, &c->s->generation, FUTEX_WAIT, now, 0, 0, 0);
}

static int attach(ncclComm_t *out, const char *name, int rank, int size)
{
	ncclComm_t c = calloc(1, sizeof *c);
	int fd = shm_open(name, O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, sizeof(shared)))
		return 2;
	c->s = mmap(0, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (c->s == MAP_FAILED || size > MOST)
		return 2;
	snprintf(c->name, sizeof c->name, "%s", name);
	c->rank = rank;
	c->size = size;
	*out = c;
	barrier(c);
	return 0;
}

int ncclGetVersion(int *v) { return *v = 22700, 0; }

int ncclGetUniqueId(ncclUniqueId *id)
{
	unsigned char b[8];
	int fd = open("/dev/urandom", O_RDONLY);
	if (read(fd, b, sizeof b) != sizeof b)
		return 2;
	close(fd);
	memset(id, 0, sizeof *id);
	snprintf(id->internal, sizeof id->internal, "/nccl-standin-%02x%02x%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]);
	return 0;
}

int ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
	int r = ready();
	return r ? r : attach(comm, id.internal, rank, nranks);
}

int ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *newcomm, void *config)
{
	int size = 0, rank = 0;
	char name[192];
	c->s->color[c->rank] = color;
	c->s->key[c->rank] = key;
	barrier(c);
	for (int i = 0; i < c->size; i++)
		if (c->s->color[i] == color) {
			size++;
			rank += c->s->key[i] < key || (c->s->key[i] == key && i < c->rank);
		}
	barrier(c);
	*newcomm = 0;
	if (color < 0)
		return 0;
	snprintf(name, sizeof name, "%s-%d-%d", c->name, ++c->splits, color);
	return attach(newcomm, name, rank, size);
}

int ncclCommDestroy(ncclComm_t c) { return shm_unlink(c->name), 0; }
int ncclCommAbort(ncclComm_t c) { return 0; }
int ncclCommCount(ncclComm_t c, int *n) { return *n = c->size, 0; }
int ncclCommUserRank(ncclComm_t c, int *n) { return *n = c->rank, 0; }
const char *ncclGetErrorString(int e) { return e ? "an error" : "no error"; }

static int run(ncclComm_t c, void *stream)
{
	barrier(c);
	return launch(kernel, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0) ? 1 : 0;
}

static int enqueue(ncclComm_t c, void *stream)
{
	if (!depth)
		return run(c, stream);
	if (queued == 64)
		return 3;
	queue[queued++] = (pending){c, stream};
	return 0;
}

int ncclGroupStart(void) { return depth++, 0; }

int ncclGroupEnd(void)
{
	int r = 0;
	if (--depth)
		return 0;
	for (int i = 0; i < queued; i++)
		r |= run(queue[i].comm, queue[i].stream);
	return queued = 0, r;
}

int ncclAllReduce(const void *s, void *r, size_t n, int type, int op, ncclComm_t c, void *stream) { return enqueue(c, stream); }
int ncclReduceScatter(const void *s, void *r, size_t n, int type, int op, ncclComm_t c, void *stream) { return enqueue(c, stream); }
int ncclAllGather(const void *s, void *r, size_t n, int type, ncclComm_t c, void *stream) { return enqueue(c, stream); }
int ncclBroadcast(const void *s, void *r, size_t n, int type, int root, ncclComm_t c, void *stream) { return enqueue(c, stream); }
int ncclReduce(const void *s, void *r, size_t n, int type, int op, int root, ncclComm_t c, void *stream) { return enqueue(c, stream); }
