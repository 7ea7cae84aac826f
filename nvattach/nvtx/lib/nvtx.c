// The library that programs load for their NVTX ranges and marks (NVTX_INJECTION64_PATH; the
// interface is that of NVTX's headers, nvtxTypes.h). It turns the many forms of them into calls of
// few functions with plain strings, which do nothing: the agent records those as it does the
// functions of other libraries.
//
// What a program sees of NVTX is what it sees without a tool, but for the handles of ranges. Nothing
// of the C library is linked.

typedef unsigned long u64;
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

// A function that is recorded has room for a jump.
#define RECORDED __attribute__((noinline, visibility("default")))
#define ROOM(a, b, c) __asm__ volatile("nop\n nop\n nop\n nop\n nop\n nop\n nop\n nop\n nop\n nop\n nop\n nop" ::"r"(a), "r"(b), "r"(c))

RECORDED void nvtxMark(const char *message, const char *domain) { ROOM(message, domain, 0); }
RECORDED void nvtxRangePush(const char *message, const char *domain) { ROOM(message, domain, 0); }
RECORDED void nvtxRangePop(const char *domain) { ROOM(domain, 0, 0); }
RECORDED void nvtxRangeStart(u64 id, const char *message, const char *domain) { ROOM(id, message, domain); }
RECORDED void nvtxRangeEnd(u64 id, const char *domain) { ROOM(id, domain, 0); }
RECORDED void nvtxNameOsThread(u32 thread, const char *name) { ROOM(thread, name, 0); }

#define NO_TRACKING -2 // NVTX_NO_PUSH_POP_TRACKING: what functions return without a tool

// Strings that programs register, and names of domains: their handles are their addresses. They are
// never given back, as a program may still name them.
static char kept[1 << 18];
static u64 used;

static const char *keep(const char *s)
{
	u64 n = 0, at, i;
	if (!s)
		return 0;
	while (s[n] && n < 255)
		n++;
	at = __atomic_fetch_add(&used, n + 1, __ATOMIC_RELAXED);
	if (at + n + 1 > sizeof kept)
		return "(more strings than nvtrace keeps)";
	for (i = 0; i < n; i++)
		kept[at + i] = s[i];
	kept[at + n] = 0;
	return kept + at;
}

#define TEXT 256

// Turns wide characters, of 4 bytes, into UTF-8.
static const char *narrow(char *to, const u32 *s)
{
	u64 n = 0;
	if (!s)
		return 0;
	for (; *s && n + 5 < TEXT; s++) {
		u32 c = *s;
		if (c < 0x80)
			to[n++] = c;
		else if (c < 0x800) {
			to[n++] = 0xc0 | c >> 6;
			to[n++] = 0x80 | (c & 0x3f);
		} else if (c < 0x10000) {
			to[n++] = 0xe0 | c >> 12;
			to[n++] = 0x80 | (c >> 6 & 0x3f);
			to[n++] = 0x80 | (c & 0x3f);
		} else {
			to[n++] = 0xf0 | (c >> 18 & 7);
			to[n++] = 0x80 | (c >> 12 & 0x3f);
			to[n++] = 0x80 | (c >> 6 & 0x3f);
			to[n++] = 0x80 | (c & 0x3f);
		}
	}
	to[n] = 0;
	return to;
}

// nvtxEventAttributes_v2.
struct attributes {
	u16 version, size;
	u32 category, colortype, color, payloadtype, reserved;
	u64 payload;
	u32 messagetype;
	const void *message;
};

enum { MESSAGE_ASCII = 1, MESSAGE_UNICODE, MESSAGE_REGISTERED };

static const char *message_of(const struct attributes *a, char *room)
{
	if (!a || a->size < sizeof *a)
		return 0;
	switch (a->messagetype) {
	case MESSAGE_ASCII:
	case MESSAGE_REGISTERED:
		return a->message;
	case MESSAGE_UNICODE:
		return narrow(room, a->message);
	}
	return 0;
}

static u64 ranges;
static u64 start(const char *message, const char *domain)
{
	u64 id = __atomic_add_fetch(&ranges, 1, __ATOMIC_RELAXED);
	nvtxRangeStart(id, message, domain);
	return id;
}

static void mark_ex(const struct attributes *a) { char t[TEXT]; nvtxMark(message_of(a, t), 0); }
static void mark_a(const char *s) { nvtxMark(s, 0); }
static void mark_w(const u32 *s) { char t[TEXT]; nvtxMark(narrow(t, s), 0); }
static u64 start_ex(const struct attributes *a) { char t[TEXT]; return start(message_of(a, t), 0); }
static u64 start_a(const char *s) { return start(s, 0); }
static u64 start_w(const u32 *s) { char t[TEXT]; return start(narrow(t, s), 0); }
static void end(u64 id) { nvtxRangeEnd(id, 0); }
static int push_ex(const struct attributes *a) { char t[TEXT]; nvtxRangePush(message_of(a, t), 0); return NO_TRACKING; }
static int push_a(const char *s) { nvtxRangePush(s, 0); return NO_TRACKING; }
static int push_w(const u32 *s) { char t[TEXT]; nvtxRangePush(narrow(t, s), 0); return NO_TRACKING; }
static int pop(void) { nvtxRangePop(0); return NO_TRACKING; }
static void name_thread_a(u32 thread, const char *s) { nvtxNameOsThread(thread, s); }
static void name_thread_w(u32 thread, const u32 *s) { char t[TEXT]; nvtxNameOsThread(thread, narrow(t, s)); }

static void domain_mark(const char *d, const struct attributes *a) { char t[TEXT]; nvtxMark(message_of(a, t), d); }
static u64 domain_start(const char *d, const struct attributes *a) { char t[TEXT]; return start(message_of(a, t), d); }
static void domain_end(const char *d, u64 id) { nvtxRangeEnd(id, d); }
static int domain_push(const char *d, const struct attributes *a) { char t[TEXT]; nvtxRangePush(message_of(a, t), d); return NO_TRACKING; }
static int domain_pop(const char *d) { nvtxRangePop(d); return NO_TRACKING; }
static const char *register_a(const char *d, const char *s) { (void)d; return keep(s); }
static const char *register_w(const char *d, const u32 *s) { char t[TEXT]; (void)d; return keep(narrow(t, s)); }
static const char *create_a(const char *s) { return keep(s); }
static const char *create_w(const u32 *s) { char t[TEXT]; return keep(narrow(t, s)); }

// NVTX's tables of functions: an entry points to the pointer that the program calls by.
#define CORE 1u
#define CORE2 5u
#define CALLBACKS 1u // NVTX_ETID_CALLBACKS

struct callbacks {
	u64 size;
	int (*table)(u32 module, void ****table, u32 *size);
};

static void set(void ***table, u32 size, u32 at, void *function)
{
	if (at < size && table[at])
		*table[at] = function;
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(const void *(*get)(u32))
{
	const struct callbacks *c = get ? get(CALLBACKS) : 0;
	void ***t;
	u32 n;
	if (!c || c->size < sizeof *c || !c->table)
		return 0;
	if (c->table(CORE, &t, &n)) {
		void *f[] = {0, mark_ex, mark_a, mark_w, start_ex, start_a, start_w, end, push_ex, push_a, push_w, pop, 0, 0, name_thread_a, name_thread_w};
		for (u32 i = 0; i < sizeof f / sizeof *f; i++)
			if (f[i])
				set(t, n, i, f[i]);
	}
	if (c->table(CORE2, &t, &n)) {
		void *f[] = {0, domain_mark, domain_start, domain_end, domain_push, domain_pop, 0, 0, 0, 0, register_a, register_w, create_a, create_w};
		for (u32 i = 0; i < sizeof f / sizeof *f; i++)
			if (f[i])
				set(t, n, i, f[i]);
	}
	return 1;
}
