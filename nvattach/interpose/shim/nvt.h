/*
 * The shim's own declarations. The rules of this code: no libc, no malloc, no
 * lock, no output, no exit; errno and dlerror stay as the program has them; what
 * can't be done is left out and told, never waited for without a limit.
 */
#ifndef NVT_H
#define NVT_H

#include "wire.h"

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
typedef long s64;

#define NVT_EXPORT __attribute__((visibility("default")))
#define NVT_SLOTS 1024 /* thunks; entry_amd64.S has the same number */

struct nvt_fn {
	u16 name;
	u8 class, args;
	signed char image, size, out, of, text;
};

/* What is known of the image that a call brings. */
struct nvt_image {
	u64 addr, size;
	u64 hashed, hash[2];
	u16 flags;
	u16 part, parts;
	int fd; /* the image's file, -1: it is in memory */
};

/* A wrapped call, on the stack of the thread. entry_amd64.S knows the front. */
struct nvt_frame {
	u64 args[6];	 /* 0: the integer registers, restored from here */
	const u64 *stack; /* 48: further arguments */
	u64 caller;	 /* 56; before target: who looks for the caller on the stack finds it first */
	u64 slot;	 /* 64: thunk, or kind of dl function */
	u64 target;	 /* 72: what is called */
	u64 words;	 /* 80: arguments on the stack */
	u64 ret;	 /* 88 */
	u64 gadget;	 /* 96: see dl.c */
	u64 rax;	 /* 104 */
	/* from here on only C */
	u64 cookie;
	u64 outer;
	u64 start;
	u64 handle;
	u32 seq;
	int fn;
	int replaced_fd;
	char path[32]; /* of a replacement */
	struct nvt_image image;
};

/* What entry_amd64.S does after nvt_enter or nvt_dl_enter. */
enum { NVT_PASS = 0, NVT_AROUND = 1, NVT_FROM_CALLER = 2, NVT_RETURN = 3 };

/* Kinds of dl functions, as entry_amd64.S numbers them. */
enum { NVT_DLSYM, NVT_DLVSYM, NVT_DLOPEN, NVT_DLMOPEN, NVT_DLADDR, NVT_DLADDR1, NVT_DLS };

/* An ELF file in memory, as far as symbols need it. */
struct nvt_elf {
	u64 base;
	const void *symtab;
	const char *strtab;
	const u32 *gnu_hash, *hash;
	const u16 *versym;
	const u64 *dyn;
};

/* state */
enum { NVT_NEW = 0, NVT_ON = 1, NVT_SILENT = 2 };
extern int nvt_state;
extern u32 nvt_mode, nvt_flags, nvt_wait; /* valid once connected */
extern u32 nvt_lost;

/* sys */
void *nvt_copy(void *to, const void *from, u64 n);
void nvt_zero(void *p, u64 n);
u64 nvt_length(const char *s, u64 max);
int nvt_equal(const char *a, const char *b);
u64 nvt_now(void);
int nvt_gettid(void);
int nvt_getpid(void);
s64 nvt_read_memory(const void *from, void *to, u64 n);

/* elf */
void nvt_elf_init(struct nvt_elf *e, u64 base, const void *dyn);
u64 nvt_elf_find(const struct nvt_elf *e, const char *name);
int nvt_elf_at(u64 addr, struct nvt_elf *e, char *path, u64 n);

/* dl */
int nvt_init(void);
void nvt_executable(char *path, u64 n);
extern u64 nvt_born;
extern u32 nvt_libc, nvt_libc_major, nvt_libc_minor;
extern char nvt_address[128];
extern char nvt_key[NVT_KEY];

/* wrap */
int nvt_find(const char *name);
const char *nvt_name(int fn);
const struct nvt_fn *nvt_function(int fn);
u64 nvt_wrap(u64 real, int fn);
u64 nvt_unwrap(u64 addr);
u64 nvt_wrap_requested(u64 real, const char *name);
int nvt_slot(u64 slot, u64 *real);
void nvt_driver(u64 addr);
int nvt_in_driver(u64 addr);
void nvt_bind_all(void);

/* image */
void nvt_image_enter(struct nvt_frame *f, const struct nvt_fn *fn);
void nvt_image_leave(struct nvt_frame *f, const struct nvt_fn *fn);

/* talk */
int nvt_connect(void);
void nvt_tell(struct nvt_frame *f, const struct nvt_image *im, u16 type, const void *data, u64 n, u16 flags, int *fds, int nfds);
void nvt_gap(u32 code, u32 count, s64 detail);
u64 nvt_verdict(int sock, int *fd);

#endif
