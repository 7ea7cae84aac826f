// A program, or with -DLIBRARY a library, with probes as sys/sdt.h would make them.
#include <stdio.h>

#define PROBE(name, sema, format, ...) \
	__asm__ volatile("990: nop\n" \
		".pushsection .note.stapsdt,\"?\",\"note\"\n" \
		".balign 4\n .4byte 992f-991f, 994f-993f, 3\n" \
		"991: .asciz \"stapsdt\"\n992: .balign 4\n" \
		"993: .8byte 990b\n .8byte _.stapsdt.base\n .8byte " sema "\n" \
		".asciz \"zoo\"\n .asciz \"" name "\"\n .asciz \"" format "\"\n994: .balign 4\n.popsection\n" \
		".ifndef _.stapsdt.base\n.pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
		".weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n.size _.stapsdt.base, 1\n.popsection\n.endif\n" \
		: : __VA_ARGS__ : "memory")

__attribute__((section(".probes"), visibility("hidden"), used)) volatile unsigned short zoo_second_semaphore;

__attribute__((noinline, noclone)) int first(int n, long *p)
{
	PROBE("first", "0", "-4@%0 8@%1 -4@$-7 1@%2", "r"(n), "m"(*p), "q"((char)n));
	return n;
}

__attribute__((noinline, noclone)) int second(int n)
{
	if (!zoo_second_semaphore)
		return 0;
	PROBE("second", "zoo_second_semaphore", "-4@%0", "r"(2 * n));
	return 1;
}

#ifdef LIBRARY
int run(void)
#else
int main(void)
#endif
{
	long v = 0x123456789a;
	int looked = 0;
	for (int i = -3; i < 4; i++) {
		v++;
		first(i, &v);
		looked += second(i);
	}
	printf("%d\n", looked);
	return 0;
}
