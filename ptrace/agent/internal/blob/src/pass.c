// The part of the agent that makes system calls that open files or are about
// descriptors, without the supervisor if they are none of its business. See agent.c
// for the rules.
//
// Each call has one of three ways. What can't be about a device is made here, and leaves no trace. What is
// about a device that the supervisor knows is made here and recorded, and the tables of descriptors in
// struct shared are changed with it. Everything else is plain(): the supervisor sees it.
//
// The supervisor and other threads change those tables, too. Before a record there is nothing to
// compare a descriptor with that might not be old by then; so it is looked at again once the record is
// reserved, which the supervisor looks for after it has changed the table. One of the two sees the other.

#include "agent.h"

// How much of a path is looked at: a longer one is left to the supervisor.
#define PATH 192u

// Whether a string begins with another.
static inline int begins(const u8 *s, const u8 *prefix)
{
	while (*prefix)
		if (*s++ != *prefix++)
			return 0;
	return 1;
}

struct name {
	u8 s[PATH];
	u32 n, base; // length; where the last name begins
};

// Reads a path up to its end, and never from a page that it does not reach.
static int read_path(struct name *p, u64 addr)
{
	u32 have = 0, n = 0;
	p->base = 0;
	for (;;) {
		u32 k = 64 - (addr + have) % 64;
		if (k > PATH - have)
			k = PATH - have;
		if (!k || copy(p->s + have, addr + have, k))
			return 0;
		have += k;
		for (; n < have && p->s[n]; n++)
			if (p->s[n] == '/')
				p->base = n + 1;
		if (n < have) {
			p->n = n;
			return 1;
		}
	}
}

// Whether opening a path is of no interest.
static int irrelevant_path(const struct name *name, u64 paths)
{
	u32 i;
	for (i = 0; i < paths; i++) {
		const struct path *p = (const struct path *)PATHS_ADDR + i;
		u32 at, last = p->base ? name->base : name->n;
		if (!begins(name->s, p->prefix))
			continue;
		for (at = p->base ? name->base : 0; at <= last; at++)
			if (begins(name->s + at, p->part))
				return 0;
	}
	return 1;
}

// Whose a descriptor is; of a number beyond the table the supervisor is to say.
static inline u8 held(u64 fd)
{
	return (u32)fd < NFDS ? *(volatile u8 *)&S->held[(u32)fd] : HELD_BUSY;
}

// Whether a descriptor can't be a device's, whether the supervisor knows or not.
static int no_device(u64 fd)
{
	u64 st[18]; // struct stat
	struct regs r = {.rdi = fd, .rsi = (u64)st};
	long err;
	if (held(fd))
		return 0;
	err = sys_own(&r, NR_FSTAT);
	if (unlikely(err == -ENOSYS))
		return 0; // it can't be asked
	return err || ((u32)st[3] & 0170000) != 0020000 /* st_mode, S_IFCHR */;
}

// Whether a call is no business of the supervisor's.
static int passes(const struct regs *g, u64 nr)
{
	switch (nr) {
	case NR_CLOSE:
		return !held(g->rdi);
	case NR_MMAP:
		return !(g->rdx & 4 /* PROT_EXEC */) && ((u32)g->r8 == ~0u || no_device(g->r8));
	case NR_DUP2:
	case NR_DUP3:
		if (held(g->rsi))
			return 0;
		return no_device(g->rdi);
	case NR_DUP:
		return no_device(g->rdi);
	case NR_FCNTL:
		if ((u32)g->rsi != 0 /* F_DUPFD */ && (u32)g->rsi != 1030 /* F_DUPFD_CLOEXEC */)
			return 1;
		return no_device(g->rdi);
	}
	return 0;
}

// Begins the record of a call about a descriptor; fd is in the place of its first
// argument. 0: not possible.
static struct record *begin(struct slot *sl, const struct regs *g, u64 nr, u64 fd, u32 path)
{
	u32 room = path ? sizeof(struct seg) + up(path, 8) : 0;
	struct record *r;
	record_outer(sl);
	r = reserve(sl, sizeof *r + room, FILLING, K_SYSCALL, !!path, fd, g->rsi);
	if (!r)
		return 0;
	r->flags = own_work(sl, g);
	r->hook = nr;
	r->caller = g->rdi;
	r->args[2] = g->rdx;
	r->args[3] = g->r10;
	r->args[4] = g->r8;
	r->args[5] = g->r9;
	r->sp = (u64)(g + 1);
	r->file = (u32)fd < NFDS ? *(volatile u32 *)&S->file[(u32)fd] : 0;
	r->rdev = 0;
	return r;
}

// Makes the call.
static long make(struct slot *sl, struct record *r, const struct regs *g, u64 nr)
{
	long ret;
	r->begin = moment(sl);
	set_state(r, INCALL);
	ret = sys_in(g, nr);
	set_state_ordered(r, ENDING);
	return ret;
}

// Completes the record. If it was given up meanwhile, its room is somebody else's.
static void end(struct slot *sl, struct record *r, long ret)
{
	if (unlikely(given_up(r)))
		return;
	r->end = moment(sl);
	r->ret = ret;
	set_state(r, DONE);
}

// What a descriptor is that has just come to be.
static void enter(u32 fd, u32 file, u64 kind)
{
	*(volatile u32 *)&S->file[fd] = file;
	*(volatile u8 *)&S->kinds[fd] = kind;
	*(volatile u8 *)&S->held[fd] = HELD_DEVICE;
	__sync_fetch_and_add(&S->changes, 1);
}

// Makes a mapping of a device, and records it.
static long map(struct slot *sl, const struct regs *g)
{
	struct record *r = begin(sl, g, NR_MMAP, g->r8, 0);
	long ret;
	if (!r)
		return plain(g, NR_MMAP);
	// As for ioctls: the supervisor sees this record, or we see that the descriptor
	// changes.
	if (held(g->r8) != HELD_DEVICE) {
		set_state(r, VOID);
		return plain(g, NR_MMAP);
	}
	ret = make(sl, r, g, NR_MMAP);
	end(sl, r, ret);
	return ret;
}

// Closes a device that the agent has opened.
static long close_file(struct slot *sl, const struct regs *g)
{
	u32 fd = g->rdi;
	struct record *r = begin(sl, g, NR_CLOSE, fd, 0);
	long ret;
	if (!r)
		return plain(g, NR_CLOSE);
	// From here on another thread may be given the same number.
	if (held(fd) != HELD_DEVICE || !r->file || !__sync_bool_compare_and_swap(&S->file[fd], (u32)r->file, 0)) {
		set_state(r, VOID);
		return plain(g, NR_CLOSE);
	}
	*(volatile u8 *)&S->kinds[fd] = 0;
	*(volatile u8 *)&S->held[fd] = HELD_NOT;
	__sync_fetch_and_add(&S->changes, 1);
	// In order it comes before all that may get the number, so its place is that of
	// its beginning. Until it has ended, what came later is not given out.
	set_state_ordered(r, ENDING);
	r->begin = r->end = moment(sl);
	ret = sys_in(g, NR_CLOSE);
	if (unlikely(given_up(r)))
		return ret;
	r->rdev = moment(sl);
	r->ret = ret;
	set_state(r, DONE);
	return ret;
}

// Duplicates the descriptor of a device that the agent has opened.
static long dup_file(struct slot *sl, const struct regs *g, u64 nr)
{
	u32 fd = g->rdi;
	struct record *r = begin(sl, g, nr, fd, 0);
	u8 kind;
	long ret;
	if (!r)
		return plain(g, nr);
	kind = *(volatile u8 *)&S->kinds[fd];
	if (held(fd) != HELD_DEVICE || !r->file) {
		set_state(r, VOID);
		return plain(g, nr);
	}
	ret = make(sl, r, g, nr);
	if (ret >= 0 && ret < NFDS)
		enter(ret, r->file, kind);
	end(sl, r, ret);
	return ret;
}

// The place of a device in the table; NDEVICES: it is not there.
static u32 device(const u64 *st)
{
	u32 i;
	if (((u32)st[3] & 0170000) != 0020000 /* st_mode, S_IFCHR */)
		return NDEVICES;
	for (i = 0; i < NDEVICES && S->devices[i].rdev; i++)
		if (S->devices[i].rdev == st[5] /* st_rdev */)
			return i;
	return NDEVICES;
}

// Opens a path that may be a device's. Only if it is one that the supervisor knows,
// it is opened without it.
static long open_file(struct slot *sl, const struct regs *g, u64 nr, const struct name *name)
{
	u64 st[18]; // struct stat
	struct regs q = {.rdi = nr == NR_OPEN ? (u64)-100 /* AT_FDCWD */ : g->rdi, .rsi = nr == NR_OPEN ? g->rdi : g->rsi, .rdx = (u64)st};
	u64 flags = nr == NR_OPEN ? g->rsi : g->rdx;
	struct record *r;
	struct seg *seg;
	u32 i;
	long ret;
	// O_ACCMODE, O_CLOEXEC, O_NONBLOCK, O_LARGEFILE
	if ((flags & ~02104003ul) || sys_own(&q, NR_NEWFSTATAT) || device(st) == NDEVICES)
		return plain(g, nr);
	r = begin(sl, g, nr, ~0ul, name->n + 1);
	if (!r)
		return plain(g, nr);
	seg = (struct seg *)(r + 1);
	*seg = (struct seg){q.rsi, name->n + 1, name->n + 1, 0, sizeof *r + sizeof *seg, 0, 0};
	cpy((u8 *)(seg + 1), name->s, name->n + 1);
	ret = make(sl, r, g, nr);
	if (ret >= 0) {
		q = (struct regs){.rdi = ret, .rsi = (u64)st};
		i = ret < NFDS && !sys_own(&q, NR_FSTAT) ? device(st) : NDEVICES;
		if (i == NDEVICES) { // another one suddenly: its use will show
			set_state(r, VOID);
			return ret;
		}
		r->rdev = st[5];
		r->file = __sync_add_and_fetch(&S->files, 1);
		enter(ret, r->file, S->devices[i].kind);
	}
	end(sl, r, ret);
	return ret;
}

// The slot of this thread, if it records now.
static struct slot *recording(void)
{
	struct slot *sl;
	if (!GATE || killed())
		return 0;
	sl = find_slot();
	return sl && sl->ring && !sl->off ? sl : 0; // else a vfork child, perhaps, with descriptors of its own
}

// A call that opens a path. noinline: the name takes much stack, and other calls need none of it.
static __attribute__((noinline)) long open_call(const struct regs *g, u64 nr)
{
	struct name name;
	struct slot *sl;
	u64 paths = C->paths;
	if (!paths || paths > NPATHS || !read_path(&name, nr == NR_OPEN ? g->rdi : g->rsi))
		return plain(g, nr);
	if (irrelevant_path(&name, paths))
		return sys_in(g, nr);
	sl = recording();
	if (!sl || !C->files || *(volatile u64 *)&S->armed)
		return plain(g, nr);
	return open_file(sl, g, nr, &name);
}

// While armed, the supervisor sleeps, and what is recorded would lie there until something else wakes it.
long file_call(const struct regs *g, u64 nr)
{
	struct slot *sl;
	u64 fd = nr == NR_MMAP ? g->r8 : g->rdi;
	if (unlikely(C->dead & 1))
		return sys_in(g, nr);
	if (nr == NR_OPENAT || nr == NR_OPEN)
		return open_call(g, nr);
	sl = recording();
	if (!sl)
		return plain(g, nr);
	if (held(fd) == HELD_DEVICE && !*(volatile u64 *)&S->armed) {
		if (nr == NR_MMAP && C->maps && !(g->rdx & 4 /* PROT_EXEC */))
			return map(sl, g);
		if (C->files && *(volatile u32 *)&S->file[(u32)fd]) {
			if (nr == NR_CLOSE)
				return close_file(sl, g);
			if (nr == NR_DUP || (nr == NR_FCNTL && ((u32)g->rsi == 0 || (u32)g->rsi == 1030)))
				return dup_file(sl, g, nr);
		}
	}
	return passes(g, nr) ? sys_in(g, nr) : plain(g, nr);
}
