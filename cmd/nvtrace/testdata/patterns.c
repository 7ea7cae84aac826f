// Kernels whose accesses, branches and times are known: TestTools computes what the tools
// must say of them. Beside that, calls that tools on the host count.
#include "../../../nvattach/sim/testdata/driver.h"

static const char patterns[] =
	".version 7.0\n.target sm_75\n.address_size 64\n"
	".visible .entry strided(.param .u64 p, .param .u32 stride) {\n"
	"	.reg .b32 %r<6>; .reg .b64 %rd<4>;\n"
	"	mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x;\n"
	"	mad.lo.u32 %r4, %r2, %r3, %r1;\n"
	"	ld.param.u32 %r5, [stride]; mul.lo.u32 %r4, %r4, %r5;\n"
	"	ld.param.u64 %rd1, [p]; mul.wide.u32 %rd2, %r4, 4; add.u64 %rd3, %rd1, %rd2;\n"
	"	ld.volatile.global.u32 %r1, [%rd3];\n" // nothing reads it: compilers drop others
	"	ret;\n}\n"
	".visible .entry banks(.param .u32 stride) {\n"
	"	.reg .b32 %r<6>; .reg .b64 %rd<4>; .shared .align 16 .b8 s[16384];\n"
	"	mov.u32 %r1, %tid.x; ld.param.u32 %r2, [stride]; mul.lo.u32 %r3, %r1, %r2;\n"
	"	and.b32 %r4, %r3, 4095; shl.b32 %r4, %r4, 2; mov.u32 %r5, s; add.u32 %r5, %r5, %r4;\n"
	"	st.shared.u32 [%r5], %r1;\n"
	"	and.b32 %r4, %r3, 2047; shl.b32 %r4, %r4, 3; mov.u32 %r5, s; add.u32 %r5, %r5, %r4;\n"
	"	mov.u64 %rd1, 1; st.shared.u64 [%r5], %rd1;\n"
	"	and.b32 %r4, %r3, 1023; shl.b32 %r4, %r4, 4; mov.u32 %r5, s; add.u32 %r5, %r5, %r4;\n"
	"	st.shared.v2.u64 [%r5], {%rd1, %rd1};\n"
	"	ret;\n}\n"
	".visible .entry uneven(.param .u64 p) {\n"
	"	.reg .b32 %r<6>; .reg .b64 %rd<4>; .reg .pred %p<3>;\n"
	"	mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; and.b32 %r3, %r1, 7;\n"
	"	setp.ne.u32 %p1, %r3, 0; @%p1 bra done;\n"
	"	ld.param.u64 %rd1, [p]; rem.u32 %r4, %r2, 3; mul.wide.u32 %rd2, %r4, 128; add.u64 %rd3, %rd1, %rd2;\n"
	"	atom.global.add.u32 %r5, [%rd3], 1;\n"
	"	mad.lo.u32 %r2, %r2, 100, 1;\n"
	"loop:\n"
	"	sub.u32 %r2, %r2, 1; setp.ne.u32 %p2, %r2, 0; @%p2 bra loop;\n"
	"done:\n"
	"	ret;\n}\n";

int main(void)
{
	CUdevice dev;
	CUcontext ctx;
	CUmodule mod;
	CUfunction strided, banks, uneven;
	CUdeviceptr p, q, leaked;
	CUstream s;
	void *pinned, *pageable = calloc(1, 1 << 20);
	loadDriver();
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuCtxCreate_v2(&ctx, 0, dev));
	CHECK(cuModuleLoadData(&mod, patterns));
	CHECK(cuModuleGetFunction(&strided, mod, "strided"));
	CHECK(cuModuleGetFunction(&banks, mod, "banks"));
	CHECK(cuModuleGetFunction(&uneven, mod, "uneven"));
	CHECK(cuMemAlloc_v2(&p, 1 << 20));
	CHECK(cuMemAlloc_v2(&leaked, 4096));
	CHECK(cuMemAlloc_v2(&leaked, 4096));
	CHECK(cuMemAlloc_v2(&leaked, 12288));
	CHECK(cuMemAlloc_v2(&q, 8192));
	CHECK(cuMemFree_v2(q));
	EXPECT(cuMemAlloc_v2(&q, 1ull << 45) == 2);
	CHECK(cuMemHostAlloc(&pinned, 1 << 20, 0));
	CHECK(cuMemcpyHtoD_v2(p, pageable, 1 << 20));
	CHECK(cuMemcpyHtoD_v2(p, pageable, 1000));
	CHECK(cuMemcpyHtoD_v2(p, (char *)pinned + 4096, 65536));
	CHECK(cuStreamCreate(&s, 0));
	for (unsigned stride = 1; stride <= 32; stride *= 2) {
		void *global[] = {&p, &stride}, *shared[] = {&stride};
		CHECK(cuLaunchKernel(strided, 4, 1, 1, 128, 1, 1, 0, s, global, 0));
		CHECK(cuLaunchKernel(banks, 2, 1, 1, 64, 1, 1, 0, s, shared, 0));
	}
	void *args[] = {&p};
	CHECK(cuLaunchKernel(uneven, 6, 1, 1, 96, 1, 1, 0, s, args, 0));
	CHECK(cuStreamSynchronize(s));
	CHECK(cuStreamSynchronize(s));
	CHECK(cuCtxSynchronize());
	CHECK(cuMemFree_v2(p));
	CHECK(cuMemFreeHost(pinned));
	printf("PASSED\n");
	return 0;
}
