// Two modules that are linked, and nodes of graphs by cuGraphAddNode.
#include "driver.h"

static const char *const part1 = ".version 6.4\n.target sm_75\n.address_size 64\n"
	".extern .func (.param .b32 r) times(.param .b32 x);\n"
	".visible .entry k(.param .u64 p)\n{\n"
	"	.reg .b32 %r<4>;\n	.reg .b64 %rd<4>;\n"
	"	mov.u32 %r1, %tid.x;\n"
	"	{\n	.param .b32 a;\n	.param .b32 b;\n	st.param.b32 [a], %r1;\n	call.uni (b), times, (a);\n	ld.param.b32 %r2, [b];\n	}\n"
	"	ld.param.u64 %rd1, [p];\n	mul.wide.u32 %rd2, %r1, 4;\n	add.u64 %rd1, %rd1, %rd2;\n	st.global.u32 [%rd1], %r2;\n	ret;\n}\n";
static const char *const part2 = ".version 6.4\n.target sm_75\n.address_size 64\n"
	".visible .func (.param .b32 r) times(.param .b32 x)\n{\n	.reg .b32 %r<3>;\n	ld.param.b32 %r1, [x];\n	mul.lo.u32 %r2, %r1, 11;\n	st.param.b32 [r], %r2;\n	ret;\n}\n";

struct kernelNode {
	CUfunction func;
	unsigned grid[3], block[3], shared;
	void **params, **extra;
	CUkernel kern;
	CUcontext ctx;
};

struct nodeParams {
	int type, reserved0[3];
	union {
		struct kernelNode kernel;
		struct {
			CUdeviceptr dst;
			size_t pitch;
			unsigned value, size;
			size_t width, height;
			CUcontext ctx;
		} set;
		CUevent event;
		long long reserved1[29];
	};
	long long reserved2;
};

int main(void)
{
	CUdevice dev;
	CUcontext ctx;
	CUmodule mod;
	CUfunction f;
	CUdeviceptr p;
	CUevent e;
	CUgraph g;
	CUgraphNode set, kern, rec;
	CUgraphExec x;
	void *link, *image;
	size_t size;
	int h[64], seven = 7;
	loadDriver();
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	CUresult (*create)(unsigned, int *, void **, void **) = dlsym(lib, "cuLinkCreate_v2");
	CUresult (*add)(void *, int, const void *, size_t, const char *, unsigned, int *, void **) = dlsym(lib, "cuLinkAddData_v2");
	CUresult (*complete)(void *, void **, size_t *) = dlsym(lib, "cuLinkComplete");
	CUresult (*destroy)(void *) = dlsym(lib, "cuLinkDestroy");
	CUresult (*addNode)(CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t, struct nodeParams *) = dlsym(lib, "cuGraphAddNode_v2");
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuCtxCreate_v2(&ctx, 0, dev));
	CHECK(cuMemAlloc_v2(&p, sizeof h));
	CHECK(create(0, 0, 0, &link));
	CHECK(add(link, 1, part1, strlen(part1) + 1, "part1", 0, 0, 0));
	CHECK(add(link, 1, part2, strlen(part2) + 1, "part2", 0, 0, 0));
	CHECK(complete(link, &image, &size));
	EXPECT(size > 0);
	CHECK(cuModuleLoadData(&mod, image));
	CHECK(destroy(link));
	CHECK(cuModuleGetFunction(&f, mod, "k"));
	void *args[] = {&p, &seven};
	CHECK(cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, 0, args, 0));
	CHECK(cuMemcpyDtoH_v2(h, p, sizeof h));
	for (int i = 0; i < 64; i++)
		EXPECT(h[i] == 11 * i);

	CHECK(cuModuleLoadData(&mod, ptx));
	CHECK(cuModuleGetFunction(&f, mod, "scale"));
	CHECK(cuEventCreate(&e, 0));
	CHECK(cuGraphCreate(&g, 0));
	struct nodeParams n = {2};
	n.set.dst = p, n.set.value = 6, n.set.size = 4, n.set.width = 64, n.set.height = 1;
	CHECK(addNode(&set, g, 0, 0, 0, &n));
	struct nodeParams k = {0};
	k.kernel = (struct kernelNode){f, {1, 1, 1}, {64, 1, 1}, 0, args, 0, 0, 0};
	CHECK(addNode(&kern, g, &set, 0, 1, &k));
	struct nodeParams r = {7};
	r.event = e;
	CHECK(addNode(&rec, g, &kern, 0, 1, &r));
	CHECK(cuGraphInstantiateWithFlags(&x, g, 0));
	CHECK(cuGraphLaunch(x, 0));
	CHECK(cuCtxSynchronize());
	CHECK(cuEventSynchronize(e));
	CHECK(cuMemcpyDtoH_v2(h, p, sizeof h));
	for (int i = 0; i < 64; i++)
		EXPECT(h[i] == 42);
	printf("PASSED\n");
	return 0;
}
