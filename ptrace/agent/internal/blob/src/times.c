// The part of the agent that times what the program has the GPU do: around each call that
// puts work on a stream it has the driver record an event, whose time it reads when the GPU has
// passed it: the work's end. It began when that before it on its stream had ended, or when the
// GPU was given it, whichever was later. What has a stream wait (HOOK_ORDERS) is such a work, too, of
// which only the end is kept; and where the legacy default stream and others wait for each other, there is an
// event in front of the work. See agent.c for the rules; here the driver's functions are called,
// which keep to none of them: the vector registers are saved for them, and what they
// call is not recorded.

#include "agent.h"

#pragma GCC optimize("Os") // the room is small, and the driver takes longer

#define T ((struct times *)TIMES_ADDR)

#define NOT_READY 600
#define RELAXED 2u      // CU_STREAM_CAPTURE_MODE_RELAXED
#define NON_BLOCKING 1u // CU_STREAM_NON_BLOCKING

#define NEW_REF 250000000ul // ns after which the clocks are compared anew: the GPU's drifts by some µs a second
#define READ 1000000ul	    // ns after which events are looked at
#define TRIES 12u	    // to compare the clocks
#define LONGEST 200000ul    // ns that one of them may take
#define FIRST 50000000ul    // and the first of a context
#define ACTIVE 16u	    // threads whose works are read at once
#define BUSY 16u	    // streams that are seen not to be so far before the others are left for later

// From when the GPU is given a kernel up to the time of the event behind it more passes than
// the kernel takes, by so much at most: on an idle stream, and behind another one. How much it is
// shows where kernels take next to nothing, which is EMPTY.
#define IDLE_COST 5000ul
#define BUSY_COST 2500ul
#define EMPTY 1000ul

__asm__(
	// with_vectors(a, b, f) calls f(a, b), which may change all vector registers: those of a
	// hooked function's caller are put back.
	".globl with_vectors\n"
	"with_vectors:\n"
	"	push %rbp\n	mov %rsp,%rbp\n"
	"	sub $2816,%rsp\n	and $-64,%rsp\n"
	"	mov %rdx,%r11\n"
	"	xor %eax,%eax\n" // the header of the area
	"	mov %rax,512(%rsp)\n	mov %rax,520(%rsp)\n	mov %rax,528(%rsp)\n	mov %rax,536(%rsp)\n"
	"	mov %rax,544(%rsp)\n	mov %rax,552(%rsp)\n	mov %rax,560(%rsp)\n	mov %rax,568(%rsp)\n"
	"	mov $0xe7,%eax\n	xor %edx,%edx\n" // x87, SSE, AVX, AVX-512
	"	xsave64 (%rsp)\n"
	"	call *%r11\n"
	"	mov $0xe7,%eax\n	xor %edx,%edx\n"
	"	xrstor64 (%rsp)\n"
	"	mov %rbp,%rsp\n	pop %rbp\n	ret\n");

extern void with_vectors(void *a, void *b, void (*f)(void *, void *));

// A function of the driver; what it returns is 0 where it succeeded.
#define CALL(f, a, b, c) (((int (*)(u64, u64, u64))T->f)((u64)(a), (u64)(b), (u64)(c)))

// A thread's timer has the number of its slot.
static inline struct timer *timer_of(const struct slot *sl)
{
	return (struct timer *)(TIMES_ADDR + sizeof(struct times)) + ((u64)sl - SLOT_ADDR) / sizeof *sl;
}

// Counts works that are not timed, by why.
static inline void untimed(u32 why, u64 n) { __sync_fetch_and_add(&S->untimed[why], n); }

// Whether the thread is inside of a call that this file makes: then hooked functions, which the driver
// may call within its own, are just executed.
int times_busy(const struct slot *sl, u64 sp)
{
	struct timer *t;
	if (!T->on)
		return 0;
	t = timer_of(sl);
	if (likely(!t->inside))
		return 0;
	if (sp < t->inside)
		return 1;
	t->inside = 0; // it was left by longjmp
	return 0;
}

// What a float of milliseconds is in ns.
static long nanoseconds(u32 f)
{
	long m = ((f & 0x7fffff) | 0x800000) * 1000000l;
	int e = (int)(f >> 23 & 0xff) - 150;
	if (!(f & 0x7fffffff) || e < -63 || e > 0)
		return 0; // 0, or hours
	if (e < 0)
		m = (m + (1l << (-e - 1))) >> -e;
	return f >> 31 ? -m : m;
}

// Compares the clocks of the GPU and of the host: an event on a stream where nothing else
// happens is recorded between two looks at the host's. The best of some tries counts; the
// first time, one that takes long is better than none.
static void compare(struct gpu *g)
{
	struct ref *r = &g->ref[g->refs % NREFS];
	u64 least = ~0ul, longest = LONGEST, i;
	g->tried = now();
	if ((!g->stream && CALL(stream, &g->stream, NON_BLOCKING, 0)) || (!r->event && CALL(create, &r->event, 0, 0)) ||
	    (!g->other && CALL(create, &g->other, 0, 0)))
		return;
	for (i = 0; i < TRIES; i++) {
		u64 t0 = now(), t1 = t0;
		int ret;
		if (CALL(record, g->other, g->stream, 0))
			return;
		do {
			ret = CALL(query, g->other, 0, 0);
			t1 = now();
		} while (ret == NOT_READY && t1 - t0 < longest);
		if (!ret && t1 - t0 < least) {
			u64 event = r->event;
			least = t1 - t0;
			r->event = g->other;
			g->other = event;
			r->at = t0 + least / 2;
			r->margin = least / 2;
		} else if (ret && ret != NOT_READY)
			return;
		if (t1 - g->tried > 4 * LONGEST) { // the GPU has no time for that
			if (g->refs || least != ~0ul || longest != LONGEST)
				break;
			longest = FIRST;
		}
	}
	barrier();
	if (least != ~0ul)
		g->refs++;
}

// The GPU of a context; 0: its clock is not known.
static struct gpu *gpu_of(u64 context)
{
	u32 i;
	for (i = 0; i < NGPUS; i++)
		if (T->gpu[i].context == context)
			return T->gpu[i].refs ? &T->gpu[i] : 0;
	return 0;
}

// Sees to it that the clock of a context's GPU is known, and not from long ago.
static void renew(u64 context)
{
	struct gpu *g = 0;
	u32 i;
	for (i = 0; i < NGPUS && T->gpu[i].context != context; i++)
		if (!T->gpu[i].context && !g)
			g = &T->gpu[i];
	if (i < NGPUS)
		g = &T->gpu[i];
	if (!g)
		return;
	g->context = context;
	if (!g->tried || now() - g->tried > NEW_REF)
		compare(g);
}

// Writes the record of a time. Without room the thread waits for the supervisor, as with all records.
static void write_time(struct slot *sl, const struct work *w, u64 start, u64 dur, u64 margin)
{
	struct record *r = reserve(sl, sizeof *r, ENDING, K_TIME, 0, 0, 0);
	while (!r && trap(TRAP_FULL, 0) && GATE && !(C->dead & 1))
		r = reserve(sl, sizeof *r, ENDING, K_TIME, 0, 0, 0);
	if (!r)
		return;
	r->flags = 0;
	r->begin = r->end = stamp(sl);
	r->ret = margin;
	r->hook = w->hook;
	r->caller = r->sp = 0;
	r->args[0] = w->begin;
	r->args[1] = start;
	r->args[2] = dur;
	r->args[3] = w->stream;
	r->args[4] = w->context;
	r->args[5] = w->what;
	r->file = w->ids;
	set_state(r, DONE);
}

// Finds when the last work on a stream ended, or gives the stream the next place in turn.
static struct last *last_of(const struct work *w)
{
	struct last *l;
	u32 i;
	for (i = 0; i < NLASTS; i++)
		if (T->last[i].context == w->context && T->last[i].stream == w->stream)
			return &T->last[i];
	l = &T->last[T->turns++ % NLASTS];
	*l = (struct last){w->context, w->stream, 0};
	return l;
}

// Records when the GPU was at a work, of which it is known when that ended.
static void put_time(struct slot *sl, struct gpu *g, const struct work *w, u64 end, u64 margin)
{
	static const u64 most[2] = {IDLE_COST, BUSY_COST};
	struct last *l = last_of(w);
	u32 flags = HOOKS[w->hook % NHOOKS].flags;
	int busy = l->end > w->from;
	u64 start = busy ? l->end : w->from, cost;
	if (end < start)
		end = start;
	l->end = end;
	if (!w->begin)
		return;
	if (!(flags & (HOOK_WAITS | HOOK_EARLY))) {
		if (!g->least[busy] || end - start < g->least[busy])
			g->least[busy] = end - start;
		cost = g->least[busy] < EMPTY ? 0 : g->least[busy] - EMPTY;
		start += cost < most[busy] ? cost : most[busy];
	}
	write_time(sl, w, start, end - start, margin);
}

// Reads the time of a work; 0: the GPU has not done it.
static int read_work(struct slot *sl, struct gpu *g, struct work *w)
{
	u64 n = g->refs - w->refs - 1 < NREFS - 1 ? w->refs : g->refs - 1;
	struct ref *r = &g->ref[n % NREFS];
	u32 since = 0;
	int ret = CALL(elapsed, &since, r->event, w->event);
	if (ret == NOT_READY)
		return 0;
	if (ret)
		untimed(UNTIMED_FAILED, !!w->begin);
	else {
		long early = w->left - r->at - nanoseconds(since);
		if (early > 0) { // the event was not before it was recorded: the clock is later by that
			r->at += early;
			r->margin -= (u64)early < r->margin ? (u64)early : r->margin;
		}
		put_time(sl, g, w, r->at + nanoseconds(since), r->margin);
	}
	untimed(UNTIMED_PENDING, -(u64)!!w->begin);
	barrier();
	w->state = WORK_FREE;
	return 1;
}

// The next work of a timer that may have been done.
static struct work *look(const struct gpu *g, struct timer *t, const u64 *busy, u32 n)
{
	for (; t->at != *(volatile u64 *)&t->next; t->at++) {
		struct work *w = &t->list[t->at % NWORKS];
		u32 i;
		if (*(volatile u64 *)&w->state != WORK_LEFT || w->context != g->context)
			continue;
		for (i = 0; i < n && busy[i] != w->stream; i++)
			;
		if (i == n)
			return w;
	}
	return 0;
}

// Reads times in the order of the events, since threads share streams.
static void read_timers(struct slot *sl, struct gpu *g)
{
	struct timer *all = (struct timer *)(TIMES_ADDR + sizeof(struct times)), *active[ACTIVE], *t;
	u64 busy[BUSY], timers = T->timers, i;
	u32 n = 0, nbusy = 0, k;
	for (i = 0; i < timers && n < ACTIVE; i++) {
		t = &all[(T->turn + i) % timers];
		if (t->first == *(volatile u64 *)&t->next)
			continue;
		t->at = t->first;
		active[n++] = t;
	}
	if (n == ACTIVE)
		T->turn += i;
	for (;;) {
		struct work *w = 0, *x;
		for (k = 0; k < n; k++)
			if ((x = look(g, active[k], busy, nbusy)) && (!w || x->number < w->number)) {
				w = x;
				t = active[k];
			}
		if (!w)
			break;
		t->at++;
		if (!read_work(sl, g, w)) {
			if (nbusy == BUSY)
				break;
			busy[nbusy++] = w->stream;
		}
	}
	for (k = 0; k < n; k++) {
		t = active[k];
		while (t->first != *(volatile u64 *)&t->next && *(volatile u64 *)&t->list[t->first % NWORKS].state == WORK_FREE)
			t->first++;
	}
}

// Reads the times of what the GPU has done. A thread that finds another one at it
// goes on. Nothing here makes a capture of streams fail, whatever its mode.
static void read_all(struct slot *sl)
{
	u64 context = 0;
	u32 mode = RELAXED;
	struct gpu *g;
	if (CALL(current, &context, 0, 0) || !context || !__sync_bool_compare_and_swap(&T->lock, 0, 1))
		return;
	if (!CALL(mode, &mode, 0, 0)) {
		g = gpu_of(context);
		if (g)
			read_timers(sl, g);
		renew(context);
		CALL(mode, &mode, 0, 0);
	}
	__sync_lock_release(&T->lock);
}

// Gives a thread's next work to a call that began at a time, with an event.
static struct work *take_work(struct timer *t, u64 context, u64 begin)
{
	u64 n = t->next;
	struct work *w = &t->list[n % NWORKS];
	u32 mode = RELAXED;
	int failed;
	if (n - *(volatile u64 *)&t->first >= NWORKS) {
		untimed(UNTIMED_FULL, !!begin);
		return 0;
	}
	w->state = WORK_TAKEN;
	barrier();
	t->next = n + 1;
	if (w->event && w->context == context)
		return w;
	if (w->event) // of another one
		CALL(destroy, w->event, 0, 0);
	w->event = 0;
	w->context = context;
	failed = CALL(mode, &mode, 0, 0);
	if (!failed) {
		failed = CALL(create, &w->event, 0, 0);
		CALL(mode, &mode, 0, 0);
	}
	if (!failed)
		return w;
	w->event = 0;
	w->state = WORK_FREE;
	untimed(UNTIMED_FAILED, !!begin);
	return 0;
}

// Has an event recorded on the stream of what is timed, behind what was put there by now. begin is when
// that began; 0: only when it ends matters. at is now.
static void record_work(struct slot *sl, u64 context, u64 hook, u64 begin, u64 from, u64 at)
{
	struct timer *t = timer_of(sl);
	u64 i = ((u64)sl - SLOT_ADDR) / sizeof *sl + 1, had;
	struct work *w;
	struct gpu *g;
	while ((had = *(volatile u64 *)&T->timers) < i)
		__sync_bool_compare_and_swap(&T->timers, had, i);
	g = gpu_of(context);
	w = take_work(t, context, begin);
	if (!w)
		return;
	w->stream = t->stream;
	w->hook = hook;
	w->what = t->what;
	w->ids = sl->ids;
	w->begin = begin;
	w->left = at;
	w->from = from;
	w->refs = g ? g->refs - 1 : 0;
	if (CALL(record, w->event, w->stream, 0)) { // it is of another context than is current, perhaps
		w->state = WORK_FREE;
		untimed(UNTIMED_FAILED, !!begin);
		return;
	}
	w->number = __sync_fetch_and_add(&T->works, 1);
	untimed(UNTIMED_PENDING, !!begin);
	barrier();
	w->state = WORK_LEFT;
	if (unlikely(!g)) // the clocks are compared behind the event: what passes meanwhile is not the work's
		read_all(sl);
}

// Whether the stream of the next work waits for others by itself, as there were works on the legacy default
// stream since its last one, or on others since that stream's. A work of ours in front of it then ends when
// that wait does. Threads that do this at once are in no order anyway.
static int waits_for_others(const struct slot *sl, u64 stream)
{
	u64 key = stream == 2 ? (u64)sl : stream; // CU_STREAM_PER_THREAD
	struct turn *turn;
	int waits;
	if (stream <= 1) { // 0, CU_STREAM_LEGACY
		waits = *(volatile u64 *)&T->others;
		if (waits || !T->epoch) {
			T->others = 0;
			__sync_fetch_and_add(&T->epoch, 1);
		}
		return waits;
	}
	if (!*(volatile u64 *)&T->others)
		T->others = 1;
	turn = &T->turn_of[(key * 0x9e3779b97f4a7c15ul) >> 56];
	waits = T->epoch && (turn->stream != key || turn->epoch != T->epoch);
	turn->stream = key;
	turn->epoch = T->epoch;
	return waits;
}

// The stream of a call; of one without, or with 0, the default one.
static u64 stream_of(const struct frame *f, const struct hook *h)
{
	u64 v = 0;
	if (h->stream) {
		v = argument(f, h->stream - 1);
		if (h->streamat && (!v || copy(&v, v + 8 * h->streamat, 8)))
			v = 0;
	}
	if (!v && (h->flags & HOOK_PER_THREAD))
		v = 2; // CU_STREAM_PER_THREAD
	return v;
}

// In front of the work of a call that waits for other streams.
static void before_work(void *slot, void *frame)
{
	struct slot *sl = slot;
	u64 context = 0;
	u32 capturing = 0;
	if (CALL(current, &context, 0, 0) || !context || CALL(capturing, timer_of(sl)->stream, &capturing, 0) || capturing)
		return;
	record_work(sl, context, ((const struct frame *)frame)->hook, 0, 0, now());
}

// At the entry of a call that is timed. What calls another such function, as the runtime does the
// driver's, is timed as a whole: only the outermost counts.
void times_enter(struct slot *sl, struct frame *f)
{
	struct timer *t = timer_of(sl);
	const struct hook *h = &HOOKS[f->hook % NHOOKS];
	u64 sp = (u64)&f->ret;
	if (!T->on || (t->sp && t->sp > sp) || f->ret == CALL_RETURN || f->ret == CALL_STUB)
		return; // it is part of what is timed, or no call of the program's
	t->stream = stream_of(f, h);
	t->what = h->subject ? argument(f, h->subject - 1) : 0;
	barrier();
	if (waits_for_others(sl, t->stream) || (h->flags & HOOK_BEHIND)) {
		t->inside = sp;
		with_vectors(sl, f, before_work);
		t->inside = 0;
	}
	t->sp = sp; // what was timed before, if anything, was left by longjmp
}

// The call was recorded as beginning at a time; 0: its return will not be seen.
void times_began(const struct slot *sl, u64 sp, u64 begin)
{
	struct timer *t = timer_of(sl);
	if (!T->on || t->sp != sp)
		return;
	t->begin = begin;
	if (!begin) // nobody will see the return
		t->sp = 0;
}

// Has an event recorded behind what the call has put on its stream.
static void follow(struct slot *sl, const struct leaving *l, u32 flags, u64 at)
{
	struct timer *t = timer_of(sl);
	u64 context = 0, begin = flags & HOOK_ORDERS ? 0 : t->begin;
	u32 capturing = 0;
	if (CALL(current, &context, 0, 0) || !context)
		return;
	if (CALL(capturing, t->stream, &capturing, 0) || capturing) {
		untimed(UNTIMED_CAPTURED, !!begin); // nothing is done now
		return;
	}
	record_work(sl, context, l->hook, begin, flags & (HOOK_WAITS | HOOK_EARLY) ? t->begin : at, at);
}

// At a return. Times are read at returns after which the GPU must have done something, and else once a
// millisecond, or when half of the works of the thread are in use.
static void leave(void *slot, void *leaving)
{
	struct slot *sl = slot;
	struct leaving *l = leaving;
	struct timer *t = timer_of(sl);
	u32 flags = HOOKS[l->hook % NHOOKS].flags;
	u64 at = stamp(sl);
	if (t->sp == l->sp) {
		t->sp = 0;
		if (!l->ret)
			follow(sl, l, flags, at);
	}
	if ((flags & HOOK_WAITS) || at - t->last > READ || t->next - t->first > NWORKS / 2) {
		t->last = at;
		read_all(sl);
	}
}

static void before_wait(void *slot, void *unused)
{
	(void)unused;
	read_all(slot);
}

// If the wait never ends, what is not over is what has not been read.
void times_waits(struct slot *sl, const struct frame *f)
{
	struct timer *t = timer_of(sl);
	if (!T->on || t->sp)
		return;
	t->inside = (u64)&f->ret;
	with_vectors(sl, 0, before_wait);
	t->inside = 0;
}

// At the return of a call that is timed, or that waits.
void times_leave(struct slot *sl, struct leaving *l)
{
	struct timer *t = timer_of(sl);
	if (!T->on || (t->sp != l->sp && (l->ret || t->sp)))
		return;
	t->inside = l->sp;
	with_vectors(sl, l, leave);
	t->inside = 0;
}

// Forgets what there is in a context that ends, or, with 0, in all. What is not read by now never
// will be. Nothing is given back: the driver does that, and may have done so already.
static void forget(u64 context)
{
	u64 i, k;
	for (i = 0; i < T->timers; i++) {
		struct timer *t = (struct timer *)(TIMES_ADDR + sizeof(struct times)) + i;
		for (k = 0; k < NWORKS; k++) {
			struct work *w = &t->list[k];
			if (!w->event || (context && w->context != context) || w->state == WORK_TAKEN)
				continue;
			w->event = w->context = 0;
			if (w->state == WORK_LEFT) {
				untimed(UNTIMED_PENDING, -(u64)!!w->begin);
				untimed(UNTIMED_FAILED, !!w->begin);
				w->state = WORK_FREE;
			}
		}
	}
	for (i = 0; i < NLASTS; i++)
		if (!context || T->last[i].context == context)
			T->last[i].context = T->last[i].end = 0;
	for (i = 0; i < NGPUS; i++) {
		struct gpu *g = &T->gpu[i];
		if (!g->context || (context && g->context != context))
			continue;
		for (k = 0; k < NREFS; k++)
			g->ref[k].event = 0;
		g->other = g->stream = g->refs = g->tried = g->least[0] = g->least[1] = g->context = 0;
	}
}

// forget while nobody reads times. A thread that holds the lock for long, as it may have left it by
// longjmp, is not waited for.
static void forget_locked(u64 context)
{
	struct regs none = {0};
	u64 i;
	for (i = 0; !__sync_bool_compare_and_swap(&T->lock, 0, 1); i++) {
		if (i == 1000)
			return;
		sys_own(&none, NR_SCHED_YIELD);
	}
	forget(context);
	__sync_lock_release(&T->lock);
}

// A device's primary context has ended if nobody holds it any more. 0: it has.
static int holds(const struct slot *sl)
{
	u32 flags, active = 0;
	if (!CALL(state, (u32)timer_of(sl)->device, &flags, &active) && active)
		return 1;
	forget_locked(0);
	return 0;
}

static void after_end(void *slot, void *unused)
{
	(void)unused;
	holds(slot);
}

// Before a function that ends the context that is an argument, or the primary one of a device.
static void before_end(void *slot, void *frame)
{
	const struct frame *f = frame;
	const struct hook *h = &HOOKS[f->hook % NHOOKS];
	if (h->stream) {
		read_all(slot);
		forget_locked(argument(f, h->stream - 1));
		return;
	}
	timer_of(slot)->device = f->rdi;
	if (holds(slot)) // else the driver is being taken down already
		read_all(slot);
}

// At the entry of such a function, and at its return: how many hold a primary context can be asked only
// while it is there.
void times_ends(struct slot *sl, struct frame *f)
{
	struct timer *t = timer_of(sl);
	if (!T->on)
		return;
	t->inside = (u64)&f->ret;
	with_vectors(sl, f, before_end);
	t->inside = 0;
}

void times_ended(struct slot *sl, u64 sp, u64 hook)
{
	struct timer *t = timer_of(sl);
	if (!T->on || HOOKS[hook % NHOOKS].stream)
		return;
	t->inside = sp;
	with_vectors(sl, 0, after_end);
	t->inside = 0;
}

_Static_assert(TIMES_ADDR + sizeof(struct times) + NSLOTS * sizeof(struct timer) <= RETS_ADDR, "times");
