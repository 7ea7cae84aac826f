// Programs at lines of text, for the example above: they count lines by their words, and keep comments from
// being printed. Compiled by: clang -g -O2 -target bpf -mcpu=v3 -c lines.bpf.c
typedef unsigned long long u64;
typedef unsigned int u32;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name

struct line {
	u64 number, bytes, words;
};

static long (*line_text)(void *, char *, u32) = (void *)1000; // the source's own helper
static long (*override_return)(void *, u64) = (void *)58;
static void *(*map_lookup)(void *, const void *) = (void *)1;

struct {
	__uint(type, 2); // array
	__uint(max_entries, 16);
	__type(key, u32);
	__type(value, u64);
} by_words SEC(".maps");

u64 lines, bytes, comments;

SEC("line/*")
int each(struct line *l)
{
	u32 n = l->words < 15 ? l->words : 15;
	u64 *v = map_lookup(&by_words, &n);
	if (v)
		__sync_fetch_and_add(v, 1);
	lines++;
	bytes += l->bytes;
	return 0;
}

SEC("line/*.c")
int comment(struct line *l)
{
	char text[2] = {};
	line_text(l, text, sizeof text);
	if (text[0] == '/' && text[1] == '/') {
		comments++;
		override_return(l, 1); // don't print it
	}
	return 0;
}

char _license[] SEC("license") = "GPL";
