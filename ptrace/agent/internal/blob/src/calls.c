// The half of the agent that records calls of hooked functions. See agent.c for
// the rules.

#include "agent.h"

// Whether v was in the set, where it is counted then; adds it. A full set forgets nothing,
// and takes nothing more.
static inline int seen(u64 set, u64 v)
{
	struct seen *s = (struct seen *)set;
	u32 i = (u32)((v >> 4) * 0x9e3779b97f4a7c15ul >> 52), n;
	if (!v)
		v = ~0ul;
	for (n = 0; n < 64; n++, i = (i + 1) % NONCE) {
		u64 old = *(volatile u64 *)&s[i].v;
		if (!old)
			old = __sync_val_compare_and_swap(&s[i].v, 0, v);
		if (likely(old == v)) {
			__sync_fetch_and_add(&s[i].n, 1);
			return 1;
		}
		if (!old)
			return 0;
	}
	return 0;
}

// Gives a program, for the number that a function has left where its first argument points to, what the set says; 0: that
// is not in it. Only the supervisor writes to the set.
static __attribute__((noinline)) int given(u64 set, u64 at)
{
	const struct seen *s = (const struct seen *)set;
	u64 v, to;
	u32 i, n;
	if (copy(&v, at, 8) || !v)
		return 0;
	for (i = (u32)((v >> 4) * 0x9e3779b97f4a7c15ul >> 52), n = 0; n < 64; n++, i = (i + 1) % NONCE) {
		u64 old = *(volatile u64 *)&s[i].v;
		if (old != v && old)
			continue;
		to = *(volatile u64 *)&s[i].n;
		return old && to && (to == v || !copy((void *)at, (u64)&to, 8));
	}
	return 0;
}

// Argument i of integer class of the function at whose entry the frame is; 0 if it can't be read.
u64 argument(const struct frame *f, u32 i)
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

// How many bytes of an argument's memory are copied: as another argument says, in units, up to a bound.
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

// Copies a string up to its NUL, which is copied, too, or n bytes. Not across the end of a page before it
// is known that the string goes on. Returns how many bytes there are.
u32 copy_string(u8 *to, u64 from, u32 n)
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

// Reserves a record, and has the supervisor make room where there is none: calls are never dropped. 0: there is
// no supervisor any more.
static inline struct record *reserve_call(struct slot *sl, u32 size, u32 kind, u32 nseg)
{
	struct record *r;
	u32 tries = 0;
	while (!(r = reserve(sl, size, ENDING, kind, nseg, 0, 0))) {
		if (!trap(TRAP_FULL, 0) || !GATE)
			return 0;
		if (++tries == 20000) { // it stops us, but does nothing: it is broken
			__sync_fetch_and_or(&C->dead, 1);
			return 0;
		}
	}
	r->flags = 0;
	return r;
}

// The counters of a thread's calls of a function, within those of another one, whose number + 1 is within;
// 0: there is no room for them, and the calls are recorded.
static struct count *counter(const struct slot *sl, u64 hook, u64 within)
{
	u64 key = sl->ids << 32 | within << 16 | (hook + 1); // by the thread
	u32 i = (u32)(key * 0x9e3779b97f4a7c15ul >> 52), n;
	for (n = 0; n < 16; n++, i = (i + 1) % NCOUNTS) {
		struct count *c = (struct count *)COUNT_ADDR + i;
		u64 old = *(volatile u64 *)&c->key;
		if (likely(old == key))
			return c;
		if (old)
			continue;
		old = __sync_val_compare_and_swap(&c->key, 0, key);
		if (!old || old == key)
			return c;
	}
	return 0;
}

// Adds in one instruction, which a signal handler of the thread can't divide.
static inline void add64(u64 *p, u64 v) { __asm__ volatile("addq %1,%0" : "+m"(*p) : "r"(v) : "cc"); }
static inline void add32(u32 *p, u32 v) { __asm__ volatile("addl %1,%0" : "+m"(*p) : "r"(v) : "cc"); }

// When a counted call begins. What other threads do is not compared with that, so that the
// counter does, which costs less than the clock.
static inline u64 count_begin(void) { return likely(C->scale) ? COUNTED | (ticks() & TIME) : COUNTED | CLOCKED | now(); }

// Reads the clock, and notes by how much it is ahead of the processor's counter.
u64 read_clock(struct slot *sl)
{
	u64 from = ticks(), at = now(), to = ticks();
	if (to - from < WHOLE) {
		from += (to - from) / 2;
		*(volatile u64 *)&sl->ahead = at - scaled(from);
		barrier();
		*(volatile u64 *)&sl->ticks = from;
	}
	return at;
}

// How long ago a call began, ns.
static inline u64 since(u64 begin)
{
	u64 passed;
	if (unlikely(begin & CLOCKED))
		return now() - (begin & TIME);
	passed = (ticks() - begin) & TIME;
	if (unlikely(passed >> 61))
		return 0; // the counter of another processor is behind
	return scaled(passed);
}

// Adds the time of a call, which stands for n. Bucket 0 is below 32 ns, each further one of twice the length.
static __attribute__((noinline)) void count_time(struct count *c, u64 ns, u32 n)
{
	int b = 63 - __builtin_clzl(ns | 1) - 4;
	if (b < 0)
		b = 0;
	if (b >= (int)NBUCKETS)
		b = NBUCKETS - 1;
	add64(&c->time, n * ns);
	add32(&c->bucket[b], n);
}

// Adds a call that has returned.
static inline void count_return(struct count *c, const struct open *o, u64 ret)
{
	add64(&c->returned, 1);
	if ((u32)ret)
		add64(&c->nonzero, 1);
	if (o->how & OPEN_TIMED)
		count_time(c, since(o->begin), o->how & OPEN_MANY ? TIMED_ONE : 1);
}

// Writes the record of a return, with what the function has left in memory; of a call that did not
// return by itself (flags) that is not known.
static void write_return(struct slot *sl, const struct open *o, u64 ret, u32 flags)
{
	u32 n = 0, data = 0, i, at;
	struct record *r;
	struct seg *seg;
	if (!flags && !(o->begin & COUNTED))
		for (i = 0; i < 4; i++)
			if (o->out[i].addr) {
				n++;
				data += up((u32)o->out[i].len, 8);
			}
	at = n ? sizeof *r + n * sizeof *seg : SHORT_RECORD;
	r = reserve_call(sl, at + data, K_RETURN, n);
	if (!r)
		return;
	r->flags = flags;
	r->begin = o->begin;
	r->end = stamp(sl);
	if (unlikely(o->begin & COUNTED))
		r->begin = r->end - since(o->begin);
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

// Takes free entries off the end.
static void shrink(struct slot *sl)
{
	u64 d;
	while ((d = *(volatile u64 *)&sl->depth) > 0 && (d > NOPEN || !*(volatile u64 *)&sl->open[d - 1].sp))
		*(volatile u64 *)&sl->depth = d - 1;
}

// Whether the return address of an open call is still in its place. It is the
// proof that the call has not been left by longjmp, or as good as: what lies there
// otherwise is somebody else's, and this word is in no other. Programs may wait for the
// return, too.
static int in_place(const struct open *o)
{
	u64 v;
	return !copy(&v, o->sp, 8) && (v == (u64)return_entry || v == (u64)probe_return);
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
		if (GATE && sl->ring && !sl->off && !(was.begin & COUNTED))
			write_return(sl, &was, 0, F_UNFINISHED);
	}
	shrink(sl);
}

// Begins an entry at the end of the list.
static inline struct open *enlist(struct slot *sl, u64 at, u64 sp)
{
	struct open *o = &sl->open[at];
	do { // a handler that comes before the last store uses the same entry
		*(volatile u64 *)&o->sp = sp;
		barrier();
		*(volatile u64 *)&o->begin = 0;
		barrier();
		*(volatile u64 *)&sl->depth = at + 1;
		barrier();
	} while (*(volatile u64 *)&o->sp != sp);
	return o;
}

// Keeps which memory is to be copied when a call returns.
static void keep_outs(struct open *o, const struct frame *f, const struct hook *h)
{
	u32 i, n;
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
}

// Makes the function return to us. 0: not possible.
static struct open *watch(struct slot *sl, struct frame *f, const struct hook *h, u64 begin)
{
	u64 sp = (u64)&f->ret, ret = f->ret, at;
	struct open *o;
	if (sl->depth >= NOPEN)
		prune(sl, sp, 1);
	at = *(volatile u64 *)&sl->depth;
	if (at >= NOPEN)
		return 0;
	f->ret = (u64)return_entry; // first, or the call would look dead
	o = enlist(sl, at, sp);
	o->ret = ret;
	o->hook = f->hook;
	if (begin & COUNTED) {
		o->count = 0;
		o->how = OPEN_TIMED;
		o->args[0] = f->rdi;
		o->args[1] = f->rsi;
		o->args[2] = f->rdx;
	} else
		keep_outs(o, f, h);
	barrier();
	o->begin = begin;
	return o;
}

// Whether a call or return at a time stops, of those of a hook that may.
static int due(struct hook *h, u64 at)
{
	long pause = (long)h->pause, next;
	if (pause) { // two threads that come here at once may both stop
		next = *(volatile long *)&h->next;
		if (next < (long)(at - h->burst))
			next = (long)(at - h->burst);
		if (next > (long)at)
			return 0;
		*(volatile long *)&h->next = next + pause;
	}
	return 1;
}

// Whether it is a call that stops.
static int stops(struct hook *h, u64 at)
{
	u64 every = h->every;
	if (every > 1 && __sync_fetch_and_add(&h->calls, 1) % every)
		return 0;
	return due(h, at);
}

// Whether a call is one of those of a thread that are counted there.
static inline int of_counter(const struct count *c, const struct slot *sl, const struct open *o)
{
	return (c->key & ~(0xfffful << 16)) == (sl->ids << 32 | (o->hook + 1));
}

// When a call began that was counted so far, of which something is recorded at a time: not before what the thread
// recorded before it, nor before the call that it is within.
static u64 began(struct slot *sl, const struct open *o, u64 at)
{
	u64 begin = o->begin & CLOCKED ? o->begin & TIME : at - since(o->begin), last = o->how >> OPEN_BITS;
	if (begin < last)
		begin = last;
	if (o > sl->open && o[-1].sp && !(o[-1].begin & COUNTED) && begin < o[-1].begin)
		begin = o[-1].begin;
	return begin < at ? begin : at;
}

// Records the calls that the thread is in and that were only counted so far, outermost first. A signal handler may
// come in between, and finds those done that this has begun with.
static u64 write_call(struct slot *sl, struct frame *f, struct hook *h, u64 *stop, struct open *late);
__attribute__((noinline)) void record_open(struct slot *sl)
{
	u64 i, n = sl->depth, words[sizeof(struct frame) / 8 + 32];
	struct frame *f = (struct frame *)words;
	for (i = 0; i < n && i < NOPEN; i++) {
		struct open *o = &sl->open[i];
		struct hook *h = &HOOKS[o->hook % NHOOKS];
		u64 how = *(volatile u64 *)&o->how, begin;
		if (!o->sp || !(o->begin & COUNTED) || !(how & OPEN_INNER) || !swap_own(&o->how, how, how & ~(u64)OPEN_INNER))
			continue;
		if (of_counter((struct count *)o->count, sl, o))
			add64(&((struct count *)o->count)->calls, -1ul);
		f->rdi = o->args[0];
		f->rsi = o->args[1];
		f->rdx = o->args[2];
		f->rcx = o->args[3];
		f->r8 = o->args[4];
		f->r9 = o->args[5];
		f->hook = o->hook;
		f->ret = o->ret;
		copy(f->stack, o->sp + 8, (h->words < 32 ? h->words : 32) * 8);
		begin = write_call(sl, f, h, 0, o);
		if (!begin) // nobody is there
			begin = now();
		keep_outs(o, f, h);
		barrier();
		o->begin = begin;
	}
}

// Returns when the call began, 0 where its return will not be seen. stop becomes 1 + where the
// record is, if the call is to stop. late is the entry of a call that has begun before, with f a copy of what it
// was called with; 0 for one that begins.
static u64 write_call(struct slot *sl, struct frame *f, struct hook *h, u64 *stop, struct open *late)
{
	u64 addr[8], caller = f->ret, sp = late ? late->sp : (u64)&f->ret, pos, begin;
	u32 len[8], n = 0, data = 0, at, i, words = h->words * 8, derefs = h->nderef; // another supervisor may change them
	struct record *r;
	struct open *o = late;
	struct seg *seg;
	if (!late) {
		if ((h->flags & HOOK_RETURN) && sl->depth)
			prune(sl, sp, 0);
		record_outer(sl);
	}
	for (i = 0; i < derefs && i < 8; i++) {
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
		return 0;
	r->begin = r->end = begin = stamp(sl);
	if (late)
		r->begin = begin = began(sl, late, begin);
	else if (h->flags & HOOK_RETURN)
		o = watch(sl, f, h, begin);
	r->flags = o ? 0 : F_NORETURN;
	r->args[0] = f->rdi;
	r->args[1] = f->rsi;
	r->args[2] = f->rdx;
	r->args[3] = f->rcx;
	r->args[4] = f->r8;
	r->args[5] = f->r9;
	r->hook = f->hook;
	r->caller = caller;
	r->sp = sp;
	seg = (struct seg *)(r + 1);
	if (words) {
		u32 got = words - copy((u8 *)r + at, sp + 8, words);
		*seg++ = (struct seg){sp + 8, words, got, 0, at, 0, 0};
		at += words;
	}
	for (i = 0; n && i < derefs && i < 8; i++) {
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
	if (!late && (h->flags & HOOK_STOP) && !(C->dead & 1) && stops(h, begin))
		*stop = pos + 1;
	else if (unlikely(*(volatile u64 *)&S->armed))
		trap(TRAP_WAKE, 0);
	return o ? begin : 0;
}

// Counts a call where count_fast could not.
static void count_call(struct slot *sl, struct frame *f, const struct hook *h, struct count *c)
{
	add64(&c->calls, 1);
	if (!(h->flags & HOOK_RETURN))
		return;
	if (sl->depth)
		prune(sl, (u64)&f->ret, 0);
	watch(sl, f, h, count_begin());
}

// Which of TIMED_ONE calls is timed, of the turn-th so many: another one each time, since programs do the same after
// every so many calls.
static inline u64 timed_one(u64 turn) { return (turn * 0x9e3779b97f4a7c15ul >> 32) % TIMED_ONE; }

// Counts a call of a function that nothing else is wanted of, as most are, where all is as
// usual: then as little memory is looked at as can be, since that, and not the instructions,
// is what a call costs that comes once in a microsecond. The counter is read for one call in TIMED_ONE, and
// where the call may be recorded after all.
static inline int count_fast(struct frame *f, u32 flags)
{
	struct slot *sl = find_slot();
	u64 sp = (u64)&f->ret, ret = f->ret, at, within = 0, how;
	struct count *c;
	struct open *o;
	if (unlikely((C->dead & 1) || killed()))
		return 0;
	if (unlikely(!sl || !sl->ring || sl->off || (C->times && times_busy(sl, sp))))
		return 0;
	at = *(volatile u64 *)&sl->depth;
	if (unlikely(at >= NOPEN || (at && sl->open[at - 1].sp <= sp))) // something was left by longjmp
		return 0;
	if (flags & HOOK_INNER) {
		if (at && sl->open[at - 1].begin)
			within = sl->open[at - 1].hook + 1;
		else if (!(flags & HOOK_COUNT))
			return 0;
	}
	c = counter(sl, f->hook, within);
	if (unlikely(!c))
		return 0;
	if (c->calls < TIMED_ONE)
		how = OPEN_TIMED;
	else
		how = c->calls % TIMED_ONE == timed_one(c->calls / TIMED_ONE) ? OPEN_TIMED | OPEN_MANY : 0;
	add64(&c->calls, 1);
	f->ret = (u64)return_entry; // as watch does
	o = enlist(sl, at, sp);
	o->ret = ret;
	o->hook = f->hook;
	o->count = (u64)c;
	if ((flags & (HOOK_INNER | HOOK_COUNT)) == HOOK_INNER) {
		how |= OPEN_INNER | sl->last << OPEN_BITS;
		o->args[0] = f->rdi;
		o->args[1] = f->rsi;
		o->args[2] = f->rdx;
		o->args[3] = f->rcx;
		o->args[4] = f->r8;
		o->args[5] = f->r9;
	}
	o->how = how;
	barrier();
	o->begin = how || flags & HOOK_FAILED ? count_begin() : COUNTED;
	return 1;
}

// The return of such a call, if it has succeeded.
static inline int count_leave(struct slot *sl, struct rframe *f)
{
	u64 at = sl->depth, ret;
	struct open *o = &sl->open[at - 1];
	struct count *c;
	if (unlikely(at - 1 >= NOPEN || o->sp != (u64)&f->ret || !(o->begin & COUNTED) || !o->count || (u32)f->rax || o->how & OPEN_TOUCHED))
		return 0;
	c = (struct count *)o->count;
	if (unlikely(!GATE || !sl->ring || sl->off || !of_counter(c, sl, o)))
		return 0; // it has been forked meanwhile, perhaps
	ret = o->ret;
	count_return(c, o, 0);
	barrier();
	*(volatile u64 *)&o->sp = 0;
	shrink(sl);
	f->ret = ret;
	return 1;
}

// What a hook may want beyond counting.
#define HOOK_MORE (HOOK_NEW | HOOK_ONCE | HOOK_BREAK | HOOK_PROBE | HOOK_TIMED | HOOK_WAITS | HOOK_ENDS)

// Records or counts a call. Returns 1 + where its record is if it is to stop, else 0.
// In this order: is anybody there (GATE is 0 in a forked child, which calls for the supervisor
// to be given rings), has the thread a ring, is the call one that the agent itself has the driver make.
static u64 enter(struct frame *f, struct hook *h)
{
	struct slot *sl;
	u64 stop = 0;
	if ((h->flags & HOOK_ONCE) && seen(h->once, f->rdi))
		return 0;
	if (unlikely((C->dead & 1) || !(h->flags & HOOK_ON)))
		return 0;
	if (unlikely(!GATE)) {
		trap(TRAP_START, 0);
		if (!GATE) {
			trap(TRAP_CALL, (u64)f);
			return 0;
		}
	}
	if (killed())
		return 0;
	sl = find_slot();
	if (unlikely(!sl)) {
		trap(TRAP_SLOT, 0);
		sl = find_slot();
	}
	if (unlikely(!sl || !sl->ring || sl->off)) {
		trap(TRAP_CALL, (u64)f);
		return 0;
	}
	if (unlikely(C->times) && times_busy(sl, (u64)&f->ret))
		return 0;
	if (unlikely(h->flags & HOOK_NEW)) {
		if (sl->depth)
			prune(sl, (u64)&f->ret, 0);
		if ((u64)f - C->own >= OWN_SIZE)
			watch(sl, f, h, COUNTED);
		return 0;
	}
	if (unlikely(h->flags & HOOK_ENDS) && C->times)
		times_ends(sl, f);
	if (unlikely((h->flags & (HOOK_WAITS | HOOK_TIMED)) == HOOK_WAITS) && C->times)
		times_waits(sl, f);
	if (h->flags & HOOK_COUNT) {
		struct count *c = counter(sl, f->hook, 0);
		if (likely(c)) {
			count_call(sl, f, h, c);
			return 0;
		}
	}
	if (unlikely(h->flags & HOOK_TIMED) && C->times) {
		u64 sp = (u64)&f->ret;
		times_enter(sl, f);
		times_began(sl, sp, write_call(sl, f, h, &stop, 0));
	} else
		write_call(sl, f, h, &stop, 0);
	return stop;
}

struct way {
	u64 to;	  // where to go on
	u64 stop; // 1 + where the record of the call is that stops; 0: it does not
};

// At the entry of a hooked function.
__attribute__((used)) struct way agent_enter(struct frame *f)
{
	struct hook *h = &HOOKS[f->hook % NHOOKS];
	struct way w = {h->orig, 0};
	u32 flags = h->flags;
	if ((flags & (HOOK_MORE | HOOK_ON | HOOK_RETURN)) != (HOOK_ON | HOOK_RETURN) || !(flags & (HOOK_COUNT | HOOK_INNER)) || unlikely(!GATE) || !count_fast(f, flags))
		w.stop = enter(f, h);
	return w;
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

// At the return of a hooked function. Returns 1 if it is to stop, and then to come here again, with
// stopped 1.
__attribute__((used)) u32 agent_leave(struct rframe *f, u32 stopped)
{
	u64 sp = (u64)&f->ret;
	struct slot *own = find_slot(), *sl = own;
	struct open *o, was;
	struct hook *h;
	if (likely(own) && count_leave(own, f))
		return 0;
	o = find_open(&sl, sp);
	if (unlikely(!o))
		__builtin_trap(); // nobody knows where to return to
	if ((o->begin & COUNTED) && (o->how & OPEN_INNER) && sl == own && GATE && !killed() && !(C->dead & 1) && own->ring && !own->off &&
	    (o->how & OPEN_TOUCHED || ((u32)f->rax && HOOKS[o->hook % NHOOKS].flags & HOOK_FAILED)))
		record_open(own);
	was = *o;
	h = &HOOKS[was.hook % NHOOKS];
	if (unlikely(h->flags & (HOOK_FAILS | HOOK_NEW)) && !stopped && GATE && !killed() && !(C->dead & 1) && own && own->ring && !own->off &&
	    (h->flags & HOOK_NEW ? !(u32)f->rax && !given(h->once, was.args[0]) : (u32)f->rax && due(h, now())))
		return 1;
	barrier();
	*(volatile u64 *)&o->sp = 0;
	shrink(sl);
	f->ret = was.ret;
	if (!(h->flags & HOOK_NEW) && GATE && !killed() && !(C->dead & 1) && own && own->ring && !own->off) {
		u32 flags = HOOKS[was.hook % NHOOKS].flags;
		struct count *c = 0;
		if ((was.begin & COUNTED) && was.count && of_counter((struct count *)was.count, own, &was))
			c = (struct count *)was.count;
		else if (was.begin & COUNTED)
			c = counter(own, was.hook, 0);
		if (c && (flags & (HOOK_FAILED | HOOK_COUNT)) == (HOOK_FAILED | HOOK_COUNT) && (u32)f->rax) {
			add64(&c->calls, -1ul);
			write_return(own, &was, f->rax, F_ALONE);
		} else if (c)
			count_return(c, &was, f->rax);
		else if (!(was.begin & COUNTED))
			write_return(own, &was, f->rax, 0);
		if (unlikely(flags & (HOOK_TIMED | HOOK_WAITS)) && C->times) {
			struct leaving l = {sp, was.hook, (u32)f->rax};
			times_leave(own, &l);
		}
		if (unlikely(flags & HOOK_ENDS) && C->times)
			times_ended(own, sp, was.hook);
	}
	return 0;
}
