"""Trains a small GPT-2 and prints its losses: train.py [STEPS] [--profile FILE] [--times] [--attention KIND] [--graph]

With --stamps FILE each step's beginning and duration are written there, in seconds of
CLOCK_MONOTONIC, and with --until FILE it ends when that exists, if not before. With --serve it
does steps when asked, for times.py. With --graph a step is the replay of a CUDA graph of the
forward pass, and its time is that of the GPU, by CUDA events."""
import argparse
import json
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to be deterministic
asked = os.fdopen(os.dup(0))  # what packages start while they are imported may read standard input
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

import torch
from transformers import GPT2Config, GPT2LMHeadModel

ap = argparse.ArgumentParser()
ap.add_argument("steps", nargs="?", type=int, default=20)
ap.add_argument("--profile", metavar="FILE")
ap.add_argument("--operators", action="store_true", help="have the profiler record what PyTorch does on the CPU, too")
ap.add_argument("--times", action="store_true", help="print the median time of a step on stderr")
ap.add_argument("--attention", default="any", choices=["any", "cudnn", "flash", "eager"], help="whose kernels; the backward ones of cuDNN are not deterministic")
ap.add_argument("--stamps", metavar="FILE")
ap.add_argument("--until", metavar="FILE")
ap.add_argument("--serve", action="store_true", help="do as many steps as each line of standard input says, and answer with the median time of one in ms")
ap.add_argument("--graph", action="store_true")
args = ap.parse_args()

prof = None
if args.profile:
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.init()
    prof = profile(activities=[ProfilerActivity.CUDA] + [ProfilerActivity.CPU] * args.operators)
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
stamps = open(args.stamps, "w") if args.stamps else None

if args.graph:
    model.eval()
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):  # what is made once: libraries' handles, work space
            model(input_ids=tokens, labels=tokens)
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = model(input_ids=tokens, labels=tokens).loss


def replay(steps):
    for _ in range(steps):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    print(f"loss {captured.item():.6f}", file=sys.stderr)


def train(steps):
    for step in range(steps):
        begin = time.monotonic()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        times.append(time.monotonic() - begin)
        if not args.serve:
            print(f"step {step} loss {value:.6f}", flush=bool(args.until))
        if stamps:
            print(begin, times[-1], file=stamps, flush=True)
        if args.until and os.path.exists(args.until):
            break


if args.serve:
    for line in asked:
        times.clear()
        (replay if args.graph else train)(int(line))
        print(f"{1e3 * sorted(times)[len(times) // 2]:.4f}", flush=True)
else:
    (replay if args.graph else train)(args.steps)
torch.cuda.synchronize()
if args.times:
    times = sorted(times[len(times) // 4 :])
    print(f"step_ms {1e3 * times[len(times) // 2]:.3f}", file=sys.stderr)
if prof:
    prof.__exit__(None, None, None)
    prof.export_chrome_trace(args.profile)
    kernels = {}  # launches, threads, and the time of each in µs
    with open(args.profile) as f:
        for e in json.load(f)["traceEvents"]:
            if e.get("cat") == "kernel":
                k = kernels.setdefault(e["name"], [0, 0, []])
                n = 1
                for size in e["args"]["grid"] + e["args"]["block"]:
                    n *= size
                k[0] += 1
                k[1] += n
                k[2].append(e["dur"])
    with open(args.profile, "w") as f:
        json.dump(kernels, f, indent=1, sort_keys=True)
