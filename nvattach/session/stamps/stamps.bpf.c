/*
 * When launches began and ended on the GPU. session/stamps.go reads what is noted here, and the
 * Makefile compiles this file.
 *
 * A launch has a place, by its number, which all of its threads have and no other launch at that
 * time. (A node of a graph has the same number in each launch of the graph; it begins when the one before
 * has ended.)
 *
 * A warp that waits at its end for an answer of memory keeps its registers from the next block, and
 * a kernel of many short blocks takes half as long again. So a warp makes two reductions there and waits for
 * neither: that it left at that time, if nobody did later, and how many threads it had. All warps that
 * reduce to one word would queue up, those of one multiprocessor most of all: it makes one after the other where they are to one
 * address. So a place has PARTS parts, which the slots of a multiprocessor's warps share. The parts of a
 * place are far apart, in different slices of the GPU's cache; the two words of a part are beside each other, so
 * that the time is there before the threads are counted.
 *
 * So nobody sees that he is the last. Instead, numbers and times only grow: nvtrace_due is, as a negative
 * number, how many threads all launches have that ever began at a place. When it and what has left add up to
 * 0, all have ended, and the latest time of the parts is the end of the last of them. What due was made by a launch
 * names it among those of its place. The host finds out, as it reads what has changed from time to time, and
 * writes into nvtrace_told the due of what it has told. Who begins at a place whose last launch was not told (a node
 * of a graph, or where PLACES were launched since the host looked) keeps a copy of the parts for it. That is up to the
 * first warp of the first block, each lane for a part, so that it waits for one answer of memory, and for
 * another if it does keep a copy.
 *
 * The first thread of the first block is taken for the first one, as a GPU begins with that block. If others
 * of its launch have left before it has read the parts, they are counted there, and may have put their time in place of
 * the end of the launch before. The host sees that by the number, and tells no time of that one. The launch
 * itself loses nothing, as its first thread leaves later.
 *
 * A launch that begins when the one before has not ended, since that lasts for as long as it takes to
 * launch PLACES others, or runs on another GPU, is mixed up with it, and nothing is known of either. The next one
 * is known again, if it begins when they have ended.
 *
 * There is no moment at which the host sees all words. It reads due, then the parts, then the launches that
 * have begun: if none began meanwhile at a place, what it read belongs together. What a thread writes becomes
 * visible in any order: a launch has a check for that, and where a copy lacks something, the sum is not 0.
 */
#include "nvtrace_gpu.bpf.h"

/* All are powers of two. */
#define PLACES 16384 /* GPUs run 128 launches at once */
#define PARTS 32     /* as many as a warp has lanes */
#define LAUNCHES 65536
#define COPIES 32768
#define NONE ~0u

struct part {
	__u64 end;  /* when the last one left */
	__u64 left; /* threads that have left */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PARTS * PLACES);
	__type(key, __u32);
	__type(value, struct part);
} nvtrace_parts SEC(".maps"); /* part * PLACES + place */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PLACES);
	__type(key, __u32);
	__type(value, __u64);
} nvtrace_due SEC(".maps");

/* The host writes it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PLACES);
	__type(key, __u32);
	__type(value, __u64);
} nvtrace_told SEC(".maps");

struct launch {
	__u64 id;
	__u64 due;   /* with its threads */
	__u64 start; /* when its first thread was there */
	__u32 check; /* of all that and its number */
	__u32 site;  /* of that thread, which says what kernel it is */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LAUNCHES);
	__type(key, __u32);
	__type(value, struct launch);
} nvtrace_launches SEC(".maps");

/* A copy of a place's parts. */
struct copy {
	struct part parts[PARTS];
	__u64 id;  /* of the launch that begins there */
	__u64 was; /* due before it */
	__u64 due; /* and with it */
	__u64 seq; /* 1 + how many copies were made before */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, COPIES);
	__type(key, __u32);
	__type(value, struct copy);
} nvtrace_copies SEC(".maps");

/* All go on at 0. */
struct state {
	__u32 copies;   /* that were wanted: those for which there was no room then were not made */
	__u32 read;     /* of them by the host, which writes this */
	__u32 launches; /* that began */
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PARTS); /* of which the first is used */
	__type(key, __u32);
	__type(value, struct state);
} nvtrace_state SEC(".maps");

static __u64 (*globaltimer)(void) = (void *)502; /* where it is called, as t->time is not */

#define SET(x) (*(volatile typeof(x) *)&(x)) /* in the program's order */

static __always_inline struct part *part_of(__u32 part, __u32 place)
{
	__u32 key = part * PLACES + place;
	return bpf_map_lookup_elem(&nvtrace_parts, &key);
}

SEC("cuda.entry/*")
int nvtrace_begin(struct nvtrace_entry *ctx)
{
	struct nvtrace_thread *t = &ctx->t;
	__u32 place, i, n, lane, lanes, first, slot = NONE;
	__u64 id, now, threads, end, left;
	struct part *p;
	struct copy *c;
	if (t->block.x | t->block.y | t->block.z)
		return 0;
	first = !(t->thread.x | t->thread.y | t->thread.z);
	lanes = nvtrace_popc(nvtrace_together());
	if (!nvtrace_any(first))
		return 0;
	now = globaltimer();
	id = nvtrace_launch_id();
	place = id % PLACES;
	threads = (__u64)t->grid.x * t->grid.y * t->grid.z * (t->block_dim.x * t->block_dim.y * t->block_dim.z);
	lane = t->lane % PARTS;
	p = part_of(lane, place);
	if (!p)
		return 0;
	end = SET(p->end);
	left = SET(p->left);
	if (first) {
		/* The lane is 0, but the compiler can't tell: where it finds that all threads of a warp add to one
		 * address, it puts code there for that. */
		__u32 here = (id + lane) % PLACES, k, copies;
		__u64 *d = bpf_map_lookup_elem(&nvtrace_due, &here), *told = bpf_map_lookup_elem(&nvtrace_told, &here);
		struct state *state = bpf_map_lookup_elem(&nvtrace_state, &lane);
		struct launch *l;
		__u64 was, seen;
		if (d && told && state) {
			seen = SET(*told);
			k = __sync_fetch_and_add(&state->launches, 1);
			was = __sync_fetch_and_sub(d, threads);
			i = k % LAUNCHES;
			l = bpf_map_lookup_elem(&nvtrace_launches, &i);
			if (l) {
				SET(l->id) = id;
				SET(l->due) = was - threads;
				SET(l->start) = now;
				SET(*(__u64 *)&l->check) = (__u64)t->site << 32 | (__u32)(1 + k + id + 3 * (was - threads) + 5 * now);
			}
			if (seen != was) {
				slot = __sync_fetch_and_add(&state->copies, 1);
				if (slot - SET(state->read) >= COPIES)
					slot = NONE;
				i = slot % COPIES;
				c = bpf_map_lookup_elem(&nvtrace_copies, &i);
				if (c && slot != NONE) {
					SET(c->id) = id;
					SET(c->due) = was - threads;
					SET(c->was) = was;
				}
			}
		}
	}
	slot = nvtrace_shuffle(slot, 0);
	if (slot == NONE)
		return 0;
	i = slot % COPIES;
	c = bpf_map_lookup_elem(&nvtrace_copies, &i);
	if (!c)
		return 0;
	SET(c->parts[lane].end) = end;
	SET(c->parts[lane].left) = left;
	i = lane;
	for (n = 1; n < PARTS; n++) { /* for which there are no lanes */
		i += lanes;
		if (i >= PARTS)
			break;
		p = part_of(i, place);
		if (!p)
			break;
		SET(c->parts[i].end) = SET(p->end);
		SET(c->parts[i].left) = SET(p->left);
	}
	if (first)
		SET(c->seq) = slot + 1;
	return 0;
}

SEC("cuda.exit/*")
int nvtrace_end(struct nvtrace_exit *ctx)
{
	struct nvtrace_thread *t = &ctx->t;
	__u64 n = nvtrace_popc(nvtrace_together());
	struct part *p;
	if (!nvtrace_leader())
		return 0;
	p = part_of((t->warp + 5 * t->sm + t->lane) % PARTS, nvtrace_launch_id() % PLACES);
	if (!p)
		return 0;
	nvtrace_max(&p->end, globaltimer());
	__sync_fetch_and_add(&p->left, n);
	return 0;
}

char _license[] SEC("license") = "GPL";
