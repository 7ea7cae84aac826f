// What the two halves of the agent have in common. See agent.c.

#include "layout.h"

#define C ((struct conf *)CONF_ADDR)
#define GATE (*(volatile u64 *)GATE_ADDR)
#define KEYS ((struct key *)KEYS_ADDR)
#define HOOKS ((struct hook *)HOOK_ADDR)
#define CALLS ((volatile u64 *)CALLS_ADDR)
#define S ((struct shared *)SHARED_ADDR)

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define barrier() __asm__ volatile("" ::: "memory")

#define EINVAL 22
#define ENOSYS 38

// Whether the supervisor has been killed, where there are rings. Then nothing is recorded,
// as nobody would repair the fault of a copy.
static inline int killed(void) { return unlikely(*(volatile u32 *)&S->owner & OWNER_DIED); }

// Numbers of system calls.
#define NR_OPEN 2u
#define NR_CLOSE 3u
#define NR_FSTAT 5u
#define NR_MMAP 9u
#define NR_SIGPROCMASK 14u
#define NR_IOCTL 16u
#define NR_SCHED_YIELD 24u
#define NR_DUP 32u
#define NR_DUP2 33u
#define NR_GETPID 39u
#define NR_FCNTL 72u
#define NR_GETUID 102u
#define NR_GETGID 104u
#define NR_PRCTL 157u
#define NR_GETTID 186u
#define NR_OPENAT 257u
#define NR_NEWFSTATAT 262u
#define NR_DUP3 292u

// Puts the flags back that lie at an offset from rsp, with rax for it. popf would take ten times as long,
// and a thread that is stepped over pushf has saved one more.
#define FLAGS(at)                                                                                                     \
	"	mov " at "(%rsp),%eax\n"                                                                                          \
	"	test $0x400,%eax\n	jz 9f\n	std\n" /* direction */                                                                 \
	"9:	shr $11,%eax\n	and $1,%al\n	add $0x7f,%al\n" /* overflow */                                                     \
	"	mov " at "(%rsp),%ah\n	sahf\n" /* the others */

struct regs {
	u64 r10, r9, r8, rdx, rsi, rdi;
};

struct frame { // of a hooked call
	u64 r10, r9, r8, rcx, rdx, rsi, rdi, rax;
	u64 hook;
	u64 ret;
	u64 stack[];
};

struct rframe { // of its return
	u64 rdx, rax, ret;
};

extern long sys_in(const struct regs *r, u64 nr);
extern long sys_out(const struct regs *r, u64 nr);

// A call that is not the program's. A program that confines itself may have it killed for one that it never
// makes itself: then there is none, and the result is -ENOSYS, which none of these calls has otherwise. Which
// calls they are, with their first arguments, is in confine.go, too.
extern long sys_own(const struct regs *r, u64 nr);

// The call by which the supervisor is called. -ENOSYS, too, if there is none that the program allows.
extern long sys_bell(const struct regs *r);
extern u64 thread_pointer(void);
extern char return_entry[], probe_return[];

// Copies what can be read, and returns how much is left.
extern u64 copy(void *to, u64 from, u64 n);

// Copies a string up to its end, never from a page that it does not reach.
extern u32 copy_string(u8 *to, u64 from, u32 n);

// The supervisor stops at this call, and writes that it did. Returns whether there is
// one.
extern int trap(u64 why, u64 what);

// Asks the supervisor who this thread is. 0: there is none.
extern int ask_who(struct who *w);

// The call as it would be without the agent: the filter sees it.
extern long plain(const struct regs *r, u64 nr);

// The process and the thread, as bpf_get_current_pid_tgid has them.
extern u64 ids_of(struct run *run);

// Makes a call, and records it if it is of interest.
extern long recorded_call(struct regs *g, u64 nr);

// Makes a call that opens a file, or is about a descriptor.
extern long file_call(const struct regs *g, u64 nr);

// An argument of a hooked call, counted as struct deref does.
extern u64 argument(const struct frame *f, u32 i);

// Records calls that were only counted so far, as something else of this thread is about to be recorded.
extern void record_open(struct slot *sl);
static inline void record_outer(struct slot *sl)
{
	u64 n = sl->depth;
	if (n && n <= NOPEN && unlikely((sl->open[n - 1].begin & COUNTED) && (sl->open[n - 1].how & OPEN_INNER)))
		record_open(sl);
}

// A hooked call that returns.
struct leaving {
	u64 sp, hook;
	u64 ret; // 0: it has succeeded
};

// Of calls that have the GPU do something: see times.c.
extern int times_busy(const struct slot *sl, u64 sp); // the agent calls the driver

// What is noted of a system call that the driver makes within a call of the agent's.
static inline u8 own_work(const struct slot *sl, const struct regs *g)
{
	return unlikely(C->times) && times_busy(sl, (u64)(g + 1)) ? F_OWN : 0;
}

extern void times_enter(struct slot *sl, struct frame *f);
extern void times_began(const struct slot *sl, u64 sp, u64 begin);
extern void times_waits(struct slot *sl, const struct frame *f); // for the GPU
extern void times_ends(struct slot *sl, struct frame *f); // a context
extern void times_ended(struct slot *sl, u64 sp, u64 hook);
extern void times_leave(struct slot *sl, struct leaving *l);

// The clock that records are ordered by, in ns, by the vdso: no system call.
static inline u64 now(void)
{
	u64 ts[2];
	((long (*)(long, u64 *))C->clock)(1 /* CLOCK_MONOTONIC */, ts);
	return ts[0] * 1000000000ul + ts[1];
}

// The processor's counter.
static inline u64 ticks(void)
{
	u32 lo, hi;
	__asm__ volatile("rdtsc" : "=a"(lo), "=d"(hi));
	return (u64)hi << 32 | lo;
}

// How many ns so many ticks of the processor's counter are.
static inline u64 scaled(u64 ticks) { return (u64)((unsigned __int128)ticks * C->scale >> 32); }

// For how many ticks after the clock was read times are reckoned by the processor's counter, some 50 us: C->scale
// may be off by 1 / 10,000. And for how many a reading of the clock takes at most that was not interrupted.
#define SOON (1ul << 17)
#define WHOLE (1ul << 10)

extern u64 read_clock(struct slot *sl);

// A thread's times never go back. A signal handler may come in between anywhere, last any time and leave
// newer numbers, so last is what was last before the clock was read, and it is not replaced by what is
// before it.
static inline u64 forward(struct slot *sl, u64 last, u64 at)
{
	if (unlikely(last - at < 100000))
		at = last;
	if (likely(*(volatile u64 *)&sl->last < at))
		*(volatile u64 *)&sl->last = at;
	return at;
}

// The time by now(), which costs three times as much: by the processor's counter where the clock was read
// just before. It may be off by what the reading of the clock took, some 0.1 us, so it is for what only
// the thread itself does; what it does to things that it shares with others has moment.
static inline u64 stamp(struct slot *sl)
{
	u64 t, last;
	if (unlikely(!C->scale))
		return now();
	last = *(volatile u64 *)&sl->last;
	barrier();
	t = ticks();
	if (unlikely(t - *(volatile u64 *)&sl->ticks >= SOON))
		return forward(sl, last, read_clock(sl));
	barrier();
	return forward(sl, last, scaled(t) + *(volatile u64 *)&sl->ahead);
}

// The time by now(), in order with what stamp returned in this thread.
static inline u64 moment(struct slot *sl)
{
	u64 last = *(volatile u64 *)&sl->last;
	barrier();
	return forward(sl, last, now());
}

// This thread's slot; 0: it has none. An entry that was taken out has 1 for its slot, and does not end the
// search.
static inline struct slot *find_slot(void)
{
	u64 tp = thread_pointer();
	u32 i = (u32)(((tp >> 4) * 0x9e3779b97f4a7c15ul) >> 51);
	u32 n;
	if (!tp)
		return 0;
	for (n = 0; n < NKEYS; n++, i = (i + 1) % NKEYS) {
		struct key *k = &KEYS[i];
		u64 s = *(volatile u64 *)&k->slot;
		if (!s)
			return 0;
		if (k->tp == tp && s != 1)
			return (struct slot *)s;
	}
	return 0;
}

// What a program returns: end is 0, or which of its ends has ended it.
struct result {
	u64 r0, end;
};

// The list of threads that have no slot, which they share: see watch_shared.
#define SHARED_RETS ((struct rets *)RETS_ADDR + NSLOTS)

// The list of a slot's thread, of calls that programs wait for the return of.
static inline struct rets *rets_of(const struct slot *sl)
{
	return (struct rets *)(RETS_ADDR + ((u64)sl - SLOT_ADDR) / sizeof *sl * sizeof(struct rets));
}

// Copies memory that is there.
static inline void cpy(void *to, const void *from, u64 n)
{
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n)::"memory");
}

static inline u64 up(u64 n, u64 to) { return (n + to - 1) & -to; }

// Exchanges a number of this thread's that nobody else writes: only a signal handler can
// come in between, so that the bus need not be locked, which would wait for all stores.
static inline int swap_own(u64 *p, u64 old, u64 to)
{
	u8 done;
	__asm__ volatile("cmpxchg %3,%1\n sete %0" : "=q"(done), "+m"(*p), "+a"(old) : "r"(to) : "memory", "cc");
	return done;
}

static inline void prefetch_write(u64 addr) { __asm__ volatile("prefetchw (%0)" ::"r"(addr)); }

// How far ahead of what is written the ring's memory is fetched: the supervisor has it
// in its cache.
#define AHEAD 384u

// Reserves a record of size bytes, 0 if there is no room. A signal handler that
// reserves in between makes the exchange fail. Only then the record is ours to
// write; that its header is there the reader sees by its pos. But for calls and
// returns, all of it can be seen before anything is read that comes later; theirs in
// a moment, for which the reader waits.
static inline struct record *reserve(struct slot *sl, u32 size, u32 state, u32 kind, u32 nseg, u64 w4, u64 w5)
{
	// The supervisor may exchange the ring while a signal handler is at work: head and
	// memory must be those of one.
	struct rhead *h = (struct rhead *)*(volatile u64 *)&sl->head;
	u64 ring = RING_ADDR + (u64)(h - S->rings) * RING_SIZE;
	size = up(size, 64);
	for (;;) {
		u64 at = *(volatile u64 *)&h->head;
		u64 off = at % RING_SIZE;
		u32 n = size, st = state, k = kind;
		struct record *r = (struct record *)(ring + off);
		if (unlikely(off + size > RING_SIZE)) { // does not fit before the end: skip that
			n = RING_SIZE - off;
			st = VOID;
			k = K_PAD;
		}
		if (unlikely(at + n - *(volatile u64 *)&h->tail > RING_SIZE))
			return 0;
		if (!swap_own(&h->head, at, at + n))
			continue;
		*(volatile u64 *)&r->state = (u64)n << 32 | (u64)nseg << 16 | k << 8 | st;
		if (k != K_PAD) {
			if (kind != K_RETURN) {
				r->args[0] = w4;
				r->args[1] = w5;
			}
			r->begin = 0;
		}
		barrier();
		if (kind == K_CALL || kind == K_RETURN) {
			*(volatile u64 *)&r->pos = at;
			prefetch_write(ring + (off + AHEAD) % RING_SIZE);
			if (kind == K_CALL)
				prefetch_write(ring + (off + AHEAD + 64) % RING_SIZE);
		} else {
			__atomic_exchange_n(&r->pos, at, __ATOMIC_SEQ_CST);
		}
		if (likely(k != K_PAD))
			return r;
	}
}

// Whether the supervisor has given a record up, to make room for a handler's.
static inline int given_up(const struct record *r)
{
	return S->rings[((u64)r - RING_ADDR) / RING_SIZE].tail > r->pos;
}

// What was written to the record before is there when the state is: x86-64 keeps stores in order.
static inline void set_state(struct record *r, u8 state)
{
	barrier();
	*(volatile u8 *)&r->state = state;
}

// Ordered before what follows: the reader concludes from an older state that the
// time was not yet taken.
static inline void set_state_ordered(struct record *r, u8 state)
{
	__atomic_exchange_n(&r->state, state, __ATOMIC_SEQ_CST);
}
