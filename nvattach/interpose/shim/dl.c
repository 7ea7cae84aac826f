/*
 * The dl functions. What they mean depends on who calls them: RTLD_NEXT and
 * RTLD_DEFAULT begin their search at the caller's library, dlopen uses its
 * RUNPATH and $ORIGIN. So a call is passed on by a jump wherever that is enough,
 * and a result is touched only where the name is one of ours.
 */
#include "elf.h"
#include "sys.h"
#include "zfunctions.h"

int nvt_state;
u64 nvt_born;
u32 nvt_libc, nvt_libc_major, nvt_libc_minor;
char nvt_address[128];
char nvt_key[NVT_KEY];

static u64 real[NVT_DLS];
static const char real_names[NVT_DLS][8] = {"dlsym", "dlvsym", "dlopen", "dlmopen", "dladdr", "dladdr1"};

/* The first program header's address and count, from the auxiliary vector that lies behind the environment. */
static struct link_map *first_map(char **envp)
{
	if (&_r_debug && _r_debug.map)
		return _r_debug.map;
	if (!envp)
		return 0;
	while (*envp)
		envp++;
	const struct phdr *phdr = 0;
	u64 n = 0;
	for (const u64 *aux = (const u64 *)(envp + 1); aux[0]; aux += 2) {
		if (aux[0] == 3)
			phdr = (const struct phdr *)aux[1];
		if (aux[0] == 5)
			n = aux[1];
	}
	u64 bias = 0;
	for (u64 i = 0; phdr && i < n; i++)
		if (phdr[i].type == 6) /* PT_PHDR */
			bias = (u64)phdr - phdr[i].vaddr;
	for (u64 i = 0; phdr && i < n; i++)
		if (phdr[i].type == PT_DYNAMIC)
			for (const struct dyn *d = (const struct dyn *)(bias + phdr[i].vaddr); d->tag; d++)
				if (d->tag == DT_DEBUG && d->val)
					return ((struct r_debug *)d->val)->map;
	return 0;
}

static struct link_map *maps;

/*
 * Finds the definition that the program would have had without us: the next one
 * in the order in which libraries were loaded, which is that of the search. Up to
 * glibc 2.33 these functions are in libdl, which may come later.
 */
static u64 resolve(int kind)
{
	struct link_map *m = maps;
	while (m && m->ld != _DYNAMIC)
		m = m->next;
	for (m = m ? m->next : maps; m; m = m->next) {
		struct nvt_elf e;
		if (m->ld == _DYNAMIC)
			continue;
		nvt_elf_init(&e, m->addr, m->ld);
		u64 a = nvt_elf_find(&e, real_names[kind]);
		if (a) {
			__atomic_store_n(&real[kind], a, __ATOMIC_RELEASE);
			return a;
		}
	}
	return 0;
}

static u64 real_dl(int kind)
{
	u64 a = __atomic_load_n(&real[kind], __ATOMIC_ACQUIRE);
	return a ? a : resolve(kind);
}

static void read_version(void)
{
	const char *v = gnu_get_libc_version ? gnu_get_libc_version() : 0;
	u32 n[2] = {0, 0};
	for (int i = 0; v && *v && i < 2; v++) {
		if (*v >= '0' && *v <= '9')
			n[i] = n[i] * 10 + (u32)(*v - '0');
		else
			i++;
	}
	nvt_libc = v ? NVT_LIBC_GLIBC : NVT_LIBC_OTHER;
	nvt_libc_major = n[0], nvt_libc_minor = n[1];
	for (struct link_map *m = maps; m && !v; m = m->next)
		for (const char *p = m->name; p && *p; p++)
			if (p[0] == 'm' && p[1] == 'u' && p[2] == 's' && p[3] == 'l')
				nvt_libc = NVT_LIBC_MUSL;
}

static char **environment(char **envp)
{
	if (!envp && &environ)
		envp = environ;
	if (!envp && &__environ)
		envp = __environ;
	return envp;
}

/*
 * Reads the server's address and the run's key, once. It may run before our constructor: other
 * libraries' constructors, and malloc replacements, call dlsym early. Several
 * threads doing it at once write the same.
 */
static int begin(char **envp)
{
	static const char key[] = "NVTRACE_SHIM=2:";
	int state = NVT_SILENT;
	maps = first_map(environment(envp));
	envp = environment(envp);
	if (!envp || !maps)
		return NVT_NEW; /* too early */
	read_version();
	for (; *envp && state == NVT_SILENT; envp++) {
		u64 i = 0;
		while (key[i] && (*envp)[i] == key[i])
			i++;
		if (key[i])
			continue;
		const char *key_end = *envp + i;
		while (*key_end && *key_end != ':')
			key_end++;
		u64 k = (u64)(key_end - (*envp + i)), n = *key_end ? nvt_length(key_end + 1, sizeof nvt_address) : 0;
		if (k <= sizeof nvt_key && n && n < sizeof nvt_address - 2) {
			nvt_copy(nvt_key, *envp + i, k);
			nvt_copy(nvt_address, key_end + 1, n);
			state = NVT_ON;
		}
	}
	if (!nvt_born)
		nvt_born = nvt_now();
	__atomic_store_n(&nvt_state, state, __ATOMIC_RELEASE);
	return state;
}

int nvt_init(void)
{
	int state = __atomic_load_n(&nvt_state, __ATOMIC_ACQUIRE);
	return state != NVT_NEW ? state : begin(0);
}

__attribute__((constructor)) static void loaded(int argc, char **argv, char **envp)
{
	(void)argc, (void)argv;
	/* musl passes no arguments to constructors. */
	if (nvt_init() == NVT_NEW && gnu_get_libc_version)
		begin(envp);
	if (nvt_state != NVT_ON)
		return;
	if (nvt_libc != NVT_LIBC_GLIBC) {
		nvt_gap(NVT_GAP_LIBC, 1, nvt_libc);
		nvt_state = NVT_SILENT;
		return;
	}
	nvt_bind_all();
}

/* Is a shadow stack in use, which a return to elsewhere would violate? */
static int shadow_stack(void)
{
	u64 features = 0;
	return sys2(SYS_arch_prctl, 0x5005, &features) == 0 && features & 1;
}

/*
 * Finds a ret instruction in the library that addr lies in: a function that
 * returns there comes back to us, and took that library for its caller.
 */
static u64 gadget_near(u64 addr)
{
	struct nvt_object o = {.addr = addr};
	if (shadow_stack() || !nvt_object_at(&o))
		return 0;
	for (u32 i = 0; i < o.phnum; i++) {
		const struct phdr *h = &o.phdr[i];
		u64 start = o.base + h->vaddr, end = start + h->filesz;
		if (h->type != PT_LOAD || (h->flags & (PF_X | PF_R)) != (PF_X | PF_R) || addr < start || addr >= end)
			continue;
		for (u64 p = addr; p < end; p++)
			if (*(const u8 *)p == 0xc3)
				return p;
		for (u64 p = addr; p-- > start;)
			if (*(const u8 *)p == 0xc3)
				return p;
	}
	return 0;
}

/* Does a file's name look as if it had to do with the GPU? */
static int of_interest(const char *name)
{
	const char *base = name;
	for (const char *p = name; p && *p; p++)
		if (*p == '/')
			base = p + 1;
	for (const char *p = base; p && *p; p++)
		if (p[0] == 'c' && p[1] == 'u' && p[2] == 'd' && p[3] == 'a')
			return 1;
	return base && base[0] == 'l' && base[1] == 'i' && base[2] == 'b' && base[3] == 'n' && base[4] == 'v';
}

static void tell_open(struct nvt_frame *f, int fn)
{
	const char *name = (const char *)f->args[fn == NVT_FN_dlmopen];
	if (!of_interest(name))
		return;
	struct nvt_image im = {.fd = -1};
	f->fn = fn, f->start = nvt_now(), f->seq = 0, f->handle = 0;
	nvt_tell(f, &im, NVT_CALL, name, nvt_length(name, NVT_MAX_DATA), 0, 0, 0);
}

int nvt_dl_enter(struct nvt_frame *f)
{
	int kind = (int)f->slot, state = nvt_init(), fn;
	if (!maps)
		maps = first_map(environment(0));
	f->target = real_dl(kind);
	f->ret = 0;
	if (!f->target)
		return NVT_RETURN;
	switch (kind) {
	case NVT_DLADDR:
	case NVT_DLADDR1:
		f->args[0] = nvt_unwrap(f->args[0]);
		return NVT_PASS;
	case NVT_DLOPEN:
	case NVT_DLMOPEN:
		if (state == NVT_ON)
			tell_open(f, kind == NVT_DLOPEN ? NVT_FN_dlopen : NVT_FN_dlmopen);
		return NVT_PASS;
	}
	const char *name = (const char *)f->args[1];
	if (state != NVT_ON || !name || name[0] != 'c' || name[1] != 'u')
		return NVT_PASS;
	fn = nvt_find(name);
	if (fn < 0 || nvt_in_driver(f->caller))
		return NVT_PASS;
	f->fn = fn;
	if (f->args[0] != 0 && f->args[0] != ~0UL)
		return NVT_AROUND;
	f->gadget = gadget_near(f->caller);
	if (f->gadget)
		return NVT_FROM_CALLER;
	nvt_gap(NVT_GAP_UNWRAPPED, 1, fn);
	return NVT_PASS;
}

void nvt_dl_leave(struct nvt_frame *f)
{
	if (f->ret)
		f->ret = nvt_wrap(f->ret, f->fn);
}

/* The path of the program, which has none in the linker's list. */
void nvt_executable(char *path, u64 n)
{
	static char exe[NVT_MAX_PATH];
	static int known;
	if (!__atomic_load_n(&known, __ATOMIC_ACQUIRE)) {
		s64 len = sys3(SYS_readlink, "/proc/self/exe", exe, sizeof exe - 1);
		exe[len > 0 ? len : 0] = 0; /* threads write the same */
		__atomic_store_n(&known, 1, __ATOMIC_RELEASE);
	}
	u64 len = nvt_length(exe, n - 1);
	nvt_copy(path, exe, len);
	path[len] = 0;
}

/* Finds the object at addr, in any namespace. path may be 0. */
int nvt_elf_at(u64 addr, struct nvt_elf *e, char *path, u64 n)
{
	struct nvt_object o = {.addr = addr};
	struct { const char *fname; void *fbase; const char *sname; void *saddr; } info;
	struct link_map *m = 0;
	u64 dladdr1;
	if (nvt_object_at(&o)) {
		nvt_elf_init(e, o.base, o.dyn);
	} else if ((dladdr1 = real_dl(NVT_DLADDR1)) && ((int (*)(u64, void *, void *, int))dladdr1)(addr, &info, &m, 2) && m) {
		nvt_elf_init(e, m->addr, m->ld);
		o.name = m->name;
	} else {
		return 0;
	}
	if (path && o.name && *o.name) {
		u64 len = nvt_length(o.name, 4096), skip = len >= n ? len - n + 1 : 0;
		nvt_copy(path, o.name + skip, len - skip);
		path[len - skip] = 0;
	} else if (path) {
		nvt_executable(path, n);
	}
	return 1;
}
