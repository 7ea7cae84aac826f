// A rank of a training: it copies a batch, runs a kernel, and sums up gradients with the other ranks, again and again.
//
//   RANK=0 WORLD_SIZE=8 train FOLDER STEPS [FAULT RANK STEP]
//
// From STEP on, RANK has a FAULT; SECONDS ends who hangs. FOLDER is where rank 0 leaves NCCL's unique id for the others.
#define _GNU_SOURCE
#include "driver.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

typedef struct { char internal[128]; } ncclUniqueId;
typedef struct comm *ncclComm_t;
int ncclGetUniqueId(ncclUniqueId *);
int ncclCommInitRank(ncclComm_t *, int, ncclUniqueId, int);
int ncclCommSplit(ncclComm_t, int, int, ncclComm_t *, void *);
int ncclCommDestroy(ncclComm_t);
int ncclAllReduce(const void *, void *, size_t, int, int, ncclComm_t, void *);
int ncclGroupStart(void);
int ncclGroupEnd(void);

#define N 4096

// count adds 1 to a number, so many times.
static const char counting[] = ".version 6.4\n.target sm_75\n.address_size 64\n"
	".visible .entry count(.param .u64 at, .param .u32 times)\n{\n"
	" .reg .pred %p;\n .reg .b32 %r<3>;\n .reg .b64 %rd;\n"
	" ld.param.u64 %rd, [at];\n ld.param.u32 %r1, [times];\n mov.u32 %r2, 0;\n"
	"again:\n add.u32 %r2, %r2, 1;\n setp.lt.u32 %p, %r2, %r1;\n @%p bra again;\n"
	" st.global.u32 [%rd], %r2;\n ret;\n}\n";
static const char other[] = ".version 6.4\n.target sm_75\n.address_size 64\n.visible .entry other()\n{\n ret;\n}\n";

static void exchange(const char *folder, int rank, ncclUniqueId *id)
{
	char name[512], whole[512];
	snprintf(name, sizeof name, "%s/id.new", folder);
	snprintf(whole, sizeof whole, "%s/id", folder);
	if (rank == 0) {
		EXPECT(ncclGetUniqueId(id) == 0);
		FILE *f = fopen(name, "w");
		EXPECT(f && fwrite(id, sizeof *id, 1, f) == 1 && fclose(f) == 0 && rename(name, whole) == 0);
		return;
	}
	for (int i = 0; i < 6000; i++, usleep(10000)) {
		FILE *f = fopen(whole, "r");
		if (f) {
			EXPECT(fread(id, sizeof *id, 1, f) == 1);
			fclose(f);
			return;
		}
	}
	exit(9);
}

// input hands out a batch now and then.
static void *input(void *fd)
{
	for (;; usleep(80000))
		if (write(*(int *)fd, "x", 1) != 1)
			return 0;
}

static void *spin(void *nothing)
{
	for (volatile int i = 0;; i++)
		;
	return nothing;
}

// hog has this thread share a processor with threads that never wait, and of which each has more of it.
static void hog(void)
{
	pthread_t t;
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	EXPECT(sched_setaffinity(0, sizeof one, &one) == 0);
	for (int i = 0; i < 8; i++)
		EXPECT(pthread_create(&t, 0, spin, 0) == 0);
	EXPECT(setpriority(PRIO_PROCESS, 0, 19) == 0);
}

int main(int argc, char **argv)
{
	const char *fault = argc > 5 ? argv[3] : "";
	int rank = atoi(getenv("RANK")), size = atoi(getenv("WORLD_SIZE")), steps = atoi(argv[2]);
	int at = argc > 5 && atoi(argv[4]) == rank ? atoi(argv[5]) : steps;
	CUcontext ctx;
	CUmodule module;
	CUfunction count;
	CUdeviceptr p;
	char *batch = calloc(1, N * 64);
	ncclUniqueId id;
	ncclComm_t world, half = 0;
	alarm(getenv("SECONDS") ? atoi(getenv("SECONDS")) : 0);
	loadDriver();
	CHECK(cuInit(0));
	CHECK(cuCtxCreate_v2(&ctx, 0, 0));
	CHECK(cuModuleLoadData(&module, counting));
	CHECK(cuModuleGetFunction(&count, module, "count"));
	CHECK(cuMemAlloc_v2(&p, N * 64));
	if (at < steps && !strcmp(fault, "image"))
		CHECK(cuModuleLoadData(&module, other));
	exchange(argv[1], rank, &id);
	EXPECT(ncclCommInitRank(&world, size, id, rank) == 0);
	EXPECT(ncclCommSplit(world, rank % 2, rank, &half, 0) == 0);
	for (int step = 0; step < steps; step++) {
		int times = 2000;
		size_t n = N;
		usleep(20000); // else ranks that share a processor wait for each other all the time
		if (step >= at) {
			static int batches[2];
			char got;
			pthread_t reader;
			if (!strcmp(fault, "input")) {
				if (step == at)
					EXPECT(pipe(batches) == 0 && pthread_create(&reader, 0, input, &batches[1]) == 0);
				EXPECT(read(batches[0], &got, 1) == 1);
			}
			if (!strcmp(fault, "hog") && step == at)
				hog();
			if (!strcmp(fault, "fails") && step == at) {
				CUdeviceptr much;
				EXPECT(cuMemAlloc_v2(&much, 1ull << 50) != 0);
			}
			if (!strcmp(fault, "sleep"))
				usleep(60000);
			if (!strcmp(fault, "kernel"))
				times *= 600;
			if (!strcmp(fault, "copies"))
				for (int i = 0; i < 300; i++)
					CHECK(cuMemcpyHtoD_v2(p, batch, N * 64));
			if (!strcmp(fault, "driver"))
				for (int i = 0; i < 90; i++) {
					CUdeviceptr more[8];
					for (int k = 0; k < 8; k++)
						CHECK(cuMemAlloc_v2(&more[k], 64 << 20));
					for (int k = 0; k < 8; k++)
						CHECK(cuMemFree_v2(more[k]));
				}
			if (!strcmp(fault, "missing"))
				for (;;)
					pause();
			if (!strcmp(fault, "stop")) {
				if (fork() == 0) { // no alarm ends who is stopped
					sleep(getenv("SECONDS") ? atoi(getenv("SECONDS")) : 3);
					kill(getppid(), SIGKILL);
					_exit(0);
				}
				raise(SIGSTOP);
			}
			if (!strcmp(fault, "kill"))
				raise(SIGKILL);
			if (!strcmp(fault, "size") && step == at)
				n /= 2;
		}
		void *args[] = {&p, &times};
		CHECK(cuMemcpyHtoD_v2(p, batch, N));
		CHECK(cuLaunchKernel(count, 1, 1, 1, 1, 1, 1, 0, 0, args, 0));
		CHECK(cuCtxSynchronize());
		EXPECT(ncclAllReduce((void *)p, (void *)p, n, 7, 0, world, 0) == 0);
		if (step % 4 == 3) {
			EXPECT(ncclGroupStart() == 0);
			EXPECT(ncclAllReduce((void *)p, (void *)p, 16, 7, 0, half, 0) == 0);
			EXPECT(ncclAllReduce((void *)p, (void *)p, 32, 7, 0, half, 0) == 0);
			EXPECT(ncclGroupEnd() == 0);
		}
	}
	EXPECT(ncclCommDestroy(half) == 0);
	EXPECT(ncclCommDestroy(world) == 0);
	printf("rank %d has ended\n", rank);
	return 0;
}
