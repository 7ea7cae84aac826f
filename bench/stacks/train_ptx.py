"""Trains a perceptron by kernels that CuPy compiles to PTX and prints its losses: train_ptx.py [STEPS] [--stamps FILE] [--until FILE]

The matrix products are a kernel of ours, so that none is from a library. --stamps and --until are
those of train.py."""
import argparse
import os
import time

os.environ["CUPY_COMPILE_WITH_PTX"] = "1"

import cupy

ap = argparse.ArgumentParser()
ap.add_argument("steps", nargs="?", type=int, default=20)
ap.add_argument("--stamps", metavar="FILE")
ap.add_argument("--until", metavar="FILE")
ap.add_argument("--attention", help="ignored, as train.py has it")
args = ap.parse_args()

product = cupy.RawKernel(
    r"""
extern "C" __global__ void product(const float *a, const float *b, float *c, int m, int n, int k, int ta, int tb) {
    __shared__ float as[16][17], bs[16][17];
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int i = 0; i < k; i += 16) {
        int ka = i + threadIdx.x, kb = i + threadIdx.y;
        as[threadIdx.y][threadIdx.x] = row < m && ka < k ? a[ta ? ka * m + row : row * k + ka] : 0;
        bs[threadIdx.y][threadIdx.x] = kb < k && col < n ? b[tb ? col * k + kb : kb * n + col] : 0;
        __syncthreads();
        for (int j = 0; j < 16; j++) sum += as[threadIdx.y][j] * bs[j][threadIdx.x];
        __syncthreads();
    }
    if (row < m && col < n) c[row * n + col] = sum;
}""",
    "product",
)


def mul(a, b, ta=False, tb=False):
    m, k = a.shape[::-1] if ta else a.shape
    n = b.shape[0] if tb else b.shape[1]
    c = cupy.empty((m, n), cupy.float32)
    product(((n + 15) // 16, (m + 15) // 16), (16, 16), (a, b, c, cupy.int32(m), cupy.int32(n), cupy.int32(k), cupy.int32(ta), cupy.int32(tb)))
    return c


def fill(rows, columns, scale):
    return cupy.sin(cupy.arange(rows * columns, dtype=cupy.float32)).reshape(rows, columns) * cupy.float32(scale)


x, target = fill(512, 256, 1), fill(512, 64, 0.5)
w1, w2 = fill(256, 512, 0.05), fill(512, 64, 0.05)
rate = cupy.float32(2e-3)
stamps = open(args.stamps, "w") if args.stamps else None
for step in range(args.steps):
    begin = time.monotonic()
    hidden = cupy.tanh(mul(x, w1))
    error = mul(hidden, w2) - target
    loss = float((error * error).sum())
    back = mul(error, w2, tb=True) * (1 - hidden * hidden)
    w2 -= rate * mul(hidden, error, ta=True)
    w1 -= rate * mul(x, back, ta=True)
    cupy.cuda.Stream.null.synchronize()
    print(f"step {step} loss {loss:.6f}", flush=bool(args.until))
    if stamps:
        print(begin, time.monotonic() - begin, file=stamps, flush=True)
    if args.until and os.path.exists(args.until):
        break
