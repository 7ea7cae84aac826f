// Runs programs that bpf.Assemble compiled, one after the other: a request on
// standard input, the answer on standard output. All numbers are of 8 bytes.
//
//	request: size of code, number of slots, size of context, size of memory,
//	         number of maps; the code; the slots (kind, number); the context;
//	         the memory; the maps (offset in memory, size of a value, entries)
//	answer:  r0, end; the memory
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { helper, release, map, value };

struct map {
	uint64_t at, value_size, entries;
};

struct result {
	uint64_t r0, end;
};

static struct map maps[16];
static uint8_t *mem;

static void get(void *to, size_t n)
{
	for (uint8_t *p = to; n > 0;) {
		ssize_t k = read(0, p, n);
		if (k <= 0)
			_exit(k < 0);
		p += k, n -= k;
	}
}

static void put(const void *from, size_t n)
{
	for (const uint8_t *p = from; n > 0;) {
		ssize_t k = write(1, p, n);
		if (k <= 0)
			_exit(1);
		p += k, n -= k;
	}
}

// trash changes all registers that a function may change.
static uint64_t trash(uint64_t r)
{
	__asm__ volatile("mov $-0x5a5a5a5b, %%rdi; mov %%rdi, %%rsi; mov %%rdi, %%rdx; mov %%rdi, %%rcx; mov %%rdi, %%r8; mov %%rdi, %%r9; mov %%rdi, %%r10; mov %%rdi, %%r11"
			 : : : "rdi", "rsi", "rdx", "rcx", "r8", "r9", "r10", "r11");
	return r;
}

// straight stops the program if the stack is not as functions find it.
#define straight() \
	do { \
		if ((uintptr_t)__builtin_frame_address(0) % 16 != 0) \
			__builtin_trap(); \
	} while (0)

enum { wide = 1, outer = 5, other = 6 }; // maps

// inner are the values of the map that has maps for values.
static struct map *const inner[2] = {&maps[wide], &maps[other]};

static uint64_t lookup(struct map *m, const uint32_t *key)
{
	straight();
	if (m == &maps[outer])
		return trash(*key < 2 ? (uint64_t)&inner[*key] : 0);
	return trash(*key < m->entries ? (uint64_t)(mem + m->at + *key * m->value_size) : 0);
}

static uint64_t update(struct map *m, const uint32_t *key, const void *v)
{
	straight();
	if (*key >= m->entries)
		return trash(-7);
	memmove(mem + m->at + *key * m->value_size, v, m->value_size);
	return trash(0);
}

static uint64_t mix(uint64_t a, uint64_t b) { return trash(a * 0x9e3779b1 ^ b); }

static uint64_t ids(uint64_t *a, uint32_t *b)
{
	memcpy(a, "\x78\x56\x34\x12\xfe\xff\xff\xff", 8);
	memcpy(b, "\x55\0\0\0", 4);
	return trash(0);
}

static uint64_t output(const void *ctx, const uint8_t *p, uint64_t n)
{
	uint64_t sum = 0, old;
	for (uint64_t i = 0; i < n; i++)
		sum = sum * 31 + p[i];
	memcpy(&old, mem + maps[3].at + 56, 8);
	old += sum;
	memcpy(mem + maps[3].at + 56, &old, 8);
	return trash(sum);
}

static uint64_t reserve(struct map *m, uint64_t size)
{
	return trash(size % 8 != 7 ? (uint64_t)(mem + maps[1].at + 32 * (size % 8)) : 0);
}

static void given_back(uint8_t *rec, int to)
{
	uint32_t n;
	memcpy(&n, mem + maps[3].at + to, 4);
	n += rec - (mem + maps[1].at) + 1;
	memcpy(mem + maps[3].at + to, &n, 4);
	trash(0);
}

static void submit(uint8_t *rec) { given_back(rec, 48); }
static void discard(uint8_t *rec) { given_back(rec, 52); }

static uint64_t print(const char *s) { return trash(strnlen(s, 64)); }

static uint64_t log2of(uint64_t x) { return trash(63 - __builtin_clzll(x | 1)); }

static uint64_t read_bytes(uint8_t *to, uint64_t size, uint64_t v)
{
	for (uint64_t i = 0; i < size; i++)
		to[i] = v >> 8 * (i % 8);
	return trash(0);
}

static uint64_t read_str(char *to, uint64_t size, uint64_t v)
{
	if (!size)
		return trash(0);
	v &= 15;
	if (v > size - 1)
		v = size - 1;
	memcpy(to, "abcdefghijklmnop", v);
	to[v] = 0;
	return trash(v + 1);
}

static uint64_t format(char *to, uint64_t size, const char *text, const void *args, uint64_t bytes)
{
	char all[8192];
	uint64_t n = strlen(text);
	memcpy(all, text, n);
	if (bytes)
		memcpy(all + n, args, bytes);
	n += bytes;
	all[n++] = 0;
	if (size) {
		uint64_t shown = n < size ? n : size;
		memcpy(to, all, shown);
		to[shown - 1] = 0;
	}
	return trash(n);
}

static uint64_t compare(const uint8_t *a, uint64_t n, const uint8_t *b)
{
	for (uint64_t i = 0; i < n; i++)
		if (a[i] != b[i] || !a[i])
			return trash((int64_t)a[i] - b[i]);
	return trash(0);
}

static uint64_t helper_of(int64_t id)
{
	switch (id) {
	case 1: return (uint64_t)lookup;
	case 2: return (uint64_t)update;
	case 4: return (uint64_t)read_bytes;
	case 45: return (uint64_t)read_str;
	case 165: return (uint64_t)format;
	case 182: return (uint64_t)compare;
	case 5: return (uint64_t)mix;
	case 6: return (uint64_t)print;
	case 25: return (uint64_t)output;
	case 131: return (uint64_t)reserve;
	case 132: return (uint64_t)submit;
	case 505: return (uint64_t)ids;
	case 600: return (uint64_t)log2of;
	}
	_exit(2);
}

// call runs the code with the registers that functions keep in a known state, and stops
// if they are not as they were.
static struct result call(void *code, void *ctx, uint64_t *table)
{
	struct result r;
	uint64_t same;
	__asm__ volatile(
		"mov %%rsp, %%rax; and $-16, %%rsp; push %%rax; push %%rbp\n"
		"mov $0x1111, %%rbx; mov $0x2222, %%rbp; mov $0x3333, %%r12; mov $0x4444, %%r13; mov $0x5555, %%r14; mov $0x6666, %%r15\n"
		"call *%%rcx\n"
		"lea (%%rbx, %%rbp), %%rcx; add %%r12, %%rcx; add %%r13, %%rcx; add %%r14, %%rcx; add %%r15, %%rcx\n"
		"pop %%rbp; pop %%rsp\n"
		: "=a"(r.r0), "=d"(r.end), "=c"(same), "+D"(ctx), "+S"(table)
		: "2"(code)
		: "rbx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc");
	if (same != 0x1111 + 0x2222 + 0x3333 + 0x4444 + 0x5555 + 0x6666)
		__builtin_trap();
	return r;
}

int main(void)
{
	static uint64_t table[4096], slots[4096][2];
	static uint8_t context[64] __attribute__((aligned(8)));
	uint8_t *code = mmap(0, 1 << 24, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t n[5];
	// The memory ends at a page that is not there.
	uint8_t *pages = mmap(0, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (code == MAP_FAILED || pages == MAP_FAILED || mprotect(pages + 2 * 4096, 4096, PROT_NONE))
		return 1;
	for (;;) {
		get(n, sizeof n);
		if (n[0] > 1 << 24 || n[1] > 4096 || n[2] > sizeof context || n[3] > 4096 || n[4] > 16)
			return 2;
		get(code, n[0]);
		get(slots, 16 * n[1]);
		get(context, n[2]);
		mem = pages + 2 * 4096 - n[3];
		get(mem, n[3]);
		get(maps, sizeof maps[0] * n[4]);
		for (uint64_t i = 0; i < n[1]; i++) {
			switch (slots[i][0]) {
			case helper: table[i] = helper_of(slots[i][1]); break;
			case release: table[i] = (uint64_t)discard; break;
			case map: table[i] = (uint64_t)&maps[slots[i][1]]; break;
			case value: table[i] = (uint64_t)(mem + maps[slots[i][1]].at); break;
			}
		}
		struct result r = call(code, context, table);
		put(&r, sizeof r);
		put(mem, n[3]);
	}
}
