"""Times kernels of PyTorch's libraries when asked, for machine_costs.py: timed_kernels.py ANSWERS

For each line of standard input, a number of launches, each kernel is launched so often and the
mean time of one, in µs by CUDA events, is written to the file ANSWERS, a JSON object a line,
with sums of what the kernels computed."""
import json
import sys

import torch

torch.manual_seed(0)
a, b, c = (torch.randn(1 << 24, device="cuda") for _ in range(3))
m, n = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
q, k, v = (torch.randn(4, 16, 2048, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
x, y = (torch.randn(1024, 1024, device="cuda") for _ in range(2))
torch.backends.cuda.matmul.allow_tf32 = False


def attention():
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


WORKS = {
    "vectorAdd 16M": lambda: torch.add(a, b, out=c),
    "matmul 4096 bf16": lambda: m @ n,
    "matmul 1024 f32": lambda: x @ y,
    "attention": attention,
    "softmax": lambda: torch.softmax(m, -1),
}

with open(sys.argv[1], "w") as answers:
    for line in sys.stdin:
        got, sums = {}, []
        for name, work in WORKS.items():
            sums.append(int(work().view(torch.int16).sum(dtype=torch.int64)))
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(int(line)):
                work()
            end.record()
            end.synchronize()
            got[name] = 1e3 * begin.elapsed_time(end) / int(line)
        print(json.dumps({"us": got, "sums": sums}), file=answers, flush=True)
