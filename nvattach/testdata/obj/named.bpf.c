// A program that others say where it runs: it counts under the cookie of each place. See
// cmd/nvtrace/testdata/script/host.txtar.
typedef unsigned long long u64;
typedef unsigned int u32;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name

static void *(*map_lookup)(void *, const void *) = (void *)1;
static long (*map_update)(void *, const void *, const void *, u64) = (void *)2;
static u64 (*cookie)(void *) = (void *)174;

struct {
	__uint(type, 9); // lru_hash
	__uint(max_entries, 100);
	__type(key, u64);
	__type(value, u64);
} named SEC(".maps");

struct prefix {
	u32 bits;
	unsigned char addr[4];
};

struct {
	__uint(type, 11); // lpm_trie
	__uint(max_entries, 10);
	__uint(map_flags, 1);
	__type(key, struct prefix);
	__type(value, u64);
} prefixes SEC(".maps");

SEC("uprobe")
int counted(void *ctx)
{
	struct prefix ten = {32, {10, 1, 2, 3}};
	u64 key = cookie(ctx), one = 1, *n = map_lookup(&named, &key);
	if (n)
		*n += 1;
	else
		map_update(&named, &key, &one, 0);
	return map_lookup(&prefixes, &ten) != 0;
}

char _license[] SEC("license") = "GPL";
