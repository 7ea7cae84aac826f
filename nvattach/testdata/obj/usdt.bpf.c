// Programs at the probes of nvattach/host/testdata/usdt.c, and at calls of CUDA's libraries.
typedef unsigned long long u64;
typedef unsigned int u32;

#define SEC(name) __attribute__((section(name), used))

static long (*usdt_arg)(void *, u64, u64 *) = (void *)620;
static long (*func_arg)(void *, u64, u64 *) = (void *)183;
static long (*func_ret)(void *, u64 *) = (void *)184;
static long (*override_return)(void *, u64) = (void *)58;

struct api { // struct nvtrace_api
	u64 saved[8], arg5, arg4, ret, arg3, arg2, arg1, arg0, saved2, ip, saved3[2], sp, saved4;
};

u64 firsts, seconds, sum, memory, constant, bytes, doubled, none, calls, returned, size, failed, last, all;

SEC("usdt/zoo:zoo:first")
int on_first(void *c)
{
	u64 v = 0;
	firsts++;
	usdt_arg(c, 0, &v);
	sum += v * v;
	usdt_arg(c, 1, &v);
	memory = v;
	usdt_arg(c, 2, &v);
	constant = v;
	usdt_arg(c, 3, &v);
	bytes = v;
	none = usdt_arg(c, 4, &v);
	return 0;
}

SEC("usdt/zoo:zoo:sec*")
int on_second(void *c)
{
	u64 v = 0;
	seconds++;
	usdt_arg(c, 0, &v);
	doubled += v * v;
	return 0;
}

SEC("cuda.api/cuMemAlloc")
int on_alloc(struct api *c)
{
	u64 v = 0;
	calls++;
	size += c->arg1;
	if (calls == 3)
		override_return(c, 2); // CUDA_ERROR_OUT_OF_MEMORY
	func_arg(c, 7, &v); // the second word on the stack
	last = v;
	return 0;
}

SEC("cuda.apiret/cuMemAlloc")
int on_alloc_return(struct api *c)
{
	u64 v = 0;
	func_ret(c, &v);
	returned++;
	if (c->ret == 2 && v == 2)
		failed++;
	return 0;
}

SEC("cuda.api/cu*")
int on_any(struct api *c)
{
	all++;
	return 0;
}

char _license[] SEC("license") = "GPL";
