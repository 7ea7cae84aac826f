#!/usr/bin/env python3
"""What recording and probes cost the steps of a training. Needs a GPU and torch.

Usage: bench/steps.py MODEL [--nvtrace PATH ...] [--ways NAME,...] [--seconds N] [--rounds N]

MODEL is resnet (ResNet-50, 16 images of 160 by 160) or gpt (12 layers of 768, 4 times 512 tokens). Runs are in turns: alone,
alone once more, and in each of the other ways (api, count, entry, block, kind, profiler) under each nvtrace. A line for each: shortest and median step as a multiple of the
time alone, with the range over the rounds. Losses and what probes count have to be the same in all runs.
"""
import argparse
import concurrent.futures
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

PROBES = {
    "entry": "kernel:* { @[kernel] = count(); }",
    "block": "block:* { @ = count(); }",
    "kind": "mem:* { @[kind] = count(); }",
}
WAYS = {
    "api": ["--api", "-o", "FILE"],
    "count": ["--api=count", "-o", "FILE"],
    **{name: ["-e", program] for name, program in PROBES.items()},
}
PROFILER = "profiler"
STEPS, FIRST = 40, 8


def resnet():
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inner, outer, stride, into):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(into, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(True),
                nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(True),
                nn.Conv2d(inner, outer, 1, bias=False), nn.BatchNorm2d(outer))
            self.short = nn.Sequential()
            if stride != 1 or into != outer:
                self.short = nn.Sequential(nn.Conv2d(into, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

        def forward(self, x):
            return torch.relu(self.body(x) + self.short(x))

    layers, into = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)], 64
    for i, n in enumerate((3, 4, 6, 3)):
        for k in range(n):
            layers.append(Block(64 << i, 256 << i, 2 if i > 0 and k == 0 else 1, into))
            into = 256 << i
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, 1000))
    return model, torch.randn(16, 3, 160, 160), torch.randint(0, 1000, (16,)), lambda out, y: nn.functional.cross_entropy(out, y)


def gpt():
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(50304, 768), nn.Parameter(torch.zeros(512, 768))
            layer = nn.TransformerEncoderLayer(768, 12, 3072, 0, "gelu", batch_first=True, norm_first=True)
            self.body, self.head = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False), nn.Linear(768, 50304, bias=False)
            self.mask = nn.Transformer.generate_square_subsequent_mask(512).cuda()

        def forward(self, x):
            return self.head(self.body(self.words(x) + self.places, mask=self.mask, is_causal=True))

    x = torch.randint(0, 50304, (4, 512))
    return Model(), x, x.roll(-1, 1), lambda out, y: nn.functional.cross_entropy(out.view(-1, 50304), y.view(-1))


def train(name, profiled):
    import contextlib
    import torch
    from torch import profiler
    torch.manual_seed(1)
    model, x, y, loss_of = {"resnet": resnet, "gpt": gpt}[name]()
    model, x, y = model.cuda(), x.cuda(), y.cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.001, 0.9)
    times = []
    kinds = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
    with profiler.profile(activities=kinds) if profiled else contextlib.nullcontext():
        for _ in range(STEPS):
            start = time.perf_counter()
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_of(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
    print(json.dumps({"times": times[FIRST:], "loss": loss.item()}))


def run(model, nvtrace, probe, cache):
    command = [sys.executable, os.path.abspath(__file__), model, "--train"]
    if probe == PROFILER:
        command.append("--profiler")
    elif nvtrace:
        file = os.path.join(cache, f"{threading.get_ident()}.nvt")
        command = [nvtrace, "-q", *(file if word == "FILE" else word for word in WAYS[probe]), "--", *command]
    p = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200,
                       env=dict(os.environ, XDG_CACHE_HOME=cache))
    lines = p.stdout.splitlines()
    found = [line for line in lines if line.startswith('{"times"')]
    if p.returncode or not found:
        print(f"{nvtrace} {probe}: status {p.returncode}\n{p.stdout[-2000:]}{p.stderr[-3000:]}", flush=True)
        return None, None
    shown = [line for line in lines + p.stderr.splitlines() if line.lstrip().startswith("@")]
    return json.loads(found[0]), sorted(shown)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("model", choices=["resnet", "gpt"])
    a.add_argument("--train", action="store_true")
    a.add_argument("--profiler", action="store_true")
    a.add_argument("--ways", default=",".join(PROBES))
    a.add_argument("--nvtrace", action="append", default=[])
    a.add_argument("--seconds", type=float, default=1e9)
    a.add_argument("--rounds", type=int, default=8)
    a = a.parse_args()
    if a.train:
        return train(a.model, a.profiler)
    end = time.time() + a.seconds
    ways = [("alone", None, None), ("alone2", None, None)]
    names = a.ways.split(",")
    ways += [(f"{probe} {os.path.basename(n)}", n, probe) for probe in names if probe != PROFILER for n in a.nvtrace]
    ways += [(PROFILER, None, PROFILER)] * (PROFILER in names)
    with tempfile.TemporaryDirectory() as cache:
        start = time.time()
        with concurrent.futures.ThreadPoolExecutor(len(ways)) as pool:  # what is compiled is kept
            list(pool.map(lambda w: run(a.model, w[1], w[2], cache), ways[1:]))
        print(f"compiled in {time.time() - start:.1f} s", flush=True)
        got = {w[0]: [] for w in ways}
        losses, counts, took = {}, {}, 0
        for n in range(a.rounds):
            start = time.time()
            if start + took > end:
                break
            for name, nvtrace, probe in ways[n % 2:] + ways[:n % 2]:
                result, shown = run(a.model, nvtrace, probe, cache)
                if result:
                    got[name].append(result["times"])
                    losses.setdefault(result["loss"], []).append(name)
                    if probe in PROBES:
                        counts.setdefault(probe, {}).setdefault("\n".join(shown), []).append(name)
            took = time.time() - start
        print(f"{min(map(len, got.values()))} rounds of {took:.0f} s; alone: "
              f"{1e3 * min(map(min, got['alone'])):.2f} ms, median {1e3 * statistics.median(sum(got['alone'], [])):.2f} ms")
        for name, rounds in got.items():
            pairs = [(min(r) / min(b), statistics.median(r) / statistics.median(b)) for r, b in zip(rounds, got["alone"])]
            text = []
            for what, i in (("shortest", 0), ("median", 1)):
                list_ = sorted(p[i] for p in pairs)
                text.append(f"{what} {statistics.median(list_):.3f}x ({list_[0]:.3f} to {list_[-1]:.3f})")
            print(f"{name:24} " + ", ".join(text))
        print("losses:", {k: sorted(set(v)) for k, v in losses.items()})
        for probe, different in counts.items():
            print(f"{probe}: {len(different)} different results")
            for text, names in list(different.items())[:4]:
                print("  ", sorted(set(names)), len(text.splitlines()), "lines,", " | ".join(text.splitlines()[-6:])[:600])


if __name__ == "__main__":
    main()
