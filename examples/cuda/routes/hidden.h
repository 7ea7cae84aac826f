// Routes through the driver's hidden tables: the runtime's, which is known, and
// one that nobody knows (the driver for tests has it).
#ifndef ROUTES_HIDDEN_H
#define ROUTES_HIDDEN_H
#include "images.h"

static const unsigned char cudart_id[16] = {0x6B, 0xD5, 0xFB, 0x6C, 0x5B, 0xF4, 0xE7, 0x4A, 0x89, 0x87, 0xD9, 0x39, 0x12, 0xFD, 0x9D, 0xF9};
static const unsigned char unknown_id[16] = {0xEE, 0xEE};

// Slots of the unknown table.
enum { LOADER = 1, FUNCTION = 2, KERNEL = 3, LIBRARY_FUNCTION = 4, LINK_ADD = 5, FUNCTION_LATER = 6, LINK_END = 7 };

// Those that find a function take a module or a library.
typedef int (*finds)(handle *function, handle owner);

static void *const *unknown(void) {
	void *const *t;
	CHECK(cu.table((const void **)&t, unknown_id));
	return t;
}

// slot calls a loader of the runtime's table: "slot1", "slot6", "slot8".
static int slot(const char *route, const char *file) {
	int which = atoi(route + 4);
	const void *const *t;
	size_t n;
	handle m;
	CHECK(cu.table((const void **)&t, cudart_id));
	unsigned char *c = container(&n);
	struct wrapper *w = malloc(sizeof *w);
	*w = wrap(1, c, 0);
	if (which == 8) {
		int (*load)(const void *, handle *, void *, void *, unsigned) = t[8];
		CHECK(load(c, &m, 0, 0, 0));
	} else if (which == 6) {
		int (*load)(handle *, const void *, void *, void *, unsigned) = t[6];
		CHECK(load(&m, w, 0, 0, 0));
	} else {
		int (*load)(handle *, const void *) = t[1];
		CHECK(load(&m, w));
	}
	use(m);
	return 0;
}

// bypass loads through a function that nobody knows.
static int bypass(const char *route, const char *file) {
	handle m;
	const void *given[] = {ptx};
	CHECK(((int (*)(handle *, const void **))unknown()[LOADER])(&m, given));
	use(m);
	return 0;
}

// hidden_find launches kernels that a hidden slot finds: "hidden-f" a module's
// function, "hidden-k" a library's kernel, otherwise a library's function.
static int hidden_find(const char *route, const char *file) {
	handle owner, f;
	int which = route[7] == 'f' ? FUNCTION : route[7] == 'k' ? KERNEL : LIBRARY_FUNCTION;
	finds find = unknown()[which];
	for (int i = 0; i < 3; i++) {
		if (which == FUNCTION)
			CHECK(cu.load(&owner, ptx));
		else
			CHECK(cu.libload(&owner, ptx, 0, 0, 0, 0, 0, 0));
		CHECK(find(&f, owner));
		launch(f);
		launch(f);
	}
	return 0;
}

// hidden_again has modules come and go.
static int hidden_again(const char *route, const char *file) {
	char text[sizeof ptx + 32];
	handle m, f;
	finds find = unknown()[FUNCTION_LATER];
	for (int i = 0; i < 5; i++) {
		sprintf(text, "%s// module %d\n", ptx, i);
		CHECK(cu.load(&m, text));
		CHECK(find(&f, m));
		launch(f);
		launch(f);
		CHECK(cu.unload(m));
	}
	return 0;
}

// hidden_link gives code to a linker that nobody knows.
static int hidden_link(const char *route, const char *file) {
	size_t n;
	void *const *t = unknown();
	int (*add)(handle, int, const void *) = t[LINK_ADD];
	int (*end)(handle, char *) = t[LINK_END];
	CHECK(add(0, 1, ptx));
	CHECK(add(0, 2, container(&n)));
	CHECK(end(0, strdup(ptx)));
	return add(0, 1, "// refuse\n.version 7.0\n") == 200 ? 0 : 4;
}
#endif
