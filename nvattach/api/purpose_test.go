package api

import "testing"

func TestPurpose(t *testing.T) {
	for name, want := range map[string]Purpose{
		"cuStreamSynchronize": Waiting, "cudaDeviceSynchronize": Waiting, "cuEventSynchronize": Waiting, "cuStreamWaitEvent": NoPurpose,
		"cuLaunchKernel": Launching, "cudaGraphLaunch": Launching, "cudaLaunchKernelExC": Launching,
		"cudaMemcpyAsync": Copying, "cuMemcpyDtoH_v2": Copying, "cuMemsetD8_v2": Copying,
		"cuMemAlloc_v2": Allocating, "cudaFree": Allocating, "cuMemFree_v2": Allocating, "cudaHostAlloc": Allocating, "cuMemCreate": Allocating,
		"cuArrayCreate_v2": Allocating, "cuArray3DCreate_v2": Allocating, "cuMipmappedArrayDestroy": Allocating, "cudaFreeArray": Allocating, "cuArrayGetDescriptor_v2": NoPurpose,
		"cuMemGetInfo_v2": NoPurpose, "cudaGetDevice": NoPurpose, "cuMemPrefetchAsync": NoPurpose,
		"cuModuleLoadData": Loading, "cuLibraryLoadData": Loading, "__cudaRegisterFatBinary": Loading,
		"cuInit": Starting, "cuDevicePrimaryCtxRetain": Starting, "cuCtxCreate_v4": Starting,
	} {
		if got := purposeOf(Module{Library: Driver}, name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if got := purposeOf(Module{Library: CuBLAS}, "cublasGemmEx"); got != NoPurpose {
		t.Errorf("a library's call: %v", got)
	}
	for p := range Purposes {
		if (p.String() == "") != (p == NoPurpose) {
			t.Errorf("purpose %d: %q", p, p)
		}
	}
}
