// A program that spoils what nvtrace has put into its memory: the maps (argv[1] is "maps"),
// the lists of calls ("lists"), of files ("files"), or the code of programs ("code"); or the function
// that is probed: it unmaps it ("unmap"), writes another over it ("rewrite"), or jumps behind its
// first byte ("into").
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone))

KEEP long p_hit(long n) { __asm__ volatile("" ::: "memory"); return n + 1; }

static void each(const char *name, void (*f)(char *, size_t, const char *))
{
	char line[512], modes[8];
	unsigned long from, to;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx %4s", &from, &to, modes) == 3 && (from == strtoul(name, 0, 16) || strstr(line, name)))
			f((char *)from, to - from, modes);
	fclose(maps);
}

static void spoil(char *p, size_t n, const char *modes)
{
	if (modes[1] == 'w')
		memset(p, 0xff, n < 1 << 20 ? n : 1 << 20);
}

static void write_code(char *p, size_t n, const char *modes)
{
	if (mprotect(p, n, PROT_READ | PROT_WRITE | PROT_EXEC) == 0)
		puts("code can be written");
}

static void page_of(void *f, char **page, size_t *size)
{
	*size = 2 * 4096;
	*page = (char *)((unsigned long)f & -4096ul);
}

// Returns its argument and 20.
static const unsigned char other[] = {0x48, 0x8d, 0x47, 20, 0xc3};

static void harm(const char *how)
{
	char *page;
	size_t size;
	page_of((void *)p_hit, &page, &size);
	if (!strcmp(how, "unmap")) {
		puts("unmapped");
		fflush(stdout);
		munmap(page, 4096);
	} else if (!strcmp(how, "rewrite")) {
		mprotect(page, size, PROT_READ | PROT_WRITE | PROT_EXEC);
		memcpy((void *)p_hit, other, sizeof other);
		mprotect(page, size, PROT_READ | PROT_EXEC);
	} else {
		puts("jumps");
		fflush(stdout);
		((long (*)(long))((char *)p_hit + 1))(1);
	}
}

int main(int argc, char **argv)
{
	long n = 0;
	for (int i = 0; i < 10; i++)
		n = p_hit(n);
	if (!strcmp(argv[1], "maps"))
		each("nvtrace-data", spoil);
	else if (!strcmp(argv[1], "files"))
		each("550310000000", spoil);
	else if (!strcmp(argv[1], "unmap") || !strcmp(argv[1], "rewrite") || !strcmp(argv[1], "into"))
		harm(argv[1]);
	else if (!strcmp(argv[1], "lists"))
		each("550300000000", spoil);
	else
		each("nvtrace-code", write_code);
	for (int i = 0; i < 10; i++)
		n = p_hit(n);
	printf("%ld\n", n);
	return 0;
}
