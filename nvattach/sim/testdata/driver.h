// The part of the driver API that the C programs use, declared here so that they
// need no toolkit: names, prototypes and numbers are cuda.h's.
#pragma once
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult, CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;

#define FUNCS(X)                                                                                                             \
	X(cuInit, (unsigned))                                                                                                \
	X(cuDriverGetVersion, (int *))                                                                                       \
	X(cuDeviceGetCount, (int *))                                                                                         \
	X(cuDeviceGet, (CUdevice *, int))                                                                                    \
	X(cuDeviceGetName, (char *, int, CUdevice))                                                                          \
	X(cuDeviceGetAttribute, (int *, int, CUdevice))                                                                      \
	X(cuDeviceTotalMem_v2, (size_t *, CUdevice))                                                                         \
	X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                                 \
	X(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                                          \
	X(cuDevicePrimaryCtxReset_v2, (CUdevice))                                                                            \
	X(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))                                                                 \
	X(cuCtxDestroy_v2, (CUcontext))                                                                                      \
	X(cuCtxSetCurrent, (CUcontext))                                                                                      \
	X(cuCtxGetCurrent, (CUcontext *))                                                                                    \
	X(cuCtxPushCurrent_v2, (CUcontext))                                                                                  \
	X(cuCtxPopCurrent_v2, (CUcontext *))                                                                                 \
	X(cuCtxSynchronize, (void))                                                                                          \
	X(cuModuleLoad, (CUmodule *, const char *))                                                                          \
	X(cuModuleLoadData, (CUmodule *, const void *))                                                                      \
	X(cuModuleUnload, (CUmodule))                                                                                        \
	X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                                                       \
	X(cuModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUmodule, const char *))                                           \
	X(cuLibraryLoadData, (CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned))                \
	X(cuLibraryGetKernel, (CUkernel *, CUlibrary, const char *))                                                         \
	X(cuLibraryGetGlobal, (CUdeviceptr *, size_t *, CUlibrary, const char *))                                            \
	X(cuLibraryUnload, (CUlibrary))                                                                                      \
	X(cuKernelGetFunction, (CUfunction *, CUkernel))                                                                     \
	X(cuLibraryGetModule, (CUmodule *, CUlibrary))                                                                       \
	X(cuLibraryEnumerateKernels, (CUkernel *, unsigned, CUlibrary))                                                      \
	X(cuModuleEnumerateFunctions, (CUfunction *, unsigned, CUmodule))                                                    \
	X(cuFuncGetParamInfo, (CUfunction, size_t, size_t *, size_t *))                                                      \
	X(cuFuncGetName, (const char **, CUfunction))                                                                        \
	X(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                            \
	X(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned))                                                              \
	X(cuMemAllocPitch_v2, (CUdeviceptr *, size_t *, size_t, size_t, unsigned))                                           \
	X(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                                                                \
	X(cuMemFreeAsync, (CUdeviceptr, CUstream))                                                                           \
	X(cuMemGetAllocationGranularity, (size_t *, const void *, int))                                                      \
	X(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                             \
	X(cuMemAddressFree, (CUdeviceptr, size_t))                                                                           \
	X(cuMemCreate, (unsigned long long *, size_t, const void *, unsigned long long))                                     \
	X(cuMemRelease, (unsigned long long))                                                                                \
	X(cuMemRetainAllocationHandle, (unsigned long long *, void *))                                                       \
	X(cuMemMap, (CUdeviceptr, size_t, size_t, unsigned long long, unsigned long long))                                   \
	X(cuMemUnmap, (CUdeviceptr, size_t))                                                                                 \
	X(cuMemSetAccess, (CUdeviceptr, size_t, const void *, size_t))                                                       \
	X(cuMemFree_v2, (CUdeviceptr))                                                                                       \
	X(cuArrayCreate_v2, (CUarray *, const void *))                                                                       \
	X(cuArray3DCreate_v2, (CUarray *, const void *))                                                                     \
	X(cuArrayGetDescriptor_v2, (void *, CUarray))                                                                        \
	X(cuArray3DGetDescriptor_v2, (void *, CUarray))                                                                      \
	X(cuArrayDestroy, (CUarray))                                                                                         \
	X(cuMipmappedArrayCreate, (CUmipmappedArray *, const void *, unsigned))                                              \
	X(cuMipmappedArrayGetLevel, (CUarray *, CUmipmappedArray, unsigned))                                                 \
	X(cuMipmappedArrayDestroy, (CUmipmappedArray))                                                                       \
	X(cuMemGetInfo_v2, (size_t *, size_t *))                                                                             \
	X(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t))                                                              \
	X(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t))                                                                    \
	X(cuMemcpyDtoD_v2, (CUdeviceptr, CUdeviceptr, size_t))                                                               \
	X(cuMemsetD32_v2, (CUdeviceptr, unsigned, size_t))                                                                   \
	X(cuMemHostAlloc, (void **, size_t, unsigned))                                                                       \
	X(cuMemFreeHost, (void *))                                                                                           \
	X(cuStreamCreate, (CUstream *, unsigned))                                                                            \
	X(cuStreamSynchronize, (CUstream))                                                                                   \
	X(cuStreamDestroy_v2, (CUstream))                                                                                    \
	X(cuEventCreate, (CUevent *, unsigned))                                                                              \
	X(cuEventRecord, (CUevent, CUstream))                                                                                \
	X(cuEventSynchronize, (CUevent))                                                                                     \
	X(cuEventElapsedTime, (float *, CUevent, CUevent))                                                                   \
	X(cuEventQuery, (CUevent))                                                                                           \
	X(cuStreamQuery, (CUstream))                                                                                         \
	X(cuStreamBeginCapture_v2, (CUstream, int))                                                                          \
	X(cuStreamEndCapture, (CUstream, CUgraph *))                                                                         \
	X(cuStreamIsCapturing, (CUstream, int *))                                                                            \
	X(cuThreadExchangeStreamCaptureMode, (int *))                                                                        \
	X(cuLaunchCooperativeKernel,                                                                                         \
	  (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **))                 \
	X(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
	X(cuGraphCreate, (CUgraph *, unsigned))                                                                              \
	X(cuGraphAddKernelNode_v2, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const void *))                      \
	X(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))                                         \
	X(cuGraphLaunch, (CUgraphExec, CUstream))                                                                            \
	X(cuGetErrorName, (CUresult, const char **))                                                                         \
	X(cuGetErrorString, (CUresult, const char **))                                                                       \
	X(cuGetProcAddress_v2, (const char *, void **, int, unsigned long long, int *))

#define DECLARE(name, args) static CUresult(*name) args;
FUNCS(DECLARE)

static inline void loadDriver(void)
{
	void *h = dlopen("libcuda.so.1", RTLD_NOW);
	if (!h) {
		printf("%s\n", dlerror());
		exit(1);
	}
#define LOAD(name, args)                                    \
	if (!(*(void **)&name = dlsym(h, #name))) {         \
		printf("libcuda.so.1 has no %s\n", #name); \
		exit(1);                                    \
	}
	FUNCS(LOAD)
}

static inline const char *errorName(CUresult r)
{
	const char *s = "?";
	cuGetErrorName(r, &s);
	return s;
}

#define CHECK(call)                                                                                \
	do {                                                                                       \
		CUresult r_ = (call);                                                              \
		if (r_) {                                                                          \
			printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, errorName(r_));       \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#define EXPECT(cond)                                                              \
	do {                                                                      \
		if (!(cond)) {                                                    \
			printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #cond); \
			exit(1);                                                  \
		}                                                                 \
	} while (0)

// vectorAdd(a, b, c, n), and scale(p, by), which also counts its threads.
static const char *const ptx = ".version 6.4\n"
	".target sm_75\n"
	".address_size 64\n"
	".visible .global .align 4 .u32 threads;\n"
	".visible .entry vectorAdd(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)\n"
	"{\n"
	"	.reg .pred %p;\n"
	"	.reg .b32 %r<5>;\n"
	"	.reg .f32 %f<4>;\n"
	"	.reg .b64 %rd<8>;\n"
	"	mov.u32 %r1, %ctaid.x;\n"
	"	mov.u32 %r2, %ntid.x;\n"
	"	mov.u32 %r3, %tid.x;\n"
	"	mad.lo.u32 %r1, %r1, %r2, %r3;\n"
	"	ld.param.u32 %r4, [n];\n"
	"	setp.ge.u32 %p, %r1, %r4;\n"
	"	@%p bra done;\n"
	"	ld.param.u64 %rd1, [a];\n"
	"	ld.param.u64 %rd2, [b];\n"
	"	ld.param.u64 %rd3, [c];\n"
	"	mul.wide.u32 %rd4, %r1, 4;\n"
	"	add.u64 %rd5, %rd1, %rd4;\n"
	"	add.u64 %rd6, %rd2, %rd4;\n"
	"	add.u64 %rd7, %rd3, %rd4;\n"
	"	ld.global.f32 %f1, [%rd5];\n"
	"	ld.global.f32 %f2, [%rd6];\n"
	"	add.f32 %f3, %f1, %f2;\n"
	"	st.global.f32 [%rd7], %f3;\n"
	"done:\n"
	"	ret;\n"
	"}\n"
	".visible .entry scale(.param .u64 p, .param .u32 by)\n"
	"{\n"
	"	.reg .b32 %r<4>;\n"
	"	.reg .b64 %rd<3>;\n"
	"	mov.u32 %r1, %tid.x;\n"
	"	ld.param.u64 %rd1, [p];\n"
	"	mul.wide.u32 %rd2, %r1, 4;\n"
	"	add.u64 %rd1, %rd1, %rd2;\n"
	"	ld.global.u32 %r2, [%rd1];\n"
	"	ld.param.u32 %r3, [by];\n"
	"	mul.lo.u32 %r2, %r2, %r3;\n"
	"	st.global.u32 [%rd1], %r2;\n"
	"	red.global.add.u32 [threads], 1;\n"
	"	ret;\n"
	"}\n";
