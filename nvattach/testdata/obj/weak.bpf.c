// A program at the probes of nvattach/host/testdata/usdt.c that asks for arguments by functions and
// maps of the names that libbpf's have.
typedef unsigned long long u64;
typedef unsigned int u32;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name
#define WEAK __attribute__((weak, visibility("hidden")))

static void *(*map_lookup)(void *, const void *) = (void *)1;

struct spec {
	u64 args[12];
	short count;
};

struct {
	__uint(type, 2);
	__uint(max_entries, 16);
	__type(key, u32);
	__type(value, struct spec);
} __bpf_usdt_specs SEC(".maps") WEAK;

u64 sum, third, count, beyond;

WEAK int bpf_usdt_arg_cnt(void *ctx)
{
	u32 id = 0;
	struct spec *s = map_lookup(&__bpf_usdt_specs, &id);
	return s ? s->count : -3;
}

WEAK int bpf_usdt_arg(void *ctx, u64 n, long *to)
{
	u32 id = 0;
	struct spec *s = map_lookup(&__bpf_usdt_specs, &id);
	if (!s || n >= 12)
		return -3;
	*to = s->args[n];
	return 0;
}

SEC("usdt/weak:zoo:first") // where nothing is
int on_probe(void *ctx)
{
	long v = 0;
	if (!bpf_usdt_arg(ctx, 0, &v))
		sum += v * v;
	if (!bpf_usdt_arg(ctx, 2, &v))
		third = v;
	count = bpf_usdt_arg_cnt(ctx);
	beyond = bpf_usdt_arg(ctx, 11, &v);
	return 0;
}

char _license[] SEC("license") = "GPL";
