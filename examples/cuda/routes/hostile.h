// What is no image; the program goes on as the driver decides, or dies of it.
#ifndef ROUTES_HOSTILE_H
#define ROUTES_HOSTILE_H
#include "images.h"

// hostile is "bad-WHAT".
static int hostile(const char *route, const char *file) {
	const char *what = route + 4;
	handle m = 0;
	if (!strcmp(what, "null"))
		return cu.load(&m, 0);
	if (!strcmp(what, "unmapped"))
		return cu.load(&m, (void *)0x1000);
	char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(page + 4096, 4096);
	if (!strcmp(what, "edge")) { // text that no NUL ends
		memset(page, ' ', 4096);
		memcpy(page, ptx, sizeof ptx - 1);
		return cu.load(&m, page);
	}
	if (!strcmp(what, "size")) {
		uint32_t head[4] = {0xBA55ED50, 1 | 16 << 16, 0xfffffff0, 0x7fffffff};
		memcpy(page, head, sizeof head);
		return cu.load(&m, page);
	}
	if (!strcmp(what, "elf")) { // the magic word, and no machine: 224 bytes by its sections
		*(uint32_t *)page = 0x464c457f;
		*(uint64_t *)(page + 40) = 64, *(uint16_t *)(page + 58) = 64, *(uint16_t *)(page + 60) = 2;
		*(uint64_t *)(page + 128 + 24) = 192, *(uint64_t *)(page + 128 + 32) = 32;
		strcpy(page + 192, "what is behind the first NUL");
		return cu.load(&m, page);
	}
	if (!strcmp(what, "new") || !strcmp(what, "newrefused")) { // a format that nobody knows yet
		uint32_t head[2] = {0x4657454e, 4096};
		memcpy(page, head, sizeof head);
		strcpy(page + 100, what[3] ? "// refuse" : "what is behind the first NUL");
		return cu.load(&m, page);
	}
	if (!strcmp(what, "list")) { // a wrapper whose list has no end
		struct wrapper *w = (void *)page;
		void **list = (void **)(page + 64);
		size_t n;
		void *c = container(&n);
		*w = wrap(2, c, list);
		for (; (char *)list < page + 4096; list++)
			*list = c;
		return cu.load(&m, page);
	}
	return 9;
}
#endif
