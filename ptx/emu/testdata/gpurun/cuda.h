// The part of the CUDA driver API that the runner uses, declared here so that no toolkit is needed. The numbers are those of the
// public driver API and have not changed since CUDA 3.2.
#ifndef CUDA_H
#define CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx *CUcontext;
typedef struct CUmod *CUmodule;
typedef struct CUfunc *CUfunction;
typedef uint64_t CUdeviceptr;

enum {
	CU_DEVICE_MAJOR = 75, // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
	CU_DEVICE_MINOR = 76,
	CU_FUNC_MAX_DYNAMIC_SHARED = 8,
	CU_LIMIT_STACK_SIZE = 0,
	CU_JIT_INFO_LOG = 3,
	CU_JIT_INFO_LOG_SIZE = 4,
	CU_JIT_ERROR_LOG = 5,
	CU_JIT_ERROR_LOG_SIZE = 6,
	CU_JIT_OPTIMIZATION_LEVEL = 7,
};

// CUDA_API lists every function used: X(name without cu and version suffix, symbol, parameters).
#define CUDA_API(X)                                                                                                                      \
	X(Init, "cuInit", (unsigned))                                                                                                    \
	X(DriverGetVersion, "cuDriverGetVersion", (int *))                                                                               \
	X(DeviceGet, "cuDeviceGet", (CUdevice *, int))                                                                                   \
	X(DeviceGetName, "cuDeviceGetName", (char *, int, CUdevice))                                                                     \
	X(DeviceGetAttribute, "cuDeviceGetAttribute", (int *, int, CUdevice))                                                            \
	X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))                                                   \
	X(CtxSetCurrent, "cuCtxSetCurrent", (CUcontext))                                                                                 \
	X(CtxSetLimit, "cuCtxSetLimit", (int, size_t))                                                                                   \
	X(CtxSynchronize, "cuCtxSynchronize", (void))                                                                                    \
	X(ModuleLoadDataEx, "cuModuleLoadDataEx", (CUmodule *, const void *, unsigned, int *, void **))                                  \
	X(ModuleUnload, "cuModuleUnload", (CUmodule))                                                                                    \
	X(ModuleGetFunction, "cuModuleGetFunction", (CUfunction *, CUmodule, const char *))                                              \
	X(ModuleGetGlobal, "cuModuleGetGlobal_v2", (CUdeviceptr *, size_t *, CUmodule, const char *))                                    \
	X(FuncSetAttribute, "cuFuncSetAttribute", (CUfunction, int, int))                                                                \
	X(MemAlloc, "cuMemAlloc_v2", (CUdeviceptr *, size_t))                                                                            \
	X(MemFree, "cuMemFree_v2", (CUdeviceptr))                                                                                        \
	X(MemcpyHtoD, "cuMemcpyHtoD_v2", (CUdeviceptr, const void *, size_t))                                                            \
	X(MemcpyDtoH, "cuMemcpyDtoH_v2", (void *, CUdeviceptr, size_t))                                                                  \
	X(LaunchKernel, "cuLaunchKernel",                                                                                                \
	  (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))                  \
	X(GetErrorName, "cuGetErrorName", (CUresult, const char **))
#endif
