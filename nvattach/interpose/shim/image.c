/* Images: where they begin and end, their hash, and how they get to nvtrace. */
#include "elf.h"
#include "sys.h"
#include "zfunctions.h"

enum { PARTS = 64, CHUNK = 4096 };
enum { WRAPPER = 0x466243b1, CONTAINER = 0xba55ed50u, OLD = 0x1ee55a01, LTOIR = 0x7f4e43ed, ELF = 0x464c457f, ARCHIVE = 0x72613c21 };

static u64 get(const struct nvt_image *im, u64 off, void *b, u64 n)
{
	s64 got = im->fd >= 0 ? sys4(SYS_pread64, im->fd, b, n, off) : nvt_read_memory((const void *)(im->addr + off), b, n);
	return got < 0 ? 0 : (u64)got;
}

static u64 max(u64 a, u64 b) { return a > b ? a : b; }

/* The end of an ELF file in memory: of its last table or section. 0: it can't be read. */
static u64 elf_size(const struct nvt_image *im, const struct ehdr *h)
{
	struct shdr s[16];
	struct phdr p[16];
	u64 n = h->shnum, end = max(sizeof *h, h->phoff + (u64)h->phnum * h->phentsize);
	if (h->shoff && h->shentsize == sizeof *s && !n) {
		if (get(im, h->shoff, s, sizeof *s) != sizeof *s)
			return 0;
		n = s[0].size;
	}
	if (h->shoff && (n > 1 << 24 || (n && h->shentsize != sizeof *s)))
		return 0;
	end = max(end, h->shoff ? h->shoff + n * sizeof *s : 0);
	for (u64 i = 0; h->shoff && i < n; i += 16) {
		u64 k = n - i < 16 ? n - i : 16;
		if (get(im, h->shoff + i * sizeof *s, s, k * sizeof *s) != k * sizeof *s)
			return 0;
		for (u64 j = 0; j < k; j++)
			if (s[j].type != 8) /* NOBITS */
				end = max(end, s[j].offset + s[j].size);
	}
	for (u64 i = 0; h->phoff && h->phentsize == sizeof *p && i < h->phnum; i++) {
		if (get(im, h->phoff + i * sizeof *p, p, sizeof *p) != sizeof *p)
			return 0;
		end = max(end, p->offset + p->filesz);
	}
	return end;
}

/* How long an image is that does not come with its length. 0: it does not say. */
static u64 extent(const struct nvt_image *im)
{
	struct ehdr h;
	char b[1024];
	u64 n;
	u32 magic;
	nvt_zero(&h, sizeof h);
	n = get(im, 0, &h, sizeof h);
	if (n < sizeof h) /* the end of a mapping, or of a short text */
		nvt_zero((char *)&h + n, sizeof h - n);
	nvt_copy(&magic, &h, 4);
	switch (magic) {
	case CONTAINER: {
		u64 size;
		u16 front;
		nvt_copy(&front, (char *)&h + 6, 2);
		nvt_copy(&size, (char *)&h + 8, 8);
		return size > NVT_MAX_IMAGE ? 0 : size + front;
	}
	case ELF:
		return n == sizeof h ? elf_size(im, &h) : 0;
	case WRAPPER: case OLD: case LTOIR: case ARCHIVE:
		return 0;
	}
	for (u64 off = 0; off < NVT_MAX_IMAGE; off += sizeof b) {
		n = get(im, off, b, sizeof b);
		u64 k = nvt_length(b, n);
		if (k < n)
			return off + k + 1;
		if (n < sizeof b)
			return 0;
	}
	return 0;
}

static u64 rotate(u64 x, int n) { return x << n | x >> (64 - n); }

static void step(u64 h[2], u64 a, u64 b)
{
	unsigned __int128 m = (unsigned __int128)(a ^ h[0]) * ((b ^ h[1]) | 1);
	h[1] = (rotate(h[1], 31) + (u64)(m >> 64)) ^ (a * 0xff51afd7ed558ccdUL);
	h[0] = (u64)m ^ rotate(b, 23) ^ 0xff51afd7ed558ccdUL;
}

/* Hashes the first limit bytes. wire.go has the same. */
static int hash(struct nvt_image *im, u64 limit)
{
	u64 h[2] = {0x9e3779b97f4a7c15UL, 0xd1b54a32d192ed03UL}, n = im->size < limit ? im->size : limit;
	u64 b[CHUNK / 8];
	for (u64 off = 0; off < n;) {
		u64 want = n - off < CHUNK ? n - off : CHUNK;
		if (get(im, off, b, want) != want)
			return 0;
		if (want % 16)
			nvt_zero((char *)b + want, 16 - want % 16);
		for (u64 i = 0; i < (want + 15) / 16; i++)
			step(h, b[2 * i], b[2 * i + 1]);
		off += want;
	}
	step(h, n, 0xff51afd7ed558ccdUL);
	step(h, h[1], h[0]);
	im->hash[0] = h[0], im->hash[1] = h[1], im->hashed = n;
	return 1;
}

/* The images that were sent, so that each is sent once. */
#define SENT 8192
static u64 sent[SENT];

static int sent_before(const struct nvt_image *im)
{
	u64 key = im->hash[0] ^ rotate(im->hash[1], 32), h = key >> 20;
	for (u32 i = 0; i < 64; i++) {
		u64 *p = &sent[(h + i) % SENT], old = __atomic_load_n(p, __ATOMIC_RELAXED);
		if (!old && __atomic_compare_exchange_n(p, &old, key, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
			return 0;
		if (old == key)
			return 1;
	}
	return 0;
}

/* Returns a sealed memfd with the image in it, or a negative errno. */
static int sealed_copy(const struct nvt_image *im)
{
	int fd = (int)sys2(SYS_memfd_create, "nvtrace-image", 3 /* CLOEXEC, ALLOW_SEALING */);
	s64 err = 0;
	for (u64 off = 0; fd >= 0 && off < im->size && !err;) {
		u64 want = im->size - off < 1UL << 30 ? im->size - off : 1UL << 30;
		s64 at = (s64)off;
		/* A write reads the image without a fault, whatever it claims to be. */
		s64 got = im->fd >= 0 ? sys4(SYS_sendfile, fd, im->fd, &at, want) : sys3(SYS_write, fd, im->addr + off, want);
		if (got == -EINTR)
			continue;
		if (got <= 0)
			err = got ? got : -EINVAL;
		else
			off += (u64)got;
	}
	if (fd >= 0 && !err)
		err = sys3(SYS_fcntl, fd, 1033 /* F_ADD_SEALS */, 2 | 4 | 8);
	if (fd >= 0 && err) {
		sys1(SYS_close, fd);
		return (int)err;
	}
	return fd;
}

/* Sends one image. With a verdict, returns the replacement's size and file. */
static u64 send_image(struct nvt_frame *f, struct nvt_image *im, int *replacement)
{
	int fds[2] = {-1, -1}, sock = -1, n = 1;
	u64 size = 0;
	const void *data = 0;
	*replacement = -1;
	fds[0] = sealed_copy(im);
	if (fds[0] < 0) {
		nvt_gap(NVT_GAP_MEMORY, 1, fds[0]);
		im->flags |= NVT_F_UNREADABLE;
		return 0;
	}
	if (nvt_flags & NVT_REPLACE) {
		int pair[2];
		if (sys4(SYS_socketpair, 1, 5 | 02000000 | 04000, 0, pair) == 0)
			sock = pair[0], fds[n++] = pair[1];
	}
	if (im->flags & NVT_F_FILE)
		data = (const void *)f->args[nvt_function(f->fn)->image];
	nvt_tell(f, im, NVT_IMAGE, data, nvt_length(data ? data : "", NVT_MAX_DATA), 0, fds, n);
	im->flags |= NVT_F_SENT;
	for (int i = 0; i < n; i++)
		sys1(SYS_close, fds[i]);
	if (sock >= 0) {
		size = nvt_verdict(sock, replacement);
		sys1(SYS_close, sock);
	}
	return size;
}

/*
 * Makes the call take nvtrace's image. The memory stays mapped: the driver may read
 * it for as long as what it loads from it lives.
 */
static void replace(struct nvt_frame *f, const struct nvt_fn *fn, u64 original, u64 size, int fd)
{
	if (f->image.flags & NVT_F_FILE) {
		char *p = f->path;
		u32 n = 0;
		nvt_copy(p, "/proc/self/fd/", 14);
		for (u32 d = (u32)fd; d || !n; d /= 10)
			n++;
		for (u32 d = (u32)fd, i = 0; i < n; i++, d /= 10)
			p[14 + n - 1 - i] = (char)('0' + d % 10);
		p[14 + n] = 0;
		f->args[fn->image] = (u64)p;
		f->replaced_fd = fd;
		f->image.flags |= NVT_F_REPLACED;
		return;
	}
	u64 at = (u64)sys6(SYS_mmap, 0, size, 3, 2 /* MAP_PRIVATE */, fd, 0);
	sys1(SYS_close, fd);
	if (at > ~4095UL)
		return;
	u32 magic = *(const u32 *)at, was = 0;
	nvt_read_memory((const void *)original, &was, 4);
	if (fn->class == NVT_C_LINK_COMPLETE) {
		*(u64 *)f->args[fn->image] = at;
		*(u64 *)f->args[fn->size] = size;
	} else if (fn->class == NVT_C_LINK_ADD) {
		/* CUjitInputType: 0 cubin, 1 PTX, 2 fat binary, 3 object */
		f->args[fn->image] = at;
		f->args[fn->size] = size;
		if (magic == CONTAINER)
			f->args[1] = 2;
		else if (magic == ELF)
			f->args[1] = (u32)f->args[1] == 3 ? 3 : 0;
		else if (magic != ARCHIVE && magic != LTOIR)
			f->args[1] = 1;
	} else if (was == WRAPPER && magic == CONTAINER) {
		u64 *w = (u64 *)sys6(SYS_mmap, 0, 4096, 3, 0x22 /* MAP_PRIVATE, MAP_ANONYMOUS */, -1, 0);
		if ((u64)w > ~4095UL)
			return;
		w[0] = WRAPPER | 1UL << 32, w[1] = at, w[2] = 0;
		f->args[fn->image] = (u64)w;
	} else {
		f->args[fn->image] = at;
	}
	f->image.flags |= NVT_F_REPLACED;
}

/* Tells one part as the mode asks. Returns the replacement's size. */
static u64 handle_part(struct nvt_frame *f, struct nvt_image *im, int *replacement)
{
	*replacement = -1;
	if (!im->size || im->size > NVT_MAX_IMAGE) {
		im->size = 0;
		im->flags |= NVT_F_UNREADABLE;
		return 0;
	}
	if (nvt_mode == NVT_OBSERVE) {
		if (!hash(im, NVT_HASH_PREFIX))
			im->flags |= NVT_F_UNREADABLE;
		return 0;
	}
	if (!hash(im, im->size)) {
		im->flags |= NVT_F_UNREADABLE;
		im->hashed = 0;
		return 0;
	}
	if (!(nvt_flags & NVT_REPLACE) && sent_before(im)) {
		im->flags |= NVT_F_KNOWN;
		return 0;
	}
	return send_image(f, im, replacement);
}

static void from_file(struct nvt_frame *f, const struct nvt_fn *fn)
{
	struct nvt_image *im = &f->image;
	struct stat st;
	int fd = -1;
	im->flags = NVT_F_FILE;
	im->parts = 1;
	if (f->args[fn->image])
		im->fd = (int)sys3(SYS_open, f->args[fn->image], 02000000 | 04000 /* CLOEXEC, NONBLOCK */, 0);
	if (im->fd >= 0 && sys2(SYS_fstat, im->fd, &st) == 0 && (st.mode & 0170000) == 0100000)
		im->size = (u64)st.size;
	u64 size = handle_part(f, im, &fd);
	if (im->fd >= 0)
		sys1(SYS_close, im->fd);
	im->fd = -1;
	if (size)
		replace(f, fn, 0, size, fd);
}

static void from_memory(struct nvt_frame *f, const struct nvt_fn *fn, u64 addr, u64 size)
{
	u64 w[3] = {0, 0, 0}, part[PARTS];
	u16 n = 1;
	part[0] = addr;
	if (!addr)
		return;
	if (!size && nvt_read_memory((const void *)addr, w, sizeof w) == sizeof w && (u32)w[0] == WRAPPER) {
		part[0] = w[1];
		/* Version 2: an array of the containers from before the link. */
		if (w[0] >> 32 == 2 && w[2])
			while (n < PARTS && nvt_read_memory((const void *)(w[2] + 8UL * (n - 1U)), &part[n], 8) == 8 && part[n])
				n++;
	}
	for (u16 i = 0; i < n; i++) {
		struct nvt_image other = {.fd = -1}, *im = i ? &other : &f->image;
		int fd;
		im->addr = part[i], im->part = i, im->parts = n;
		im->size = size ? size : extent(im);
		if (i && nvt_mode == NVT_OBSERVE)
			break;
		u64 got = handle_part(f, im, &fd);
		if (got && !i)
			replace(f, fn, addr, got, fd);
		else if (fd >= 0)
			sys1(SYS_close, fd);
	}
}

/* Before the driver is called. */
void nvt_image_enter(struct nvt_frame *f, const struct nvt_fn *fn)
{
	if (nvt_connect() < 0)
		return;
	switch (fn->class) {
	case NVT_C_LOAD:
		from_memory(f, fn, f->args[fn->image], 0);
		break;
	case NVT_C_LINK_ADD:
		if (f->args[fn->size])
			from_memory(f, fn, f->args[fn->image], f->args[fn->size]);
		break;
	default:
		from_file(f, fn);
	}
}

/* After: what a link made; without fn, the end of the call. */
void nvt_image_leave(struct nvt_frame *f, const struct nvt_fn *fn)
{
	if (!fn) {
		if (f->replaced_fd >= 0)
			sys1(SYS_close, f->replaced_fd);
		return;
	}
	if (nvt_connect() >= 0 && f->args[fn->image] && f->args[fn->size] && *(u64 *)f->args[fn->size])
		from_memory(f, fn, *(u64 *)f->args[fn->image], *(u64 *)f->args[fn->size]);
}
