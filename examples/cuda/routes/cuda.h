// What these programs need of NVIDIA's cuda.h, so that they compile without a
// toolkit, and run with any CUDA driver.
#ifndef ROUTES_CUDA_H
#define ROUTES_CUDA_H
#include <stddef.h>

typedef int CUresult;
typedef void *handle;

// The functions that the programs call, by a route of their own each.
struct api {
	CUresult (*init)(unsigned);
	CUresult (*device)(int *, int);
	CUresult (*retain)(handle *, int);
	CUresult (*current)(handle);
	CUresult (*synchronize)(void);
	CUresult (*load)(handle *, const void *);
	CUresult (*loadex)(handle *, const void *, unsigned, int *, void **);
	CUresult (*loadfat)(handle *, const void *);
	CUresult (*loadfile)(handle *, const char *);
	CUresult (*unload)(handle);
	CUresult (*function)(handle *, handle, const char *);
	CUresult (*launch)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
	CUresult (*libload)(handle *, const void *, int *, void **, unsigned, int *, void **, unsigned);
	CUresult (*libfile)(handle *, const char *, int *, void **, unsigned, int *, void **, unsigned);
	CUresult (*libunload)(handle);
	CUresult (*kernel)(handle *, handle, const char *);
	CUresult (*libmodule)(handle *, handle);
	CUresult (*linkcreate)(unsigned, int *, void **, handle *);
	CUresult (*linkadd)(handle, int, void *, size_t, const char *, unsigned, int *, void **);
	CUresult (*linkfile)(handle, int, const char *, unsigned, int *, void **);
	CUresult (*linkcomplete)(handle, void **, size_t *);
	CUresult (*linkdestroy)(handle);
	CUresult (*table)(const void **, const unsigned char *);
};

// The names, in the order of the members.
#define ROUTES_NAMES \
	"cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuCtxSynchronize", "cuModuleLoadData", \
	"cuModuleLoadDataEx", "cuModuleLoadFatBinary", "cuModuleLoad", "cuModuleUnload", "cuModuleGetFunction", \
	"cuLaunchKernel", "cuLibraryLoadData", "cuLibraryLoadFromFile", "cuLibraryUnload", "cuLibraryGetKernel", \
	"cuLibraryGetModule", "cuLinkCreate_v2", "cuLinkAddData_v2", "cuLinkAddFile_v2", "cuLinkComplete", "cuLinkDestroy", \
	"cuGetExportTable"

// The image: a kernel that does nothing.
#define ROUTES_PTX(name) \
	".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry " name "()\n{\n\tret;\n}\n"
#endif
