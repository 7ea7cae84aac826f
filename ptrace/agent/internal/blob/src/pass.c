// The part of the agent that makes system calls that open files or are about
// descriptors, without the supervisor if they are none of its business. See agent.c
// for the rules.

#include "agent.h"

// How much of a path is looked at: a longer one is left to the supervisor.
#define PATH 192u

static inline int begins(const u8 *s, const u8 *prefix)
{
	while (*prefix)
		if (*s++ != *prefix++)
			return 0;
	return 1;
}

// Whether opening a path is of no interest.
static int dull_path(u64 addr)
{
	u8 path[PATH];
	u64 paths = C->paths;
	u32 have = 0, n = 0, base = 0, i;
	if (!paths || paths > NPATHS)
		return 0;
	for (;;) { // up to its end, and never from a page that it does not reach
		u32 k = 64 - (addr + have) % 64;
		if (k > PATH - have)
			k = PATH - have;
		if (!k || copy(path + have, addr + have, k))
			return 0;
		have += k;
		for (; n < have && path[n]; n++)
			if (path[n] == '/')
				base = n + 1;
		if (n < have)
			break;
	}
	for (i = 0; i < paths; i++) {
		const struct path *p = (const struct path *)PATHS_ADDR + i;
		u32 at;
		if (!begins(path, p->prefix))
			continue;
		for (at = p->base ? base : 0; at <= (p->base ? base : n); at++)
			if (begins(path + at, p->part))
				return 0;
	}
	return 1;
}

static inline u8 held(u64 fd)
{
	return (u32)fd < NFDS ? *(volatile u8 *)&S->held[(u32)fd] : HELD_BUSY;
}

// Whether a descriptor can't be a device's, whether the supervisor knows or not.
static int dull_file(u64 fd)
{
	u64 st[18]; // struct stat
	struct regs r = {.rdi = fd, .rsi = (u64)st};
	if (held(fd))
		return 0;
	return sys_in(&r, NR_FSTAT) || ((u32)st[3] & 0170000) != 0020000 /* st_mode, S_IFCHR */;
}

// Whether a call is no business of the supervisor's.
static int passes(const struct regs *g, u64 nr)
{
	switch (nr) {
	case NR_CLOSE:
		return !held(g->rdi);
	case NR_MMAP:
		return !(g->rdx & 4 /* PROT_EXEC */) && ((u32)g->r8 == ~0u || dull_file(g->r8));
	case NR_DUP2:
	case NR_DUP3:
		if (held(g->rsi))
			return 0;
		return dull_file(g->rdi);
	case NR_DUP:
		return dull_file(g->rdi);
	case NR_FCNTL:
		if ((u32)g->rsi != 0 /* F_DUPFD */ && (u32)g->rsi != 1030 /* F_DUPFD_CLOEXEC */)
			return 1;
		return dull_file(g->rdi);
	}
	return 0;
}

// Makes a mapping of a device, and records it.
static long map(struct slot *sl, const struct regs *g)
{
	struct record *r = reserve(sl, sizeof *r, FILLING, K_SYSCALL, 0, g->r8, g->rsi);
	long ret;
	if (!r)
		return plain(g, NR_MMAP);
	// As for ioctls: the supervisor sees this record, or we see that the descriptor
	// changes.
	if (held(g->r8) != HELD_DEVICE) {
		set_state(r, VOID);
		return plain(g, NR_MMAP);
	}
	r->hook = NR_MMAP;
	r->caller = g->rdi; // in its place is the descriptor
	r->args[2] = g->rdx;
	r->args[3] = g->r10;
	r->args[4] = g->r8;
	r->args[5] = g->r9;
	r->sp = (u64)(g + 1);
	r->begin = now();
	set_state(r, INCALL);
	ret = sys_in(g, NR_MMAP);
	set_state_ordered(r, ENDING);
	if (unlikely(((struct rhead *)sl->head)->tail > r->pos))
		return ret;
	r->end = now();
	r->ret = ret;
	set_state(r, DONE);
	return ret;
}

long file_call(const struct regs *g, u64 nr)
{
	struct slot *sl;
	if (unlikely(C->dead))
		return sys_in(g, nr);
	if (nr == NR_OPENAT || nr == NR_OPEN)
		return dull_path(nr == NR_OPEN ? g->rdi : g->rsi) ? sys_in(g, nr) : plain(g, nr);
	if (!C->gate)
		return plain(g, nr);
	sl = find_slot();
	if (!sl || !sl->ring || sl->off)
		return plain(g, nr); // a vfork child, perhaps, with descriptors of its own
	if (nr == NR_MMAP && C->maps && !*(volatile u64 *)&S->armed && !(g->rdx & 4 /* PROT_EXEC */) && held(g->r8) == HELD_DEVICE)
		return map(sl, g);
	return passes(g, nr) ? sys_in(g, nr) : plain(g, nr);
}
