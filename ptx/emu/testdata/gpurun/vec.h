// Vector descriptions: reading NAME.vec files and generating their inputs. ../vectors/README.md is the specification.
#ifndef VEC_H
#define VEC_H

#include <stddef.h>
#include <stdint.h>

enum { MAX_BUFFERS = 32, MAX_PARAMS = 64, MAX_WORDS = 4200, NAME_LEN = 64, MAX_BYTES = 1 << 26 };

enum type { U8, U16, U32, U64, F16, BF16, F32, F64, TYPES };

enum compare { NOT_COMPARED, EXACT, SORTED, ULP };

struct buffer {
	char name[NAME_LEN];
	enum type type;
	size_t count, size;    // elements, bytes
	int symbol;            // a module variable, not an allocation
	int keep;              // a symbol that the host does not initialise
	unsigned char *init;   // size bytes
	enum compare compare;
	uint64_t device;       // address while the kernel runs
	unsigned char *result; // size bytes
};

struct param {
	int buffer; // index, or -1
	uint64_t offset;
	size_t size;
	unsigned char *bytes;
};

struct vec {
	char path[4096], name[NAME_LEN], ptx[4096], kernel[256];
	unsigned grid[3], block[3], shared;
	struct buffer buffers[MAX_BUFFERS];
	int nbuffers;
	struct param params[MAX_PARAMS];
	int nparams;
	int outputs[MAX_BUFFERS], noutputs; // indices in the order of the output lines
};

// vec_read parses the file at path and generates its inputs. It returns NULL and writes a message into err on failure.
struct vec *vec_read(const char *path, char *err, size_t errlen);
void vec_free(struct vec *v);

// file_read returns the content of path with a NUL appended, or NULL.
char *file_read(const char *path, size_t *len);

size_t type_width(enum type t);
#endif
