// Images, and the containers that they come in.
#ifndef ROUTES_IMAGES_H
#define ROUTES_IMAGES_H
#include "program.h"

// container makes a fat binary with one entry of PTX, as nvcc 12 does.
static unsigned char *container(size_t *size) {
	size_t text = sizeof ptx, padded = (text + 7) & ~7ul;
	*size = 16 + 88 + padded;
	unsigned char *b = calloc(1, *size);
	*(uint32_t *)b = 0xBA55ED50;
	*(uint16_t *)(b + 4) = 1;
	*(uint16_t *)(b + 6) = 16;
	*(uint64_t *)(b + 8) = 88 + padded;
	unsigned char *e = b + 16;
	*(uint16_t *)e = 1; // PTX
	*(uint16_t *)(e + 2) = 0x101;
	*(uint32_t *)(e + 4) = 88;
	*(uint64_t *)(e + 8) = padded;
	*(uint32_t *)(e + 20) = 72;
	*(uint16_t *)(e + 26) = 7; // PTX 7.0
	*(uint32_t *)(e + 28) = 80;
	*(uint32_t *)(e + 32) = 64;
	*(uint64_t *)(e + 40) = 0x11;
	*(uint32_t *)(e + 72) = 80;
	memcpy(e + 88, ptx, text);
	return b;
}

struct wrapper {
	int32_t magic, version;
	const void *data;
	void *more;
};

static struct wrapper wrap(int version, const void *data, void *more) {
	return (struct wrapper){0x466243B1, version, data, more};
}

// keep writes bytes to a file, for who wants to compare.
static void keep(const char *name, const void *b, size_t n) {
	FILE *f = name ? fopen(name, "wb") : 0;
	if (!f)
		return;
	if (fwrite(b, 1, n, f) != n)
		die(name, -3);
	fclose(f);
}

static char *slurp(const char *name, size_t *size) {
	FILE *f = fopen(name, "rb");
	if (!f)
		die(name, -1);
	fseek(f, 0, SEEK_END);
	*size = ftell(f);
	rewind(f);
	char *b = calloc(1, *size + 1);
	if (fread(b, 1, *size, f) != *size)
		die(name, -2);
	fclose(f);
	return b;
}
#endif
