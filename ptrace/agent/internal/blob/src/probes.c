// The part of the agent that runs programs at functions: as compiled eBPF, or whatever
// else keeps to the rules of struct program. See agent.c for the rules.
//
// A program is given the registers, in memory, and can't change them. To see a function return, its
// return address is replaced by probe_return and kept in the thread's list (struct rets), which is
// private, and not that of calls.c, so that both can watch one function.

#include "agent.h"

#define STR(x) STR1(x)
#define STR1(x) #x
#define HOOKS_AT 0x70100000

// Saves the registers as a struct pt_regs at (%rsp), but for sp, and ip, which is not
// known here; in front of them lie 8 bytes.
#define SAVE                                                                                                          \
	"	mov %r15,(%rsp)\n	mov %r14,8(%rsp)\n	mov %r13,16(%rsp)\n	mov %r12,24(%rsp)\n"                                  \
	"	mov %rbp,32(%rsp)\n	mov %rbx,40(%rsp)\n	mov %r11,48(%rsp)\n	mov %r10,56(%rsp)\n"                                  \
	"	mov %r9,64(%rsp)\n	mov %r8,72(%rsp)\n	mov %rax,80(%rsp)\n	mov %rcx,88(%rsp)\n"                                   \
	"	mov %rdx,96(%rsp)\n	mov %rsi,104(%rsp)\n	mov %rdi,112(%rsp)\n"                                                   \
	"	pushfq\n	pop 144(%rsp)\n	cld\n"                                                                                   \
	"	movq $-1,120(%rsp)\n	movq $0x33,136(%rsp)\n	movq $0x2b,160(%rsp)\n"

// Calls a function with the registers' address for its first argument.
#define CALL(f)                                                                                                       \
	"	mov %rsp,%rdi\n	mov %rsp,%rbp\n	and $-16,%rsp\n"                                                              \
	"	call " f "\n"                                                                                                   \
	"	mov %rbp,%rsp\n"

// Puts the registers back that functions may change, rbp, which CALL does, and the flags.
#define RESTORE                                                                                                       \
	FLAGS("144")                                                                                                        \
	"	mov 32(%rsp),%rbp\n	mov 48(%rsp),%r11\n	mov 56(%rsp),%r10\n	mov 64(%rsp),%r9\n	mov 72(%rsp),%r8\n"                 \
	"	mov 80(%rsp),%rax\n	mov 88(%rsp),%rcx\n	mov 96(%rsp),%rdx\n	mov 104(%rsp),%rsi\n	mov 112(%rsp),%rdi\n"

__asm__(
	".section .text.entry,\"ax\",@progbits\n"

	// At a function's entry, called with the number of the hook pushed. It returns
	// unless the function is to return at once.
	".globl probe_entry\n"
	"probe_entry:\n"
	"	lea -176(%rsp),%rsp\n" SAVE
	"	lea 192(%rsp),%rax\n	mov %rax,152(%rsp)\n" // sp
	"	mov 184(%rsp),%esi\n" CALL("agent_probe")
	"	test %eax,%eax\n"
	"	jnz 1f\n" RESTORE
	"	lea 176(%rsp),%rsp\n"
	"	ret\n"
	"1:" RESTORE
	"	lea 192(%rsp),%rsp\n"
	"	ret\n"

	// The same where the return is wanted, too, jumped to.
	".globl probe_watch\n"
	"probe_watch:\n"
	"	lea -176(%rsp),%rsp\n" SAVE
	"	lea 184(%rsp),%rax\n	mov %rax,152(%rsp)\n"
	"	mov 176(%rsp),%esi\n" CALL("agent_probe")
	"	test $1,%al\n"
	"	jnz 2f\n"
	"	mov 176(%rsp),%ecx\n	shl $8,%rcx\n" // sizeof(struct hook)
	"	mov " STR(HOOKS_AT) "(%rcx),%rcx\n" // orig
	"	mov %rcx,176(%rsp)\n"
	"	test $2,%al\n"
	"	jnz 1f\n" RESTORE
	"	lea 184(%rsp),%rsp\n"
	"	jmp *-8(%rsp)\n"
	"2:" RESTORE
	"	lea 184(%rsp),%rsp\n"
	"	ret\n"
	// As in hook_entry: the processor learns where the function will return to.
	"1:" RESTORE
	"	lea 192(%rsp),%rsp\n"
	"	call *-16(%rsp)\n"

	// Where it returns to. The return address is put back first, so that the call is seen
	// to be open still.
	".globl probe_return\n"
	"probe_return:\n"
	"	push $probe_return\n"
	"	lea -176(%rsp),%rsp\n" SAVE
	"	lea 184(%rsp),%rax\n	mov %rax,152(%rsp)\n" CALL("agent_returned") RESTORE
	"	lea 176(%rsp),%rsp\n"
	"	ret\n"

	// run_program(context, table, run, code): programs find the run behind their frame.
	".globl run_program\n"
	"run_program:\n"
	"	push %rbp\n	mov %rdx,%rbp\n	call *%rcx\n	pop %rbp\n	ret\n"
	".text\n");

extern struct result run_program(void *context, u64 table, struct run *run, u64 code);

// Runs programs, one after the other. Those that are switched off stay in the list.
static inline void run_all(const struct program *list, u32 n, void *context, struct run *run)
{
	u32 i;
	for (i = 0; i < n; i++) {
		const struct program *p = &list[i];
		struct result r;
		if (unlikely(!*(volatile u64 *)&p->on))
			continue;
		r = run_program(context, p->table, run, p->code);
		if (unlikely(r.end))
			__atomic_fetch_add((u64 *)p->counts + r.end, 1, __ATOMIC_RELAXED);
	}
}

// Whether nobody wants programs to run any more.
static inline int over(void) { return unlikely((*(volatile u64 *)&C->dead & 1) || (GATE && killed())); }

// The list of calls whose return is wanted is kept as that of hooked calls is, in calls.c:
// a signal handler may come at any time, and make calls of its own or jump away.

// Whether the return address of a call is still ours, as in calls.c.
static int in_place(u64 sp)
{
	u64 v;
	return !copy(&v, sp, 8) && (v == (u64)probe_return || v == (u64)return_entry);
}

// Forgets calls at the end of the list that were left by longjmp or an exception, as a
// call at sp tells; all: wherever in the list they are.
static inline void prune(struct rets *l, u64 sp, int all)
{
	u64 d, i, at;
	for (;;) {
		d = *(volatile u64 *)&l->depth;
		if (!d)
			return;
		at = *(volatile u64 *)&l->list[d - 1].sp;
		if (at && (at > sp || in_place(at)))
			break;
		if (at)
			__sync_bool_compare_and_swap(&l->list[d - 1].sp, at, 0);
		__sync_bool_compare_and_swap(&l->depth, d, d - 1);
	}
	for (i = 0; all && i < d; i++) {
		at = *(volatile u64 *)&l->list[i].sp;
		if (at && !in_place(at))
			__sync_bool_compare_and_swap(&l->list[i].sp, at, 0);
	}
}

// Makes a function return to probe_return. 0: the list is full.
static int watch(struct rets *l, u64 *ra, u64 number)
{
	u64 sp = (u64)ra, ret = *ra, at;
	struct ret *o;
	prune(l, sp, 0);
	at = *(volatile u64 *)&l->depth;
	if (unlikely(at >= NRETS)) { // a free place between others will do
		prune(l, sp, 1);
		for (at = 0; at < NRETS && !__sync_bool_compare_and_swap(&l->list[at].sp, 0, sp); at++)
			;
		if (at == NRETS)
			return 0;
		o = &l->list[at];
		*ra = (u64)probe_return;
		o->ret = ret;
		o->hook = number;
		return 1;
	}
	*(volatile u64 *)ra = (u64)probe_return; // first, or the call would look dead
	o = &l->list[at];
	do { // a handler that comes before the second store uses the same entry
		*(volatile u64 *)&o->sp = sp;
		barrier();
		*(volatile u64 *)&l->depth = at + 1;
		barrier();
	} while (*(volatile u64 *)&o->sp != sp);
	o->ret = ret;
	o->hook = number;
	return 1;
}

// Frees the places of calls that were left by longjmp or an exception in the list that threads share.
static __attribute__((noinline)) void prune_shared(void)
{
	struct rets *l = SHARED_RETS;
	u64 k, at;
	for (k = 0; k < NRETS; k++) {
		at = *(volatile u64 *)&l->list[k].sp;
		if (at && !in_place(at))
			__sync_bool_compare_and_swap(&l->list[k].sp, at, 0);
	}
}

// The same for a thread that has no slot: a child of fork whose limits of descriptors or memory leave no room for
// rings, or one of very many threads. The list is any thread's, and depth, which never falls, is how much of it
// was ever used. The return address is ours before its place is taken, and until that is given back, so that no
// other thread takes the call for one that was left.
static __attribute__((noinline)) int watch_shared(u64 *ra, u64 number)
{
	struct rets *l = SHARED_RETS;
	u64 sp = (u64)ra, ret = *ra, k, from = 0, tries, n = *(volatile u64 *)&l->depth;
	int jumped = in_place(sp); // by a function whose return is watched, too: this call returns first
	for (k = 0; k < n && k < NRETS; k++) {
		if (*(volatile u64 *)&l->list[k].sp != sp)
			continue;
		if (jumped)
			from = k + 1;
		else // it was left
			__sync_bool_compare_and_swap(&l->list[k].sp, sp, 0);
	}
	*(volatile u64 *)ra = (u64)probe_return;
	for (tries = 0; tries < 2; tries++) {
		for (k = from; k < NRETS; k++) {
			struct ret *o = &l->list[k];
			if (*(volatile u64 *)&o->sp || !__sync_bool_compare_and_swap(&o->sp, 0, sp))
				continue;
			o->ret = ret;
			o->hook = number;
			while ((n = *(volatile u64 *)&l->depth) <= k && !__sync_bool_compare_and_swap(&l->depth, n, k + 1))
				;
			return 1;
		}
		prune_shared();
	}
	*(volatile u64 *)ra = ret;
	return 0;
}

// The thread's slot, for which the supervisor is called if there is none yet.
static struct slot *slot_for_probe(void)
{
	struct slot *sl = find_slot();
	if (likely(sl))
		return sl;
	trap(GATE ? TRAP_SLOT : TRAP_START, 0);
	return find_slot();
}

// At the entry of a function. Returns 1 if it is to return at once, 2 if its return is
// watched, 3 for both.
__attribute__((used)) u32 agent_probe(struct pt_regs *r, u64 number)
{
	const struct hook *h = &HOOKS[number % NHOOKS];
	const struct probe *p = (const struct probe *)*(volatile u64 *)&h->probe;
	struct run run = {.regs = r, .func = h->entry, .entered = 1};
	u32 does = 0;
	if (unlikely(!p || !(h->flags & HOOK_ON) || r->sp - C->own < OWN_SIZE || over()))
		return 0;
	if (unlikely(C->times)) {
		const struct slot *sl = find_slot();
		if (sl && times_busy(sl, r->sp))
			return 0;
	}
	r->ip = run.func;
	if (p->returns) {
		struct slot *sl = slot_for_probe();
		if (likely(sl) ? watch(rets_of(sl), (u64 *)r->sp, number) : watch_shared((u64 *)r->sp, number))
			does = 2;
		else
			__atomic_fetch_add((u64 *)p->list[p->entries].counts, 1, __ATOMIC_RELAXED);
	}
	run_all(p->list, p->entries, r, &run);
	if (unlikely(run.overridden)) {
		r->ax = run.value;
		does |= 1;
	}
	return does;
}

// Finds the call that returns in a list.
static inline struct ret *find_in(struct rets *l, u64 sp)
{
	u64 k;
	for (k = l->depth; k-- > 0;)
		if (k < NRETS && l->list[k].sp == sp)
			return &l->list[k];
	return 0;
}

// Finds the call that returns in this thread's list, or, if the thread has changed
// meanwhile, in any.
static inline struct ret *find_ret(struct rets **l, u64 sp)
{
	struct slot *own = find_slot();
	struct ret *o;
	u64 i, n = C->slots < NSLOTS ? C->slots : NSLOTS;
	*l = likely(own) ? rets_of(own) : SHARED_RETS;
	if (likely(o = find_in(*l, sp)))
		return o;
	*l = SHARED_RETS; // a thread may have got its slot since
	if ((o = find_in(*l, sp)))
		return o;
	for (i = 0; i < n; i++) {
		*l = (struct rets *)RETS_ADDR + i;
		if ((o = find_in(*l, sp)))
			return o;
	}
	return 0;
}

// At the return from a function, whose return address it puts in place.
__attribute__((used)) void agent_returned(struct pt_regs *r)
{
	u64 sp = r->sp - 8, d;
	struct rets *l;
	struct ret *o = find_ret(&l, sp), was;
	const struct hook *h;
	const struct probe *p;
	struct run run = {.regs = r};
	if (unlikely(!o))
		__builtin_trap(); // nobody knows where to return to
	was = *o;
	barrier();
	*(volatile u64 *)&o->sp = 0;
	while (l != SHARED_RETS && (d = *(volatile u64 *)&l->depth) > 0 && (d > NRETS || !*(volatile u64 *)&l->list[d - 1].sp))
		*(volatile u64 *)&l->depth = d - 1;
	*(u64 *)sp = was.ret;
	h = &HOOKS[was.hook % NHOOKS];
	p = (const struct probe *)*(volatile u64 *)&h->probe;
	if (unlikely(!p || !(h->flags & HOOK_ON) || over()))
		return;
	r->ip = was.ret;
	run.func = h->entry;
	run_all(p->list + p->entries, p->returns, r, &run);
}

// --- system calls

// Runs programs at a call. Callers are listed from where the program is: call_entry has put %rbp below
// the registers; above them, behind words more, is where the stub goes on, which ends as call_fde says.
// It lies with the programs, as the agent's code has little room.
__attribute__((section(".prog"), noinline, used)) void run_call(const struct program *list, u32 n, const struct regs *g, u64 words, struct call *c, struct run *run)
{
	const u64 *above = (const u64 *)(g + 1) + words;
	struct pt_regs r = {0};
	r.bp = ((const u64 *)g)[-1];
	r.ip = *above + 13 + *(const int *)(*above + 9);
	r.sp = (u64)(above + 1) + 128;
	run->regs = &r;
	c->common = 0;
	c->tid = ids_of(run);
	run_all(list, n, c, run);
}

// Runs programs at a call's end, with its result. words is how many words call_entry has pushed above the
// registers.
static __attribute__((noinline)) long called(const struct regs *g, u64 nr, long ret, u64 words)
{
	const struct probe *p = (const struct probe *)(CALLS[nr % NCALLS] & ~CALL_FLAGS);
	struct run run = {0};
	struct call c;
	if (!p || !p->returns || over())
		return ret;
	c.nr = nr;
	c.args[0] = ret;
	run_call(p->list + p->entries, p->returns, g, words, &c, &run);
	return ret;
}

// After a system call, whose number call_entry has put above the registers. Returns its result.
__attribute__((used)) long agent_called(const struct regs *g, u64 nr, long ret) { return called(g, nr, ret, 1); }

// A call's result; or its number, if it is to be made, and agent_called is to be told.
struct made {
	long ret;
	u64 make;
};

// In place of a system call. One at which programs run is made by call_entry itself, with nothing of
// this function on the stack, unless it is recorded or the supervisor wants it: a thread may be in it for ever,
// be cancelled there, or have the stack unwound by a signal handler that throws.
__attribute__((used)) struct made agent_call(struct regs *g, u64 nr)
{
	u64 wanted = nr < NCALLS ? CALLS[nr] : 0;
	const struct probe *p = (const struct probe *)(wanted & ~CALL_FLAGS);
	struct run run = {0};
	if (likely(!p) || C->stops || over())
		return (struct made){recorded_call(g, nr), 0};
	if (p->entries) {
		struct call c = {.nr = nr, .args = {g->rdi, g->rsi, g->rdx, g->r10, g->r8, g->r9}};
		run_call(p->list, p->entries, g, 0, &c, &run);
		if (unlikely(run.overridden))
			return (struct made){called(g, nr, run.value, 0), 0};
	}
	if (!(wanted & CALL_ASKED) && !((wanted & CALL_CODE) && (g->rdx & 4 /* PROT_EXEC */)))
		return (struct made){nr, 1};
	return (struct made){called(g, nr, recorded_call(g, nr), 0), 0};
}

_Static_assert(sizeof(struct rets) == 4096 * sizeof(struct ret), "rets");
_Static_assert(RETS_ADDR + (NSLOTS + 1) * sizeof(struct rets) <= PROGRAM_ADDR, "rets");
_Static_assert(HOOKS_AT == HOOK_ADDR && sizeof(struct pt_regs) == 168, "assembler");
