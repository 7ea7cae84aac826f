// Functions at whose beginnings a jump may hurt somebody: short ones side by side, some that others jump into, and
// some that take more from their caller than compilers' functions do.
#include <setjmp.h>
#include <stdio.h>
#include <ucontext.h>
#include <unistd.h>
#include <sys/wait.h>

#define KEEP __attribute__((noinline, noclone))

KEEP int add(int a, int b) { __asm__ volatile(""); return a + b; }
KEEP void tiny(void) { __asm__ volatile(""); }
KEEP int sub(int a, int b) { __asm__ volatile(""); return a - b; }
KEEP void tiny2(void) { __asm__ volatile(""); }
KEEP int same(int a) { __asm__ volatile(""); return a; }
KEEP int hit(int a, int b) { int c = a * 2; __asm__ volatile("" : "+r"(c)); return c + b; }
KEEP int sum(int n) { int s = 0; do s += n; while (--n); return s; }
KEEP int choose(int n) { switch (n) { case 0: return sub(9, n); case 1: return same(4); case 2: return 7; case 3: return add(n, 1); case 4: return 8; case 5: tiny(); return 2; } return 0; }

// Hand-written: jumps to the second instruction of another function, in short and at length; a loop back to
// the second instruction; labels next to each other; flags for arguments and results.
__asm__(".text\n"
	".globl shared\n.type shared,@function\nshared: mov %edi,%eax\n .byte 0x8d,0x40,0x05\n ret\n.size shared,.-shared\n"
	".globl near_it\n.type near_it,@function\nnear_it: mov $100,%eax\n jmp shared+2\n.size near_it,.-near_it\n"
	".skip 300,0xcc\n"
	".globl far_it\n.type far_it,@function\nfar_it: mov $200,%eax\n jmp shared+2\n.size far_it,.-far_it\n"
	".globl back\n.type back,@function\nback: xor %eax,%eax\n 1: inc %eax\n dec %edi\n jnz 1b\n ret\n.size back,.-back\n"
	".globl one, two\none: inc %edi\ntwo: inc %edi\n mov %edi,%eax\n ret\n"
#ifdef LANDING
	".globl again\n.type again,@function\nagain: endbr64\n 1: lea -1(%rdi),%rdi\n inc %esi\n test %edi,%edi\n jnz 1b\n mov %esi,%eax\n ret\n.size again,.-again\n"
#else
	".globl again\n.type again,@function\nagain: 1: lea -1(%rdi),%rdi\n inc %esi\n test %edi,%edi\n jnz 1b\n mov %esi,%eax\n ret\n.size again,.-again\n"
#endif
	".globl carry\n.type carry,@function\ncarry: setc %al\n seto %cl\n setz %dl\n movzx %al,%eax\n ret\n.size carry,.-carry\n"
	".globl sets\n.type sets,@function\nsets: nop\n nop\n nop\n nop\n nop\n mov $0x7fffffff,%eax\n add %edi,%eax\n stc\n ret\n.size sets,.-sets\n");
int shared(int), near_it(int), far_it(int), back(int), again(long, int), one(int), two(int);

// with_flags calls a function with carry, overflow and direction set, and zero not.
static int with_flags(void *f)
{
	long r, c = 0, d = 0;
	__asm__ volatile("lea -256(%%rsp),%%rsp\n mov $0x7fffffff,%%eax\n add $1,%%eax\n stc\n std\n call *%3\n setc %%dil\n setb %%sil\n pushfq\n pop %%r8\n cld\n lea 256(%%rsp),%%rsp\n"
		: "=&a"(r), "+&c"(c), "+&d"(d) : "r"(f) : "rdi", "rsi", "r8", "r9", "r10", "r11", "memory", "cc");
	return (r & 255) + 2 * (c & 255) + 4 * (d & 255);
}

static int flags_after(void)
{
	long f;
	int r;
	__asm__ volatile("lea -256(%%rsp),%%rsp\n mov $1,%%edi\n call sets\n pushfq\n pop %0\n lea 256(%%rsp),%%rsp\n" : "=&r"(f), "=&a"(r) : : "rdi", "memory", "cc");
	return f & 0x8c5;
}

static int twice(void)
{
	static jmp_buf b;
	static ucontext_t c;
	volatile int n = 0, m = 0, status = 0;
	if (_setjmp(b) < 3)
		longjmp(b, ++n);
	getcontext(&c);
	if (++m < 4)
		setcontext(&c);
	for (int i = 0; i < 3; i++) {
		int pid = vfork();
		if (!pid)
			_exit(7);
		waitpid(pid, (int *)&status, 0);
	}
	return n * 10000 + m * 1000 + status;
}

int main(int argc, char **argv)
{
	unsigned r = 0;
	for (int i = 1; i <= 20; i++) {
		r = r * 7 + add(i, 1);
		tiny();
		r += sub(i, 2) + hit(i, 3) + sum(i) + same(i);
		tiny2();
		r += choose(i % 6) + shared(i) + near_it(i) + far_it(i) + back(i) + again(i, 3) + one(i) + two(i);
	}
	extern int carry(void);
	printf("%d %d %d %d\n", r, with_flags(carry), flags_after(), argc > 1 ? twice() : 0);
	return r & 31;
}
