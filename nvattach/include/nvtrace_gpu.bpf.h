/*
 * For authors of programs that nvtrace runs inside CUDA kernels.
 *
 *	clang -g -O2 -target bpf -mcpu=v4 -I .../nvattach/include -c probe.bpf.c -o probe.bpf.o
 *	nvtrace --attach probe.bpf.o -- ./app
 *
 * Nothing else is needed: no vmlinux.h and no libbpf. (clang before 18 has -mcpu=v3.)
 *
 * Where a program runs is in its section's name:
 *
 *	SEC("cuda.entry/KERNEL")       every thread, before the kernel's first instruction
 *	SEC("cuda.exit/KERNEL")        every thread, where it leaves the kernel
 *	SEC("cuda.mem/KERNEL")         every thread, before it accesses memory
 *	SEC("cuda.insn/KERNEL:OPCODE") before each instruction whose opcode matches
 *	SEC("cuda.block/KERNEL")       at the start of each basic block
 *
 * KERNEL and OPCODE are globs (* and ?). KERNEL is matched with the mangled and the
 * demangled name, with and without its parameters; "func:NAME" is a device function.
 *
 * The argument is one of the contexts below. Fields cost nothing unless they are
 * read. Many threads run a program at the same time: use __sync_fetch_and_add for
 * what several may add to. Values that are only added to, also those of a hash whose
 * keys are inserted with BPF_NOEXIST, are kept once for each multiprocessor and added up
 * when they are read.
 */
#ifndef NVTRACE_GPU_BPF_H
#define NVTRACE_GPU_BPF_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;

#ifndef SEC
#define SEC(name) __attribute__((section(name), used))
#endif
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
/*
 * A global variable of which each thread has its own, from where it enters the kernel to
 * where it leaves it:
 *
 *	__per_thread __u64 started;
 *
 * It is in registers of the kernel, costs no memory, and the host does not see it. It
 * begins with its initial value. What is in arrays must be accessed at constant
 * indexes; there can be 128 bytes of such variables. A program that runs in a device
 * function ("func:NAME") has those of that function's call.
 */
#define __per_thread __attribute__((section(".data.thread")))
#ifndef __uint
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name
#endif

/* Types of maps. What is a CPU for the Linux kernel is a multiprocessor here. A ring
 * buffer's records are shown by the type of its values, if it is given one, and as
 * 64-bit numbers otherwise. */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PROG_ARRAY = 3, /* of programs, for bpf_tail_call */
	BPF_MAP_TYPE_PERF_EVENT_ARRAY = 4,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9, /* where there is no room, one goes that was not used of late */
	BPF_MAP_TYPE_LRU_PERCPU_HASH = 10,
	BPF_MAP_TYPE_RINGBUF = 27,
	NVTRACE_MAP_TYPE_THREAD_ARRAY = 1502, /* a value for each thread of the grid */
	/* An array that each block of threads has for itself, in shared memory: all 0 when the block
	 * begins, gone when it ends, and not shown. In PTX, 8 KiB for all maps together. What
	 * __sync_fetch_and_add and its kin return orders what threads of the block do before and behind. */
	NVTRACE_MAP_TYPE_BLOCK_ARRAY = 1600,
};

enum { BPF_ANY = 0, BPF_NOEXIST = 1, BPF_EXIST = 2 };

struct nvtrace_dim {
	__u32 x, y, z;
};

/* What every context begins with. */
struct nvtrace_thread {
	struct nvtrace_dim grid;      /* blocks of the grid */
	struct nvtrace_dim block_dim; /* threads of a block */
	struct nvtrace_dim block;     /* the thread's block */
	struct nvtrace_dim thread;    /* the thread in its block */
	__u32 sm;   /* multiprocessor */
	__u32 warp; /* slot of the warp on it; may change while a kernel runs */
	__u32 lane; /* 0 to 31 */
	__u32 site; /* number of the place, from 1 on: nvtrace lists what they are behind the maps */
	__u64 time;  /* nanoseconds, the GPU's global timer */
	__u64 clock; /* cycles of the multiprocessor */
};

/* What the kernel was given to the driver as, and so what instructions are. */
enum nvtrace_isa {
	NVTRACE_PTX = 1,
	NVTRACE_SASS = 2, /* machine code */
};

/* cuda.entry and cuda.exit */
struct nvtrace_entry {
	struct nvtrace_thread t;
	enum nvtrace_isa isa;
};
struct nvtrace_exit {
	struct nvtrace_thread t;
	enum nvtrace_isa isa;
};

enum nvtrace_space {
	NVTRACE_GENERIC = 0, /* global, shared or local: only the address says */
	NVTRACE_GLOBAL = 1,
	NVTRACE_SHARED = 2,
	NVTRACE_LOCAL = 3,
	NVTRACE_CONST = 4,
	NVTRACE_PARAM = 5,
};

enum nvtrace_access_kind {
	NVTRACE_LOAD = 1,
	NVTRACE_STORE = 2,
	NVTRACE_ATOMIC = 3,
	NVTRACE_ASYNC = 4, /* cp.async and others that are done later, ldmatrix */
};

/* cuda.mem: an instruction that reads one place and writes another has two. */
struct nvtrace_mem {
	struct nvtrace_thread t;
	__u64 addr;  /* in its space */
	__u64 value; /* stored, loaded, or what an atomic gave; of vectors the first 8 bytes. Who
			reads this of a load runs behind it. Of cp.async what is at the address in
			global memory before it, and of ldmatrix at the thread's row; 0 of
			other instructions. */
	__u32 size;  /* bytes; 0 if only the machine knows */
	enum nvtrace_space space;
	enum nvtrace_access_kind kind;
	__u32 insn;     /* instructions of the kernel's PTX before it */
	__u32 block_id; /* basic block */
	__u32 line;     /* of the source, 0 if the module does not say (-lineinfo) */
	__u32 file;     /* number of the source file in the module */
	enum nvtrace_isa isa;
	__u64 value2; /* the 8 bytes behind value, of vectors; in PTX, and of cp.async */
};

/* cuda.insn. A program at an instruction with a guard (@%p) runs in the threads in which
 * that holds only: it counts what is executed. */
struct nvtrace_insn {
	struct nvtrace_thread t;
	__u32 insn;
	__u32 block_id;
	__u32 line;
	__u32 file;
	enum nvtrace_isa isa;
	__u32 guarded;    /* the instruction has a guard, which holds in the threads that are here */
	/* In PTX: its operands, as written, before it runs; of the first, where most instructions put
	 * their result, what was there before. 0 of what is neither a register (of predicates 1
	 * or 0) nor a whole number. */
	__u64 operand0, operand1, operand2, operand3;
};

/* cuda.block */
struct nvtrace_block {
	struct nvtrace_thread t;
	__u32 insn;
	__u32 block_id;
	__u32 line;
	__u32 file;
	__u32 insns; /* instructions in the block, those with a guard that may not hold counted too */
	enum nvtrace_isa isa;
};

/*
 * On the host, a call of a function of CUDA's libraries: SEC("cuda.api/cuMemAlloc") before
 * it, SEC("cuda.apiret/cuMemAlloc") where it returns. arg0 to arg5 are of its entry, what more
 * there are bpf_get_func_arg has; ret is of its return.
 */
struct nvtrace_api {
	__u64 saved[8];
	__u64 arg5, arg4, ret, arg3, arg2, arg1, arg0;
	__u64 saved2, ip, saved3[2], sp, saved4;
};

/* Helpers. These lines are made of nvattach/helper: go test ./nvattach/helper -update */

/* By their numbers in the Linux kernel. */

/* The address of a key's value; NULL if there is none. */
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
/* Sets a key's value. */
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
/* Deletes a key. */
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
/* Nanoseconds: in kernels the GPU's global timer, on the host the monotonic clock. */
static __u64 (*bpf_ktime_get_ns)(void) = (void *)5;
/* Prints; bpf_printk below is for it. */
static long (*bpf_trace_printk)(const char *fmt, __u32 fmt_size, ...) = (void *)6;
/* A random number of 32 bits, good for sampling. */
static __u32 (*bpf_get_prandom_u32)(void) = (void *)7;
/* The multiprocessor; on the host the CPU. */
static __u32 (*bpf_get_smp_processor_id)(void) = (void *)8;
/* The process, in the upper half, and its thread; in kernels that of the process twice. */
static __u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
/* Writes a record to a perf_event_array. */
static long (*bpf_perf_event_output)(void *ctx, void *map, __u64 flags, void *data, __u64 size) = (void *)25;
/* Writes a record to a ring buffer. */
static long (*bpf_ringbuf_output)(void *ringbuf, void *data, __u64 size, __u64 flags) = (void *)130;
/* Room for a record; NULL if there is none. It must be submitted or discarded on every path. */
static void *(*bpf_ringbuf_reserve)(void *ringbuf, __u64 size, __u64 flags) = (void *)131;
/* Hands a reserved record over. */
static void (*bpf_ringbuf_submit)(void *data, __u64 flags) = (void *)132;
/* Drops a reserved record. */
static void (*bpf_ringbuf_discard)(void *data, __u64 flags) = (void *)133;
/* How full a ring buffer is, how large, and where it is read and written (BPF_RB_…). */
static __u64 (*bpf_ringbuf_query)(void *ringbuf, __u64 flags) = (void *)134;
/* The value that another multiprocessor has of a per-CPU map; NULL beyond the last. */
static void *(*bpf_map_lookup_percpu_elem)(void *map, const void *key, __u32 cpu) = (void *)195;
/* Prints with arguments of 64 bits in memory. */
static long (*bpf_trace_vprintk)(const char *fmt, __u32 fmt_size, const void *data, __u32 data_len) = (void *)177;
/* Argument n of a USDT probe: SEC("usdt/FILE:PROVIDER:PROBE"). */
static long (*nvtrace_usdt_arg)(void *ctx, __u64 n, __u64 *value) = (void *)620;
/* What a function returned, up to 8 bytes of it: on the host, and in PTX where a program of
 * cuda.exit/func:NAME runs; -EINVAL elsewhere. */
static long (*bpf_get_func_ret)(void *ctx, __u64 *value) = (void *)184;
/* Parameter n of the kernel or the function, up to 8 bytes of it. In kernels the upper half of n
 * is an offset in 8 bytes, for structures. */
static long (*bpf_get_func_arg)(void *ctx, __u64 n, __u64 *value) = (void *)183;
/* How many parameters the kernel has. */
static long (*bpf_get_func_arg_cnt)(void *ctx) = (void *)185;

/* Memory of the program. Helpers for the user's and the kernel's are the same. */

/* Reads memory at any address, as the program itself sees it; size must be a constant, in kernels
 * of at most 128 bytes. What can't be read is -EFAULT, and zeros are written: no read makes a
 * kernel fail. In kernels that is everything except what the program has allocated by cuMemAlloc,
 * its pitched and its managed form (cudaMalloc, cudaMallocManaged), and has not freed. */
static long (*bpf_probe_read)(void *dst, __u32 size, const void *addr) = (void *)4;
static long (*bpf_probe_read_user)(void *dst, __u32 size, const void *addr) = (void *)112;
static long (*bpf_probe_read_kernel)(void *dst, __u32 size, const void *addr) = (void *)113;
/* The same up to a zero byte; returns the length with it. */
static long (*bpf_probe_read_str)(void *dst, __u32 size, const void *addr) = (void *)45;
static long (*bpf_probe_read_user_str)(void *dst, __u32 size, const void *addr) = (void *)114;
static long (*bpf_probe_read_kernel_str)(void *dst, __u32 size, const void *addr) = (void *)115;

/* nvtrace's own. */

/* The position of the highest bit, 0 for 0: the entry of a log2 histogram for v. One instruction. */
static __u32 (*nvtrace_log2)(__u64 v) = (void *)600;
/* A number in a map's value becomes n, if that is higher; they have no sign. For the lowest, keep
 * the highest of ~n. */
static void (*nvtrace_max)(__u64 *p, __u64 n) = (void *)601;
/* The address of a key's value, which is put there with zeros if there is none; NULL if there is
 * no room. Where the key is made of constants and of what the context says of the place (site,
 * kind, size, space, insn, …) and values are only added to, it costs as much as an array's. */
static void *(*nvtrace_map_value)(void *map, const void *key) = (void *)623;
/* In kernels the same of the lowest, of numbers with a sign, and of 32 bits. The first value of a
 * lowest is what the map's value is before: give it one, as 0 is the lowest of those without a
 * sign. Bits are put together by __sync_fetch_and_or. */
static void (*nvtrace_min)(__u64 *p, __u64 n) = (void *)614;
static void (*nvtrace_smax)(__s64 *p, __s64 n) = (void *)615;
static void (*nvtrace_smin)(__s64 *p, __s64 n) = (void *)616;
static void (*nvtrace_max32)(__u32 *p, __u32 n) = (void *)617;
static void (*nvtrace_min32)(__u32 *p, __u32 n) = (void *)618;
static void (*nvtrace_smax32)(__s32 *p, __s32 n) = (void *)621;
static void (*nvtrace_smin32)(__s32 *p, __s32 n) = (void *)622;

/* What the threads of a warp do together. They see those threads of the warp that run them at that
 * moment, and wait for no others. Before sm_70 each thread is alone. */

/* The threads of the warp that run this now, as a mask. */
static __u32 (*nvtrace_activemask)(void) = (void *)602;
/* Those with the same v, as a mask. */
static __u32 (*nvtrace_match)(__u64 v) = (void *)603;
/* 1 in the lowest of those with the same v, 0 in the others. Added up over the warp, that is how
 * many values there are: nvtrace_first(addr >> 5) counts the sectors of memory that an access
 * touches. */
static __u32 (*nvtrace_first)(__u64 v) = (void *)604;
/* How many bits of v are 1. */
static __u32 (*nvtrace_popc)(__u64 v) = (void *)605;
/* In how many passes shared memory serves the warp, each of whose threads accesses size bytes at
 * addr: 1 where no two of them want different words of a bank. */
static __u32 (*nvtrace_wavefronts)(__u64 addr, __u32 size) = (void *)606;

/* What all threads of a warp do that came to the site together. They wait for each other, so a
 * program is refused in which not all of them may come to the call: one behind a condition that
 * may be different in them, or in a loop that they may leave one by one. Conditions on what is the
 * same in all threads (constants, block, grid, the place) are no such, nor are those on what all
 * but the last two return. Before sm_70 each thread is alone. */

/* A mask of them. */
static __u32 (*nvtrace_together)(void) = (void *)608;
/* A mask of those in which v is not 0. */
static __u32 (*nvtrace_ballot)(__u64 v) = (void *)610;
/* 1 if v is not 0 in one of them. */
static __u32 (*nvtrace_any)(__u64 v) = (void *)611;
/* 1 if v is not 0 in all of them. */
static __u32 (*nvtrace_all)(__u64 v) = (void *)612;
/* 1 in the lowest thread. */
static __u32 (*nvtrace_leader)(void) = (void *)609;
/* The v of the thread of that lane, 0 if it is not there. */
static __u64 (*nvtrace_shuffle)(__u64 v, __u32 lane) = (void *)613;

/* The launch and its process. */

/* A number that all threads of a launch have, and those of no other in this context. */
static __u64 (*nvtrace_launch_id)(void) = (void *)607;
/* The rank that the launcher (mpirun, srun, torchrun) gave the process; -1: none. */
static __s64 (*nvtrace_rank)(void) = (void *)630;
/* The ordinal of the GPU. */
static __u64 (*nvtrace_device)(void) = (void *)512;
/* How many arguments a USDT probe has. */
static long (*nvtrace_usdt_arg_cnt)(void *ctx) = (void *)619;

/* End of the helpers. */

/* Calls another program in this one's place, and does not return; returns where there is none. */
static long (*bpf_tail_call)(void *ctx, void *prog_array, __u32 index) = (void *)12;
/* Calls callback(i, ctx) for i = 0, 1, ..., n - 1, until it returns 1; returns how often. */
static long (*bpf_loop)(__u32 n, void *callback, void *ctx, __u64 flags) = (void *)181;

/* Prints without waiting: the host formats the text later. At most 12 arguments, and
 * 3 where one is text (%s), which must be in a map or a global variable; on the host it may be on the stack. */
#define bpf_printk(fmt, args...)                                                                   \
	({                                                                                         \
		static const char ____fmt[] = fmt;                                                 \
		__NVTRACE_CAT(__NVTRACE_PRINT, __NVTRACE_COUNT(args))(____fmt, sizeof(____fmt), ##args); \
	})

/*
 * On the host, a program at a call of CUDA's libraries with that call's own parameters, up to twelve;
 * ctx is the context. It is for what comes in general registers and on the stack: numbers and pointers.
 *
 *	SEC("cuda.api/cuMemAlloc")
 *	int NVTRACE_CALL(on_alloc, void *at, __u64 bytes)
 *	{
 *		...
 */
#define NVTRACE_CALL(name, params...)                                                                          \
	name(struct nvtrace_api *ctx);                                                                         \
	static __always_inline int __call_##name(struct nvtrace_api *ctx, ##params);                           \
	int name(struct nvtrace_api *ctx)                                                                      \
	{                                                                                                      \
		_Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wint-conversion\"")          \
		return __call_##name(__NVTRACE_CAT(__NVTRACE_ARGS, __NVTRACE_COUNT(params))(ctx));             \
		_Pragma("GCC diagnostic pop")                                                                  \
	}                                                                                                      \
	static __always_inline int __call_##name(struct nvtrace_api *ctx, ##params)

#define __NVTRACE_CAT2(a, b) a##b
#define __NVTRACE_CAT(a, b) __NVTRACE_CAT2(a, b)
#define __NVTRACE_NTH(_0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, n, ...) n
#define __NVTRACE_COUNT(params...) __NVTRACE_NTH(_, ##params, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define __NVTRACE_PRINT0 bpf_trace_printk
#define __NVTRACE_PRINT1 bpf_trace_printk
#define __NVTRACE_PRINT2 bpf_trace_printk
#define __NVTRACE_PRINT3 bpf_trace_printk
#define __NVTRACE_PRINT4 __nvtrace_vprint
#define __NVTRACE_PRINT5 __nvtrace_vprint
#define __NVTRACE_PRINT6 __nvtrace_vprint
#define __NVTRACE_PRINT7 __nvtrace_vprint
#define __NVTRACE_PRINT8 __nvtrace_vprint
#define __NVTRACE_PRINT9 __nvtrace_vprint
#define __NVTRACE_PRINT10 __nvtrace_vprint
#define __NVTRACE_PRINT11 __nvtrace_vprint
#define __NVTRACE_PRINT12 __nvtrace_vprint
#define __nvtrace_vprint(fmt, size, args...)                                                       \
	({                                                                                         \
		__u64 ____args[] = {__NVTRACE_CAT(__NVTRACE_LIST, __NVTRACE_COUNT(args))(args)};   \
		bpf_trace_vprintk(fmt, size, ____args, sizeof(____args));                          \
	})
#define __NVTRACE_LIST1(a) (__u64)(a)
#define __NVTRACE_LIST2(a, more...) (__u64)(a), __NVTRACE_LIST1(more)
#define __NVTRACE_LIST3(a, more...) (__u64)(a), __NVTRACE_LIST2(more)
#define __NVTRACE_LIST4(a, more...) (__u64)(a), __NVTRACE_LIST3(more)
#define __NVTRACE_LIST5(a, more...) (__u64)(a), __NVTRACE_LIST4(more)
#define __NVTRACE_LIST6(a, more...) (__u64)(a), __NVTRACE_LIST5(more)
#define __NVTRACE_LIST7(a, more...) (__u64)(a), __NVTRACE_LIST6(more)
#define __NVTRACE_LIST8(a, more...) (__u64)(a), __NVTRACE_LIST7(more)
#define __NVTRACE_LIST9(a, more...) (__u64)(a), __NVTRACE_LIST8(more)
#define __NVTRACE_LIST10(a, more...) (__u64)(a), __NVTRACE_LIST9(more)
#define __NVTRACE_LIST11(a, more...) (__u64)(a), __NVTRACE_LIST10(more)
#define __NVTRACE_LIST12(a, more...) (__u64)(a), __NVTRACE_LIST11(more)
#define __NVTRACE_ARGS0(ctx) ctx
#define __NVTRACE_ARGS1(ctx) __NVTRACE_ARGS0(ctx), (void *)ctx->arg0
#define __NVTRACE_ARGS2(ctx) __NVTRACE_ARGS1(ctx), (void *)ctx->arg1
#define __NVTRACE_ARGS3(ctx) __NVTRACE_ARGS2(ctx), (void *)ctx->arg2
#define __NVTRACE_ARGS4(ctx) __NVTRACE_ARGS3(ctx), (void *)ctx->arg3
#define __NVTRACE_ARGS5(ctx) __NVTRACE_ARGS4(ctx), (void *)ctx->arg4
#define __NVTRACE_ARGS6(ctx) __NVTRACE_ARGS5(ctx), (void *)ctx->arg5
#define __NVTRACE_ARGS7(ctx) __NVTRACE_ARGS6(ctx), (void *)__nvtrace_arg(ctx, 6)
#define __NVTRACE_ARGS8(ctx) __NVTRACE_ARGS7(ctx), (void *)__nvtrace_arg(ctx, 7)
#define __NVTRACE_ARGS9(ctx) __NVTRACE_ARGS8(ctx), (void *)__nvtrace_arg(ctx, 8)
#define __NVTRACE_ARGS10(ctx) __NVTRACE_ARGS9(ctx), (void *)__nvtrace_arg(ctx, 9)
#define __NVTRACE_ARGS11(ctx) __NVTRACE_ARGS10(ctx), (void *)__nvtrace_arg(ctx, 10)
#define __NVTRACE_ARGS12(ctx) __NVTRACE_ARGS11(ctx), (void *)__nvtrace_arg(ctx, 11)

static __always_inline __u64 __nvtrace_arg(void *ctx, __u64 n)
{
	__u64 v = 0;
	bpf_get_func_arg(ctx, n, &v);
	return v;
}

/* What a launch is given: by cuLaunchKernel, and by cuLaunchKernelEx in its first parameter. */
struct nvtrace_launch {
	__u32 grid[3], block[3], shared; /* bytes of shared memory */
	void *stream;
};

static __always_inline void nvtrace_launch_of(struct nvtrace_api *ctx, struct nvtrace_launch *l)
{
	l->grid[0] = ctx->arg1, l->grid[1] = ctx->arg2, l->grid[2] = ctx->arg3;
	l->block[0] = ctx->arg4, l->block[1] = ctx->arg5, l->block[2] = __nvtrace_arg(ctx, 6);
	l->shared = __nvtrace_arg(ctx, 7);
	l->stream = (void *)__nvtrace_arg(ctx, 8);
}

static __always_inline void nvtrace_launch_ex(struct nvtrace_api *ctx, struct nvtrace_launch *l)
{
	bpf_probe_read_user(l, sizeof *l, (void *)ctx->arg0); /* CUlaunchConfig begins so */
}

#ifdef NVTRACE_KERNELS
/*
 * Names of kernels on the host, for who says "#define NVTRACE_KERNELS" before this header: programs at
 * the calls by which kernels are found write them down, and nvtrace_kernel(f) is the (mangled) name of
 * what a launch has for its function, or NULL.
 */
#define NVTRACE_NAME 96 /* bytes of a name that are kept, with a zero */

struct nvtrace_name {
	char text[NVTRACE_NAME];
};

/* A kernel of a process: others may have another one by the same handle. */
struct __nvtrace_handle {
	__u64 f;
	__u32 pid, zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 14);
	__type(key, struct __nvtrace_handle);
	__type(value, struct nvtrace_name);
} nvtrace_kernels SEC(".maps");

/* The calls that threads are in: where they write a kernel, and its name, or the kernel it is of. */
struct __nvtrace_asked {
	__u64 to, of;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 12);
	__type(key, __u32);
	__type(value, struct __nvtrace_asked);
} nvtrace_asked SEC(".maps");

static __always_inline struct nvtrace_name *nvtrace_kernel(const void *f)
{
	struct __nvtrace_handle key = {(__u64)f, bpf_get_current_pid_tgid() >> 32, 0};
	return bpf_map_lookup_elem(&nvtrace_kernels, &key);
}

static __always_inline int __nvtrace_ask(__u64 to, __u64 of)
{
	struct __nvtrace_asked a = {to, of};
	__u32 thread = bpf_get_current_pid_tgid();
	bpf_map_update_elem(&nvtrace_asked, &thread, &a, 0);
	return 0;
}

static __always_inline int __nvtrace_answer(struct nvtrace_api *ctx, int named)
{
	struct nvtrace_name name = {}, *known = &name;
	struct __nvtrace_asked *a;
	__u64 id = bpf_get_current_pid_tgid();
	__u32 thread = id;
	struct __nvtrace_handle key = {0, id >> 32, 0};
	if ((__u32)ctx->ret || !(a = bpf_map_lookup_elem(&nvtrace_asked, &thread)))
		return 0;
	bpf_probe_read_user(&key.f, sizeof key.f, (void *)a->to);
	if (named)
		bpf_probe_read_user_str(&name, sizeof name, (void *)a->of);
	else if (!(known = nvtrace_kernel((void *)a->of)))
		return 0;
	bpf_map_update_elem(&nvtrace_kernels, &key, known, 0);
	return 0;
}

SEC("cuda.api/cuModuleGetFunction")
int nvtrace_function_asked(struct nvtrace_api *ctx) { return __nvtrace_ask(ctx->arg0, ctx->arg2); }
SEC("cuda.apiret/cuModuleGetFunction")
int nvtrace_function_given(struct nvtrace_api *ctx) { return __nvtrace_answer(ctx, 1); }
SEC("cuda.api/cuLibraryGetKernel")
int nvtrace_kernel_asked(struct nvtrace_api *ctx) { return __nvtrace_ask(ctx->arg0, ctx->arg2); }
SEC("cuda.apiret/cuLibraryGetKernel")
int nvtrace_kernel_given(struct nvtrace_api *ctx) { return __nvtrace_answer(ctx, 1); }
SEC("cuda.api/cuKernelGetFunction")
int nvtrace_same_asked(struct nvtrace_api *ctx) { return __nvtrace_ask(ctx->arg0, ctx->arg1); }
SEC("cuda.apiret/cuKernelGetFunction")
int nvtrace_same_given(struct nvtrace_api *ctx) { return __nvtrace_answer(ctx, 0); }
#endif

#endif
