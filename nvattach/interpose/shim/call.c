/* What happens around a wrapped call. */
#include "nvt.h"
#include "zfunctions.h"

_Static_assert(sizeof(struct nvt_frame) <= 320, "FRAME in entry_amd64.S");
_Static_assert(__builtin_offsetof(struct nvt_frame, rax) == 104, "offsets in entry_amd64.S");

#define COOKIE 0x6e76747263616c6cUL
#define SEEN 16384

static u32 sequence;
static u64 seen[SEEN];
static u32 seen_full;

/*
 * The frame of the outermost wrapped call of this thread, or 0. A call that was
 * left by longjmp leaves its frame behind, which later frames lie above, or whose
 * cookie they overwrite.
 */
static __thread u64 outermost;

static int nested(const struct nvt_frame *f)
{
	u64 g = outermost, cookie;
	if (!g || (u64)f >= g || g - (u64)f > 64UL << 20)
		return 0;
	return nvt_read_memory((const void *)(g + __builtin_offsetof(struct nvt_frame, cookie)), &cookie, 8) == 8 && cookie == (g ^ COOKIE);
}

static u64 hash(u64 handle) { return handle * 0x9e3779b97f4a7c15UL >> 40; }

/* Was this function told already? If not, it is from now on. */
static int told(u64 handle)
{
	u64 h = hash(handle);
	for (u32 i = 0; i < 64; i++) {
		u64 *p = &seen[(h + i) % SEEN], old = __atomic_load_n(p, __ATOMIC_RELAXED);
		if (old == handle)
			return 1;
		if (!old && __atomic_compare_exchange_n(p, &old, handle, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
			return 0;
		if (old == handle)
			return 1;
	}
	if (!__atomic_exchange_n(&seen_full, 1, __ATOMIC_RELAXED))
		nvt_gap(NVT_GAP_LAUNCHES, 1, SEEN);
	return 1;
}

/* Handles can come back as something else after an unload. */
static void forget(void)
{
	for (u32 i = 0; i < SEEN; i++)
		__atomic_store_n(&seen[i], 0, __ATOMIC_RELAXED);
	__atomic_store_n(&seen_full, 0, __ATOMIC_RELAXED);
}

/* The kernel of a graph node's parameters: CUDA_KERNEL_NODE_PARAMS and _v2, and CUgraphNodeParams of type 0. */
static u64 node_kernel(const struct nvt_frame *f, const struct nvt_fn *fn)
{
	u64 p[10];
	u64 at = fn->size == 2 ? 16 : 0, n = fn->size ? at + 64 : 8;
	if (!f->args[fn->image] || nvt_read_memory((const void *)f->args[fn->image], p, n) != (s64)n)
		return 0;
	if (fn->size == 2 && (u32)p[0] != 0)
		return 0;
	return p[at / 8] || !fn->size ? p[at / 8] : p[at / 8 + 7];
}

/* CUDA_LAUNCH_PARAMS has 56 bytes, the function first. Returns the first one that was not told. */
static u64 multi_kernel(const struct nvt_frame *f)
{
	u64 fresh = 0;
	for (u64 i = 0; i < (u32)f->args[1] && i < 64 && f->args[0]; i++) {
		u64 func;
		if (nvt_read_memory((const void *)(f->args[0] + i * 56), &func, 8) != 8)
			break;
		if (func && !told(func) && !fresh)
			fresh = func;
	}
	return fresh;
}

/* Decides whether a call is to be told. The registers are restored from f->args afterwards. */
int nvt_enter(struct nvt_frame *f)
{
	f->fn = nvt_slot(f->slot, &f->target);
	if (f->fn < 0 || __atomic_load_n(&nvt_state, __ATOMIC_RELAXED) != NVT_ON)
		return NVT_PASS;
	const struct nvt_fn *fn = nvt_function(f->fn);
	f->handle = 0;
	/* The frequent case first: a launch of what was told before. */
	u64 kernel = fn->class == NVT_C_LAUNCH ? f->args[fn->of] : 0;
	if (kernel && __atomic_load_n(&seen[hash(kernel) % SEEN], __ATOMIC_RELAXED) == kernel)
		return NVT_PASS;
	if (nested(f) || nvt_in_driver(f->caller))
		return NVT_PASS;
	switch (fn->class) {
	case NVT_C_LAUNCH:
		f->handle = kernel;
		if (!kernel || told(kernel))
			return NVT_PASS;
		break;
	case NVT_C_LAUNCH_MULTI:
		f->handle = multi_kernel(f);
		if (!f->handle)
			return NVT_PASS;
		break;
	case NVT_C_NODE:
		f->handle = node_kernel(f, fn);
		if (!f->handle || told(f->handle))
			return NVT_PASS;
		break;
	case NVT_C_UNLOAD:
	case NVT_C_CONTEXT_DESTROY:
		forget();
		break;
	}
	f->words = fn->args > 6 ? fn->args - 6 : 0;
	f->seq = __atomic_add_fetch(&sequence, 1, __ATOMIC_RELAXED);
	f->start = nvt_now();
	f->replaced_fd = -1;
	nvt_zero(&f->image, sizeof f->image);
	f->image.fd = -1;
	f->outer = outermost;
	f->cookie = (u64)f ^ COOKIE;
	outermost = (u64)f;
	if (fn->class == NVT_C_LOAD || fn->class == NVT_C_LOAD_FILE || fn->class == NVT_C_LINK_ADD || fn->class == NVT_C_LINK_ADD_FILE)
		nvt_image_enter(f, fn);
	return NVT_AROUND;
}

static u64 text_length(u64 s)
{
	char b[256];
	u64 n = 0;
	while (s && n < NVT_MAX_DATA) {
		u64 got = (u64)nvt_read_memory((const void *)(s + n), b, sizeof b), k = nvt_length(b, got);
		n += k;
		if (k < sizeof b)
			break;
	}
	return n < NVT_MAX_DATA ? n : NVT_MAX_DATA;
}

static void tell(struct nvt_frame *f, const struct nvt_fn *fn)
{
	const void *data = 0;
	u64 n = 0;
	u16 flags = 0;
	int ok = (int)f->ret == 0;
	if (fn->class == NVT_C_ENUMERATE) {
		n = ok ? (u32)f->args[fn->size] * 8UL : 0;
		data = (const void *)f->args[fn->out];
		flags = NVT_F_HANDLES | (n > NVT_MAX_DATA ? NVT_F_CUT : 0);
		n = n > NVT_MAX_DATA ? NVT_MAX_DATA : n;
	} else if (fn->class == NVT_C_EXPORT_TABLE) {
		data = (const void *)f->args[fn->text];
		n = data ? 16 : 0;
		flags = n ? NVT_F_UUID : 0;
	} else {
		int arg = fn->class == NVT_C_LOAD_FILE || fn->class == NVT_C_LINK_ADD_FILE ? fn->image : fn->text;
		data = arg >= 0 && !(f->image.flags & NVT_F_REPLACED && arg == fn->image) ? (const void *)f->args[arg] : 0;
		n = text_length((u64)data);
		flags = n == NVT_MAX_DATA ? NVT_F_CUT : 0;
	}
	if (fn->class != NVT_C_NODE && fn->class != NVT_C_LAUNCH && fn->class != NVT_C_LAUNCH_MULTI) {
		if (fn->class == NVT_C_ENUMERATE || (fn->out < 0 && fn->of >= 0))
			f->handle = f->args[fn->of];
		else if (ok && fn->out >= 0 && f->args[fn->out])
			f->handle = f->fn == NVT_FN_cuModuleGetGlobal ? *(const u32 *)f->args[fn->out] : *(const u64 *)f->args[fn->out];
	}
	nvt_tell(f, &f->image, NVT_CALL, data, n, flags, 0, 0);
}

/* After the real function. f->ret is what the program gets. */
void nvt_leave(struct nvt_frame *f)
{
	const struct nvt_fn *fn = nvt_function(f->fn);
	if (fn->class == NVT_C_LINK_COMPLETE && (int)f->ret == 0)
		nvt_image_leave(f, fn);
	tell(f, fn);
	if (fn->class == NVT_C_PROC_ADDRESS && (int)f->ret == 0 && f->args[1]) {
		u64 *pfn = (u64 *)f->args[1];
		if (*pfn)
			*pfn = nvt_wrap_requested(*pfn, (const char *)f->args[0]);
	}
	nvt_image_leave(f, 0);
	f->cookie = 0;
	outermost = f->outer;
}
