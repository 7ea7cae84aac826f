// What programs call: the helpers of eBPF, by their numbers. They lie in the memory that
// programs do. A map's contents can be written by every process that has it, so nothing
// there is trusted further than its own memory. See agent.c for the rules.
//
// What that means for each of them: a loop ends after a number of rounds that does not depend on what
// maps hold, an index is masked or checked after it has been read for the last time, and a lock is waited
// for so long and no longer. Arguments were proven before a program was taken: a pointer to a key
// leads to so many bytes as the map's keys have.
//
// The same helpers are in Go, for programs that run at a stop (nvattach/hosthelpers.go), and must
// give the same results.

#include "agent.h"

#define HELPER __attribute__((section(".prog"), used))

#define EPERM 1
#define ENOENT 2
#define E2BIG 7
#define EFAULT 14
#define EBUSY 16
#define EEXIST 17
#define ERANGE 34

// A program calls helper_N with its five arguments in the registers of a C function. The thunk adds
// the run, which the program does not know of.
#define THUNK(id, f)                                                                                                  \
	".globl helper_" #id "\n"                                                                                       \
	"helper_" #id ":	mov (%rbp),%r9\n	jmp " #f "\n"

// A program's frame pointer leads to where the one of run_program was: the run. It is a
// helper's sixth argument.
__asm__(
	".section .prog,\"ax\",@progbits\n"
	THUNK(1, map_lookup) THUNK(2, map_update) THUNK(3, map_delete)
	THUNK(4, probe_read) THUNK(112, probe_read) THUNK(113, probe_read)
	THUNK(45, probe_read_str) THUNK(114, probe_read_str) THUNK(115, probe_read_str)
	THUNK(5, ktime) THUNK(125, ktime) THUNK(160, ktime) THUNK(7, random32) THUNK(8, cpu_number)
	THUNK(14, pid_tgid) THUNK(15, uid_gid) THUNK(16, comm)
	THUNK(6, print) THUNK(177, vprint) THUNK(165, format_text) THUNK(105, to_signed) THUNK(106, to_unsigned)
	THUNK(25, perf_output) THUNK(130, ring_output) THUNK(131, ring_reserve) THUNK(132, ring_submit) THUNK(133, ring_discard) THUNK(134, ring_query)
	THUNK(58, override_return) THUNK(187, set_retval) THUNK(173, func_ip) THUNK(174, cookie) THUNK(182, compare)
	THUNK(183, func_arg) THUNK(184, func_ret) THUNK(27, stack_id) THUNK(67, stack)
	THUNK(87, map_push) THUNK(88, map_pop) THUNK(89, map_peek)
	THUNK(600, log2_of) THUNK(601, raise) THUNK(605, bits)
	".globl program_unwind\n" // is called as a program
	"program_unwind:	mov %rbp,%rdx\n	jmp find_fde\n"
	".globl helper_release\n" // what a program that is ended early has not given back
	"helper_release:	mov (%rbp),%r9\n	jmp ring_discard\n"
	".text\n");

// --- who and when

// The process and the thread, as bpf_get_current_pid_tgid has them. The slot knows them without a
// system call; in a forked child it still has those of its parent.
HELPER u64 ids_of(struct run *run)
{
	struct slot *sl;
	struct regs r = {0};
	if (run->ids)
		return run->ids;
	sl = find_slot();
	if (unlikely(!GATE || !sl || !sl->ids || sl->off)) { // in a forked child, perhaps
		long pid = sys_own(&r, NR_GETPID), tid = sys_own(&r, NR_GETTID);
		struct who w;
		if (unlikely(pid < 0 || tid < 0))
			return run->ids = ask_who(&w) ? w.ids : 0;
		run->ids = pid << 32 | (u32)tid;
		return run->ids;
	}
	return run->ids = sl->ids;
}

HELPER u64 pid_tgid(u64 a, u64 b, u64 c, u64 d, u64 e, struct run *run)
{
	(void)a, (void)b, (void)c, (void)d, (void)e;
	return ids_of(run);
}

HELPER u64 uid_gid(void)
{
	struct regs r = {0};
	long gid = sys_own(&r, NR_GETGID), uid = sys_own(&r, NR_GETUID);
	struct who w;
	if (unlikely(gid < 0 || uid < 0))
		return ask_who(&w) ? w.user : 0;
	return gid << 32 | (u32)uid;
}

HELPER u64 ktime(void) { return now(); }

// The vdso's getcpu, if there is one. The thread may be on another processor when it returns.
HELPER u64 cpu_number(void)
{
	u32 cpu = 0;
	if (C->cpu)
		((long (*)(u32 *, u32 *, void *))C->cpu)(&cpu, 0, 0);
	return cpu;
}

HELPER u64 random32(void)
{
	u32 lo, hi;
	u64 v;
	__asm__ volatile("rdtsc" : "=a"(lo), "=d"(hi));
	v = (u64)hi << 32 | lo; // what splitmix64 makes of it
	v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9ul;
	v = (v ^ v >> 27) * 0x94d049bb133111ebul;
	return (u32)(v ^ v >> 31);
}

// The thread's name, cut off to what there is room for, and zeroes behind it.
HELPER long comm(u8 *to, u64 size)
{
	struct who w;
	u8 *name = w.name;
	struct regs r = {.rdi = 16 /* PR_GET_NAME */, .rsi = (u64)name};
	u64 i;
	if (!size)
		return 0;
	switch (sys_own(&r, NR_PRCTL)) {
	case 0:
		break;
	case -ENOSYS:
		if (ask_who(&w))
			break;
		// fallthrough
	default:
		name[0] = 0;
	}
	for (i = 0; i < size - 1 && i < 15 && name[i]; i++)
		to[i] = name[i];
	for (; i < size; i++)
		to[i] = 0;
	return 0;
}

HELPER u64 func_ip(u64 a, u64 b, u64 c, u64 d, u64 e, struct run *run)
{
	(void)a, (void)b, (void)c, (void)d, (void)e;
	return run->func;
}

HELPER u64 cookie(void) { return 0; }

// Only programs at a function's entry may call it.
HELPER long func_arg(u64 ctx, u64 n, u64 *to, u64 d, u64 e, struct run *run)
{
	const struct pt_regs *r = run->regs;
	(void)ctx, (void)d, (void)e;
	*to = 0;
	switch (n) {
	case 0:
		*to = r->di;
		return 0;
	case 1:
		*to = r->si;
		return 0;
	case 2:
		*to = r->dx;
		return 0;
	case 3:
		*to = r->cx;
		return 0;
	case 4:
		*to = r->r8;
		return 0;
	case 5:
		*to = r->r9;
		return 0;
	}
	if (n >= 32)
		return -EINVAL;
	if (!copy(to, r->sp + 8 + 8 * (n - 6), 8))
		return 0;
	*to = 0;
	return -EFAULT;
}

HELPER long func_ret(u64 ctx, u64 *to, u64 c, u64 d, u64 e, struct run *run)
{
	(void)ctx, (void)c, (void)d, (void)e;
	*to = run->regs->ax;
	return 0;
}

// What the function or the call returns in place of its own result; it is not executed then.
HELPER u64 override_return(u64 ctx, u64 value, u64 c, u64 d, u64 e, struct run *run)
{
	(void)ctx, (void)c, (void)d, (void)e;
	run->value = value;
	run->overridden = 1;
	return 0;
}

HELPER u64 set_retval(u64 value, u64 b, u64 c, u64 d, u64 e, struct run *run)
{
	(void)b;
	return override_return(0, value, c, d, e, run);
}

// --- nvtrace's own: the highest bit, a number that becomes the higher one, bits that are set

HELPER u64 log2_of(u64 v)
{
	u64 n = 0;
	if (v)
		__asm__("bsr %1,%0" : "=r"(n) : "r"(v) : "cc");
	return n;
}

// Makes *p at least v. Most calls find that it is, and write nothing.
HELPER void raise(u64 *p, u64 v)
{
	u64 was = *(volatile u64 *)p;
	while (was < v && !__atomic_compare_exchange_n(p, &was, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

HELPER u64 bits(u64 v)
{
	u64 n = 0;
	for (; v; v &= v - 1)
		n++;
	return n;
}

// --- memory

HELPER void zero(void *to, u64 n) { __asm__ volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(0) : "memory"); }

// Memory that can't be read is zeroes, as the kernel's helpers have it.
HELPER long probe_read(u8 *to, u64 size, u64 from)
{
	if (!size || !copy(to, from, size))
		return 0;
	zero(to, size);
	return -EFAULT;
}

// Returns the length with the NUL. It is read in parts, each checked for the end before the next is
// touched: the string may end just before memory that is not there.
HELPER long probe_read_str(u8 *to, u64 size, u64 from)
{
	u8 part[64] __attribute__((aligned(8)));
	u64 got, n, i;
	if (!size)
		return 0;
	for (got = 0; got < size; got += n) { // behind the string nothing is written
		u64 want = size - got < sizeof part ? size - got : sizeof part;
		n = copy_string(part, from + got, want);
		for (i = 0; i < n; i++)
			to[got + i] = part[i];
		if (n && !part[n - 1])
			return got + n;
		if (n < want) {
			zero(to, size);
			return -EFAULT;
		}
	}
	to[size - 1] = 0; // cut off
	return size;
}

HELPER long compare(const u8 *a, u64 n, const u8 *b)
{
	u64 i;
	for (i = 0; i < n; i++)
		if (a[i] != b[i] || !a[i])
			return (long)a[i] - b[i];
	return 0;
}

// Copies a key or a value.
static inline __attribute__((always_inline)) void put(u8 *to, const u8 *from, u64 n)
{
	for (; n >= 8; n -= 8, to += 8, from += 8)
		*(volatile u64 *)to = *(const u64 *)from;
	for (; n; n--)
		*to++ = *from++;
}

// --- maps; the layout of a hash is told in nvattach/hashmap.go
//
// A hash is open addressing. A key's home, a word for each slot, says how far from there keys may be
// that belong to it (reach), and is the lock for changing these: it has a version in its upper half, or,
// locked, the thread that holds it. Lookups take no lock. A slot's state is the key's hash with
// SLOT_VALID once key and value are written; what changes under a lookup makes it find nothing, or the
// value in parts of before and after, as with the kernel's maps.

#define SLOT_VALID 0x80000000u
#define HOME_LOCK 0x80000000ul
#define HOME_REACH 0x7ffffffful

// Four bytes of a key, of its end as many as there are.
static inline __attribute__((always_inline)) u32 word(const u8 *key, u32 left)
{
	u32 w = 0, i;
	if (likely(left >= 4))
		return *(const u32 *)key;
	for (i = 0; i < left; i++)
		w |= (u32)key[i] << 8 * i;
	return w;
}

// The hash of a key: the one that code on GPUs and nvattach/hashmap.go compute, since they share maps.
static inline __attribute__((always_inline)) u32 hash_of(const u8 *key, u32 n)
{
	u32 h = 0x9747b28c, i;
	for (i = 0; i < n; i += 4) {
		h = (h ^ word(key + i, n - i)) * 0x85ebca6bu;
		h ^= h >> 13;
	}
	h *= 0xc2b2ae35u;
	return h ^ h >> 16;
}

static inline __attribute__((always_inline)) int same(const u8 *a, const u8 *b, u32 n)
{
	for (; n >= 8; n -= 8, a += 8, b += 8)
		if (*(const u64 *)a != *(const u64 *)b)
			return 0;
	for (; n >= 4; n -= 4, a += 4, b += 4)
		if (*(const u32 *)a != *(const u32 *)b)
			return 0;
	for (; n; n--)
		if (*a++ != *b++)
			return 0;
	return 1;
}

static inline u64 home_of(const struct map *m, u32 hash) { return m->base + m->homes + 8 * (hash & (m->slots - 1)); }
static inline u64 slot_at(const struct map *m, u64 i) { return m->base + m->at + (i & (m->slots - 1)) * m->slotsize; }

// Which copy of the values is this processor's; 0 if there is one for all.
static inline u64 cpu_of(const struct map *m) { return m->copy ? cpu_number() % m->cpus : 0; }

// Returns 1 + the slot of a key, or 0, and what the home was.
static inline __attribute__((always_inline)) u64 find(const struct map *m, const u8 *key, u32 hash, u64 *home)
{
	u64 n, reach;
	*home = *(volatile u64 *)home_of(m, hash);
	reach = *home & HOME_REACH;
	for (n = 0; n < reach && n < m->slots; n++) {
		u64 at = slot_at(m, hash + n);
		if (*(volatile u32 *)at == (hash | SLOT_VALID) && same(key, (const u8 *)(at + m->keyoff), m->key)) {
			if (m->lru)
				*(volatile u32 *)(at + 4) = 1; // it is in use
			return 1 + ((hash + n) & (m->slots - 1));
		}
	}
	return 0;
}

// Where the value of a slot is.
static inline u64 value_at(const struct map *m, u64 slot, u64 cpu)
{
	return m->base + m->values + cpu * m->copy + slot * m->stride;
}

// --- tries: hashes whose keys are prefixes, with the bits behind those 0. What has a number of
// bits is looked for with each length that there is, the longest first.

#define TRIE_KEY 260u // bytes of a key: the length, in bits, and the prefix

struct prefix {
	u32 bits;
	u8 data[TRIE_KEY - 4];
};

static inline int has_length(const struct map *m, u32 bits) { return ((volatile u64 *)(m->base + m->lpm))[bits / 64] >> bits % 64 & 1; }

// Copies a key, with bits of it. Returns whether it is one.
HELPER int prefix_of(const struct map *m, const u8 *key, struct prefix *p)
{
	u32 most = 8 * (m->key - 4), i;
	put((u8 *)p, key, m->key);
	if (p->bits > most)
		return 0;
	if (p->bits % 8)
		p->data[p->bits / 8] &= 0xff00 >> p->bits % 8;
	for (i = (p->bits + 7) / 8; i < most / 8; i++)
		p->data[i] = 0;
	return 1;
}

// Shortens the prefix bit by bit. Lengths that no key has cost a test of a bit each.
HELPER u64 trie_lookup(const struct map *m, const u8 *key)
{
	struct prefix p;
	u64 i, home;
	u32 n;
	if (!prefix_of(m, key, &p))
		return 0;
	for (n = p.bits;; n--) {
		if (n < 8 * (m->key - 4))
			p.data[n / 8] &= ~(0x80 >> n % 8);
		p.bits = n;
		if (has_length(m, n) && (i = find(m, (u8 *)&p, hash_of((u8 *)&p, m->key), &home)))
			return value_at(m, i - 1, 0);
		if (!n)
			return 0;
	}
}

// --- bloom filters: a number of bits for each value, from two hashes of it

#define BLOOM_HEAD 64u

static inline u64 bloom_bit(const struct map *m, u32 hash, u32 i)
{
	return (hash + (u64)i * ((hash * 0x9e3779b1u) >> 1 | 1)) & (m->slots - 1);
}

static inline u64 *bloom_word(const struct map *m, u64 bit) { return (u64 *)(m->base + BLOOM_HEAD + m->stride) + bit / 64; }

// Whether a value may have been added; -ENOENT: it was not.
HELPER long bloom_has(const struct map *m, const u8 *value)
{
	u32 hash = hash_of(value, m->value), i;
	for (i = 0; i < m->homes; i++) {
		u64 bit = bloom_bit(m, hash, i);
		if (!(*(volatile u64 *)bloom_word(m, bit) >> bit % 64 & 1))
			return -ENOENT;
	}
	return 0;
}

HELPER long bloom_add(const struct map *m, const u8 *value)
{
	u32 hash = hash_of(value, m->value), i;
	for (i = 0; i < m->homes; i++) {
		u64 bit = bloom_bit(m, hash, i);
		__atomic_fetch_or(bloom_word(m, bit), 1ul << bit % 64, __ATOMIC_RELAXED);
	}
	return 0;
}

// Returns the address of the value, 0 if there is none. In a map with a copy for each processor that is
// this one's.
HELPER u64 map_lookup(const struct map *m, const u8 *key)
{
	u64 i, home;
	if (unlikely(m->kind == MAP_TRIE))
		return trie_lookup(m, key);
	if (unlikely(m->kind == MAP_BLOOM)) // where nothing is written
		return bloom_has(m, key) ? 0 : m->base + BLOOM_HEAD;
	if (m->kind == MAP_ARRAY) {
		i = *(const u32 *)key;
		return i < m->entries ? m->base + cpu_of(m) * m->copy + i * m->stride : 0;
	}
	i = find(m, key, hash_of(key, m->key), &home);
	return i ? value_at(m, i - 1, cpu_of(m)) : 0;
}

static inline void count(u64 addr) { __atomic_fetch_add((u64 *)addr, 1, __ATOMIC_RELAXED); }

// Waits for a home that is locked. Returns whether that makes sense: not for this thread
// itself, in a signal handler, nor for ever. The owner may have been killed in the middle, or
// stopped; the supervisor is asked at last, which knows, and unlocks what nobody holds any more.
HELPER int wait_for(const struct map *m, u64 home, u64 seen, struct run *run, u32 *tries)
{
	struct regs r = {0};
	u32 i;
	if (seen >> 32 != (u32)ids_of(run)) {
		for (i = 0; i < 100; i++) {
			if (*(volatile u64 *)home != seen)
				return 1;
			__asm__ volatile("pause");
		}
		if (++*tries < 22000) {
			// The supervisor knows whether its owner lives; it is asked again after twice as long.
			if (*tries < 64 || (*tries & (*tries - 1)) || !trap(TRAP_LOCK, home))
				sys_own(&r, NR_SCHED_YIELD);
			return 1;
		}
	}
	count(m->busy);
	return 0;
}

// What follows runs with a home locked, for a few dozen instructions. The supervisor lets no
// signal be delivered meanwhile, whose handler could wait for the lock of its own thread:
// it has the thread execute what is left of CRITICAL first, so nothing else is called there.
#define CRITICAL __attribute__((section(".crit"), noinline, used))

// The home was not as it was seen.
#define AGAIN 1

// Locks a home that is as it was seen.
static inline __attribute__((always_inline)) int lock(u64 home, u64 seen, u64 owner)
{
	return __sync_bool_compare_and_swap((u64 *)home, seen, owner << 32 | HOME_LOCK | (seen & HOME_REACH));
}

// Gives it back, of another version.
static inline __attribute__((always_inline)) void unlock(u64 home, u64 seen, u64 reach)
{
	barrier();
	*(volatile u64 *)home = ((seen >> 32) + 1) << 32 | reach;
}

// Takes a key out of a hash to make room for another, if nobody else changes its home.
CRITICAL int drop(const struct map *m, u64 at, u32 state, u64 home, u64 owner)
{
	u64 seen = *(volatile u64 *)home;
	int done;
	if ((seen & HOME_LOCK) || !lock(home, seen, owner))
		return 0;
	done = *(volatile u32 *)at == state;
	if (done) {
		__atomic_fetch_add((u32 *)m->base, -1, __ATOMIC_RELAXED);
		*(volatile u32 *)at = 0;
	}
	unlock(home, seen, seen & HOME_REACH);
	return done;
}

// Drops the next key, in the order of the slots, that was not used since the last time that
// this came by.
HELPER void evict(const struct map *m, u64 owner)
{
	u64 n;
	for (n = 0; n < 2 * m->slots; n++) {
		u64 at = slot_at(m, __atomic_fetch_add((u64 *)(m->base + 8), 1, __ATOMIC_RELAXED));
		u32 state = *(volatile u32 *)at;
		if (!(state & SLOT_VALID))
			continue;
		if (*(volatile u32 *)(at + 4))
			*(volatile u32 *)(at + 4) = 0;
		else if (drop(m, at, state, home_of(m, state), owner))
			return;
	}
}

// What a change of a hash is about.
struct change {
	const struct map *m;
	const u8 *key, *value;
	u64 home, seen, owner, slot, cpu;
	u32 hash, quiet; // quiet: want of room is not counted
};

// Inserts a key.
CRITICAL long insert(const struct change *c)
{
	const struct map *m = c->m;
	u64 n, k, w, reach = c->seen & HOME_REACH, mask = m->slots - 1;
	u32 busy = ((u32)c->owner << 1 | 1) & ~SLOT_VALID;
	if (!lock(c->home, c->seen, c->owner))
		return AGAIN;
	if (__atomic_fetch_add((u32 *)m->base, 1, __ATOMIC_RELAXED) < m->entries) {
		for (n = 0; n < m->slots; n++) {
			u64 slot = (c->hash + n) & mask, at = m->base + m->at + slot * m->slotsize, value = m->base + m->values + slot * m->stride;
			if (*(volatile u32 *)at || !__sync_bool_compare_and_swap((u32 *)at, 0, busy))
				continue;
			if (m->lru)
				*(volatile u32 *)(at + 4) = 0;
			put((u8 *)(at + m->keyoff), c->key, m->key);
			for (k = 0; m->copy && k < m->cpus; k++)
				for (w = 0; w < m->stride; w += 8)
					*(volatile u64 *)(value + k * m->copy + w) = 0;
			put((u8 *)(value + c->cpu * m->copy), c->value, m->value);
			barrier();
			*(volatile u32 *)at = c->hash | SLOT_VALID;
			unlock(c->home, c->seen, n + 1 > reach ? n + 1 : reach);
			return 0;
		}
	}
	__atomic_fetch_add((u32 *)m->base, -1, __ATOMIC_RELAXED);
	unlock(c->home, c->seen, reach);
	if (!c->quiet)
		__atomic_fetch_add((u64 *)m->refused, 1, __ATOMIC_RELAXED);
	return -E2BIG;
}

// Replaces the value of a key, which another thread could delete otherwise.
CRITICAL long replace(const struct change *c)
{
	const struct map *m = c->m;
	if (!lock(c->home, c->seen, c->owner))
		return AGAIN;
	put((u8 *)(m->base + m->values + c->cpu * m->copy + c->slot * m->stride), c->value, m->value);
	barrier();
	*(volatile u64 *)c->home = c->seen;
	return 0;
}

// Takes a key out. Its home's reach stays, as others may lie further away.
CRITICAL long delete(const struct change *c)
{
	const struct map *m = c->m;
	if (!lock(c->home, c->seen, c->owner))
		return AGAIN;
	__atomic_fetch_add((u32 *)m->base, -1, __ATOMIC_RELAXED);
	*(volatile u32 *)(m->base + m->at + c->slot * m->slotsize) = 0;
	unlock(c->home, c->seen, c->seen & HOME_REACH);
	return 0;
}

// flags is 0, 1 (BPF_NOEXIST) or 2 (BPF_EXIST). A map from which no program deletes keys (stable)
// needs no lock to replace a value: the slot is the key's for good.
HELPER long map_update(const struct map *m, const u8 *key, const u8 *value, u64 flags, u64 e, struct run *run)
{
	struct prefix prefix;
	struct change c;
	u64 i;
	u32 tries = 0;
	long r;
	(void)e;
	if (flags > 2)
		return -EINVAL;
	if (m->kind == MAP_ARRAY) {
		i = *(const u32 *)key;
		if (i >= m->entries)
			return -E2BIG;
		if (flags == 1)
			return -EEXIST;
		put((u8 *)(m->base + cpu_of(m) * m->copy + i * m->stride), value, m->value);
		return 0;
	}
	if (unlikely(m->kind == MAP_BLOOM))
		return flags ? -EINVAL : bloom_add(m, value);
	if (unlikely(m->kind == MAP_TRIE)) {
		if (!prefix_of(m, key, &prefix))
			return -EINVAL;
		__atomic_fetch_or((u64 *)(m->base + m->lpm) + prefix.bits / 64, 1ul << prefix.bits % 64, __ATOMIC_RELAXED);
		key = (u8 *)&prefix;
	}
	c.hash = hash_of(key, m->key);
	c.home = home_of(m, c.hash);
	c.cpu = cpu_of(m);
	for (;;) {
		i = find(m, key, c.hash, &c.seen);
		if (i && flags == 1)
			return -EEXIST;
		if (i && m->stable) {
			put((u8 *)value_at(m, i - 1, c.cpu), value, m->value);
			return 0;
		}
		if (!i && flags == 2)
			return -ENOENT;
		if (unlikely(c.seen & HOME_LOCK)) {
			if (!wait_for(m, c.home, c.seen, run, &tries))
				return -EBUSY;
			continue;
		}
		c.m = m;
		c.key = key;
		c.value = value;
		c.owner = (u32)ids_of(run);
		c.slot = i - 1;
		c.quiet = m->lru && ++tries < 1000;
		if (!i && m->lru && *(volatile u32 *)m->base >= m->entries)
			evict(m, c.owner);
		r = i ? replace(&c) : insert(&c);
		if (likely(r != AGAIN && !(r == -E2BIG && c.quiet)))
			return r;
	}
}

// The bit of a prefix's length stays set in a trie: then it is looked for in vain.
HELPER long map_delete(const struct map *m, const u8 *key, u64 d, u64 e, u64 f, struct run *run)
{
	struct prefix prefix;
	struct change c;
	u64 i;
	u32 tries = 0;
	(void)d, (void)e, (void)f;
	if (m->kind == MAP_TRIE) {
		if (!prefix_of(m, key, &prefix))
			return -EINVAL;
		key = (u8 *)&prefix;
	} else if (m->kind != MAP_HASH)
		return -EINVAL;
	c.hash = hash_of(key, m->key);
	c.home = home_of(m, c.hash);
	for (;;) {
		i = find(m, key, c.hash, &c.seen);
		if (!i)
			return -ENOENT;
		if (unlikely(c.seen & HOME_LOCK)) {
			if (!wait_for(m, c.home, c.seen, run, &tries))
				return -EBUSY;
			continue;
		}
		c.m = m;
		c.owner = (u32)ids_of(run);
		c.slot = i - 1;
		if (likely(delete(&c) != AGAIN))
			return 0;
	}
}

// --- queues and stacks: a lock as that of a hash's home, how many values were taken from the
// one end, and put to the other; then the values

#define QUEUE_HEAD 64u

struct queue {
	u64 lock, first, end;
};

static inline u8 *queue_at(const struct map *m, u64 i) { return (u8 *)(m->base + QUEUE_HEAD + i % m->entries * m->stride); }

// Puts a value to the end; quiet: the oldest makes room (BPF_EXIST).
CRITICAL long queue_push(const struct change *c)
{
	const struct map *m = c->m;
	volatile struct queue *q = (struct queue *)m->base;
	u64 first, end;
	if (!lock(c->home, c->seen, c->owner))
		return AGAIN;
	first = q->first;
	end = q->end;
	if (end - first >= m->entries) {
		if (!c->quiet) { // the oldest does not make room
			unlock(c->home, c->seen, 0);
			return -E2BIG;
		}
		q->first = first + 1;
	}
	put(queue_at(m, end), c->value, m->value);
	barrier();
	q->end = end + 1;
	unlock(c->home, c->seen, 0);
	return 0;
}

// Quiet: it stays.
CRITICAL long queue_take(const struct change *c)
{
	const struct map *m = c->m;
	volatile struct queue *q = (struct queue *)m->base;
	u64 first, end;
	if (!lock(c->home, c->seen, c->owner))
		return AGAIN;
	first = q->first;
	end = q->end;
	if (first == end) {
		unlock(c->home, c->seen, 0);
		return -ENOENT;
	}
	put((u8 *)c->value, queue_at(m, m->kind == MAP_STACK ? end - 1 : first), m->value);
	barrier();
	if (!c->quiet && m->kind == MAP_STACK)
		q->end = end - 1;
	else if (!c->quiet)
		q->first = first + 1;
	unlock(c->home, c->seen, 0);
	return 0;
}

// Makes a change under the lock. It is tried again when somebody else came first.
HELPER long queue_change(const struct map *m, const u8 *value, u32 quiet, long (*how)(const struct change *), struct run *run)
{
	struct change c = {.m = m, .value = value, .home = m->base, .owner = (u32)ids_of(run), .quiet = quiet};
	u32 tries = 0;
	for (;;) {
		long r;
		c.seen = *(volatile u64 *)m->base;
		if (unlikely(c.seen & HOME_LOCK)) {
			if (!wait_for(m, c.home, c.seen, run, &tries))
				return -EBUSY;
			continue;
		}
		if (likely((r = how(&c)) != AGAIN))
			return r;
	}
}

HELPER long map_push(const struct map *m, const u8 *value, u64 flags, u64 d, u64 e, struct run *run)
{
	(void)d, (void)e;
	if (m->kind == MAP_BLOOM)
		return flags ? -EINVAL : bloom_add(m, value);
	if (flags & ~2ul) // BPF_EXIST
		return -EINVAL;
	return queue_change(m, value, !!flags, queue_push, run);
}

// A program is given zeroes where there is nothing.
HELPER long queue_get(const struct map *m, u8 *value, u32 quiet, struct run *run)
{
	long r = queue_change(m, value, quiet, queue_take, run);
	if (r)
		zero(value, m->value);
	return r;
}

HELPER long map_pop(const struct map *m, u8 *value, u64 c, u64 d, u64 e, struct run *run)
{
	(void)c, (void)d, (void)e;
	return m->kind == MAP_BLOOM ? -EINVAL : queue_get(m, value, 0, run);
}

HELPER long map_peek(const struct map *m, u8 *value, u64 c, u64 d, u64 e, struct run *run)
{
	(void)c, (void)d, (void)e;
	return m->kind == MAP_BLOOM ? bloom_has(m, value) : queue_get(m, value, 1, run);
}

// --- records; the layout of a ring is told in nvattach/ring.go
//
// Room is handed out by one addition to a counter that never goes back, in units of 32 bytes, and the
// supervisor says up to where it has read. Who finds no room has moved the counter all the same: it
// counts what was dropped, and the reader skips that. A record becomes valid by its
// cookie, which is made of its position: what lies there from the last time round is no record. It
// stands there inverted while the record is written, so that the reader knows of one that is
// never completed.

#define RING_COOKIE 0x9e3a61c75bd4f20dul
#define RECORD_DISCARDED 0x80000000u

struct ring {
	u64 handed, read, dropped, dropped_units;
	u64 pad[12];
	u8 units[];
};

struct head {
	u64 cookie;
	u32 size, cpu;
	u8 data[];
};

// Takes room for a record of size bytes; 0: there is none.
HELPER struct head *take(const struct map *m, u64 size)
{
	struct ring *ring = (struct ring *)m->base;
	u64 n = (sizeof(struct head) + size + 31) / 32, k;
	struct head *h;
	if (size > m->largest)
		return 0;
	k = __atomic_fetch_add(&ring->handed, n, __ATOMIC_SEQ_CST);
	if (unlikely(k + n - *(volatile u64 *)&ring->read > m->units)) {
		__atomic_fetch_add(&ring->dropped, 1, __ATOMIC_RELAXED);
		__atomic_fetch_add(&ring->dropped_units, n, __ATOMIC_SEQ_CST);
		return 0;
	}
	h = (struct head *)(ring->units + (k & (m->units - 1)) * 32);
	*(volatile u64 *)&h->cookie = ~(RING_COOKIE + k);
	h->size = size;
	h->cpu = cpu_number();
	return h;
}

// Makes a record valid.
HELPER void give(struct head *h)
{
	barrier();
	*(volatile u64 *)&h->cookie = ~h->cookie;
}

HELPER u64 ring_reserve(const struct map *m, u64 size)
{
	struct head *h = take(m, size);
	return h ? (u64)h->data : 0;
}

static inline struct head *head_of(u64 data) { return (struct head *)(data - sizeof(struct head)); }

HELPER void ring_submit(u64 data) { give(head_of(data)); }

HELPER void ring_discard(u64 data)
{
	head_of(data)->size |= RECORD_DISCARDED;
	give(head_of(data));
}

HELPER long ring_output(const struct map *m, const u8 *data, u64 size)
{
	struct head *h = take(m, size);
	if (!h)
		return -E2BIG;
	put(h->data, data, size);
	give(h);
	return 0;
}

HELPER long perf_output(u64 ctx, const struct map *m, u64 flags, const u8 *data, u64 size)
{
	(void)ctx, (void)flags;
	return ring_output(m, data, size);
}

HELPER u64 ring_query(const struct map *m, u64 what)
{
	volatile struct ring *ring = (struct ring *)m->base;
	u64 read = ring->read, n = ring->handed - read;
	switch (what) {
	case 0: // what was dropped was handed out as well
		return 32 * (n < m->units ? n : m->units);
	case 1:
		return 32 * m->units;
	case 2:
		return 32 * read;
	case 3:
		return 32 * (read + n);
	}
	return 0;
}

// --- text; a record of it is told in nvattach/printk.go

#define PRINT_TEXTS 0xffffffffu
#define PRINT_STRING 256u

// The i-th argument of a format that is a string, by its bit.
HELPER u64 strings_in(const u8 *format, u64 size)
{
	u64 i, found = 0, arg = 0;
	for (i = 0; i < size && format[i]; i++) {
		if (format[i] != '%')
			continue;
		for (i++; i < size && format[i]; i++) {
			u8 c = format[i];
			if (c == '-' || c == '+' || c == ' ' || c == '#' || c == '.' || (c >= '0' && c <= '9') || c == 'h' || c == 'l' ||
			    c == 'z' || c == 't' || c == 'j')
				continue;
			if (c == 's')
				found |= 1ul << (arg & 63);
			if (c != '%')
				arg++;
			break;
		}
	}
	return found;
}

// Writes a record of a text: the format, its arguments, and the strings that they point to, which may
// not be there any more when the supervisor makes the text of it. Returns the length of the format.
HELPER long text(const struct map *m, const u8 *format, u64 size, const u64 *args, u64 n)
{
	u64 i, strings = strings_in(format, size), room = 12 + 8 * n + ((size + 3) & ~3ul);
	struct head *h;
	u8 *to;
	for (i = 0; i < n; i++)
		if (strings >> i & 1)
			room += 4 + PRINT_STRING;
	h = take(m, room);
	if (!h)
		return -E2BIG;
	to = h->data;
	((u32 *)to)[0] = PRINT_TEXTS;
	((u32 *)to)[1] = n;
	to += 8;
	for (i = 0; i < n; i++, to += 8)
		*(u64 *)to = args[i];
	*(u32 *)to = size;
	put(to + 4, format, size);
	to += 4 + ((size + 3) & ~3ul);
	for (i = 0; i < n; i++) {
		if (!(strings >> i & 1))
			continue;
		*(u32 *)to = copy_string(to + 4, args[i], PRINT_STRING);
		to += 4 + PRINT_STRING;
	}
	give(h);
	for (i = 0; i < size && format[i]; i++)
		;
	return i;
}

// The first map that the supervisor lays out is the one of texts.
#define TEXTS ((const struct map *)(PROGRAM_ADDR + 0x8000))

HELPER long print(const u8 *format, u64 size, u64 a, u64 b, u64 c)
{
	u64 args[3] = {a, b, c};
	return text(TEXTS, format, size, args, 3);
}

HELPER long vprint(const u8 *format, u64 size, const u64 *args, u64 n)
{
	if (n % 8 || n / 8 > 12)
		return -EINVAL;
	return text(TEXTS, format, size, args, n / 8);
}

// --- text in memory: what nvattach.Sprintf makes of a format, and numbers in text

struct out {
	u8 *to;
	u64 room, n; // bytes of room; of text, which may be more
};

// Adds a character, or counts it, where there is no room.
HELPER void emit(struct out *o, u8 c)
{
	if (o->n < o->room)
		o->to[o->n] = c;
	o->n++;
}

HELPER void fill(struct out *o, u8 c, long n)
{
	for (; n > 0; n--)
		emit(o, c);
}

// Reads a number of a format, which means nothing beyond 1000.
HELPER u64 size_in(const u8 *format, u64 size, u64 *i)
{
	u64 n = 0;
	for (; *i < size && format[*i] >= '0' && format[*i] <= '9'; ++*i)
		if (n < 1000)
			n = 10 * n + format[*i] - '0';
	return n < 1000 ? n : 1000;
}

// Writes an argument. flags has a bit for each of "-+ 0#"; precision is -1 if there is none.
HELPER void convert(struct out *o, u8 verb, u64 v, u32 flags, u64 width, long precision, u32 bits)
{
	u8 text[PRINT_STRING] __attribute__((aligned(8)));
	u8 sign[2];
	u64 signs = 0, n = 0, base = verb == 'x' || verb == 'X' || verb == 'p' ? 16 : verb == 'o' ? 8 : 10, zeros = 0, i, from = 0;
	long pad;
	if (verb == 'c') {
		text[0] = v;
		n = 1;
		flags &= ~8u;
	} else if (verb == 's') {
		n = copy_string(text, v, PRINT_STRING);
		if (n) {
			for (i = 0; i < n && text[i]; i++)
				;
			n = i;
		} else { // as text() has it
			static const u8 why[] = "(unreadable 0x";
			for (; n < sizeof why - 1; n++)
				text[n] = why[n];
			for (i = 60; i && !(v >> i & 15); i -= 4)
				;
			for (;; i -= 4) {
				text[n++] = "0123456789abcdef"[v >> i & 15];
				if (!i)
					break;
			}
			text[n++] = ')';
		}
		if (precision >= 0 && (u64)precision < n)
			n = precision;
		flags &= ~8u;
	} else {
		if (verb == 'd' || verb == 'i') {
			long s = (long)(v << (64 - bits)) >> (64 - bits);
			v = s < 0 ? -(u64)s : (u64)s;
			if (s < 0)
				sign[signs++] = '-';
			else if (flags & 6)
				sign[signs++] = flags & 2 ? '+' : ' ';
		} else if (verb == 'p') {
			sign[signs++] = '0';
			sign[signs++] = 'x';
		} else {
			v = v << (64 - bits) >> (64 - bits);
			if ((flags & 16) && v && verb != 'u') {
				sign[signs++] = '0';
				if (verb != 'o')
					sign[signs++] = verb;
			}
		}
		from = sizeof text;
		do {
			text[--from] = (verb == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[v % base];
			v /= base;
		} while (v);
		n = sizeof text - from;
		if (precision >= 0) {
			flags &= ~8u;
			zeros = (u64)precision > n ? precision - n : 0;
		}
	}
	pad = (long)width - (long)(signs + zeros + n);
	if (!(flags & 9))
		fill(o, ' ', pad);
	for (i = 0; i < signs; i++)
		emit(o, sign[i]);
	fill(o, '0', ((flags & 9) == 8 ? (pad > 0 ? pad : 0) : 0) + zeros);
	for (i = 0; i < n; i++)
		emit(o, text[from + i]);
	if (flags & 1)
		fill(o, ' ', pad);
}

// bpf_snprintf: returns the length that the text would have, with the NUL. A verb that is not known stands
// in the text as it is.
HELPER long format_text(u8 *to, u64 room, const u8 *format, const u64 *args, u64 bytes)
{
	struct out o = {to, room ? room - 1 : 0, 0};
	u64 list[12], size = 512, i, next = 0, begin, width;
	if (bytes % 8 || bytes / 8 > 12)
		return -EINVAL;
	put((u8 *)list, (const u8 *)args, bytes); // what is written may lie across them
	for (i = 0; i < size && format[i];) {
		u32 flags = 0, bits = 32, k;
		long precision = -1;
		u8 verb = 0;
		if (format[i] != '%') {
			emit(&o, format[i++]);
			continue;
		}
		begin = i++;
		for (; i < size && format[i]; i++) {
			for (k = 0; k < 5 && "-+ 0#"[k] != format[i]; k++)
				;
			if (k == 5)
				break;
			flags |= 1u << k;
		}
		width = size_in(format, size, &i);
		if (i < size && format[i] == '.') {
			i++;
			precision = size_in(format, size, &i);
		}
		for (; i < size && format[i]; i++) {
			for (k = 0; k < 7 && "lztjLqh"[k] != format[i]; k++)
				;
			if (k == 7)
				break;
			bits = k == 6 ? (bits / 2 > 8 ? bits / 2 : 8) : 64;
		}
		if (i < size && format[i]) {
			for (k = 0; k < 10 && "diuxXocps%"[k] != format[i]; k++)
				;
			verb = k < 10 ? format[i] : 0;
			i++;
		}
		if (verb == '%')
			emit(&o, '%');
		else if (!verb || next >= bytes / 8)
			for (; begin < i; begin++)
				emit(&o, format[begin]);
		else
			convert(&o, verb, list[next++], flags, width, precision, bits);
	}
	if (room)
		to[o.n < room - 1 ? o.n : room - 1] = 0;
	return o.n + 1;
}

// As the kernel's bpf_strtoul and bpf_strtol, which look at 63 characters behind spaces.
HELPER long number_in(const u8 *text, u64 size, u64 flags, u64 *to, int *negative)
{
	u64 i = 0, base = flags & 31, end, digits = 0;
	int over = 0;
	if (!size || (flags & ~31ul) || (base && base != 8 && base != 10 && base != 16))
		return -EINVAL;
	while (i < size && (text[i] == ' ' || (text[i] >= '\t' && text[i] <= '\r') || text[i] == 0xa0))
		i++;
	*negative = i < size && text[i] == '-';
	i += *negative;
	if (i == size)
		return -EINVAL;
	end = size - i < 63 ? size : i + 63;
#define AT(k) (i + (k) < end ? text[i + (k)] : 0)
#define DIGIT(c) ((c) >= '0' && (c) <= '9' ? (u64)(c) - '0' : ((c) | 32) >= 'a' && ((c) | 32) <= 'f' ? (u64)((c) | 32) - 'a' + 10 : 99ul)
	if (!base)
		base = AT(0) != '0' ? 10 : (AT(1) | 32) == 'x' && DIGIT(AT(2)) < 16 ? 16 : 8;
	if (base == 16 && AT(0) == '0' && (AT(1) | 32) == 'x')
		i += 2;
	for (; i < end && DIGIT(text[i]) < base; i++, digits++) {
		u64 d = DIGIT(text[i]), high = (*to >> 32) * base, low = (*to & 0xffffffff) * base + d;
		over |= (high + (low >> 32)) >> 32 != 0;
		*to = *to * base + d;
	}
	if (over || !digits)
		*to = 0;
	return over ? -ERANGE : digits ? (long)i : -EINVAL;
}

// The number is written when the text has been read, which it may lie in.
HELPER long to_unsigned(const u8 *text, u64 size, u64 flags, u64 *to)
{
	int negative = 0;
	u64 v = 0;
	long r = number_in(text, size, flags, &v, &negative);
	if (r >= 0 && negative) {
		v = 0;
		r = -EINVAL;
	}
	*to = v;
	return r;
}

HELPER long to_signed(const u8 *text, u64 size, u64 flags, u64 *to)
{
	int negative = 0;
	u64 v = 0;
	long r = number_in(text, size, flags, &v, &negative);
	if (negative)
		v = -v;
	if (r >= 0 && (negative ? (long)v > 0 : (long)v < 0)) {
		*to = 0;
		return -ERANGE;
	}
	*to = v;
	return r;
}

// --- unwinding

// An exception, and whoever lists the callers, comes to functions whose return is watched,
// and finds probe_return for their return address. This is a program at the entry of
// libgcc's _Unwind_Find_FDE(pc, bases), which looks for the description of a function: that
// of probe_return says that a thread's list of calls has the address.

// Opcodes of DWARF.
enum {
	OP_DEREF = 0x06, OP_CONST1U = 0x08, OP_CONST4U = 0x0c, OP_CONST8U = 0x0e, OP_DUP = 0x12, OP_OVER = 0x14, OP_AND = 0x1a,
	OP_MINUS = 0x1c, OP_OR = 0x21, OP_PLUS = 0x22, OP_PLUS_UCONST = 0x23, OP_SHL = 0x24, OP_BRA = 0x28, OP_EQ = 0x29, OP_GE = 0x2a,
	OP_NE = 0x2e, OP_LIT0 = 0x30, OP_BREG7 = 0x77,
	CFA_DEF_CFA_EXPRESSION = 0x0f, CFA_VAL_EXPRESSION = 0x16,
};

static inline u8 *put8(u8 *p, u64 v)
{
	*(u64 *)p = v;
	return p + 8;
}

static inline u8 *put4(u8 *p, u32 v)
{
	*(u32 *)p = v;
	return p + 4;
}

// Writes the description of probe_return for a thread: a CIE and an FDE (LSB, .eh_frame), whose
// expressions say where its caller is. A function that is watched has the address of
// probe_return just below its caller's stack pointer (rsp - 8), so the expression goes through the
// thread's list of calls, from the last one on, for the one whose return address lay there, and yields
// what that was. An unwinder computes it, at any time, without a call of ours.
HELPER void describe(struct rets *l)
{
	u8 *p = l->fde, *cie = p, *fde, *length, *loop;
	p = put4(p + 4, 0);
	*p++ = 1;    // version
	*p++ = 0;    // augmentation
	*p++ = 1;    // code alignment
	*p++ = 0x78; // data alignment: -8
	*p++ = 16;   // the register of the return address
	put4(cie, p - cie - 4);
	fde = p;
	p = put4(p + 4, p + 4 - cie);
	p = put8(p, (u64)probe_return - 1);
	p = put8(p, 2);
	// No function has this address of its frame: unwinders tell frames apart by it.
	*p++ = CFA_DEF_CFA_EXPRESSION;
	*p++ = 2;
	*p++ = OP_BREG7;
	*p++ = 0x7f; // -1
	*p++ = CFA_VAL_EXPRESSION;
	*p++ = 7; // rsp
	*p++ = 2;
	*p++ = OP_BREG7;
	*p++ = 0;
	*p++ = CFA_VAL_EXPRESSION;
	*p++ = 16;
	length = p++;
	*p++ = OP_CONST8U;
	p = put8(p, (u64)&l->depth);
	*p++ = OP_DEREF;
	*p++ = OP_LIT0 + 5; // sizeof(struct ret) = 1 << 5
	*p++ = OP_SHL;
	*p++ = OP_CONST8U;
	p = put8(p, (u64)l->list);
	*p++ = OP_PLUS;
	loop = p; // an entry more
	*p++ = OP_CONST1U;
	*p++ = sizeof(struct ret);
	*p++ = OP_MINUS;
	*p++ = OP_DUP;
	*p++ = OP_DEREF;
	*p++ = OP_BREG7;
	*p++ = 0x78; // -8
	*p++ = OP_NE;
	*p++ = OP_OVER; // of a function that another has jumped to, whose return is watched, too
	*p++ = OP_PLUS_UCONST;
	*p++ = 8;
	*p++ = OP_DEREF;
	*p++ = OP_CONST4U;
	p = put4(p, (u32)(u64)probe_return);
	*p++ = OP_EQ;
	*p++ = OP_OR;
	*p++ = OP_OVER;
	*p++ = OP_CONST8U;
	p = put8(p, (u64)l->list);
	*p++ = OP_GE;
	*p++ = OP_AND;
	*p++ = OP_BRA;
	*p = (u8)(loop - (p + 2));
	p[1] = 0xff;
	p += 2;
	*p++ = OP_PLUS_UCONST;
	*p++ = 8;
	*p++ = OP_DEREF;
	*length = p - length - 1;
	put4(fde, p - fde - 4);
	put4(p, 0);
	barrier();
	l->described = fde - cie;
}

// A thread that is cancelled in a system call, or has a signal handler that throws, is
// at call_insn: on its stack are the number, where the stub goes on, and what is not to be
// touched below the program's stack pointer. The stub ends in `lea 128(%rsp),%rsp; jmp`, to where
// the program's own instruction would have returned to.
__asm__(
	".section .prog,\"ax\",@progbits\n"
	"call_fde:\n"
	"	.long 2f-1f\n"
	"1:	.long 0\n	.byte 1, 0, 1, 0x78, 16\n"
	"2:	.long 6f-3f\n"
	"3:	.long 3b-call_fde\n	.quad call_insn\n	.quad 3\n"
	"	.byte 0x0c, 7, 0x90, 0x01\n" // DW_CFA_def_cfa: rsp + 144
	"	.byte 0x16, 16, 5f-4f\n"     // DW_CFA_val_expression: the return address
	"4:	.byte 0x77, 8, 0x06\n"       // the stub's address
	"	.byte 0x12, 0x23, 9, 0x94, 4, 0x08, 32, 0x24, 0x08, 32, 0x26, 0x22\n" // and how far its jump goes
	"	.byte 0x23, 13\n"
	"5:\n"
	"6:	.long 0\n"
	".text\n");
extern const u8 call_fde[], call_insn[];
#define CALL_CIE 13u // bytes of it in front of the description

// The program at _Unwind_Find_FDE. Where the address is one of ours, the function is not executed, and
// returns our description in its place.
HELPER struct result find_fde(struct pt_regs *r, u64 table, struct run *run)
{
	(void)table;
	if (r->di - (u64)call_insn < 3) {
		u64 *bases = (u64 *)r->si;
		bases[0] = bases[1] = 0;
		bases[2] = (u64)call_insn;
		run->value = (u64)call_fde + CALL_CIE;
		run->overridden = 1;
	}
	if (r->di + 1 - (u64)probe_return < 2) {
		struct slot *sl = find_slot();
		struct rets *l = sl ? rets_of(sl) : SHARED_RETS;
		u64 *bases = (u64 *)r->si;
		if (!l->described)
			describe(l);
		bases[0] = bases[1] = 0;
		bases[2] = (u64)probe_return - 1;
		run->value = (u64)l->fde + l->described;
		run->overridden = 1;
	}
	return (struct result){0, 0};
}

_Static_assert(sizeof(struct ret) == 1 << 5, "unwinding");

// --- stacks: by what files say of functions for exceptions (.eh_frame); where they say nothing, by
// frame pointers. Package unwind does the same from outside, and says more.

#define STACK_MOST 127u
#define FILES ((struct files *)FILES_ADDR)
#define DESCRIPTION 512u // bytes that are looked at of a function's
#define COMMON 64u       // and of what is common to several
#define NSAVED 4u

// Registers by their numbers in DWARF.
enum { RBX = 3, RBP = 6, RSP = 7, R12 = 12, RIP = 16, NREG };

// Where in row.at a register is; 7: nowhere.
static inline u32 place_of(u64 reg) { return reg == RBX ? 0 : reg == RBP ? 1 : reg >= R12 && reg <= RIP ? (u32)reg - 10 : 7; }

// What a return address is that may be ours.
HELPER u64 real_return(u64 at, u64 v)
{
	struct slot *sl;
	const struct rets *l;
	u64 k;
	u32 i;
	if (v != (u64)probe_return && v != (u64)return_entry)
		return v;
	sl = find_slot();
	l = sl ? rets_of(sl) : SHARED_RETS;
	for (i = 0; i < 2; i++) { // a function may be watched for both
		for (k = v == (u64)probe_return ? l->depth : 0; k-- > 0;)
			if (k < NRETS && l->list[k].sp == at && l->list[k].ret != (u64)probe_return) {
				v = l->list[k].ret;
				break;
			}
		for (k = sl && v == (u64)return_entry ? sl->depth : 0; k-- > 0;)
			if (k < NOPEN && sl->open[k].sp == at && sl->open[k].ret != (u64)return_entry) {
				v = sl->open[k].ret;
				break;
			}
	}
	return v;
}

// Bytes that were copied, of which are read what there is.
struct bytes {
	const u8 *p, *end;
	u64 at; // where end is in the program
	u32 bad;
};

// Reads a number of n bytes, little-endian. Behind the end everything is 0, and bad.
HELPER u64 number(struct bytes *b, u32 n)
{
	u64 v = 0;
	u32 i;
	if ((u64)(b->end - b->p) < n) {
		b->bad = 1;
		b->p = b->end;
		return 0;
	}
	for (i = 0; i < n; i++)
		v |= (u64)*b->p++ << 8 * i;
	return v;
}

// Reads a number in LEB128 (DWARF 5, 7.6).
HELPER u64 leb(struct bytes *b, u32 negative)
{
	u64 v = 0, c;
	u32 bits = 0;
	do {
		c = number(b, 1);
		if (bits < 64)
			v |= (c & 0x7f) << bits;
		bits += 7;
	} while (c & 0x80);
	if (negative && (c & 0x40) && bits < 64)
		v |= ~0ul << bits;
	return v;
}

// A pointer of an encoding of which functions' beginnings are.
HELPER u64 pointer(struct bytes *b, u32 encoding, u64 base)
{
	u64 at = b->at - (u64)(b->end - b->p), v = 0;
	switch (encoding & 15) {
	case 0:
	case 4:
	case 12:
		v = number(b, 8);
		break;
	case 3:
		v = number(b, 4);
		break;
	case 11:
		v = (u64)(int)number(b, 4);
		break;
	default:
		b->bad = 1;
	}
	if ((encoding & 0x70) == 0x10)
		v += at;
	else if ((encoding & 0x70) == 0x30)
		v += base;
	else if (encoding & 0x70)
		b->bad = 1;
	return v;
}

static inline struct bytes bytes_of(const u8 *p, u64 n, u64 at) { return (struct bytes){p, p + n, at + n, 0}; }

// What a CIE says for all functions that refer to it: factors of the instructions, how their
// addresses are encoded, whether there is augmentation data, and the instructions they all begin with.
struct common {
	u64 code;
	long data;
	u32 encoding, sized, signal;
	struct bytes program;
};

// Reads a length, and as much as there is room for of what follows. Returns how much it is, 0 for none.
HELPER u64 entry(u8 *to, u64 room, u64 *at)
{
	u32 size = 0;
	if (copy(&size, *at, 4) || size < 4 || size == 0xffffffff)
		return 0;
	*at += 4;
	if (size < room)
		room = size;
	return copy(to, *at, room) ? 0 : room;
}

// Reads a CIE. 0: it is of a kind that compilers for x86-64 do not make.
HELPER int read_common(struct common *c, u8 *b, u64 at)
{
	u64 n = entry(b, COMMON, &at), i, end = 0;
	struct bytes p = bytes_of(b, n, at), kind;
	u8 version;
	if (!n || number(&p, 4))
		return 0;
	version = number(&p, 1);
	kind = p;
	while (number(&p, 1))
		;
	*c = (struct common){.code = leb(&p, 0)};
	c->data = (long)leb(&p, 1);
	if (leb(&p, 0) != RIP || (version != 1 && version != 3) || p.bad)
		return 0;
	if (*kind.p && *kind.p != 'z')
		return 0;
	if (*kind.p) {
		c->sized = 1;
		i = leb(&p, 0);
		end = (u64)p.p + i;
		if (p.bad || i > (u64)(p.end - p.p))
			return 0;
		while (*++kind.p) {
			switch (*kind.p) {
			case 'R':
				c->encoding = number(&p, 1);
				break;
			case 'P':
				pointer(&p, number(&p, 1) & 15, 0);
				break;
			case 'L':
				number(&p, 1);
				break;
			case 'S':
				c->signal = 1;
			}
		}
		if (p.bad)
			return 0;
		p.p = (const u8 *)end;
	}
	c->program = p;
	return 1;
}

static inline int distance(long v, u32 how) { return (int)((u64)v << 2 | how); }

// Runs instructions (DWARF 5, 6.4.2) up to what holds at a place, of what is common (first is 0) or of a
// function.
HELPER int run_rows(struct row *r, const struct row *first, const struct common *c, struct bytes *b, u64 at, u64 wanted)
{
	struct row saved[NSAVED];
	u32 depth = 0, k;
	while (b->p < b->end && !b->bad) {
		u8 op = number(b, 1);
		u64 reg = op & 63, n;
		long off;
		u32 how = AT_FRAME;
		switch (op < 0x40 ? op : op & 0xc0) {
		case 0x00:
		case 0x2e: // GNU_args_size
			if (op)
				leb(b, 0);
			continue;
		case 0x40:
			n = reg;
			goto advance;
		case 0x02:
		case 0x03:
		case 0x04:
			n = number(b, 1u << (op - 2));
		advance:
			at += n * c->code;
			if (first && at > wanted)
				return 1;
			continue;
		case 0xc0:
		case 0x06:
			k = place_of(op == 6 ? leb(b, 0) : reg);
			if (k < 7 && first)
				r->at[k] = first->at[k];
			continue;
		case 0x0a:
			if (depth == NSAVED)
				return 0;
			saved[depth++] = *r;
			continue;
		case 0x0b:
			if (!depth)
				return 0;
			*r = saved[--depth];
			continue;
		case 0x0c:
		case 0x12:
		case 0x0d:
			n = leb(b, 0);
			if (n >= RIP)
				return 0;
			r->cfa = CFA_REG;
			r->reg = n;
			if (op != 0x0d)
				r->off = op == 0x0c ? (int)leb(b, 0) : (int)((long)leb(b, 1) * c->data);
			continue;
		case 0x0e:
			r->off = leb(b, 0);
			continue;
		case 0x13:
			r->off = (long)leb(b, 1) * c->data;
			continue;
		case 0x0f: // an expression: one of those that compilers and linkers make
			n = leb(b, 0);
			if (n > (u64)(b->end - b->p))
				return 0;
			r->cfa = CFA_NONE;
			if (n == 11 && b->p[0] == 0x77 && b->p[1] == 8 && b->p[2] == 0x80 && !b->p[3]) {
				r->cfa = CFA_PLT;
				r->off = b->p[6] - 0x30;
			} else if (n >= 3 && b->p[0] >= 0x70 && b->p[0] < 0x80 && b->p[n - 1] == 6) {
				struct bytes e = {b->p + 1, b->p + n - 1, 0, 0};
				r->reg = b->p[0] - 0x70;
				r->off = (long)leb(&e, 1);
				if (!e.bad && e.p == e.end)
					r->cfa = CFA_AT;
			}
			b->p += n;
			continue;
		case 0x10: // a register by an expression: that it lies at %rbp and so much
			k = place_of(leb(b, 0));
			n = leb(b, 0);
			if (n > (u64)(b->end - b->p))
				return 0;
			off = 0;
			how = AT_LOST;
			if (n >= 2 && b->p[0] == 0x76) {
				struct bytes e = {b->p + 1, b->p + n, 0, 0};
				off = (long)leb(&e, 1);
				how = e.bad || e.p != e.end ? AT_LOST : AT_BP;
			}
			b->p += n;
			break;
		case 0x16: // it is what an expression says
			k = place_of(leb(b, 0));
			n = leb(b, 0);
			if (n > (u64)(b->end - b->p))
				return 0;
			b->p += n;
			off = 0;
			how = AT_LOST;
			break;
		case 0x07:
		case 0x08:
			k = place_of(leb(b, 0));
			off = 0;
			how = op == 7 ? AT_LOST : AT_SAME;
			break;
		case 0x80:
			k = place_of(reg);
			off = (long)leb(b, 0) * c->data;
			break;
		case 0x05:
		case 0x11:
			k = place_of(leb(b, 0));
			off = (long)leb(b, op == 0x11) * c->data;
			break;
		default:
			return 0;
		}
		if (k < 7)
			r->at[k] = distance(off, how);
	}
	return !b->bad;
}

// Finds the file that a place is in. Returns files.seq, odd if it is not known.
HELPER u64 file_of(u64 pc, struct file *f)
{
	const volatile struct files *l = FILES;
	u64 seq = l->seq, lo = 0, hi = l->n;
	if ((seq & 1) || hi > NFILES)
		return 1;
	barrier();
	while (lo < hi) {
		u64 mid = (lo + hi) / 2;
		if (l->list[mid].end <= pc)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo >= l->n || lo >= NFILES || l->list[lo].start > pc)
		return 1;
	f->base = l->list[lo].base;
	f->index = l->list[lo].index;
	f->count = l->list[lo].count;
	barrier();
	return l->seq == seq ? seq : 1;
}

// Finds out what holds at a place.
HELPER int read_row(struct row *r, u64 pc, const struct file *f)
{
	u8 b[DESCRIPTION] __attribute__((aligned(8))), common[COMMON] __attribute__((aligned(8)));
	struct row first;
	struct common c;
	struct bytes p;
	int pair[2] = {0, 0};
	u64 lo = 0, hi = f->count, at, n, start, size;
	while (lo < hi) {
		u64 mid = (lo + hi) / 2;
		if (copy(pair, f->index + 8 * mid, 4))
			return 0;
		if (f->base + (long)pair[0] <= pc)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (!lo || copy(pair, f->index + 8 * (lo - 1), 8))
		return 0;
	at = f->base + (long)pair[1];
	if (!(n = entry(b, DESCRIPTION, &at)))
		return 0;
	p = bytes_of(b, n, at);
	lo = number(&p, 4);
	if (!lo || !read_common(&c, common, at - lo))
		return 0;
	start = pointer(&p, c.encoding, f->base);
	size = pointer(&p, c.encoding & 15, 0);
	if (c.sized) {
		n = leb(&p, 0);
		if (n > (u64)(p.end - p.p))
			return 0;
		p.p += n;
	}
	if (p.bad || pc - start >= size)
		return 0;
	if (c.signal) {
		r->cfa = CFA_SIGNAL;
		return 1;
	}
	if (!run_rows(r, 0, &c, &c.program, start, pc))
		return 0;
	first = *r;
	if (!run_rows(r, &first, &c, &p, start, pc) || (n == DESCRIPTION && p.p == p.end))
		return 0; // more than there is room for
	if (r->at[6] == distance(0, AT_LOST))
		r->cfa = CFA_LAST;
	return r->cfa != CFA_NONE;
}

// The same, of which is remembered what was found.
HELPER int row_of(struct row *r, u64 pc)
{
	struct row *known = &FILES->rows[(pc ^ pc >> 10) % NROWS];
	u32 seq = *(volatile u32 *)&known->seq;
	struct file f;
	u64 files = *(volatile u64 *)&FILES->seq;
	barrier();
	if (!(seq & 1) && known->pc == pc && known->files == (u32)files) {
		*r = *known;
		barrier();
		if (*(volatile u32 *)&known->seq == seq && r->pc == pc && r->files == (u32)files)
			return r->cfa != CFA_NONE;
	}
	zero(r, sizeof *r);
	files = file_of(pc, &f);
	if (files & 1)
		return 0;
	if (!read_row(r, pc, &f))
		r->cfa = CFA_NONE;
	r->pc = pc;
	r->files = files;
	if (!(seq & 1) && __sync_bool_compare_and_swap(&known->seq, seq, seq | 1)) {
		r->seq = seq | 1;
		*known = *r;
		barrier();
		*(volatile u32 *)&known->seq = seq + 2;
	}
	return r->cfa != CFA_NONE;
}

// Of a stack: the registers, and whether the thread is at RIP, or has called before it.
struct walk {
	u64 reg[NREG];
	u64 exact;
};

// Goes to the caller of a function. Returns whether there is one.
HELPER int caller(struct walk *w, const struct row *r)
{
	u64 cfa, next[7], v;
	u32 k;
	switch (r->cfa) {
	case CFA_REG:
		cfa = w->reg[r->reg] + (long)r->off;
		break;
	case CFA_AT:
		if (copy(&cfa, w->reg[r->reg] + (long)r->off, 8))
			return 0;
		break;
	case CFA_PLT: // one entry of the table of jumps pushes its number
		cfa = w->reg[RSP] + 8 + ((w->reg[RIP] & 15) >= (u64)r->off ? 8 : 0);
		break;
	case CFA_SIGNAL: { // struct ucontext is on top of the stack
		static const u16 order[] = {8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, 16};
		u64 regs[NREG];
		if (copy(regs, w->reg[RSP] + 40, sizeof regs))
			return 0;
		for (k = 0; k < NREG; k++)
			w->reg[order[k]] = regs[k];
		w->exact = 1;
		return 1;
	}
	default:
		return 0;
	}
	for (k = 0; k < 7; k++) {
		u32 reg = k == 0 ? RBX : k == 1 ? RBP : k + 10;
		u64 at = (long)(r->at[k] >> 2) + ((r->at[k] & 3) == AT_BP ? w->reg[RBP] : cfa);
		next[k] = w->reg[reg];
		if ((r->at[k] & 3) == AT_LOST)
			next[k] = 0;
		if ((r->at[k] & 3) != AT_FRAME && (r->at[k] & 3) != AT_BP)
			continue;
		if (copy(&v, at, 8))
			return 0;
		next[k] = k == 6 ? real_return(at, v) : v;
	}
	if ((r->at[6] & 3) == AT_SAME)
		return 0;
	w->reg[RBX] = next[0];
	w->reg[RBP] = next[1];
	for (k = 2; k < 7; k++)
		w->reg[k + 10] = next[k];
	w->reg[RSP] = cfa;
	w->exact = 0;
	return 1;
}

// The same, by the frame pointer.
HELPER int caller_by_frame(struct walk *w)
{
	u64 fp = w->reg[RBP], v[2];
	if (fp < w->reg[RSP] || (fp & 7) || copy(v, fp, 16))
		return 0;
	w->reg[RBP] = v[0];
	w->reg[RSP] = fp + 16;
	w->reg[RIP] = real_return(fp + 8, v[1]);
	w->exact = 0;
	return 1;
}

// Lists the callers, n at most but for the first skip.
HELPER u64 walk(struct run *run, u64 *to, u64 n, u64 skip)
{
	const struct pt_regs *p = run->regs;
	struct walk w = {{p->ax, p->dx, p->cx, p->bx, p->si, p->di, p->bp, p->sp, p->r8, p->r9, p->r10, p->r11, p->r12, p->r13, p->r14, p->r15, p->ip}, 1};
	u64 got = 0, sp;
	struct row r;
	u32 i;
	for (i = 0; i < STACK_MOST + 256 && got < n && w.reg[RIP]; i++) {
		if (skip)
			skip--;
		else
			to[got++] = w.reg[RIP];
		sp = w.reg[RSP];
		if (row_of(&r, w.reg[RIP] - !w.exact)) {
			if (!caller(&w, &r))
				break;
		} else if (!i && run->entered) { // nothing is pushed yet
			if (copy(&w.reg[RIP], sp, 8))
				break;
			w.reg[RIP] = real_return(sp, w.reg[RIP]);
			w.reg[RSP] += 8;
			w.exact = 0;
		} else if (!caller_by_frame(&w))
			break;
	}
	return got;
}

// bpf_get_stack: the callers' addresses; returns how many bytes they take.
HELPER long stack(u64 ctx, u64 *to, u64 size, u64 flags, u64 e, struct run *run)
{
	u64 n = size / 8;
	(void)ctx, (void)e;
	zero(to, size);
	if (size % 8)
		return -EINVAL;
	return 8 * walk(run, to, n, flags & 0xff);
}

HELPER long stack_id(u64 ctx, const struct map *m, u64 flags, u64 d, u64 e, struct run *run)
{
	u64 list[STACK_MOST], n, i, most = m->value / 8;
	u32 hash;
	u64 *slot, was;
	(void)ctx, (void)d, (void)e;
	n = walk(run, list, most < STACK_MOST ? most : STACK_MOST, flags & 0xff);
	if (!n)
		return -EFAULT;
	hash = hash_of((const u8 *)list, 8 * n) % m->entries;
	slot = (u64 *)(m->base + hash * m->stride);
	was = *(volatile u64 *)slot;
	if (was) {
		for (i = 0; i < n && ((volatile u64 *)slot)[i] == list[i]; i++)
			;
		if (i == n && (n == most || !((volatile u64 *)slot)[n]))
			return hash;
		if (!(flags & 1 << 10)) // BPF_F_REUSE_STACKID
			return -EEXIST;
	}
	for (i = n; i < most; i++)
		((volatile u64 *)slot)[i] = 0;
	for (i = n; i-- > 0;)
		((volatile u64 *)slot)[i] = list[i];
	return hash;
}
