"""Trains a small GPT-2 and prints its losses: train.py [STEPS] [--profile FILE] [--times] [--attention KIND]"""
import argparse
import json
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to be deterministic

import torch
from transformers import GPT2Config, GPT2LMHeadModel

ap = argparse.ArgumentParser()
ap.add_argument("steps", nargs="?", type=int, default=20)
ap.add_argument("--profile", metavar="FILE")
ap.add_argument("--times", action="store_true", help="print the median time of a step on stderr")
ap.add_argument("--attention", default="any", choices=["any", "cudnn", "flash", "eager"], help="whose kernels; the backward ones of cuDNN are not deterministic")
args = ap.parse_args()

prof = None
if args.profile:
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.init()
    prof = profile(activities=[ProfilerActivity.CUDA])
    prof.__enter__()

if args.attention in ("cudnn", "flash"):
    torch.backends.cuda.enable_math_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(args.attention == "cudnn")
    torch.backends.cuda.enable_flash_sdp(args.attention == "flash")
torch.use_deterministic_algorithms(True, warn_only=args.attention in ("any", "cudnn"))
torch.manual_seed(0)
config = GPT2Config(n_layer=4, n_head=8, n_embd=512, vocab_size=8192, n_positions=512, attn_implementation="eager" if args.attention == "eager" else "sdpa")
model = GPT2LMHeadModel(config).cuda().bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
tokens = torch.randint(0, 8192, (8, 512), device="cuda")
times = []
for step in range(args.steps):
    begin = time.perf_counter()
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    value = loss.item()
    times.append(time.perf_counter() - begin)
    print(f"step {step} loss {value:.6f}")
torch.cuda.synchronize()
if args.times:
    times = sorted(times[len(times) // 4 :])
    print(f"step_ms {1e3 * times[len(times) // 2]:.3f}", file=sys.stderr)
if prof:
    prof.__exit__(None, None, None)
    prof.export_chrome_trace(args.profile)
    kernels = {}
    with open(args.profile) as f:
        for e in json.load(f)["traceEvents"]:
            if e.get("cat") == "kernel":
                k = kernels.setdefault(e["name"], [0, 0])
                n = 1
                for size in e["args"]["grid"] + e["args"]["block"]:
                    n *= size
                k[0] += 1
                k[1] += n
    with open(args.profile, "w") as f:
        json.dump(kernels, f, indent=1, sort_keys=True)
