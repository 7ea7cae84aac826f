#include "elf.h"
#include "sys.h"

/* The dynamic linker relocates the pointers of a dynamic section, but not everyone's. */
static u64 pointer(u64 base, u64 val) { return val < base ? base + val : val; }

void nvt_elf_init(struct nvt_elf *e, u64 base, const void *dyn)
{
	nvt_zero(e, sizeof *e);
	e->base = base;
	e->dyn = dyn;
	if (!dyn)
		return;
	for (const struct dyn *d = dyn; d->tag; d++)
		switch (d->tag) {
		case DT_HASH: e->hash = (const u32 *)pointer(base, d->val); break;
		case DT_STRTAB: e->strtab = (const char *)pointer(base, d->val); break;
		case DT_SYMTAB: e->symtab = (const void *)pointer(base, d->val); break;
		case DT_GNU_HASH: e->gnu_hash = (const u32 *)pointer(base, d->val); break;
		case DT_VERSYM: e->versym = (const u16 *)pointer(base, d->val); break;
		}
}

const char *nvt_soname(const struct nvt_elf *e)
{
	for (const struct dyn *d = (const struct dyn *)e->dyn; d && d->tag && e->strtab; d++)
		if (d->tag == DT_SONAME)
			return e->strtab + d->val;
	return "";
}

/* A defined function of that name? 2: also its default version. */
static int matches(const struct nvt_elf *e, u32 i, const char *name)
{
	const struct sym *s = (const struct sym *)e->symtab + i;
	u32 type = s->info & 15;
	if (!s->shndx || !s->value || (type != 0 && type != 2) || !(s->info >> 4) || !nvt_equal(e->strtab + s->name, name))
		return 0;
	return e->versym && e->versym[i] & 0x8000 ? 1 : 2;
}

/* Returns the address of a function that e defines, or 0. */
u64 nvt_elf_find(const struct nvt_elf *e, const char *name)
{
	const struct sym *symtab = e->symtab;
	u32 found = 0;
	if (!symtab || !e->strtab)
		return 0;
	if (e->gnu_hash) {
		u32 buckets = e->gnu_hash[0], first = e->gnu_hash[1], words = e->gnu_hash[2], h = 5381;
		const u64 *bloom = (const u64 *)(e->gnu_hash + 4);
		const u32 *bucket = (const u32 *)(bloom + words), *chain = bucket + buckets;
		for (const char *p = name; *p; p++)
			h = h * 33 + (u8)*p;
		if (!buckets || !words)
			return 0;
		u64 word = bloom[h / 64 % words], bits = 1UL << h % 64 | 1UL << (h >> e->gnu_hash[3]) % 64;
		u32 i = bucket[h % buckets];
		if ((word & bits) != bits || i < first)
			return 0;
		for (;; i++) {
			u32 c = chain[i - first];
			if ((c | 1) == (h | 1)) {
				int m = matches(e, i, name);
				if (m == 2)
					return e->base + symtab[i].value;
				if (m)
					found = i;
			}
			if (c & 1)
				break;
		}
	} else if (e->hash) {
		u32 buckets = e->hash[0], h = 0;
		const u32 *bucket = e->hash + 2, *chain = bucket + buckets;
		for (const char *p = name; *p; p++) {
			h = (h << 4) + (u8)*p;
			h = (h ^ (h >> 24 & 0xf0)) & 0x0fffffff;
		}
		if (!buckets)
			return 0;
		for (u32 i = bucket[h % buckets]; i; i = chain[i]) {
			int m = matches(e, i, name);
			if (m == 2)
				return e->base + symtab[i].value;
			if (m)
				found = i;
		}
	}
	return found ? e->base + symtab[found].value : 0;
}

static int at(struct dl_phdr_info *p, u64 size, void *arg)
{
	struct nvt_object *o = arg;
	u64 lo = ~0UL, hi = 0;
	int in = 0;
	(void)size;
	for (u32 i = 0; i < p->phnum; i++) {
		const struct phdr *h = &p->phdr[i];
		if (h->type != PT_LOAD)
			continue;
		u64 start = p->addr + h->vaddr, end = start + h->memsz;
		lo = start < lo ? start : lo;
		hi = end > hi ? end : hi;
		in |= o->addr >= start && o->addr < end;
	}
	if (!in)
		return 0;
	o->base = p->addr, o->lo = lo, o->hi = hi, o->phdr = p->phdr, o->phnum = p->phnum, o->name = p->name;
	for (u32 i = 0; i < p->phnum; i++)
		if (p->phdr[i].type == PT_DYNAMIC)
			o->dyn = (const struct dyn *)(p->addr + p->phdr[i].vaddr);
	return 1;
}

/* Finds the object that o->addr lies in, in the program's own namespace. */
int nvt_object_at(struct nvt_object *o)
{
	o->dyn = 0;
	return dl_iterate_phdr && dl_iterate_phdr(at, o);
}
