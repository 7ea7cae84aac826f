#include "vec.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const type_names[TYPES] = {"u8", "u16", "u32", "u64", "f16", "bf16", "f32", "f64"};

size_t type_width(enum type t)
{
	static const size_t width[TYPES] = {1, 2, 4, 8, 2, 2, 4, 8};
	return width[t];
}

char *file_read(const char *path, size_t *len)
{
	FILE *f = fopen(path, "rb");
	if (!f)
		return NULL;
	size_t cap = 1 << 16, n = 0;
	char *s = malloc(cap);
	while (s) {
		n += fread(s + n, 1, cap - n - 1, f);
		if (n < cap - 1)
			break;
		cap *= 2;
		char *t = realloc(s, cap);
		if (!t)
			free(s);
		s = t;
	}
	if (s && ferror(f)) {
		free(s);
		s = NULL;
	}
	fclose(f);
	if (s) {
		s[n] = 0;
		if (len)
			*len = n;
	}
	return s;
}

// ---- special values

static const uint64_t special_f16[] = {0x0000, 0x8000, 0x3c00, 0xbc00, 0x4000, 0x3800, 0xc100, 0x3e00, 0x0001, 0x8001, 0x03ff, 0x83ff,
				       0x0400, 0x8400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xfe55, 0x7c01, 0x3c01, 0x3bff, 0x5640};
static const uint64_t special_bf16[] = {0x0000, 0x8000, 0x3f80, 0xbf80, 0x4000, 0x3f00, 0xc020, 0x3fc0, 0x0001, 0x8001, 0x007f, 0x807f,
					0x0080, 0x8080, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0xffc5, 0x7f81, 0x3f81, 0x3f7f, 0x42c8};
static const uint64_t special_f32[] = {0x00000000, 0x80000000, 0x3f800000, 0xbf800000, 0x40000000, 0x3f000000, 0xc0200000, 0x3fc00000,
				       0x00000001, 0x80000001, 0x007fffff, 0x807fffff, 0x00800000, 0x80800000, 0x7f7fffff, 0xff7fffff,
				       0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345, 0x7f800001, 0x3f800001, 0x3f7fffff, 0x4f000000};
static const uint64_t special_f64[] = {
	0x0000000000000000, 0x8000000000000000, 0x3ff0000000000000, 0xbff0000000000000, 0x4000000000000000, 0x3fe0000000000000,
	0xc004000000000000, 0x3ff8000000000000, 0x0000000000000001, 0x8000000000000001, 0x000fffffffffffff, 0x800fffffffffffff,
	0x0010000000000000, 0x8010000000000000, 0x7fefffffffffffff, 0xffefffffffffffff, 0x7ff0000000000000, 0xfff0000000000000,
	0x7ff8000000000000, 0xfff8000012345678, 0x7ff0000000000001, 0x3ff0000000000001, 0x3fefffffffffffff, 0x41e0000000000000};

static uint64_t special(enum type t, uint64_t i)
{
	switch (t) {
	case F16:
		return special_f16[i % 24];
	case BF16:
		return special_bf16[i % 24];
	case F32:
		return special_f32[i % 24];
	case F64:
		return special_f64[i % 24];
	default:
		break;
	}
	unsigned w = 8 * (unsigned)type_width(t);
	uint64_t top = 1ull << (w - 1);
	const uint64_t v[16] = {0, 1, 2, 3, top - 1, top, top + 1, ~0ull, ~1ull, 0x5555555555555555, 0xaaaaaaaaaaaaaaaa, 0x0123456789abcdef, w - 1, w, w + 1, 10};
	return v[i % 16];
}

static size_t specials(enum type t) { return t >= F16 ? 24 : 16; }

// ---- words and numbers

struct line {
	char *words[MAX_WORDS];
	int n, at; // at: next word to be consumed
	int bad;
};

static void split(struct line *l, char *s)
{
	l->n = l->at = l->bad = 0;
	char *save;
	for (char *w = strtok_r(s, " \t\r", &save); w; w = strtok_r(NULL, " \t\r", &save)) {
		if (l->n == MAX_WORDS) {
			l->bad = 1;
			return;
		}
		l->words[l->n++] = w;
	}
}

static const char *word(struct line *l)
{
	if (l->at < l->n)
		return l->words[l->at++];
	l->bad = 1;
	return "";
}

static uint64_t number(struct line *l)
{
	const char *w = word(l);
	char *end;
	errno = 0;
	uint64_t v = w[0] == '-' ? (uint64_t)strtoll(w, &end, 0) : strtoull(w, &end, 0);
	if (errno || end == w || *end)
		l->bad = 1;
	return v;
}

static double real(struct line *l)
{
	const char *w = word(l);
	char *end;
	double v = strtod(w, &end);
	if (end == w || *end)
		l->bad = 1;
	return v;
}

// ---- patterns

static uint64_t next(uint64_t *state)
{
	uint64_t z = *state += 0x9E3779B97F4A7C15;
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
	return z ^ (z >> 31);
}

static uint64_t from_int(enum type t, int64_t v)
{
	union { float f; uint32_t u; } s;
	union { double d; uint64_t u; } d;
	switch (t) {
	case F32:
		s.f = (float)v;
		return s.u;
	case F64:
		d.d = (double)v;
		return d.u;
	default:
		return (uint64_t)v;
	}
}

static uint64_t from_real(enum type t, double v)
{
	union { float f; uint32_t u; } s;
	union { double d; uint64_t u; } d;
	if (t == F32) {
		s.f = (float)v;
		return s.u;
	}
	d.d = v;
	return d.u;
}

static void put(struct buffer *b, size_t i, uint64_t v)
{
	size_t w = type_width(b->type);
	for (size_t k = 0; k < w; k++)
		b->init[i * w + k] = (unsigned char)(v >> 8 * k);
}

// generate fills b->init by the pattern whose words follow in l. It returns a message or NULL.
static const char *generate(struct buffer *b, struct line *l)
{
	const char *p = word(l);
	enum type t = b->type;
	if (!strcmp(p, "zero"))
		return NULL;
	if (!strcmp(p, "keep")) {
		b->keep = 1;
		return b->symbol ? NULL : "keep is for symbols";
	}
	if (!strcmp(p, "fill")) {
		uint64_t v = number(l);
		for (size_t i = 0; i < b->count; i++)
			put(b, i, v);
	} else if (!strcmp(p, "seq")) {
		uint64_t start = number(l), step = number(l);
		for (size_t i = 0; i < b->count; i++)
			put(b, i, from_int(t, (int64_t)(start + i * step)));
	} else if (!strcmp(p, "rand")) {
		uint64_t s = number(l);
		for (size_t i = 0; i < b->count; i++)
			put(b, i, next(&s));
	} else if (!strcmp(p, "mask")) {
		uint64_t s = number(l), and = number(l), or = number(l);
		for (size_t i = 0; i < b->count; i++)
			put(b, i, (next(&s) & and) | or);
	} else if (!strcmp(p, "special")) {
		uint64_t div = number(l);
		for (size_t i = 0; div && i < b->count; i++)
			put(b, i, special(t, i / div));
		return div ? NULL : "special 0";
	} else if (!strcmp(p, "mix")) {
		uint64_t s = number(l);
		for (size_t i = 0; i < b->count; i++) {
			uint64_t r = next(&s);
			put(b, i, r % 4 == 0 ? special(t, (r >> 8) % specials(t)) : next(&s));
		}
	} else if (!strcmp(p, "range")) {
		uint64_t s = number(l), lo = number(l), hi = number(l);
		if (hi - lo + 1 == 0 || (int64_t)hi < (int64_t)lo)
			return "range: HI below LO";
		for (size_t i = 0; i < b->count; i++)
			put(b, i, from_int(t, (int64_t)(lo + next(&s) % (hi - lo + 1))));
	} else if (!strcmp(p, "uniform")) {
		uint64_t s = number(l);
		double lo = real(l), hi = real(l);
		if (t != F32 && t != F64)
			return "uniform is for f32 and f64";
		for (size_t i = 0; i < b->count; i++) {
			volatile double u = (double)(next(&s) >> 11) * 0x1p-53;
			volatile double w = (hi - lo) * u; // volatile: each operation rounded
			put(b, i, from_real(t, lo + w));
		}
	} else if (!strcmp(p, "list")) {
		uint64_t div = number(l);
		size_t n = (size_t)(l->n - l->at);
		uint64_t *v = calloc(n + 1, sizeof *v);
		for (size_t i = 0; v && i < n; i++)
			v[i] = number(l);
		for (size_t i = 0; v && n && div && i < b->count; i++)
			put(b, i, v[(i / div) % n]);
		free(v);
		return n && div ? NULL : "list needs a divisor and values";
	} else
		return "unknown pattern";
	return NULL;
}

// ---- directives

static int find(struct vec *v, const char *name)
{
	for (int i = 0; i < v->nbuffers; i++)
		if (!strcmp(v->buffers[i].name, name))
			return i;
	return -1;
}

static const char *add_buffer(struct vec *v, struct line *l, int symbol)
{
	if (v->nbuffers == MAX_BUFFERS)
		return "too many buffers";
	struct buffer *b = &v->buffers[v->nbuffers];
	const char *name = word(l), *type = word(l);
	if (strlen(name) >= sizeof b->name || find(v, name) >= 0)
		return "name too long or used twice";
	strcpy(b->name, name);
	b->type = TYPES;
	for (int t = 0; t < TYPES; t++)
		if (!strcmp(type, type_names[t]))
			b->type = (enum type)t;
	if (b->type == TYPES)
		return "unknown type";
	b->count = number(l);
	b->symbol = symbol;
	if (b->count == 0 || b->count > MAX_BYTES / type_width(b->type))
		return "count out of range";
	b->size = b->count * type_width(b->type);
	b->init = calloc(1, b->size);
	b->result = calloc(1, b->size);
	v->nbuffers++;
	if (!b->init || !b->result)
		return "out of memory";
	return generate(b, l);
}

static int hexdigit(int c)
{
	const char *d = "0123456789abcdef", *p = c ? strchr(d, c | 32) : NULL;
	return p ? (int)(p - d) : -1;
}

static const char *add_param(struct vec *v, struct line *l)
{
	if (v->nparams == MAX_PARAMS)
		return "too many parameters";
	struct param *p = &v->params[v->nparams++];
	const char *kind = word(l);
	p->buffer = -1;
	if (!strcmp(kind, "bytes")) {
		const char *h = word(l);
		p->size = strlen(h) / 2;
		p->bytes = calloc(1, p->size + 1);
		for (size_t i = 0; p->bytes && i < 2 * p->size; i++) {
			int d = hexdigit(h[i]);
			if (d < 0)
				return "bad hexadecimal";
			p->bytes[i / 2] = (unsigned char)(p->bytes[i / 2] << 4 | d);
		}
		return strlen(h) % 2 || p->size == 0 ? "bad hexadecimal" : NULL;
	}
	p->bytes = calloc(1, 8);
	if (!p->bytes)
		return "out of memory";
	if (!strcmp(kind, "buffer")) {
		p->buffer = find(v, word(l));
		p->offset = number(l);
		p->size = 8;
		return p->buffer < 0 || v->buffers[p->buffer].symbol ? "unknown buffer" : NULL;
	}
	for (int t = U8; t <= U64; t++)
		if (!strcmp(kind, type_names[t]))
			p->size = type_width((enum type)t);
	if (!p->size)
		return "unknown parameter kind";
	uint64_t x = number(l);
	for (size_t i = 0; i < p->size; i++)
		p->bytes[i] = (unsigned char)(x >> 8 * i);
	return NULL;
}

static const char *add_output(struct vec *v, struct line *l)
{
	int i = find(v, word(l));
	const char *how = word(l);
	if (i < 0 || v->buffers[i].compare != NOT_COMPARED)
		return "unknown buffer or output twice";
	if (!strcmp(how, "exact"))
		v->buffers[i].compare = EXACT;
	else if (!strcmp(how, "sorted"))
		v->buffers[i].compare = SORTED;
	else if (!strcmp(how, "ulp")) {
		v->buffers[i].compare = ULP;
		number(l);
		real(l);
		if (v->buffers[i].type < F16)
			return "ulp needs a floating-point type";
	} else
		return "unknown comparison";
	v->outputs[v->noutputs++] = i;
	return NULL;
}

static void dims(struct line *l, unsigned *d)
{
	for (int i = 0; i < 3; i++) {
		d[i] = (unsigned)number(l);
		if (!d[i])
			l->bad = 1;
	}
}

static const char *directive(struct vec *v, struct line *l)
{
	const char *d = word(l), *msg = NULL;
	if (!strcmp(d, "ptx"))
		snprintf(v->ptx, sizeof v->ptx, "%s", word(l));
	else if (!strcmp(d, "kernel"))
		snprintf(v->kernel, sizeof v->kernel, "%s", word(l));
	else if (!strcmp(d, "grid"))
		dims(l, v->grid);
	else if (!strcmp(d, "block"))
		dims(l, v->block);
	else if (!strcmp(d, "cluster")) {
		unsigned own[3]; // the kernel's directive says it to the driver
		dims(l, own);
	} else if (!strcmp(d, "shared"))
		v->shared = (unsigned)number(l);
	else if (!strcmp(d, "buffer") || !strcmp(d, "symbol"))
		msg = add_buffer(v, l, d[0] == 's');
	else if (!strcmp(d, "param"))
		msg = add_param(v, l);
	else if (!strcmp(d, "output"))
		msg = add_output(v, l);
	else
		return "unknown directive";
	if (!msg && (l->bad || l->at != l->n))
		msg = "missing, bad or left-over words";
	return msg;
}

struct vec *vec_read(const char *path, char *err, size_t errlen)
{
	char *text = file_read(path, NULL);
	struct vec *v = calloc(1, sizeof *v);
	struct line *l = malloc(sizeof *l);
	if (!text || !v || !l) {
		snprintf(err, errlen, "%s: %s", path, strerror(errno));
		goto fail;
	}
	snprintf(v->path, sizeof v->path, "%s", path);
	const char *base = strrchr(path, '/');
	base = base ? base + 1 : path;
	const char *dot = strstr(base, ".vec");
	if (!dot || dot - base >= NAME_LEN) {
		snprintf(err, errlen, "%s: the name must be NAME.vec and short", path);
		goto fail;
	}
	memcpy(v->name, base, (size_t)(dot - base));
	char *s = text;
	int line = 0;
	for (char *nl; *s; s = nl) {
		nl = strchr(s, '\n');
		if (nl)
			*nl++ = 0;
		else
			nl = s + strlen(s);
		line++;
		split(l, s);
		if (l->n == 0 || l->words[0][0] == '#')
			continue;
		const char *msg = directive(v, l);
		if (msg) {
			snprintf(err, errlen, "%s:%d: %s", path, line, msg);
			goto fail;
		}
	}
	if (!v->ptx[0] || !v->kernel[0] || !v->grid[0] || !v->block[0] || !v->noutputs) {
		snprintf(err, errlen, "%s: ptx, kernel, grid, block or output is missing", path);
		goto fail;
	}
	char ptx[sizeof v->ptx];
	strcpy(ptx, v->ptx);
	snprintf(v->ptx, sizeof v->ptx, "%.*s%.3000s", (int)(base - path), path, ptx);
	free(text);
	free(l);
	return v;
fail:
	free(text);
	free(l);
	vec_free(v);
	return NULL;
}

void vec_free(struct vec *v)
{
	if (!v)
		return;
	for (int i = 0; i < v->nbuffers; i++) {
		free(v->buffers[i].init);
		free(v->buffers[i].result);
	}
	for (int i = 0; i < v->nparams; i++)
		free(v->params[i].bytes);
	free(v);
}
