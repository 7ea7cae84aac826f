// Calls p_step with numbers of xorshift, for nvattach/testdata/obj/inner.bpf.c.
#include <stdio.h>

static unsigned long long state = 88172645463325252ull;

static unsigned next(unsigned n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (state >> 20) % n;
}

__attribute__((noinline, noclone)) int p_step(unsigned which, unsigned key, unsigned how)
{
	__asm__ volatile("" ::: "memory");
	return which + key + how;
}

int main(void)
{
	int sum = 0;
	for (int i = 0; i < 400; i++) {
		unsigned which = next(9), key = next(6), how = next(5);
		sum += p_step(which, key, how);
	}
	puts("ok");
	return sum < 0;
}
