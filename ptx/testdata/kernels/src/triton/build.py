"""Compiles the Triton kernels below to PTX without a GPU: python build.py OUTDIR."""

import os
import pathlib
import sys

# Line tables would hold the path of this file.
os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
os.environ.setdefault("TRITON_CACHE_DIR", "/tmp/nvtrace-kernels/triton-cache")

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    tl.store(out + i, tl.load(x + i, mask=m) + tl.load(y + i, mask=m), mask=m)


@triton.jit
def softmax_kernel(x, out, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * cols + i, e / tl.sum(e, axis=0), mask=i < cols)


@triton.jit
def matmul_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pm, pn = tl.program_id(0), tl.program_id(1)
    rm = pm * BM + tl.arange(0, BM)
    rn = pn * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :])
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :])
        acc += tl.dot(x, y)
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(tl.float16))


@triton.jit
def layernorm_kernel(x, w, out, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    m = i < cols
    v = tl.load(x + row * cols + i, mask=m, other=0.0).to(tl.float32)
    mean = tl.sum(v, axis=0) / cols
    d = tl.where(m, v - mean, 0.0)
    r = 1 / tl.sqrt(tl.sum(d * d, axis=0) / cols + eps)
    tl.store(out + row * cols + i, (d * r * tl.load(w + i, mask=m)).to(tl.bfloat16), mask=m)


@triton.jit
def histogram_kernel(x, out, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    h = tl.histogram(v, BINS)
    tl.atomic_add(out + tl.arange(0, BINS), h)


@triton.jit
def scan_kernel(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.cumsum(tl.load(x + i), axis=0))


# name, kernel, signature, constants, target, warps
JOBS = [
    ("add", add_kernel, dict(x="*fp32", y="*fp32", out="*fp32", n="i32"), dict(BLOCK=256), 80, 4),
    ("add", add_kernel, dict(x="*fp32", y="*fp32", out="*fp32", n="i32"), dict(BLOCK=1024), 90, 4),
    ("add_bf16", add_kernel, dict(x="*bf16", y="*bf16", out="*bf16", n="i32"), dict(BLOCK=512), 100, 4),
    ("softmax", softmax_kernel, dict(x="*fp32", out="*fp32", cols="i32"), dict(BLOCK=512), 80, 4),
    ("softmax", softmax_kernel, dict(x="*fp32", out="*fp32", cols="i32"), dict(BLOCK=512), 90, 2),
    ("matmul", matmul_kernel, dict(a="*fp16", b="*fp16", c="*fp16", M="i32", N="i32", K="i32"), dict(BM=32, BN=32, BK=16), 80, 4),
    ("matmul", matmul_kernel, dict(a="*fp16", b="*fp16", c="*fp16", M="i32", N="i32", K="i32"), dict(BM=64, BN=32, BK=32), 90, 4),
    ("matmul_tf32", matmul_kernel, dict(a="*fp32", b="*fp32", c="*fp16", M="i32", N="i32", K="i32"), dict(BM=32, BN=32, BK=16), 80, 2),
    ("layernorm", layernorm_kernel, dict(x="*bf16", w="*fp32", out="*bf16", cols="i32", eps="fp32"), dict(BLOCK=256), 90, 2),
    ("histogram", histogram_kernel, dict(x="*i32", out="*i32", n="i32"), dict(BLOCK=256, BINS=64), 90, 2),
    ("scan", scan_kernel, dict(x="*i32", out="*i32"), dict(BLOCK=256), 75, 2),
]


def main():
    out = pathlib.Path(sys.argv[1])
    for name, fn, sig, const, arch, warps in JOBS:
        sig = dict(sig) | {k: "constexpr" for k in const}
        src = ASTSource(fn=fn, signature=sig, constexprs=const)
        k = triton.compile(src, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps})
        ptx = k.asm["ptx"]
        target = next(l.split()[1] for l in ptx.splitlines() if l.startswith(".target"))
        (out / f"{name}.triton{triton.__version__}.{target}.ptx").write_text(ptx)


main()
