/* The parts of ELF and of the dynamic linker's public structures that are used. */
#ifndef NVT_ELF_H
#define NVT_ELF_H

#include "nvt.h"

struct sym { u32 name; u8 info, other; u16 shndx; u64 value, size; };
struct dyn { s64 tag; u64 val; };
struct rela { u64 offset, info; s64 addend; };
struct phdr { u32 type, flags; u64 offset, vaddr, paddr, filesz, memsz, align; };
struct ehdr { u8 ident[16]; u16 type, machine; u32 version; u64 entry, phoff, shoff; u32 flags; u16 ehsize, phentsize, phnum, shentsize, shnum, shstrndx; };
struct shdr { u32 name, type; u64 flags, addr, offset, size; u32 link, info; u64 addralign, entsize; };

enum {
	PT_LOAD = 1, PT_DYNAMIC = 2, PT_GNU_RELRO = 0x6474e552, PF_X = 1, PF_R = 4,
	DT_NEEDED = 1, DT_PLTRELSZ = 2, DT_HASH = 4, DT_STRTAB = 5, DT_SYMTAB = 6, DT_RELA = 7, DT_RELASZ = 8, DT_SONAME = 14,
	DT_DEBUG = 21, DT_JMPREL = 23, DT_GNU_HASH = 0x6ffffef5, DT_VERSYM = 0x6ffffff0,
	R_64 = 1, R_GLOB_DAT = 6, R_JUMP_SLOT = 7, /* of x86-64 */
};

/* dl_iterate_phdr */
struct dl_phdr_info { u64 addr; const char *name; const struct phdr *phdr; u16 phnum; };

/* link.h */
struct link_map { u64 addr; const char *name; const struct dyn *ld; struct link_map *next, *prev; };
struct r_debug { int version; struct link_map *map; };

#define WEAK __attribute__((weak, visibility("default")))
extern int dl_iterate_phdr(int (*fn)(struct dl_phdr_info *, u64, void *), void *arg) WEAK;
extern struct r_debug _r_debug WEAK;
extern const char *gnu_get_libc_version(void) WEAK;
extern char **environ WEAK;
extern char **__environ WEAK;
extern const struct dyn _DYNAMIC[] __attribute__((visibility("hidden")));

/* An object that is loaded, found by an address in it. */
struct nvt_object {
	u64 addr; /* in: what to find */
	u64 base, lo, hi;
	const struct dyn *dyn;
	const struct phdr *phdr;
	u16 phnum;
	const char *name;
};
int nvt_object_at(struct nvt_object *o);
const char *nvt_soname(const struct nvt_elf *e);

#endif
