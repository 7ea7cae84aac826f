// The agent: code that the supervisor puts into a traced process. See the
// package comment of nvtrace/ptrace/agent. Rules for all of it: no library, no
// thread-local storage, no floating point or vector registers, little stack, and
// safe against a signal handler that does the same, or jumps away, at any point.

#include "agent.h"

// Numbers of layout.h, as the assembler takes them.
#define STR(x) STR1(x)
#define STR1(x) #x
#define HOOKS_AT 0x70100000
#define STUBS_AT 0x7002d000
#define STUBS_N 256
#define TRAP_REQ 0x4e565452
#define WHY_BREAK 7
#define WHY_RETURN 8
#define WHY_STOP 4
#define WHY_FAILED 10
#define BELL_AT 0x7000a060
#define SILENT_AT 0x7000a068
#define ARGUMENTS                                                                                                     \
	"	mov 0(%r11),%r10\n	mov 8(%r11),%r9\n	mov 16(%r11),%r8\n"                                                    \
	"	mov 24(%r11),%rdx\n	mov 32(%r11),%rsi\n	mov 40(%r11),%rdi\n"

// Registers that functions may change, from r10 on as struct frame has them, and the flags. Direction
// is what C code expects.
#define PUSHES                                                                                                        \
	"	push %rax\n	push %rdi\n	push %rsi\n	push %rdx\n	push %rcx\n	push %r8\n	push %r9\n	push %r10\n	push %r11\n"       \
	"	pushfq\n	cld\n"
#define POPS                                                                                                          \
	FLAGS("")                                                                                                           \
	"	lea 8(%rsp),%rsp\n"                                                                                              \
	"	pop %r11\n	pop %r10\n	pop %r9\n	pop %r8\n	pop %rcx\n	pop %rdx\n	pop %rsi\n	pop %rdi\n	pop %rax\n"

// Entry points. The syscall instructions of sys_in and call_entry lie in the exempt page,
// that of sys_out outside of it.
__asm__(
	".section .text.in,\"ax\",@progbits\n"
	".globl sys_in\n"
	"sys_in:\n" // rdi: registers of the call; rsi: its number
	"	mov %rdi,%r11\n	mov %rsi,%rax\n" ARGUMENTS
	"	syscall\n	ret\n"
	// Between the check and the call, the supervisor takes a thread to own_not when the program is
	// about to confine itself. A result that comes later is none.
	".globl sys_own\n"
	".globl own_check\n"
	".globl own_insn\n"
	".globl own_not\n"
	"sys_own:\n"
	"	mov %rdi,%r11\n	mov %rsi,%rax\n" ARGUMENTS
	"own_check:\n"
	"	cmpl $0," STR(SILENT_AT) "\n"
	"	jne own_not\n"
	"own_insn:\n"
	"	syscall\n"
	"	cmpl $0," STR(SILENT_AT) "\n"
	"	jne own_not\n"
	"	ret\n"
	"own_not:\n"
	"	mov $-38,%rax\n	ret\n" // -ENOSYS
	".section .agent.out,\"ax\",@progbits\n"
	".globl sys_out\n"
	"sys_out:\n"
	"	mov %rdi,%r11\n	mov %rsi,%rax\n" ARGUMENTS
	"	syscall\n	ret\n"
	// A thread that has loaded the number, but not made the call, is taken back when that changes.
	".globl sys_bell\n"
	".globl bell_load\n"
	".globl bell_insn\n"
	"sys_bell:\n"
	"	mov %rdi,%r11\n" ARGUMENTS
	"bell_load:\n"
	"	movslq " STR(BELL_AT) ",%rax\n"
	"	test %eax,%eax\n"
	"	js 1f\n"
	"bell_insn:\n"
	"	syscall\n"
	"	ret\n"
	"1:	mov $-38,%rax\n	ret\n"

	// In place of `syscall`, with the number in eax: changes what syscall does, rax,
	// rcx and r11, and the flags. At call_insn the stack and all registers are as described
	// in call_fde, where a thread may be for long.
	".section .text.in,\"ax\",@progbits\n"
	".globl call_entry\n"
	".globl call_insn\n"
	"call_entry:\n"
	"	push %rdi\n	push %rsi\n	push %rdx\n	push %r8\n	push %r9\n	push %r10\n"
	"	mov %rsp,%rdi\n	mov %eax,%esi\n"
	"	push %rbp\n	mov %rsp,%rbp\n	and $-16,%rsp\n"
	"	call agent_call\n"
	"	mov %rbp,%rsp\n	pop %rbp\n"
	"	pop %r10\n	pop %r9\n	pop %r8\n"
	"	test %edx,%edx\n"
	"	pop %rdx\n	pop %rsi\n	pop %rdi\n"
	"	jnz 1f\n"
	"	ret\n"
	"1:	push %rax\n" // the number
	"call_insn:\n"
	"	syscall\n"
	"	push %rdi\n	push %rsi\n	push %rdx\n	push %r8\n	push %r9\n	push %r10\n"
	"	mov %rsp,%rdi\n	mov 48(%rsp),%rsi\n	mov %rax,%rdx\n"
	"	push %rbp\n	mov %rsp,%rbp\n	and $-16,%rsp\n"
	"	call agent_called\n"
	"	mov %rbp,%rsp\n	pop %rbp\n"
	"	pop %r10\n	pop %r9\n	pop %r8\n	pop %rdx\n	pop %rsi\n	pop %rdi\n"
	"	lea 8(%rsp),%rsp\n"
	"	ret\n"

	".section .text.entry,\"ax\",@progbits\n"

	// At a hooked function's entry, with the number of the hook pushed, in whose
	// place the address to go on at is put. No register changes: within one library
	// compilers know of a function which it leaves alone (-fipa-ra). Nor do flags, which
	// hand-written code may take for arguments.
	".globl hook_entry\n"
	"hook_entry:\n"
	PUSHES
	"	lea 16(%rsp),%rdi\n"
	"	push %rbp\n	mov %rsp,%rbp\n	and $-16,%rsp\n"
	"	call agent_enter\n"
	"	mov %rbp,%rsp\n	pop %rbp\n"
	"	mov %rax,80(%rsp)\n"
	"	test %rdx,%rdx\n"
	"	jnz hook_stop\n"
	"hook_on:\n"
	"	cmpq $return_entry,88(%rsp)\n"
	"	je 1f\n" POPS
	"	lea 8(%rsp),%rsp\n"
	"	jmp *-8(%rsp)\n"
	// A call puts the same return address into the same place, and tells the processor
	// where the function will return to.
	"1:" POPS
	"	lea 16(%rsp),%rsp\n"
	"	call *-16(%rsp)\n"

	// Where a hooked function returns to. The return address is put back first, so
	// that the call is seen to be open still.
	".globl return_entry\n"
	"return_entry:\n"
	"	push $return_entry\n"
	"	push %rax\n	push %rdx\n"
	"	push %rdi\n	push %rsi\n	push %rcx\n	push %r8\n	push %r9\n	push %r10\n	push %r11\n"
	"	pushfq\n	cld\n"
	"	xor %esi,%esi\n"
	"2:	lea 64(%rsp),%rdi\n"
	"	push %rbp\n	mov %rsp,%rbp\n	and $-16,%rsp\n"
	"	call agent_leave\n"
	"	mov %rbp,%rsp\n	pop %rbp\n"
	"	test %eax,%eax\n"
	"	jnz 3f\n" FLAGS("")
	"	lea 8(%rsp),%rsp\n"
	"	pop %r11\n	pop %r10\n	pop %r9\n	pop %r8\n	pop %rcx\n	pop %rsi\n	pop %rdi\n"
	"	pop %rdx\n	pop %rax\n	ret\n"
	// It stops first, with the call still open.
	"3:	lea 64(%rsp),%rdx\n"
	"	mov $" STR(WHY_FAILED) ",%ecx\n"
	"	call break_trap\n"
	"	mov $1,%esi\n"
	"	jmp 2b\n"

	// A hooked function's call that stops, rdx - 1 being where its record is. It stops here
	// and not in what records, since here the registers that calls preserve are the program's, by
	// which its callers are found.
	"hook_stop:\n"
	"	dec %rdx\n"
	"	mov $" STR(WHY_STOP) ",%ecx\n"
	"	call break_trap\n"
	"	jmp hook_on\n"

	// In place of a breakpoint at a function's entry: as hook_entry, but all that is
	// done is a stop, with the address of the frame, if the hook wants it. At the stop
	// the registers that are not in the frame are the program's.
	".globl break_entry\n"
	"break_entry:\n" PUSHES
	"	mov 80(%rsp),%ecx\n"
	"	shl $8,%rcx\n" // sizeof(struct hook)
	"	add $" STR(HOOKS_AT) ",%rcx\n"
	"	testb $8,16(%rcx)\n" // flags, HOOK_BREAK
	"	jz 1f\n"
	"	lea 16(%rsp),%rdx\n"
	"	push %rcx\n"
	"	mov $" STR(WHY_BREAK) ",%ecx\n"
	"	call break_trap\n"
	"	pop %rcx\n"
	"1:	mov (%rcx),%rax\n" // orig
	"	mov %rax,80(%rsp)\n" POPS
	"	lea 8(%rsp),%rsp\n"
	"	jmp *-8(%rsp)\n"

	// Stops with the reason ecx, about rdx. The words are struct regs.
	"break_trap:\n"
	"	mov $0xffffffff,%eax\n	push %rax\n" // rdi: TRAP_FD
	"	push $" STR(TRAP_REQ) "\n" // rsi
	"	push %rcx\n" // rdx
	"	push $0\n	push $0\n" // r8, r9
	"	push %rdx\n" // r10
	"	mov %rsp,%rdi\n"
	"	movabs $sys_bell,%rax\n"
	"	call *%rax\n"
	"	add $48,%rsp\n"
	"	ret\n"

	// Where a call returns to whose return is wanted, in place of its caller: stub i
	// goes on at STUBS_ADDR[i].
	".balign 8\n"
	".globl break_stubs\n"
	"break_stubs:\n"
	".rept " STR(STUBS_N) "\n"
	"	call break_return\n"
	".balign 8\n"
	".endr\n"
	"break_return:\n" PUSHES
	"	lea 16(%rsp),%rdx\n"
	"	mov $" STR(WHY_RETURN) ",%ecx\n"
	"	call break_trap\n"
	"	mov 80(%rsp),%rax\n"
	"	movabs $break_stubs+5,%rcx\n"
	"	sub %rcx,%rax\n" // 8 * i
	"	mov " STR(STUBS_AT) "(%rax),%rax\n"
	"	mov %rax,80(%rsp)\n" POPS
	"	ret\n"

	// copy_blindly(to, from, n) returns what is left. The supervisor takes a fault of the
	// one instruction for its end.
	".globl copy_blindly\n"
	".globl copy_insn\n"
	"copy_blindly:\n"
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

extern u64 copy_blindly(void *to, u64 from, u64 n);

// Whether a page can be read. What the kernel has said once is remembered. Where it can't be asked, the
// supervisor repairs the fault of a copy, as long as there is one.
static inline int readable(u64 addr)
{
	volatile u64 *known = (volatile u64 *)PAGES_ADDR + (addr >> 12) % NPAGES;
	u64 page = (addr >> 12) + 1;
	// A system call that does nothing, but copies first what its argument points to.
	struct regs r = {.rdi = ~0u, .rsi = addr & ~7ul, .r10 = 8};
	if (likely(*known == page))
		return 1;
	switch (sys_own(&r, NR_SIGPROCMASK)) {
	case -EINVAL:
		*known = page;
		return 1;
	case -ENOSYS:
		return !(C->dead & 1) && !(GATE && killed());
	}
	return 0;
}

// A page that has come to be unmapped since the kernel was asked about it is the supervisor's
// to notice, which may just have been killed.
u64 copy(void *to, u64 from, u64 n)
{
	u64 can = 0;
	while (can < n && readable(from + can))
		can += 4096 - (from + can) % 4096;
	if (unlikely(can < n))
		return n - can + copy_blindly(to, from, can);
	return copy_blindly(to, from, n);
}

// Calls for the supervisor: a system call that its filter stops, on a descriptor that there is none of.
// Returns 0 if there is no supervisor. That is seen by the word that it has not set, and noted, so that the
// next call is spared; with the number of the supervisor, as another one may have come meanwhile.
int trap(u64 why, u64 what)
{
	u64 of = *(volatile u64 *)&C->dead;
	volatile u64 served = 0;
	struct regs r = {.rdi = TRAP_FD, .rsi = TRAP_REQUEST, .rdx = why, .r10 = what, .r8 = (u64)&served};
	if (of & 1)
		return 0;
	sys_bell(&r);
	barrier();
	if (!served && (int)C->bell >= 0)
		__sync_bool_compare_and_swap(&C->dead, of, of | 1); // unless there is another one by now
	return served;
}

int ask_who(struct who *w)
{
	*w = (struct who){0};
	return trap(TRAP_WHO, (u64)w);
}

// Makes a system call so that the supervisor sees it, if there is one. If there is none, the filter that
// it has left behind makes the call fail with ENOSYS; then it is made here.
long plain(const struct regs *r, u64 nr)
{
	long ret;
	u64 of = *(volatile u64 *)&C->dead;
	if (unlikely(of & 1))
		return sys_in(r, nr);
	ret = sys_out(r, nr);
	if (unlikely(ret == -ENOSYS) && !trap(TRAP_PROBE, 0)) {
		ret = sys_in(r, nr); // it was the filter's answer, and the call was not made
		if (ret == -ENOSYS)
			__sync_bool_compare_and_swap(&C->dead, of | 1, of); // or that of a filter of the program's own
	}
	return ret;
}

// Finds the rule for a request on a kind of descriptor; 0: the supervisor is to see it.
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

// How long the memory is that the argument's pointer leads to: by a table, which says so for each command
// of a control, or as the argument claims.
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

// Memory that pointers in a second segment lead to.
struct further {
	u64 addr[NPOINTERS];
	u32 len[NPOINTERS];
	u32 n, data;
};

// Finds it; 0: that is for the supervisor.
static int further(struct further *m, const struct nested *d, u64 addr, u32 size)
{
	u8 b[NESTED_SIZE] __attribute__((aligned(8)));
	u32 i;
	if (size != d->size || size > sizeof b || d->n > NPOINTERS || copy(b, addr, size))
		return 0;
	for (i = 0; i < d->n; i++) {
		u64 p = *(u64 *)(b + d->at[i].ptr % (NESTED_SIZE - 7));
		u64 n = (u64)*(u32 *)(b + d->at[i].count % (NESTED_SIZE - 3)) * d->at[i].elem;
		if (!p || !n)
			continue;
		if (n > NESTED_MAX || m->data + up(n, 8) > NESTED_MAX)
			return 0;
		m->addr[m->n] = p;
		m->len[m->n++] = n;
		m->data += up(n, 8);
	}
	return 1;
}

// In place of the system call ioctl. What is not plain is left to plain(), which makes the call in a way
// that stops for the supervisor, and which must come before the call itself: there is no way back
// from it. Memory is copied before and after, into the record at once. The kind of the descriptor is looked
// at twice, since another thread may close it; see below.
static long agent_ioctl(struct regs *g)
{
	u32 fd = g->rdi, request = g->rsi;
	u64 arg = g->rdx, ptr = 0;
	u8 small[64] __attribute__((aligned(8)));
	const struct plan *p;
	const struct rule *rule;
	struct slot *sl;
	struct further more;
	struct record *r;
	struct seg *seg;
	u32 n0, n1 = 0, d0, d1, nseg, at, i;
	u8 kind;
	long ret;

	if (!GATE || fd >= NFDS || killed())
		return plain(g, NR_IOCTL);
	kind = *(volatile u8 *)&S->kinds[fd];
	if (!kind || *(volatile u64 *)&S->armed)
		return plain(g, NR_IOCTL);
	sl = find_slot();
	if (!sl || !sl->ring || sl->off)
		return plain(g, NR_IOCTL);
	record_outer(sl);
	p = (const struct plan *)C->plan;
	rule = find_rule(p, kind, request);
	if (!rule)
		return plain(g, NR_IOCTL);
	more.n = more.data = 0;
	n0 = arg ? rule->size : 0;
	if (n0 && rule->follow) {
		if (n0 > sizeof small || copy(small, arg, n0))
			return plain(g, NR_IOCTL);
		if (rule->flags != 0xff && (*(u32 *)(small + rule->flags) & rule->mask))
			return plain(g, NR_IOCTL);
		if (rule->null != 0xff && *(u64 *)(small + rule->null))
			return plain(g, NR_IOCTL);
		ptr = *(u64 *)(small + rule->ptr);
		n1 = length_of(p, rule, small);
		if (n1 == LEN_SLOW)
			return plain(g, NR_IOCTL);
		if (n1 >= LEN_NESTED && n1 < LEN_EMPTY) {
			u32 k = n1 - LEN_NESTED;
			n1 = rule->len == 0xff ? 0 : *(u32 *)(small + rule->len);
			if (ptr && n1 && (k >= NNESTED || !further(&more, &p->nested[k], ptr, n1)))
				return plain(g, NR_IOCTL);
		}
		if (!ptr)
			n1 = 0;
		if (n1 > rule->max)
			return plain(g, NR_IOCTL);
	}
	nseg = !!n0 + !!n1 + more.n;
	d0 = up(n0, 8);
	d1 = up(n1, 8);
	at = sizeof *r + nseg * sizeof *seg;
	r = reserve(sl, at + 2 * (d0 + d1 + more.data), FILLING, K_IOCTL, nseg, g->rdi, g->rsi);
	if (!r)
		return plain(g, NR_IOCTL);
	// The supervisor withdraws a descriptor before it looks at the rings: either
	// it sees this record, or we see that.
	if (*(volatile u8 *)&S->kinds[fd] != kind)
		goto no;
	r->flags = own_work(sl, g);
	r->file = *(volatile u32 *)&S->file[fd];
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
	at += 2 * (d0 + d1);
	for (i = 0; i < more.n; i++) {
		u32 n = more.len[i], d = up(n, 8);
		seg[2 + i] = (struct seg){more.addr[i], n, n, 0, at, at + d, 0};
		if (copy((u8 *)r + at, more.addr[i], n))
			goto no;
		at += 2 * d;
	}
	at = sizeof *r + nseg * sizeof *seg;
	r->begin = moment(sl);
	set_state(r, INCALL);
	ret = sys_in(g, NR_IOCTL);
	set_state_ordered(r, ENDING);
	if (unlikely(given_up(r)))
		return ret;
	r->end = moment(sl);
	r->ret = ret;
	if (n0)
		seg[0].out = n0 - copy((u8 *)r + at + d0 + d1, arg, n0);
	if (n1)
		seg[1].out = n1 - copy((u8 *)r + at + 2 * d0 + d1, ptr, n1);
	for (i = 0; i < more.n; i++)
		seg[2 + i].out = more.len[i] - copy((u8 *)r + seg[2 + i].outoff, more.addr[i], more.len[i]);
	set_state(r, DONE);
	return ret;
no:
	set_state(r, VOID);
	return plain(g, NR_IOCTL);
}

long recorded_call(struct regs *g, u64 nr)
{
	if (unlikely(C->stops))
		return plain(g, nr);
	if (likely(nr == NR_IOCTL))
		return agent_ioctl(g);
	return file_call(g, nr);
}

_Static_assert(BELL_AT == CONF_ADDR + __builtin_offsetof(struct conf, bell), "assembler");
_Static_assert(SILENT_AT == CONF_ADDR + __builtin_offsetof(struct conf, silent), "assembler");

// The table that the Go side is compared with.
__attribute__((used, section(".layout"))) const u64 layout[] = {
	BASE, CONF_ADDR, KEYS_ADDR, PLAN_ADDR, HOOK_ADDR, ONCE_ADDR, SLOT_ADDR, SHARED_ADDR, RING_ADDR, END_ADDR,
	NSLOTS, NKEYS, NHOOKS, NFDS, RING_SIZE, NONCE, NOPEN, NRULES, NTABLES, NENTRIES,
	sizeof(struct conf), sizeof(struct key), sizeof(struct open), sizeof(struct slot), sizeof(struct rhead),
	sizeof(struct shared), sizeof(struct rule), sizeof(struct plan), sizeof(struct deref), sizeof(struct hook),
	sizeof(struct record), sizeof(struct seg),
	TRAP_FD, TRAP_REQUEST, sizeof(struct path), NPATHS, PATHS_ADDR, NDEVICES,
	NNESTED, NPOINTERS, NESTED_SIZE, sizeof(struct nested),
	GATE_ADDR, STUBS_ADDR, NSTUBS, PAGES_ADDR, NPAGES,
	PROGRAM_ADDR, RETS_ADDR, sizeof(struct rets), sizeof(struct program), sizeof(struct map),
	__builtin_offsetof(struct hook, probe), __builtin_offsetof(struct slot, ids),
	COUNT_ADDR, NCOUNTS, NBUCKETS, sizeof(struct count), sizeof(struct seen), CALLS_ADDR, NCALLS,
	TIMES_ADDR, sizeof(struct times), sizeof(struct timer), __builtin_offsetof(struct shared, untimed), __builtin_offsetof(struct conf, times), __builtin_offsetof(struct hook, subject), __builtin_offsetof(struct hook, every), __builtin_offsetof(struct conf, scale),
	__builtin_offsetof(struct times, timers), __builtin_offsetof(struct timer, first), __builtin_offsetof(struct timer, next), __builtin_offsetof(struct timer, list),
	sizeof(struct work), NWORKS, WORK_LEFT, __builtin_offsetof(struct open, hook),
	__builtin_offsetof(struct conf, own), OWN_SIZE,
	FILES_ADDR, sizeof(struct files), sizeof(struct file), NFILES, __builtin_offsetof(struct files, list), NRETS, sizeof(struct ret), __builtin_offsetof(struct rets, list),
};

_Static_assert(SHARED_ADDR + sizeof(struct shared) <= COUNT_ADDR && COUNT_ADDR + NCOUNTS * sizeof(struct count) <= RING_ADDR, "counts");
_Static_assert(NCOUNTS == 1 << (64 - 52), "counter");

_Static_assert(HOOKS_AT == HOOK_ADDR && STUBS_AT == STUBS_ADDR && STUBS_N == NSTUBS && TRAP_REQ == TRAP_REQUEST, "assembler");
_Static_assert(WHY_BREAK == TRAP_BREAK && WHY_RETURN == TRAP_RETURN && WHY_STOP == TRAP_STOP && WHY_FAILED == TRAP_FAILED && HOOK_BREAK == 8 && sizeof(struct hook) == 256, "assembler");
_Static_assert(RETS_ADDR + (NSLOTS + 1) * sizeof(struct rets) <= FILES_ADDR && FILES_ADDR + sizeof(struct files) <= PROGRAM_ADDR, "files");
_Static_assert(STUBS_ADDR + NSTUBS * 8 <= PAGES_ADDR && PAGES_ADDR + NPAGES * 8 <= CALLS_ADDR, "stubs");
_Static_assert(CALLS_ADDR + NCALLS * 8 <= PLAN_ADDR, "calls");

_Static_assert(__builtin_offsetof(struct record, args) == SHORT_RECORD && sizeof(struct record) == 128, "record");
_Static_assert(PATHS_ADDR + NPATHS * sizeof(struct path) <= KEYS_ADDR, "paths");
_Static_assert(sizeof(struct conf) <= PATHS_ADDR - CONF_ADDR, "conf");
_Static_assert(SLOT_ADDR + NSLOTS * sizeof(struct slot) <= END_ADDR, "slots");
_Static_assert(__builtin_offsetof(struct shared, next) == 24 && __builtin_offsetof(struct shared, owner) == 32, "owner");
_Static_assert(SHARED_ADDR + sizeof(struct shared) <= RING_ADDR, "shared");
_Static_assert(RING_ADDR + (u64)NSLOTS * RING_SIZE <= TIMES_ADDR, "rings");
_Static_assert(HOOK_ADDR + NHOOKS * sizeof(struct hook) <= ONCE_ADDR, "hooks");
_Static_assert(PLAN_ADDR + 2 * sizeof(struct plan) <= HOOK_ADDR, "plans");
_Static_assert(KEYS_ADDR + NKEYS * sizeof(struct key) <= GATE_ADDR, "keys");
