/*
 * Which functions are wrapped, and by which thunk. A thunk belongs to one
 * function of one instance of a driver: a program can have several, by dlmopen or
 * by path. Slots are only ever filled, by one compare-and-swap each, so that
 * nothing here needs a lock; the same function always gets the same thunk, and so
 * keeps one address.
 */
#include "elf.h"
#include "sys.h"
#include "zfunctions.h"

extern const u8 nvt_thunks[], nvt_thunks_end[];

#define ADDRESS (~0UL >> 16)
static u64 slots[NVT_SLOTS]; /* the real address; the function's number + 1 in the top 16 bits */

#define DRIVERS 32
static struct { u64 lo, hi; } drivers[DRIVERS];

const char *nvt_name(int fn) { return nvt_names + nvt_fns[fn].name; }
const struct nvt_fn *nvt_function(int fn) { return &nvt_fns[fn]; }

static int order(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return (int)(u8)*a - (int)(u8)*b;
}

/* Returns a driver function's number, or -1: exact names only, cudnn* and cublas* are not ours. */
int nvt_find(const char *name)
{
	int lo = 0, hi = NVT_FUNCTIONS;
	while (lo < hi) {
		int mid = (lo + hi) / 2, c = order(name, nvt_name(mid));
		if (!c)
			return nvt_fns[mid].class == NVT_C_OTHER ? -1 : mid;
		if (c < 0)
			hi = mid;
		else
			lo = mid + 1;
	}
	return -1;
}

static int is_thunk(u64 addr)
{
	return addr >= (u64)nvt_thunks && addr < (u64)nvt_thunks_end && addr % 16 == 0;
}

u64 nvt_unwrap(u64 addr)
{
	u64 key = is_thunk(addr) ? __atomic_load_n(&slots[(addr - (u64)nvt_thunks) / 16], __ATOMIC_ACQUIRE) : 0;
	return key ? key & ADDRESS : addr;
}

/* Returns the function's number and its real address. */
int nvt_slot(u64 slot, u64 *real)
{
	u64 key = __atomic_load_n(&slots[slot % NVT_SLOTS], __ATOMIC_ACQUIRE);
	*real = key & ADDRESS;
	return (int)(key >> 48) - 1;
}

/* Does the object that addr lies in define what a driver does? Then o has where it is. */
static int is_driver(u64 addr, struct nvt_object *o)
{
	struct nvt_elf e;
	nvt_zero(o, sizeof *o);
	o->addr = addr;
	if (!nvt_object_at(o))
		return 0;
	nvt_elf_init(&e, o->base, o->dyn);
	return nvt_elf_find(&e, "cuModuleLoadData") || nvt_elf_find(&e, "cuInit");
}

/* Was a driver wrapped that has addr in it, and is it still there? */
int nvt_in_driver(u64 addr)
{
	for (int i = 0; i < DRIVERS; i++) {
		u64 lo = __atomic_load_n(&drivers[i].lo, __ATOMIC_ACQUIRE);
		struct nvt_object o;
		if (!lo)
			return 0;
		if (addr >= lo && addr < __atomic_load_n(&drivers[i].hi, __ATOMIC_ACQUIRE))
			return is_driver(addr, &o); /* it may have been closed, and something else put there */
	}
	return 0;
}

/*
 * Remembers where a driver is. A library that only passes the driver's functions
 * on is one too: it defines a loader.
 */
void nvt_driver(u64 addr)
{
	struct nvt_object o;
	for (int i = 0; i < DRIVERS; i++)
		if (addr >= drivers[i].lo && addr < drivers[i].hi)
			return;
	if (!is_driver(addr, &o))
		return;
	for (int i = 0; i < DRIVERS; i++) {
		u64 none = 0;
		if (__atomic_compare_exchange_n(&drivers[i].lo, &none, o.lo, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) || none == o.lo) {
			__atomic_store_n(&drivers[i].hi, o.hi, __ATOMIC_RELEASE);
			return;
		}
	}
}

/* Returns the thunk for the function fn at real, or real itself if there is none left. */
u64 nvt_wrap(u64 real, int fn)
{
	u64 key = real | (u64)(fn + 1) << 48, h = (real ^ real >> 16 ^ (u64)fn * 0x9e37UL) * 0x9e3779b97f4a7c15UL >> 54;
	if (!real || real >> 47 || is_thunk(real))
		return real;
	nvt_driver(real);
	for (u64 i = 0; i < NVT_SLOTS; i++) {
		u64 n = (h + i) % NVT_SLOTS, old = __atomic_load_n(&slots[n], __ATOMIC_ACQUIRE);
		if (!old && __atomic_compare_exchange_n(&slots[n], &old, key, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			old = key;
		if (old == key)
			return (u64)nvt_thunks + n * 16;
	}
	nvt_gap(NVT_GAP_THUNKS, 1, fn);
	return real;
}

/* Is name the requested name, or a version of it: name(_vN)?(_ptsz|_ptds)? */
static int is_version_of(const char *name, const char *requested)
{
	while (*requested && *name == *requested)
		name++, requested++;
	if (*requested)
		return 0;
	if (name[0] == '_' && name[1] == 'v' && name[2] >= '0' && name[2] <= '9')
		for (name += 2; *name >= '0' && *name <= '9';)
			name++;
	return !*name || nvt_equal(name, "_ptsz") || nvt_equal(name, "_ptds");
}

static int same_shape(const struct nvt_fn *a, const struct nvt_fn *b)
{
	return a->class == b->class && a->args == b->args && a->image == b->image && a->size == b->size && a->out == b->out &&
	       a->of == b->of && a->text == b->text;
}

/*
 * Wraps what cuGetProcAddress gave for a name. Which version of the function that
 * is, the driver decided: it is the export with the same address. An address that
 * is no export is wrapped only if all versions have the same arguments.
 */
u64 nvt_wrap_requested(u64 addr, const char *requested)
{
	struct nvt_elf e;
	int first = -1, same = 1;
	if (is_thunk(addr) || !requested || !*requested || !nvt_elf_at(addr, &e, 0, 0))
		return addr;
	for (int fn = 0; fn < NVT_FUNCTIONS; fn++) {
		if (nvt_fns[fn].class == NVT_C_OTHER || !is_version_of(nvt_name(fn), requested))
			continue;
		if (nvt_elf_find(&e, nvt_name(fn)) == addr)
			return nvt_wrap(addr, fn);
		if (first < 0)
			first = fn;
		same &= same_shape(&nvt_fns[first], &nvt_fns[fn]);
	}
	if (first >= 0 && same)
		return nvt_wrap(addr, first);
	if (first >= 0)
		nvt_gap(NVT_GAP_UNWRAPPED, 1, first);
	return addr;
}

/*
 * Programs and libraries that are linked with the driver. We define none of its
 * names, so that a weak reference to one, or a lookup of one, finds what it would
 * find without us. Instead, the slots in which the dynamic linker keeps the
 * addresses of a library's references are set to thunks: before the library's own
 * constructors run, as crti.o makes each library call __gmon_start__ first.
 */
struct definer { const char *name; const struct nvt_elf *user; u64 addr; int rank; u32 i; };

static u32 at_start; /* how many objects the program was started with: these are in everyone's search */

/* Does the user of a name list e in its DT_NEEDED? */
static int needs(const struct nvt_elf *user, const struct nvt_elf *e)
{
	const char *soname = nvt_soname(e);
	for (const struct dyn *d = (const struct dyn *)user->dyn; *soname && d->tag; d++)
		if (d->tag == DT_NEEDED && nvt_equal(user->strtab + d->val, soname))
			return 1;
	return 0;
}

static int define(struct dl_phdr_info *p, u64 size, void *arg)
{
	struct definer *d = arg;
	(void)size;
	for (u32 i = 0; i < p->phnum; i++) {
		struct nvt_elf e;
		if (p->phdr[i].type != PT_DYNAMIC)
			continue;
		nvt_elf_init(&e, p->addr, (const void *)(p->addr + p->phdr[i].vaddr));
		u64 a = nvt_elf_find(&e, d->name);
		/* The first of those in everyone's search, else one that the user names, else any. */
		int rank = !a ? 0 : !at_start || d->i < at_start ? 3 : needs(d->user, &e) ? 2 : 1;
		if (rank > d->rank)
			d->addr = a, d->rank = rank;
	}
	d->i++;
	return 0;
}

/* Returns what a slot that refers to the function name should hold, 0: leave it. */
static u64 slot_value(const struct nvt_object *o, const struct nvt_elf *e, u32 type, u64 now, const char *name, int fn)
{
	struct nvt_elf target;
	if (!now || is_thunk(now)) /* a weak reference to nothing; done before */
		return 0;
	if (nvt_elf_at(now, &target, 0, 0) && nvt_elf_find(&target, name) == now)
		return nvt_wrap(now, fn);
	/*
	 * A program that is not position-independent keeps functions' addresses in its
	 * PLT, and libraries refer to that: it must stay the one address, and a call
	 * through it goes through the program's own slot.
	 */
	if (type != R_JUMP_SLOT || now < o->lo || now >= o->hi)
		return 0;
	/* Not bound yet: the linker would search on the first call. */
	struct definer d = {name, e, 0, 0, 0};
	dl_iterate_phdr(define, &d);
	return d.addr ? nvt_wrap(d.addr, fn) : 0;
}

struct relocations { const struct rela *r; u64 n; };

static void bind(struct nvt_object *o)
{
	struct nvt_elf e;
	struct relocations tables[2] = {{0, 0}, {0, 0}};
	u64 relro = 0, relro_end = 0;
	int open = 0;
	nvt_elf_init(&e, o->base, o->dyn);
	if (!e.symtab || !e.strtab || o->dyn == _DYNAMIC)
		return;
	for (const struct dyn *d = o->dyn; d->tag; d++) {
		u64 p = d->val < o->base ? o->base + d->val : d->val;
		switch (d->tag) {
		case DT_RELA: tables[0].r = (const struct rela *)p; break;
		case DT_RELASZ: tables[0].n = d->val / sizeof(struct rela); break;
		case DT_JMPREL: tables[1].r = (const struct rela *)p; break;
		case DT_PLTRELSZ: tables[1].n = d->val / sizeof(struct rela); break;
		}
	}
	for (u32 i = 0; i < o->phnum; i++)
		if (o->phdr[i].type == PT_GNU_RELRO) {
			relro = (o->base + o->phdr[i].vaddr) & ~4095UL;
			relro_end = (o->base + o->phdr[i].vaddr + o->phdr[i].memsz) & ~4095UL;
		}
	for (int t = 0; t < 2; t++)
		for (u64 i = 0; tables[t].r && i < tables[t].n; i++) {
			const struct rela *r = &tables[t].r[i];
			u32 type = (u32)r->info, index = (u32)(r->info >> 32);
			if (!index || (type != R_64 && type != R_GLOB_DAT && type != R_JUMP_SLOT) || (type == R_64 && r->addend))
				continue;
			const struct sym *s = (const struct sym *)e.symtab + index;
			const char *name = e.strtab + s->name;
			if (s->shndx || name[0] != 'c' || name[1] != 'u')
				continue;
			int fn = nvt_find(name);
			u64 *slot = (u64 *)(o->base + r->offset);
			u64 value = fn < 0 ? 0 : slot_value(o, &e, type, *slot, name, fn);
			if (!value || value == *slot)
				continue;
			if ((u64)slot >= relro && (u64)slot < relro_end && !open++)
				if (sys3(SYS_mprotect, relro, relro_end - relro, 3) < 0)
					return;
			__atomic_store_n(slot, value, __ATOMIC_RELEASE);
		}
	if (open)
		sys3(SYS_mprotect, relro, relro_end - relro, 1);
}

/* addr is in a library whose constructors are about to run. */
void nvt_object_starts(u64 addr)
{
	struct nvt_object o = {.addr = addr};
	if (nvt_init() == NVT_ON && nvt_libc == NVT_LIBC_GLIBC && nvt_object_at(&o) && o.dyn)
		bind(&o);
}

/* Those whose start we can't see: built without crti.o. */
struct listed { u64 addr[256]; u32 n, all; };

static int list(struct dl_phdr_info *p, u64 size, void *arg)
{
	struct listed *l = arg;
	(void)size;
	l->all++;
	for (u32 i = 0; i < p->phnum && l->n < 256; i++)
		if (p->phdr[i].type == PT_LOAD) {
			l->addr[l->n++] = p->addr + p->phdr[i].vaddr;
			break;
		}
	return 0;
}

void nvt_bind_all(void)
{
	struct listed l;
	l.n = l.all = 0;
	if (!dl_iterate_phdr)
		return;
	dl_iterate_phdr(list, &l);
	at_start = l.all;
	for (u32 i = 0; i < l.n; i++)
		nvt_object_starts(l.addr[i]);
}
