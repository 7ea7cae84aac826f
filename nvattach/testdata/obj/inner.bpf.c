// Programs at p_step(map, key, how) of nvattach/host/testdata/inner.c, with maps that are values of others.
typedef unsigned long long u64;
typedef unsigned int u32;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name
#define __array(name, val) typeof(val) *name[]

struct pt_regs {
	u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};

static void *(*map_lookup)(void *, const void *) = (void *)1;
static long (*map_update)(void *, const void *, const void *, u64) = (void *)2;
static long (*map_delete)(void *, const void *) = (void *)3;
static long (*ringbuf_output)(void *, void *, u64, u64) = (void *)130;

struct counts {
	__uint(type, 1); // hash
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, u64);
} first SEC(".maps"), second SEC(".maps"), unused SEC(".maps");

struct {
	__uint(type, 12); // array_of_maps
	__uint(max_entries, 8);
	__type(key, u32);
	__array(values, struct counts);
} hashes SEC(".maps") = {.values = {[1] = &first, [4] = &second}};

struct cells {
	__uint(type, 2); // array
	__uint(max_entries, 4);
	__type(key, u32);
	__type(value, u64);
} left SEC(".maps"), right SEC(".maps"), wide SEC(".maps");

struct {
	__uint(type, 12);
	__uint(max_entries, 2);
	__type(key, u32);
	__array(values, struct cells);
} arrays SEC(".maps") = {.values = {&left, &right}};

struct ring {
	__uint(type, 27); // ringbuf
	__uint(max_entries, 4096);
} odd SEC(".maps"), even SEC(".maps");

struct {
	__uint(type, 12);
	__uint(max_entries, 2);
	__type(key, u32);
	__array(values, struct ring);
} rings SEC(".maps") = {.values = {&even, &odd}};

struct {
	__uint(type, 12);
	__uint(max_entries, 3);
	__type(key, u32);
	__array(values, struct cells);
} nothing SEC(".maps");

struct {
	__uint(type, 2);
	__uint(max_entries, 400);
	__type(key, u32);
	__type(value, u64);
} results SEC(".maps");

u64 step;

// on_step does what is asked for, and keeps what came of it.
SEC("uprobe/inner:p_step")
int on_step(struct pt_regs *ctx)
{
	u32 which = ctx->di, key = ctx->si, how = ctx->dx, at = step++;
	u64 result = 1000, one = 1, *v;
	void *m;

	switch (how) {
	case 0:
	case 1:
		m = map_lookup(&hashes, &which);
		if (!m) {
			result = 2000;
			break;
		}
		if (how == 1) {
			result = map_delete(m, &key);
			break;
		}
		v = map_lookup(m, &key);
		if (v)
			result = *v += 1;
		else
			result = map_update(m, &key, &one, 1);
		break;
	case 2:
		m = map_lookup(&arrays, &which);
		if (m) {
			v = map_lookup(m, &key);
			result = v ? *v += 10 : 3000;
		} else {
			result = 2000;
		}
		break;
	case 3:
		m = map_lookup(&rings, &which);
		result = m ? ringbuf_output(m, &at, 4, 0) : 2000;
		break;
	default:
		result = map_lookup(&nothing, &which) ? 1 : 2000;
	}
	map_update(&results, &at, &result, 0);
	return 0;
}

char _license[] SEC("license") = "GPL";
