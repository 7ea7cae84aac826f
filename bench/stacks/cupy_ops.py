"""Elementwise kernels, a RawKernel and cuBLAS by CuPy; prints digests of the results."""
import hashlib

import cupy as cp

raw = cp.RawKernel(
    r"""
extern "C" __global__ void saxpy(const float *x, float *y, float a, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		y[i] += a * x[i];
}
""",
    "saxpy",
)


def digest(a):
    return hashlib.sha256(cp.asnumpy(a).tobytes()).hexdigest()[:16]


x = cp.arange(1 << 20, dtype=cp.float32) / 977
y = cp.sin(x) * 2 + cp.sqrt(x)
for _ in range(5):
    raw(((x.size + 255) // 256,), (256,), (x, y, cp.float32(1.5), cp.int32(x.size)))
print("saxpy", digest(y))
m = (x[: 512 * 512] % 13).reshape(512, 512)
print("matmul", digest(m @ m.T))
print("sort", digest(cp.sort(y[::-1])))
print("cumsum", digest(cp.cumsum(x.astype(cp.int64))))
