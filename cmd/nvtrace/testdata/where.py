"""Allocates and waits at lines that a test knows."""
import ctypes

cu = ctypes.CDLL("libcuda.so.1")


def check(result):
    assert result == 0, result


check(cu.cuInit(0))
context = ctypes.c_void_p()
check(cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cu.cuCtxSetCurrent(context))


def keeps(n):
    p = ctypes.c_uint64()
    check(cu.cuMemAlloc_v2(ctypes.byref(p), n))


def gives_back(n):
    p = ctypes.c_uint64()
    check(cu.cuMemAlloc_v2(ctypes.byref(p), n))
    check(cu.cuMemFree_v2(p))
    check(cu.cuCtxSynchronize())


for i in range(5):
    keeps(8192)
    gives_back(4096)
