// Functions that call each other, and one that is called with many numbers.
#include <stdio.h>

#define KEEP __attribute__((noinline, noclone))

KEEP int inner(int n) { __asm__ volatile("nop; nop; nop" ::: "memory"); return n + 1; }
KEEP int outer(int n) { int r = inner(n); __asm__ volatile("" ::: "memory"); return r + 1; }
KEEP int other(int n) { int r = inner(n); __asm__ volatile("" ::: "memory"); return r + 2; }
KEEP int number(int n) { __asm__ volatile("nop; nop; nop" ::: "memory"); return n + 1; }

int main(int argc, char **argv)
{
	int sum = 0;
	for (int i = 0; i < 5; i++)
		sum += other(i);
	for (int i = 0; i < 3 * argc; i++)
		sum += outer(i);
	for (int i = 7; i < 2007; i++)
		sum += number(i);
	printf("%d\n", sum);
	return 0;
}
