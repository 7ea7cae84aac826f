"""Softmax, a matrix product and a reduction in Triton; prints digests of the results."""
import hashlib

import torch
import triton
import triton.language as tl


@triton.jit
def softmax(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + at, mask=at < cols, other=-float("inf"))
    v = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + row * cols + at, v / tl.sum(v, axis=0), mask=at < cols)


@triton.jit
def matmul(a, b, c, n, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    k = tl.program_id(1) * BN + tl.arange(0, BN)
    r = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(0, n, BK):
        acc += tl.dot(tl.load(a + m[:, None] * n + (i + r)[None, :]), tl.load(b + (i + r)[:, None] * n + k[None, :]))
    tl.store(c + m[:, None] * n + k[None, :], acc.to(tl.float16))


@triton.jit
def total(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + tl.program_id(0), tl.sum(tl.load(x + at, mask=at < n, other=0.0), axis=0))


def digest(t):
    return hashlib.sha256(t.cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


torch.manual_seed(0)
x = torch.randn(1823, 781, device="cuda")
y = torch.empty_like(x)
for _ in range(5):
    softmax[(x.shape[0],)](x, y, x.shape[1], BLOCK=1024)
print("softmax", digest(y))
n = 1024
a, b = (torch.randn(n, n, device="cuda", dtype=torch.float16) for _ in range(2))
c = torch.empty_like(a)
for _ in range(5):
    matmul[(n // 128, n // 128)](a, b, c, n, BM=128, BN=128, BK=64)
print("matmul", digest(c))
s = torch.empty(triton.cdiv(x.numel(), 4096), device="cuda")
for _ in range(5):
    total[(s.numel(),)](x, s, x.numel(), BLOCK=4096)
print("sum", digest(s))
