// A program at step() of nvattach/host/testdata/queues.c that makes text of its arguments and
// reads numbers in it.
#include "nvtrace_gpu.bpf.h"

static long (*to_signed)(const char *, unsigned long, __u64, long *) = (void *)105;
static long (*to_unsigned)(const char *, unsigned long, __u64, unsigned long *) = (void *)106;
static long (*format)(char *, __u32, const char *, const __u64 *, __u32) = (void *)165;

struct regs {
	__u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};

struct made {
	char text[48];
	long bytes;
	long number, read;
	unsigned long positive, read_positive;
	char cut[8];
	long whole;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4000);
	__type(key, __u32);
	__type(value, struct made);
} results SEC(".maps");

__u32 steps;

// Each format has a place of its own, which helpers want.
#define MAKE(n, how)                                                                                                  \
	static __attribute__((noinline)) void make##n(struct made *m, const __u64 *args)                                \
	{                                                                                                               \
		m->bytes = format(m->text, sizeof m->text, how, args, 32);                                              \
		m->whole = format(m->cut, sizeof m->cut, how, args, 32);                                                \
	}
MAKE(0, "%d %i|%5u|%-6x|")
MAKE(1, "%ld,%+d % d%%")
MAKE(2, "%#llx %#X %#o %o")
MAKE(3, " \t%lld")
MAKE(4, "%p %c%c")
MAKE(5, "%08x %.5d%6.3u%-3d.")
MAKE(6, "0x%lx")
MAKE(7, "-%lu")
MAKE(8, "%hhd %hu %zx %s")
MAKE(9, "  0%lo %q %d %d %d")
MAKE(10, "%#08x|%+05d|%5%|%")
MAKE(11, "%s")

SEC("uprobe/queues:step")
int on_step(struct regs *ctx)
{
	__u64 a = ctx->si, b = ctx->dx, args[4] = {a * 0x9e3779b97f4a7c15, a - b, b, a};
	__u32 key = __sync_fetch_and_add(&steps, 1);
	struct made *m = bpf_map_lookup_elem(&results, &key);
	__u64 base;

	if (!m)
		return 0;
	switch (ctx->di) {
	case 0:
		make0(m, args);
		break;
	case 1:
		make1(m, args);
		break;
	case 2:
		make2(m, args);
		break;
	case 3:
		make3(m, args);
		break;
	case 4:
		make4(m, args);
		break;
	case 5:
		make5(m, args);
		break;
	case 6:
		make6(m, args);
		break;
	case 7:
		make7(m, args);
		break;
	case 8:
		make8(m, args);
		break;
	case 9:
		make9(m, args);
		break;
	case 10:
		make10(m, args);
		break;
	case 11:
		make11(m, args);
		break;
	}
	base = (__u64[]){0, 8, 10, 16, 2, 0, 10, 16}[b & 7];
	m->read = to_signed(m->text, sizeof m->text - (b & 3), base, &m->number);
	m->read_positive = to_unsigned(m->text, sizeof m->text - (b & 3), base, &m->positive);
	return 0;
}
