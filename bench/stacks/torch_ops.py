#!/usr/bin/env python3
"""Many kernels of PyTorch: each elementwise operation, reduction, sort, index and layer
for each type of element that it takes; a line with a checksum for each group of them.

Usage: torch_ops.py [PART/PARTS]

With PART/PARTS (from 1), only that part of the operations. What adds in an order that
differs from run to run is left out.
"""
import hashlib
import os
import sys

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it cuBLAS is not deterministic

import torch
import torch.nn.functional as F

torch.use_deterministic_algorithms(True)  # what has no such way raises an error, and is left out
torch.backends.cuda.matmul.allow_tf32 = False
DEVICE = "cuda"
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
COMPLEX = [torch.complex64, torch.complex128]
INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
ALL = FLOATS + INTS + [torch.bool] + COMPLEX

UNARY = """abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2
expm1 floor frac isfinite isinf isnan lgamma log log10 log1p log2 logical_not logit neg positive rad2deg
reciprocal round rsqrt sgn sigmoid sign signbit sin sinc sinh sqrt square tan tanh trunc bitwise_not angle
special.i0 special.i0e special.i1 special.i1e special.ndtri special.log_ndtr special.entr special.bessel_j0
special.bessel_j1 special.erfcx conj_physical""".split()
BINARY = """add sub mul div fmod remainder pow atan2 maximum minimum fmax fmin hypot copysign nextafter
floor_divide logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift
bitwise_right_shift eq ne lt le gt ge logaddexp logaddexp2 xlogy heaviside gcd lcm special.zeta ldexp""".split()
REDUCE = """sum prod mean amax amin all any std var norm argmax argmin logsumexp count_nonzero nansum median
cumsum cumprod cummax cummin sort topk argsort unique flip roll kthvalue mode softmax log_softmax diff
logcumsumexp""".split()
ACTIVATIONS = """relu gelu silu elu selu celu leaky_relu hardtanh hardswish hardsigmoid softplus softsign
tanhshrink softshrink hardshrink mish logsigmoid glu relu6 threshold""".split()


def values(dtype, shape, seed):
    g = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return (torch.rand(shape, generator=g) > 0.5).to(DEVICE)
    if dtype in INTS:
        return torch.randint(1, 7, shape, generator=g).to(dtype).to(DEVICE)
    if dtype in COMPLEX:
        return torch.complex(torch.rand(shape, generator=g), torch.rand(shape, generator=g)).to(dtype).to(DEVICE)
    return (torch.rand(shape, generator=g) * 0.9 + 0.05).to(dtype).to(DEVICE)


def named(name):
    module = torch
    for part in name.split("."):
        module = getattr(module, part)
    return module


def reduce(name, x):
    if name == "norm":
        return torch.linalg.vector_norm(x, dim=1)
    if name == "topk":
        return torch.topk(x, 5, dim=1)
    if name == "kthvalue":
        return torch.kthvalue(x, 3, dim=1)
    if name == "roll":
        return torch.roll(x, 3, 1)
    if name == "flip":
        return torch.flip(x, [1])
    if name == "unique":
        return torch.unique(x)
    if name == "diff":
        return torch.diff(x)
    return getattr(torch, name)(x, dim=1)


def operations():
    """Pairs of a name and a function that returns tensors."""
    for dtype in ALL:
        short = str(dtype).removeprefix("torch.")
        x, y = values(dtype, (48, 97), 1), values(dtype, (48, 97), 2)
        strided = values(dtype, (97, 48), 3).t()
        for name in UNARY:
            yield f"{name} {short}", lambda f=named(name), x=x: f(x)
        for name in BINARY:
            yield f"{name} {short}", lambda f=named(name), x=x, y=y: f(x, y)
            yield f"{name} {short} strided", lambda f=named(name), x=x, y=strided: f(x, y)
        for name in REDUCE:
            yield f"{name} {short}", lambda name=name, x=x: reduce(name, x)
            yield f"{name} {short} strided", lambda name=name, x=strided: reduce(name, x)
        for other in ALL:
            yield f"to {short} {other}", lambda x=x, other=other: x.to(other)
        index = torch.arange(0, 48, 3, device=DEVICE)
        mask = values(torch.bool, (48, 97), 4)
        yield f"index_select {short}", lambda x=x: x.index_select(0, index)
        yield f"gather {short}", lambda x=x: x.gather(0, index[:, None].expand(-1, 97))
        yield f"index {short}", lambda x=x: x[index, index]
        yield f"masked_select {short}", lambda x=x: x[mask]
        yield f"where {short}", lambda x=x, y=y: torch.where(mask, x, y)
        yield f"masked_fill {short}", lambda x=x: x.masked_fill(mask, 1)
        yield f"scatter {short}", lambda x=x, y=y: x.scatter(0, index[:, None].expand(-1, 97), y)
        yield f"index_put {short}", lambda x=x, y=y: x.clone().index_put_((index,), y[:16])
        yield f"nonzero {short}", lambda x=x: torch.nonzero(x)
        yield f"cat {short}", lambda x=x, y=y: torch.cat([x, y, x], 1)
        yield f"tril {short}", lambda x=x: torch.tril(x)
        yield f"triu {short}", lambda x=x: torch.triu(x)
        yield f"eye {short}", lambda dtype=dtype: torch.eye(33, dtype=dtype, device=DEVICE)
        yield f"arange {short}", lambda dtype=dtype: torch.arange(0, 50, dtype=dtype, device=DEVICE)
        yield f"linspace {short}", lambda dtype=dtype: torch.linspace(0, 1, 50, dtype=dtype, device=DEVICE)
        yield f"clamp {short}", lambda x=x, y=y: torch.clamp(x, y)
        yield f"addcmul {short}", lambda x=x, y=y: torch.addcmul(x, x, y)
        yield f"addcdiv {short}", lambda x=x, y=y: torch.addcdiv(x, x, y)
        yield f"lerp {short}", lambda x=x, y=y: torch.lerp(x, y, 0.3)
        yield f"cross {short}", lambda x=x[:, :3], y=y[:, :3]: torch.linalg.cross(x, y)
        yield f"trace {short}", lambda x=x: torch.trace(x[:, :48])
        yield f"searchsorted {short}", lambda x=x, y=y: torch.searchsorted(torch.sort(x[0])[0], y[0])
        yield f"bincount {short}", lambda x=x: torch.bincount(x.flatten())
        yield f"histc {short}", lambda x=x: torch.histc(x, 10)
        yield f"foreach {short}", lambda x=x, y=y: torch._foreach_add([x, y], [y, x])
        yield f"foreach_mul {short}", lambda x=x, y=y: torch._foreach_mul([x, y], [y, x])
        yield f"foreach_sqrt {short}", lambda x=x, y=y: torch._foreach_sqrt([x, y])
    for dtype in FLOATS:
        short = str(dtype).removeprefix("torch.")
        x = values(dtype, (6, 8, 20, 20), 5)
        for name in ACTIVATIONS:
            def both(name=name, x=x):
                x = x.clone().requires_grad_()
                out = F.threshold(x, 0.3, 1.0) if name == "threshold" else getattr(F, name)(x)
                return out, torch.autograd.grad(out.sum(), x)[0]
            yield f"{name} {short}", both

        def layer(f, x=x):
            x = x.clone().requires_grad_()
            out = f(x)
            return out, torch.autograd.grad(out.float().pow(2).sum(), x)[0]

        w = values(dtype, (16, 8, 3, 3), 6)
        one = torch.ones(8, dtype=dtype, device=DEVICE)
        for name, f in {
            "conv2d": lambda x, w=w: F.conv2d(x, w, padding=1),
            "conv depthwise": lambda x, w=values(dtype, (8, 1, 3, 3), 7): F.conv2d(x, w, groups=8),
            "conv_transpose2d": lambda x, w=values(dtype, (8, 4, 3, 3), 8): F.conv_transpose2d(x, w, stride=2),
            "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
            "max_pool2d": lambda x: F.max_pool2d(x, 2),
            "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 5),
            "lp_pool2d": lambda x: F.lp_pool2d(x, 2, 2),
            "batch_norm": lambda x, o=one: F.batch_norm(x, None, None, o, o, training=True),
            "group_norm": lambda x, o=one: F.group_norm(x, 4, o, o),
            "instance_norm": lambda x: F.instance_norm(x),
            "layer_norm": lambda x: F.layer_norm(x, (20,)),
            "rms_norm": lambda x: F.rms_norm(x, (20,)),
            "local_response_norm": lambda x: F.local_response_norm(x, 3),
            "normalize": lambda x: F.normalize(x, dim=1),
            "softmax": lambda x: F.softmax(x, 3),
            "softmax 1": lambda x: F.softmax(x, 1),
            "log_softmax 2": lambda x: F.log_softmax(x, 2),
            "interpolate nearest": lambda x: F.interpolate(x, scale_factor=2),
            "interpolate bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
            "interpolate bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
            "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
            "pad reflect": lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect"),
            "pad replicate": lambda x: F.pad(x, (2, 2, 2, 2), mode="replicate"),
            "unfold": lambda x: F.unfold(x, 3),
            "grid_sample": lambda x: F.grid_sample(x, torch.zeros(6, 4, 4, 2, dtype=x.dtype, device=DEVICE), align_corners=False),
            "prelu": lambda x, o=one: F.prelu(x, o),
            "cdist": lambda x: torch.cdist(x[:, 0], x[:, 1]),
            "matmul": lambda x: x @ x,
            "einsum": lambda x: torch.einsum("abij,abkj->abik", x, x),
            "sdpa": lambda x: F.scaled_dot_product_attention(x, x, x),
        }.items():
            yield f"{name} {short}", lambda f=f, layer=layer: layer(f)
        y = values(dtype, (6, 8, 20, 20), 9)
        for name in "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div soft_margin_loss poisson_nll_loss".split():
            yield f"{name} {short}", lambda name=name, layer=layer, y=y: layer(lambda x: getattr(F, name)(x, y))
        target = torch.arange(6 * 400, device=DEVICE).reshape(6, 20, 20) % 8
        yield f"cross_entropy {short}", lambda layer=layer: layer(lambda x: F.cross_entropy(x, target))
        yield f"nll_loss {short}", lambda layer=layer: layer(lambda x: F.nll_loss(x, target))
        table = values(dtype, (50, 32), 10)
        ids = torch.arange(64, device=DEVICE) % 50
        yield f"embedding {short}", lambda t=table: F.embedding(ids, t)
        yield f"embedding_bag {short}", lambda t=table: F.embedding_bag(ids.reshape(8, 8), t, mode="sum")
        for fused in ("Adam", "AdamW", "SGD"):
            def optimize(fused=fused, t=table):
                p = torch.nn.Parameter(t.clone())
                p.grad = t.clone()
                o = getattr(torch.optim, fused)([p], lr=0.1, fused=True)
                o.step()
                return p.detach()
            yield f"{fused} {short}", optimize
        torch.manual_seed(3)
        for cell in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
            yield f"{cell.__name__} {short}", lambda cell=cell, t=table: cell(32, 16, device=DEVICE, dtype=t.dtype)(t[None])[0].detach()
        for draw in ("normal_", "uniform_", "exponential_", "bernoulli_", "cauchy_", "log_normal_", "geometric_", "random_"):
            def drawn(draw=draw, t=table):
                torch.manual_seed(5)
                return getattr(t.clone(), draw)(*([0.5] if draw == "geometric_" else []))
            yield f"{draw} {short}", drawn
    for dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128):
        short = str(dtype).removeprefix("torch.")
        x = values(dtype, (4, 24, 24), 11) + 24 * torch.eye(24, dtype=dtype, device=DEVICE)
        spd = x @ x.mH
        for name, f in {
            "fft": lambda x: torch.fft.fft(x), "fft2": lambda x: torch.fft.fft2(x), "ifft": lambda x: torch.fft.ifft(x),
            "fft 21": lambda x: torch.fft.fft(x[:, :, :21]), "fft 1024": lambda x: torch.fft.fft(x, n=1024),
            "cholesky": lambda x: torch.linalg.cholesky(x), "inv": torch.linalg.inv, "det": torch.linalg.det,
            "solve": lambda x: torch.linalg.solve(x, x), "qr": lambda x: torch.linalg.qr(x)[1],
            "triangular": lambda x: torch.linalg.solve_triangular(x.triu(), x, upper=True),
            "eigvalsh": torch.linalg.eigvalsh, "svdvals": torch.linalg.svdvals, "matrix_exp": torch.linalg.matrix_exp,
            "bmm": lambda x: torch.bmm(x, x), "mm": lambda x: x[0] @ x[1], "mv": lambda x: x[0] @ x[0, 0],
            "lu": lambda x: torch.linalg.lu_factor(x)[0],
        }.items():
            yield f"{name} {short}", lambda f=f, x=spd: f(x)


def digest(out):
    h = hashlib.sha256()
    for t in out if isinstance(out, (tuple, list)) else [out]:
        t = t.detach().contiguous().cpu()
        h.update(torch.view_as_real(t).numpy().tobytes() if t.is_complex() else t.reshape(-1).view(torch.uint8).numpy().tobytes())
    return h.digest()


def main():
    part, parts = map(int, (sys.argv[1:] or ["1/1"])[0].split("/"))
    total, done, left = hashlib.sha256(), 0, 0
    for n, (name, f) in enumerate(operations()):
        if n % parts != part - 1:
            continue
        try:
            total.update(digest(f()))
            done += 1
        except (RuntimeError, NotImplementedError, TypeError) as e:
            if "CUDA error" in str(e):
                raise
            left += 1  # not for this type of element, or not deterministic
            print(f"{name}: {e}".splitlines()[0], file=sys.stderr)
        if done % 100 == 0 and done:
            print(name, total.hexdigest()[:16], flush=True)
    print(f"{done} operations, {left} not for their type of element or not deterministic: {total.hexdigest()[:16]}")


if __name__ == "__main__":
    main()
