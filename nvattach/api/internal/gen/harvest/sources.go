// Package harvest finds the facts in a toolkit's headers.
package harvest

// source is where a library's declarations are.
type source struct {
	library string
	headers []string // the first must be there, others may be missing
	major   string   // a constant expression of the library's major version; "" none
	prefix  []string // of its functions
	interop bool     // CUDA's own: with interoperability headers, and versions that perThread makes visible
	extra   string   // declarations that are in headers which need other software's, or in none
	flags   []flagGroup
}

// flagGroup is an enumeration made of macros.
type flagGroup struct {
	name   string
	macros []string
}

// perThread makes cuda.h and cuda_runtime_api.h declare every version of a
// function, those with a stream per thread too.
const perThread = "__CUDA_API_VERSION_INTERNAL"

// foreign are what other software declares (GL, EGL, VDPAU, CCCL) and CUDA's
// headers are written in; its own headers need not be installed.
var foreign = map[string]string{
	"nv/target":     "", // of CCCL; C needs nothing of it
	"GL/gl.h":       "typedef unsigned int GLuint; typedef unsigned int GLenum; typedef int GLint;\n",
	"EGL/egl.h":     "typedef int EGLint; typedef unsigned int EGLBoolean; typedef void *EGLDisplay;\n",
	"EGL/eglext.h":  "typedef void *EGLImageKHR; typedef void *EGLStreamKHR; typedef void *EGLSyncKHR;\n",
	"vdpau/vdpau.h": "typedef unsigned int VdpDevice; typedef int VdpStatus; typedef unsigned int VdpFuncId; typedef unsigned int VdpVideoSurface; typedef unsigned int VdpOutputSurface; typedef VdpStatus VdpGetProcAddress(VdpDevice device, VdpFuncId function_id, void **function_pointer);\n",
}

var sources = []source{
	{
		library: "driver", headers: []string{"cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h"}, prefix: []string{"cu"},
		interop: true,
		// cudaProfiler.h, where it is a package of its own; cuda.h of 2.0.
		extra: `CUresult cuProfilerInitialize(const char *configFile, const char *outputFile, int outputMode);
			CUresult cuProfilerStart(void); CUresult cuProfilerStop(void);
			CUresult cuGLInit(void); CUresult cuGLRegisterBufferObject(unsigned int buffer); CUresult cuGLUnmapBufferObject(unsigned int buffer); CUresult cuGLUnregisterBufferObject(unsigned int buffer);
			CUresult cuCtxAttach(CUcontext *pctx, unsigned int flags); CUresult cuCtxDetach(CUcontext ctx);`,
		flags: []flagGroup{
			{"CUmemhostalloc_flags", []string{"CU_MEMHOSTALLOC_PORTABLE", "CU_MEMHOSTALLOC_DEVICEMAP", "CU_MEMHOSTALLOC_WRITECOMBINED"}},
			{"CUmemhostregister_flags", []string{"CU_MEMHOSTREGISTER_PORTABLE", "CU_MEMHOSTREGISTER_DEVICEMAP", "CU_MEMHOSTREGISTER_IOMEMORY", "CU_MEMHOSTREGISTER_READ_ONLY"}},
		},
	},
	{
		library: "runtime", headers: []string{"cuda_runtime_api.h", "cuda_gl_interop.h", "cuda_egl_interop.h", "cuda_vdpau_interop.h"},
		major: "CUDART_VERSION / 1000", prefix: []string{"cuda", "__cuda"}, interop: true,
		// crt/host_runtime.h, crt/device_functions.h, cuda_profiler_api.h. hostFun and hostVar are addresses.
		extra: `cudaError_t cudaProfilerStart(void); cudaError_t cudaProfilerStop(void);
			typedef void *cudaFatCubinHandle;
			cudaFatCubinHandle __cudaRegisterFatBinary(void *fatCubin);
			void __cudaRegisterFatBinaryEnd(cudaFatCubinHandle fatCubinHandle);
			void __cudaUnregisterFatBinary(cudaFatCubinHandle fatCubinHandle);
			void __cudaRegisterVar(cudaFatCubinHandle fatCubinHandle, void *hostVar, char const *deviceAddress, const char *deviceName, int ext, size_t size, int constant, int global);
			void __cudaRegisterManagedVar(cudaFatCubinHandle fatCubinHandle, void *hostVarPtrAddress, char const *deviceAddress, const char *deviceName, int ext, size_t size, int constant, int global);
			void __cudaRegisterFunction(cudaFatCubinHandle fatCubinHandle, void *hostFun, char const *deviceFun, const char *deviceName, int thread_limit, void *tid, void *bid, void *bDim, void *gDim, int const *wSize);
			char __cudaInitModule(cudaFatCubinHandle fatCubinHandle);
			unsigned int __cudaPushCallConfiguration(struct dim3 gridDim, struct dim3 blockDim, size_t sharedMem, struct CUstream_st *stream);
			cudaError_t __cudaGetKernel(void **kernelPtr, void const *entryFuncAddr);
			cudaError_t __cudaLaunchKernel(void const *func, struct dim3 gridDim, struct dim3 blockDim, void **args, size_t sharedMem, cudaStream_t stream);
			cudaError_t __cudaLaunchKernel_ptsz(void const *func, struct dim3 gridDim, struct dim3 blockDim, void **args, size_t sharedMem, cudaStream_t stream);
			cudaError_t __cudaPopCallConfiguration(struct dim3 *gridDim, struct dim3 *blockDim, size_t *sharedMem, void *stream);`,
		flags: []flagGroup{
			{"cudaStreamFlags", []string{"cudaStreamDefault", "cudaStreamNonBlocking"}},
			{"cudaEventFlags", []string{"cudaEventDefault", "cudaEventBlockingSync", "cudaEventDisableTiming", "cudaEventInterprocess"}},
			{"cudaHostAllocFlags", []string{"cudaHostAllocDefault", "cudaHostAllocPortable", "cudaHostAllocMapped", "cudaHostAllocWriteCombined"}},
			{"cudaHostRegisterFlags", []string{"cudaHostRegisterDefault", "cudaHostRegisterPortable", "cudaHostRegisterMapped", "cudaHostRegisterIoMemory", "cudaHostRegisterReadOnly"}},
			{"cudaDeviceFlags", []string{"cudaDeviceScheduleAuto", "cudaDeviceScheduleSpin", "cudaDeviceScheduleYield", "cudaDeviceScheduleBlockingSync", "cudaDeviceMapHost", "cudaDeviceLmemResizeToMax", "cudaDeviceSyncMemops"}},
			{"cudaMemAttachFlags", []string{"cudaMemAttachGlobal", "cudaMemAttachHost", "cudaMemAttachSingle"}},
		},
	},
	{library: "cublas", headers: []string{"cublas_v2.h", "cublasXt.h"}, major: "CUBLAS_VER_MAJOR", prefix: []string{"cublas"}},
	{library: "cublas", headers: []string{"cublas.h"}, prefix: []string{"cublas"}},
	{library: "cublasLt", headers: []string{"cublasLt.h"}, major: "CUBLAS_VER_MAJOR", prefix: []string{"cublasLt"}},
	{library: "cudnn", headers: []string{"cudnn.h"}, major: "CUDNN_MAJOR", prefix: []string{"cudnn"}},
	{library: "cufft", headers: []string{"cufft.h", "cufftXt.h"}, major: "CUFFT_VER_MAJOR", prefix: []string{"cufft"}},
	{library: "cusparse", headers: []string{"cusparse.h"}, major: "CUSPARSE_VER_MAJOR", prefix: []string{"cusparse"}},
	{library: "cusolver", headers: []string{"cusolverDn.h", "cusolverSp.h", "cusolverRf.h", "cusolverMg.h", "cusolverSp_LOWLEVEL_PREVIEW.h"}, major: "CUSOLVER_VER_MAJOR", prefix: []string{"cusolver"}},
	{library: "curand", headers: []string{"curand.h"}, major: "CURAND_VER_MAJOR", prefix: []string{"curand"}},
	{library: "nccl", headers: []string{"nccl.h"}, major: "NCCL_MAJOR", prefix: []string{"nccl", "pnccl"}},
	{library: "nvrtc", headers: []string{"nvrtc.h"}, prefix: []string{"nvrtc"}},
	{library: "nvjitlink", headers: []string{"nvJitLink.h"}, prefix: []string{"nvJitLink", "__nvJitLink"}},
}
