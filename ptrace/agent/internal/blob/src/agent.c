// The agent: code that the supervisor puts into a traced process. See the
// package comment of nvtrace/ptrace/agent. Rules for all of it: no library, no
// thread-local storage, no floating point or vector registers, little stack, and
// safe against a signal handler that does the same, or jumps away, at any point.

#include "layout.h"

#define C ((struct conf *)CONF_ADDR)
#define KEYS ((struct key *)KEYS_ADDR)
#define HOOKS ((struct hook *)HOOK_ADDR)
#define S ((struct shared *)SHARED_ADDR)

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define barrier() __asm__ volatile("" ::: "memory")

#define NR_IOCTL 16
#define ENOSYS 38

// Entry points. The first syscall instruction lies in the exempt page, the
// second outside of it.
__asm__(
	".section .text.in,\"ax\",@progbits\n"
	".globl sys_in\n"
	"sys_in:\n" // rdi: registers of the call
	"	mov %rdi,%r11\n"
	"	mov 0(%r11),%r10\n	mov 8(%r11),%r9\n	mov 16(%r11),%r8\n"
	"	mov 24(%r11),%rdx\n	mov 32(%r11),%rsi\n	mov 40(%r11),%rdi\n"
	"	mov $16,%eax\n	syscall\n	ret\n"
	".section .agent.out,\"ax\",@progbits\n"
	".globl sys_out\n"
	"sys_out:\n"
	"	mov %rdi,%r11\n"
	"	mov 0(%r11),%r10\n	mov 8(%r11),%r9\n	mov 16(%r11),%r8\n"
	"	mov 24(%r11),%rdx\n	mov 32(%r11),%rsi\n	mov 40(%r11),%rdi\n"
	"	mov $16,%eax\n	syscall\n	ret\n"

	// In place of `mov $16,%eax; syscall`: changes what syscall does, rax, rcx and r11.
	".section .text.entry,\"ax\",@progbits\n"
	".globl ioctl_entry\n"
	"ioctl_entry:\n"
	"	push %rdi\n	push %rsi\n	push %rdx\n	push %r8\n	push %r9\n	push %r10\n"
	"	mov %rsp,%rdi\n"
	"	push %rbp\n	mov %rsp,%rbp\n	and $-16,%rsp\n"
	"	call agent_ioctl\n"
	"	mov %rbp,%rsp\n	pop %rbp\n"
	"	pop %r10\n	pop %r9\n	pop %r8\n	pop %rdx\n	pop %rsi\n	pop %rdi\n"
	"	ret\n"

	// At a hooked function's entry, with the number of the hook pushed, in whose
	// place the address to go on at is put. No register changes: within one library
	// compilers know of a function which it leaves alone (-fipa-ra).
	".globl hook_entry\n"
	"hook_entry:\n"
	"	push %rax\n	push %rdi\n	push %rsi\n	push %rdx\n	push %rcx\n	push %r8\n	push %r9\n	push %r10\n	push %r11\n"
	"	lea 8(%rsp),%rdi\n"
	"	push %rbp\n	mov %rsp,%rbp\n	and $-16,%rsp\n"
	"	call agent_enter\n"
	"	mov %rbp,%rsp\n	pop %rbp\n"
	"	mov %rax,72(%rsp)\n"
	"	pop %r11\n	pop %r10\n	pop %r9\n	pop %r8\n	pop %rcx\n	pop %rdx\n	pop %rsi\n	pop %rdi\n	pop %rax\n"
	"	lea 8(%rsp),%rsp\n"
	"	jmp *-8(%rsp)\n"

	// Where a hooked function returns to. The return address is put back first, so
	// that the call is seen to be open still.
	".globl return_entry\n"
	"return_entry:\n"
	"	push $return_entry\n"
	"	push %rax\n	push %rdx\n"
	"	push %rdi\n	push %rsi\n	push %rcx\n	push %r8\n	push %r9\n	push %r10\n	push %r11\n"
	"	lea 56(%rsp),%rdi\n"
	"	push %rbp\n	mov %rsp,%rbp\n	and $-16,%rsp\n"
	"	call agent_leave\n"
	"	mov %rbp,%rsp\n	pop %rbp\n"
	"	pop %r11\n	pop %r10\n	pop %r9\n	pop %r8\n	pop %rcx\n	pop %rsi\n	pop %rdi\n"
	"	pop %rdx\n	pop %rax\n	ret\n"

	// copy(to, from, n) copies what can be read and returns what is left. The
	// supervisor takes a fault of the one instruction for its end.
	".globl copy\n"
	".globl copy_insn\n"
	"copy:\n"
	"	mov %rdx,%rcx\n"
	"copy_insn:\n"
	"	rep movsb\n"
	"	mov %rcx,%rax\n	ret\n"

	// thread_pointer() is 0 where there is none: a fault is skipped.
	".globl thread_pointer\n"
	".globl tp_insn\n"
	"thread_pointer:\n"
	"	xor %eax,%eax\n"
	"tp_insn:\n"
	"	mov %fs:0,%rax\n"
	"	ret\n"
	".text\n");

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

extern long sys_in(const struct regs *r);
extern long sys_out(const struct regs *r);
extern u64 copy(void *to, u64 from, u64 n);
extern u64 thread_pointer(void);
extern char return_entry[];

static inline u64 now(void)
{
	u64 ts[2];
	((long (*)(long, u64 *))C->clock)(1 /* CLOCK_MONOTONIC */, ts);
	return ts[0] * 1000000000ul + ts[1];
}

// The supervisor stops at this call. Returns whether there is one.
static __attribute__((noinline)) int trap(u64 why, u64 what)
{
	struct regs r = {.rdi = TRAP_FD, .rsi = TRAP_REQUEST, .rdx = why, .r10 = what};
	if (C->dead)
		return 0;
	if (sys_out(&r) == -ENOSYS) {
		C->dead = 1;
		return 0;
	}
	return 1;
}

// The call as it would be without the agent: the filter sees it.
static __attribute__((noinline)) long plain(const struct regs *r)
{
	long ret;
	if (unlikely(C->dead))
		return sys_in(r);
	ret = sys_out(r);
	if (unlikely(ret == -ENOSYS) && !trap(TRAP_PROBE, 0)) {
		ret = sys_in(r); // it was the filter's answer, and the call was not made
		if (ret == -ENOSYS)
			C->dead = 0; // or that of a filter of the program's own
	}
	return ret;
}

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

static inline void cpy(void *to, const void *from, u64 n)
{
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n)::"memory");
}

static inline u64 up(u64 n, u64 to) { return (n + to - 1) & -to; }

// Reserves a record of size bytes, 0 if there is no room. A signal handler that
// reserves in between makes the exchange fail. Only then the record is ours to
// write; that its header is there the reader sees by its pos. All of it can be
// seen before anything is read that comes later.
static inline struct record *reserve(struct slot *sl, u32 size, u32 state, u32 kind, u32 nseg, u64 w4, u64 w5)
{
	struct rhead *h = (struct rhead *)sl->head;
	size = up(size, 64);
	for (;;) {
		u64 at = *(volatile u64 *)&h->head;
		u64 off = at % RING_SIZE;
		u32 n = size, st = state, k = kind;
		struct record *r = (struct record *)(sl->ring + off);
		if (unlikely(off + size > RING_SIZE)) { // does not fit before the end: skip that
			n = RING_SIZE - off;
			st = VOID;
			k = K_PAD;
		}
		if (unlikely(at + n - *(volatile u64 *)&h->tail > RING_SIZE))
			return 0;
		if (!__sync_bool_compare_and_swap(&h->head, at, at + n))
			continue;
		*(volatile u64 *)&r->state = (u64)n << 32 | (u64)nseg << 16 | k << 8 | st;
		if (k != K_PAD) {
			r->args[0] = w4;
			r->args[1] = w5;
			r->begin = 0;
		}
		barrier();
		__atomic_exchange_n(&r->pos, at, __ATOMIC_SEQ_CST);
		if (likely(k != K_PAD))
			return r;
	}
}

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

static inline const struct rule *find_rule(const struct plan *p, u32 kind, u32 request)
{
	u32 i = (request ^ kind << 24) * 0x9e3779b1u >> 23, n;
	for (n = 0; n < NRULES; n++, i = (i + 1) % NRULES) {
		const struct rule *r = &p->rules[i];
		if (!r->kind)
			return 0;
		if (r->request == request && r->kind == kind)
			return r;
	}
	return 0;
}

static inline u32 length_of(const struct plan *p, const struct rule *r, const u8 *arg)
{
	u32 v, i, n, len = r->deflt;
	if (r->select != 0xff) {
		v = *(const u32 *)(arg + r->select);
		i = v * 0x9e3779b1u >> 21;
		for (n = 0; n < NENTRIES; n++, i = (i + 1) % NENTRIES) {
			u32 l = p->tables[r->table % NTABLES][i].len;
			if (l == LEN_EMPTY)
				break;
			if (p->tables[r->table % NTABLES][i].value == v) {
				len = l;
				break;
			}
		}
	}
	if (len == LEN_CLAIMED)
		len = r->len == 0xff ? 0 : *(const u32 *)(arg + r->len);
	return len;
}

// In place of the system call.
__attribute__((used)) long agent_ioctl(struct regs *g)
{
	u32 fd = g->rdi, request = g->rsi;
	u64 arg = g->rdx, ptr = 0;
	u8 small[64] __attribute__((aligned(8)));
	const struct plan *p;
	const struct rule *rule;
	struct slot *sl;
	struct record *r;
	struct seg *seg;
	u32 n0, n1 = 0, d0, d1, nseg, at;
	u8 kind;
	long ret;

	if (!C->gate || fd >= NFDS)
		return plain(g);
	kind = *(volatile u8 *)&S->kinds[fd];
	if (!kind || *(volatile u64 *)&S->armed)
		return plain(g);
	p = (const struct plan *)C->plan;
	rule = find_rule(p, kind, request);
	if (!rule)
		return plain(g);
	sl = find_slot();
	if (!sl || !sl->ring || sl->off)
		return plain(g);
	n0 = arg ? rule->size : 0;
	if (n0 && rule->follow) {
		if (n0 > sizeof small || copy(small, arg, n0))
			return plain(g);
		if (rule->flags != 0xff && (*(u32 *)(small + rule->flags) & rule->mask))
			return plain(g);
		if (rule->null != 0xff && *(u64 *)(small + rule->null))
			return plain(g);
		ptr = *(u64 *)(small + rule->ptr);
		n1 = length_of(p, rule, small);
		if (n1 == LEN_SLOW)
			return plain(g);
		if (!ptr)
			n1 = 0;
		if (n1 > rule->max)
			return plain(g);
	}
	nseg = !!n0 + !!n1;
	d0 = up(n0, 8);
	d1 = up(n1, 8);
	at = sizeof *r + nseg * sizeof *seg;
	r = reserve(sl, at + 2 * (d0 + d1), FILLING, K_IOCTL, nseg, g->rdi, g->rsi);
	if (!r)
		return plain(g);
	// The supervisor withdraws a descriptor before it looks at the rings: either
	// it sees this record, or we see that.
	if (*(volatile u8 *)&S->kinds[fd] != kind)
		goto no;
	r->args[2] = arg;
	r->args[3] = g->r10;
	r->args[4] = g->r8;
	r->args[5] = g->r9;
	r->sp = (u64)(g + 1);
	seg = (struct seg *)(r + 1);
	if (n0) {
		seg[0] = (struct seg){arg, n0, n0, 0, at, at + d0 + d1, 0};
		if (rule->follow)
			cpy((u8 *)r + at, small, n0);
		else if (copy((u8 *)r + at, arg, n0))
			goto no;
	}
	if (n1) {
		seg[1] = (struct seg){ptr, n1, n1, 0, at + d0, at + 2 * d0 + d1, 0};
		if (copy((u8 *)r + at + d0, ptr, n1))
			goto no;
	}
	r->begin = now();
	set_state(r, INCALL);
	ret = sys_in(g);
	set_state_ordered(r, ENDING);
	if (unlikely(((struct rhead *)sl->head)->tail > r->pos))
		return ret; // given up by the supervisor, to make room for a handler's
	r->end = now();
	r->ret = ret;
	if (n0)
		seg[0].out = n0 - copy((u8 *)r + at + d0 + d1, arg, n0);
	if (n1)
		seg[1].out = n1 - copy((u8 *)r + at + 2 * d0 + d1, ptr, n1);
	set_state(r, DONE);
	return ret;
no:
	set_state(r, VOID);
	return plain(g);
}

// Whether v was in the set; adds it. A full set forgets nothing, and takes
// nothing more.
static inline int seen(u64 set, u64 v)
{
	u64 *s = (u64 *)set;
	u32 i = (u32)((v >> 4) * 0x9e3779b97f4a7c15ul >> 51), n;
	if (!v)
		v = ~0ul;
	for (n = 0; n < 64; n++, i = (i + 1) % NONCE) {
		u64 old = *(volatile u64 *)&s[i];
		if (likely(old == v))
			return 1;
		if (old)
			continue;
		old = __sync_val_compare_and_swap(&s[i], 0, v);
		if (!old)
			return 0;
		if (old == v)
			return 1;
	}
	return 0;
}

static inline u64 argument(const struct frame *f, u32 i)
{
	u64 v;
	switch (i) {
	case 0:
		return f->rdi;
	case 1:
		return f->rsi;
	case 2:
		return f->rdx;
	case 3:
		return f->rcx;
	case 4:
		return f->r8;
	case 5:
		return f->r9;
	}
	if (copy(&v, (u64)&f->stack[i - 6], 8))
		return 0;
	return v;
}

static inline u32 deref_length(const struct frame *f, const struct deref *d)
{
	u64 n;
	if (!d->lenarg)
		return d->len;
	n = argument(f, d->lenarg - 1);
	if (n >= d->len)
		return d->len;
	n *= d->unit;
	return n < d->len ? n : d->len;
}

// Copies a string up to its end, never from a page that it does not reach.
static u32 copy_string(u8 *to, u64 from, u32 n)
{
	u32 got = 0;
	while (got < n) {
		u32 room = 4096 - (from + got) % 4096, i;
		u32 k = n - got < room ? n - got : room, have;
		if (k > 64)
			k = 64;
		have = k - copy(to + got, from + got, k);
		for (i = 0; i < have; i++)
			if (!to[got + i])
				return got + i + 1;
		got += have;
		if (have < k)
			break;
	}
	return got;
}

static inline struct record *reserve_call(struct slot *sl, u32 size, u32 kind, u32 nseg)
{
	struct record *r;
	u32 tries = 0;
	while (!(r = reserve(sl, size, ENDING, kind, nseg, 0, 0))) {
		if (!trap(TRAP_FULL, 0) || !C->gate)
			return 0;
		if (++tries == 20000) { // it stops us, but does nothing: it is broken
			C->dead = 1;
			return 0;
		}
	}
	r->flags = 0;
	return r;
}

static void write_return(struct slot *sl, const struct open *o, u64 ret, u32 flags)
{
	u32 n = 0, data = 0, i, at;
	struct record *r;
	struct seg *seg;
	if (!flags)
		for (i = 0; i < 4; i++)
			if (o->out[i].addr) {
				n++;
				data += up((u32)o->out[i].len, 8);
			}
	at = sizeof *r + n * sizeof *seg;
	r = reserve_call(sl, at + data, K_RETURN, n);
	if (!r)
		return;
	r->flags = flags;
	r->begin = o->begin;
	r->end = now();
	r->ret = ret;
	r->hook = o->hook;
	r->caller = o->ret;
	r->sp = o->sp;
	seg = (struct seg *)(r + 1);
	for (i = 0; n && i < 4; i++) {
		u32 len = o->out[i].len, room = up(len, 8), got;
		if (!o->out[i].addr)
			continue;
		if (o->out[i].len >> 32) {
			got = copy_string((u8 *)r + at, o->out[i].addr, len);
			if (got && !((u8 *)r)[at + got - 1])
				len = got;
		} else
			got = len - copy((u8 *)r + at, o->out[i].addr, len);
		*seg++ = (struct seg){o->out[i].addr, len, 0, got, 0, at, 0};
		at += room;
	}
	set_state(r, DONE);
}

// The list of open calls. Any of this may be interrupted by a signal handler that
// makes calls of its own: it leaves the list as it was, but for entries that were
// free or dead, or it never comes back. So an entry, once it is valid (its sp is
// set, and it lies below depth), never moves, and all that changes what others may
// see is done by single stores. Entries from depth on are free, and have sp 0.

static void shrink(struct slot *sl)
{
	u64 d;
	while ((d = *(volatile u64 *)&sl->depth) > 0 && (d > NOPEN || !*(volatile u64 *)&sl->open[d - 1].sp))
		*(volatile u64 *)&sl->depth = d - 1;
}

// Whether the return address of an open call is still in its place. It is the
// proof that the call has not been left by longjmp, or as good as: what lies there
// otherwise is somebody else's, and this word is in no other.
static int in_place(const struct open *o)
{
	u64 v;
	return !copy(&v, o->sp, 8) && v == (u64)return_entry;
}

// Forgets calls that will not return, as far as a call at sp tells.
static void prune(struct slot *sl, u64 sp, int all)
{
	u64 n = sl->depth, i;
	for (i = 0; i < n && i < NOPEN; i++) {
		struct open *o = &sl->open[i], was;
		u64 at = *(volatile u64 *)&o->sp;
		if (!at || (at > sp && !all))
			continue; // an outer frame: alive
		cpy(&was, o, sizeof was);
		if (was.sp != at || in_place(&was) || !__sync_bool_compare_and_swap(&o->sp, at, 0))
			continue;
		if (C->gate && sl->ring && !sl->off)
			write_return(sl, &was, 0, F_UNFINISHED);
	}
	shrink(sl);
}

// Makes the function return to us. 0: not possible.
static struct open *watch(struct slot *sl, struct frame *f, const struct hook *h, u64 begin)
{
	u64 sp = (u64)&f->ret, ret = f->ret, at;
	u32 i, n;
	struct open *o;
	if (sl->depth >= NOPEN)
		prune(sl, sp, 1);
	at = *(volatile u64 *)&sl->depth;
	if (at >= NOPEN)
		return 0;
	f->ret = (u64)return_entry; // first, or the call would look dead
	o = &sl->open[at];
	do { // a handler that comes before the second store uses the same entry
		*(volatile u64 *)&o->sp = sp;
		barrier();
		*(volatile u64 *)&sl->depth = at + 1;
		barrier();
	} while (*(volatile u64 *)&o->sp != sp);
	o->ret = ret;
	o->hook = f->hook;
	o->begin = begin;
	for (i = n = 0; i < h->nderef && i < 8 && n < 4; i++) {
		const struct deref *d = &h->deref[i];
		u64 a;
		if (!(d->flags & DEREF_OUT))
			continue;
		a = argument(f, d->arg);
		o->out[n].addr = a ? a + d->off : 0;
		o->out[n].len = deref_length(f, d) | (d->flags & DEREF_STRING ? 1ul << 32 : 0);
		n++;
	}
	for (; n < 4; n++)
		o->out[n].addr = 0;
	return o;
}

static void write_call(struct slot *sl, struct frame *f, const struct hook *h)
{
	u64 addr[8], caller = f->ret, pos;
	u32 len[8], n = 0, data = 0, at, i, words = h->words * 8;
	struct record *r;
	struct open *o = 0;
	struct seg *seg;
	if ((h->flags & HOOK_RETURN) && sl->depth)
		prune(sl, (u64)&f->ret, 0);
	for (i = 0; i < h->nderef && i < 8; i++) {
		const struct deref *d = &h->deref[i];
		addr[i] = 0;
		if (!(d->flags & DEREF_IN))
			continue;
		addr[i] = argument(f, d->arg);
		if (!addr[i])
			continue;
		addr[i] += d->off;
		len[i] = deref_length(f, d);
		n++;
		data += up(len[i], 8);
	}
	at = sizeof *r + (n + !!words) * sizeof *seg;
	r = reserve_call(sl, at + words + data, K_CALL, n + !!words);
	if (!r)
		return;
	r->begin = r->end = now();
	if (h->flags & HOOK_RETURN)
		o = watch(sl, f, h, r->begin);
	r->flags = o ? 0 : F_NORETURN;
	r->args[0] = f->rdi;
	r->args[1] = f->rsi;
	r->args[2] = f->rdx;
	r->args[3] = f->rcx;
	r->args[4] = f->r8;
	r->args[5] = f->r9;
	r->hook = f->hook;
	r->caller = caller;
	r->sp = (u64)&f->ret;
	seg = (struct seg *)(r + 1);
	if (words) {
		u32 got = words - copy((u8 *)r + at, (u64)f->stack, words);
		*seg++ = (struct seg){(u64)f->stack, words, got, 0, at, 0, 0};
		at += words;
	}
	for (i = 0; n && i < h->nderef && i < 8; i++) {
		u32 room, got;
		if (!addr[i])
			continue;
		room = up(len[i], 8);
		if (h->deref[i].flags & DEREF_STRING) {
			got = copy_string((u8 *)r + at, addr[i], len[i]);
			if (got && !((u8 *)r)[at + got - 1])
				len[i] = got;
		} else
			got = len[i] - copy((u8 *)r + at, addr[i], len[i]);
		*seg++ = (struct seg){addr[i], len[i], got, 0, at, 0, 0};
		at += room;
	}
	pos = r->pos;
	set_state(r, DONE);
	if (h->flags & HOOK_STOP)
		trap(TRAP_STOP, pos);
	else if (unlikely(*(volatile u64 *)&S->armed))
		trap(TRAP_WAKE, 0);
}

// At the entry of a hooked function. Returns where to go on.
__attribute__((used)) u64 agent_enter(struct frame *f)
{
	const struct hook *h = &HOOKS[f->hook % NHOOKS];
	struct slot *sl;
	if ((h->flags & HOOK_ONCE) && seen(h->once, f->rdi))
		return h->orig;
	if (unlikely(C->dead))
		return h->orig;
	if (unlikely(!C->gate)) {
		trap(TRAP_START, 0);
		if (!C->gate) {
			trap(TRAP_CALL, (u64)f);
			return h->orig;
		}
	}
	sl = find_slot();
	if (unlikely(!sl)) {
		trap(TRAP_SLOT, 0);
		sl = find_slot();
	}
	if (unlikely(!sl || !sl->ring || sl->off)) {
		trap(TRAP_CALL, (u64)f);
		return h->orig;
	}
	write_call(sl, f, h);
	return h->orig;
}

// Finds the call that returns in this thread's slot, or, if the thread has
// changed meanwhile, in any.
static struct open *find_open(struct slot **sl, u64 sp)
{
	u64 i, k, n = C->slots < NSLOTS ? C->slots : NSLOTS;
	if (*sl)
		for (k = (*sl)->depth; k-- > 0;)
			if (k < NOPEN && (*sl)->open[k].sp == sp)
				return &(*sl)->open[k];
	for (i = 0; i < n; i++) {
		struct slot *o = (struct slot *)SLOT_ADDR + i;
		for (k = o->depth; k-- > 0;)
			if (k < NOPEN && o->open[k].sp == sp) {
				*sl = o;
				return &o->open[k];
			}
	}
	return 0;
}

// At the return of a hooked function.
__attribute__((used)) void agent_leave(struct rframe *f)
{
	u64 sp = (u64)&f->ret;
	struct slot *own = find_slot(), *sl = own;
	struct open *o = find_open(&sl, sp), was;
	if (unlikely(!o))
		__builtin_trap(); // nobody knows where to return to
	cpy(&was, o, sizeof was);
	barrier();
	*(volatile u64 *)&o->sp = 0;
	shrink(sl);
	f->ret = was.ret;
	if (C->gate && !C->dead && own && own->ring && !own->off)
		write_return(own, &was, f->rax, 0);
}

// The table that the Go side is compared with.
__attribute__((used, section(".layout"))) const u64 layout[] = {
	BASE, CONF_ADDR, KEYS_ADDR, PLAN_ADDR, HOOK_ADDR, ONCE_ADDR, SLOT_ADDR, SHARED_ADDR, RING_ADDR, END_ADDR,
	NSLOTS, NKEYS, NHOOKS, NFDS, RING_SIZE, NONCE, NOPEN, NRULES, NTABLES, NENTRIES,
	sizeof(struct conf), sizeof(struct key), sizeof(struct open), sizeof(struct slot), sizeof(struct rhead),
	sizeof(struct shared), sizeof(struct rule), sizeof(struct plan), sizeof(struct deref), sizeof(struct hook),
	sizeof(struct record), sizeof(struct seg),
	TRAP_FD, TRAP_REQUEST,
};

_Static_assert(SLOT_ADDR + NSLOTS * sizeof(struct slot) <= SHARED_ADDR, "slots");
_Static_assert(SHARED_ADDR + sizeof(struct shared) <= RING_ADDR, "shared");
_Static_assert(RING_ADDR + (u64)NSLOTS * RING_SIZE <= END_ADDR, "rings");
_Static_assert(HOOK_ADDR + NHOOKS * sizeof(struct hook) <= ONCE_ADDR, "hooks");
_Static_assert(PLAN_ADDR + 2 * sizeof(struct plan) <= HOOK_ADDR, "plans");
_Static_assert(KEYS_ADDR + NKEYS * sizeof(struct key) <= PLAN_ADDR, "keys");
