#!/usr/bin/env python3
"""Times a Triton-made kernel and its twin plain_NAME, which probes leave alone.

Triton loads machine code, where probes can't be put; the PTX that it made the
kernel from is loaded here by the driver, as frameworks do that keep PTX. Prints
the same line of JSON as bench/attach.cu. usage: attach_triton.py [rounds [launches]]
"""
import ctypes
import json
import re
import sys

import torch
import triton
import triton.language as tl


@triton.jit
def scale_add(x, y, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2 + tl.load(y + i, mask=i < n), mask=i < n)


def main():
    rounds, launches = (int(sys.argv[i]) if len(sys.argv) > i else d for i, d in ((1, 5), (2, 20)))
    n, block = 1 << 24, 1024
    x = torch.arange(n, dtype=torch.float32, device="cuda") % 1000
    y = torch.ones(n, dtype=torch.float32, device="cuda")
    outs = [torch.zeros(n, dtype=torch.float32, device="cuda") for _ in range(2)]
    grid = n // block
    made = scale_add[(grid,)](x, y, outs[0], n, B=block)
    text, name = made.asm["ptx"], made.metadata.name
    entry = re.search(r"\.entry\s+" + re.escape(name) + r"\s*\(([^)]*)\)", text)
    extra = len(re.findall(r"\.param", entry[1])) - 4  # scratch memory, which this kernel has none of
    threads = made.metadata.num_warps * 32
    cuda = ctypes.CDLL("libcuda.so.1")

    def check(code):
        if code:
            sys.exit(f"the driver: CUresult {code}")

    functions, registers, local = [], [], []
    for prefix in ("plain_", ""):
        code = re.sub(r"\b" + re.escape(name) + r"\b", prefix + name, text).encode() + b"\0"
        module, function, v = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        check(cuda.cuModuleLoadData(ctypes.byref(module), code))
        check(cuda.cuModuleGetFunction(ctypes.byref(function), module, (prefix + name).encode()))
        functions.append(function)
        for attribute, values in ((4, registers), (3, local)):  # CU_FUNC_ATTRIBUTE_NUM_REGS, _LOCAL_SIZE_BYTES
            check(cuda.cuFuncGetAttribute(ctypes.byref(v), attribute, function))
            values.append(v.value)

    def launch(which):
        values = [ctypes.c_void_p(t.data_ptr()) for t in (x, y, outs[which])] + [ctypes.c_int(n)] + [ctypes.c_void_p(0)] * extra
        params = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        check(cuda.cuLaunchKernel(functions[which], grid, 1, 1, threads, 1, 1, made.metadata.shared, None, params, None))

    best = [float("inf")] * 2
    for out in outs:
        out.zero_()
    for r in range(rounds + 1):
        for which in range(2):
            a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            a.record()
            for _ in range(launches):
                launch(which)
            b.record()
            b.synchronize()
            if r > 0:
                best[which] = min(best[which], a.elapsed_time(b) * 1e3 / launches)
    good = all(torch.equal(out, x * 2 + y) for out in outs)
    print(json.dumps({"work": "triton 16M", "threads": grid * threads, "launches": (rounds + 1) * launches, "plain_us": best[0],
                      "probed_us": best[1], "ratio": best[1] / best[0], "registers": registers, "local": local, "ok": good}))
    return 0 if good else 1


sys.exit(main())
