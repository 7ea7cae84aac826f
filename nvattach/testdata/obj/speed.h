// Work that is done once as eBPF and once by gcc; results are compared.
#define ROUNDS 1000

struct words {
	unsigned long long w[64];
};

// Shifts, multiplications, additions.
static inline __attribute__((always_inline)) unsigned long long mix(unsigned long long x)
{
	for (int i = 0; i < ROUNDS; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		x += x * 0x9e3779b97f4a7c15ull;
	}
	return x;
}

// Branches that nobody can foretell, and divisions.
static inline __attribute__((always_inline)) unsigned long long branches(unsigned long long x)
{
	unsigned long long sum = 0;
	for (int i = 0; i < ROUNDS; i++) {
		if (x & 1)
			x = 3 * x + 1;
		else
			x >>= 1;
		if (x % 7 == 3)
			sum += x / 5;
		if (x < 2)
			x = sum | 0x12345;
	}
	return sum;
}

// Loads and stores.
static inline __attribute__((always_inline)) unsigned long long memory(struct words *t, unsigned long long x)
{
	for (int i = 0; i < ROUNDS; i++) {
		unsigned long long *p = &t->w[x & 63];
		x = *p + x * 5 + i;
		*p = x ^ (unsigned int)(x >> 32);
	}
	return x;
}
