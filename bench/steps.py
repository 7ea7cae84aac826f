#!/usr/bin/env python3
"""What recording and probes cost the steps of programs of several kinds. Needs a GPU and torch, or CuPy.

Usage: bench/steps.py MODEL [--nvtrace PATH ...] [--ways NAME,...] [--seconds N] [--rounds N]

MODEL is a training: resnet (ResNet-50, 16 images of 160 by 160) or gpt (12 layers of 768, 4 times 512 tokens); an inference
loop: infer (that transformer, of one time 64 tokens, 5 times a step) or infer-graph (the same in a CUDA graph); or cupy, a
loop of short kernels of CuPy. Runs are in turns: alone, alone once more, and in each of the other ways (api, count, entry,
block, kind, profiler) under each nvtrace. A line for each: shortest and median step as a multiple of the time alone, with
the range over the rounds. Results and what probes count have to be the same in all runs.

The way attach is another one: nvtrace -p attaches a counter to the running program and detaches from it, twice. Its line
says how long the longest step was before, in the second of attaching and in that of detaching.
"""
import argparse
import concurrent.futures
import json
import os
import signal
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


def training(build):
    """A step of a training, which returns the loss."""
    import torch
    torch.manual_seed(1)
    model, x, y, loss_of = build()
    model, x, y = model.cuda(), x.cuda(), y.cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.001, 0.9)

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        return loss.detach()
    return step


def inference(graph):
    """A step of an inference loop, which returns a sum of what the model says."""
    import torch
    torch.manual_seed(1)
    model, x, _, _ = gpt()
    model, x = model.cuda().bfloat16().eval(), x[:1, :64].cuda()
    model.places = torch.nn.Parameter(model.places[:64])
    model.mask = model.mask[:64, :64].bfloat16()

    @torch.no_grad()
    def forward():
        return model(x).float().sum().detach()

    if graph:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                forward()
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            out = forward()

    def step():
        for _ in range(5):
            if graph:
                captured.replay()
                got = out
            else:
                got = forward()
        torch.cuda.synchronize()
        return got
    return step


def short():
    """A step of 1,000 short kernels of CuPy, which returns a sum."""
    import cupy
    x, y = cupy.arange(65536, dtype=cupy.float32), cupy.ones(65536, dtype=cupy.float32)

    def step():
        z = x
        for _ in range(250):
            z = cupy.sqrt(z * y + x) + y
        total = z.sum()
        cupy.cuda.Device().synchronize()
        return total
    return step


MODELS = {
    "resnet": lambda: training(resnet), "gpt": lambda: training(gpt),
    "infer": lambda: inference(False), "infer-graph": lambda: inference(True), "cupy": short,
}


def train(name, profiled, lasting):
    import contextlib
    step = MODELS[name]()
    times, at, begin = [], [], time.perf_counter()
    context = contextlib.nullcontext()
    if profiled:
        from torch import profiler
        context = profiler.profile(activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA])
    with context:
        while len(times) < STEPS or time.perf_counter() < begin + lasting:
            start = time.perf_counter()
            got = step()
            times.append(time.perf_counter() - start)
            at.append(start)
            if lasting and len(times) == FIRST:
                print("ready", flush=True)
    print(json.dumps({"times": times[FIRST:], "loss": float(got), "at": at[FIRST:] if lasting else []}))


def attach(model, nvtrace, cache):
    """Attaches to a program that runs, twice, and says how long its steps were."""
    command = [sys.executable, os.path.abspath(__file__), model, "--train", "--lasting", "17"]
    app = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=dict(os.environ, XDG_CACHE_HOME=cache))
    while app.stdout.readline() not in ("ready\n", ""):
        pass
    time.sleep(2)
    begins, ends, said = [], [], []
    for _ in range(2):
        begins.append(time.perf_counter())
        with tempfile.TemporaryFile("w+", errors="replace") as out:
            p = subprocess.Popen([nvtrace, "-v", *WAYS["entry"], "-p", str(app.pid)], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                 env=dict(os.environ, XDG_CACHE_HOME=cache, NVTRACE_DEBUG="1"))
            time.sleep(5)
            ends.append(time.perf_counter())
            p.send_signal(signal.SIGINT)
            p.wait(30)
            ends.append(time.perf_counter())
            out.seek(0)
            said.append(out.read())
        time.sleep(0.5)
    rest = app.communicate(timeout=60)[0]
    got = json.loads(next(line for line in rest.splitlines() if line.startswith('{"times"')))
    steps = list(zip(got["at"], got["times"]))

    def longest(begin, end):
        return 1e3 * max((took for at, took in steps if at + took > begin and at < end), default=float("nan"))
    for i in range(2):
        probed = [line for line in said[i].splitlines() if line.startswith("probed ") and "launched kernels" in line]
        print(f"attach {os.path.basename(nvtrace)}, time {i + 1}: longest step before {longest(0, begins[i] if i == 0 else begins[0]):.2f} ms, "
              f"attaching {longest(begins[i], ends[2 * i]):.2f} ms, detaching {longest(ends[2 * i], ends[2 * i + 1] + 0.2):.2f} ms; "
              f"{ends[2 * i + 1] - ends[2 * i]:.2f} s to detach; {probed or said[i].splitlines()[-3:]}", flush=True)
    return said


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
    a.add_argument("model", choices=MODELS)
    a.add_argument("--train", action="store_true")
    a.add_argument("--profiler", action="store_true")
    a.add_argument("--lasting", type=float, default=0, help=argparse.SUPPRESS)
    a.add_argument("--out", help="folder for what nvtrace -p says")
    a.add_argument("--ways", default=",".join(PROBES))
    a.add_argument("--nvtrace", action="append", default=[])
    a.add_argument("--seconds", type=float, default=1e9)
    a.add_argument("--rounds", type=int, default=8)
    a = a.parse_args()
    if a.train:
        return train(a.model, a.profiler, a.lasting)
    end = time.time() + a.seconds
    ways = [("alone", None, None), ("alone2", None, None)]
    names = a.ways.split(",")
    if "attach" in names:
        names.remove("attach")
        for nvtrace in a.nvtrace:
            with tempfile.TemporaryDirectory() as cache:
                for i, text in enumerate(attach(a.model, nvtrace, cache)):
                    if a.out:
                        with open(os.path.join(a.out, f"attach-{a.model}-{os.path.basename(nvtrace)}-{i}.txt"), "w") as f:
                            f.write(text)
        if not names:
            return None
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
        print("results:", {k: sorted(set(v)) for k, v in losses.items()})
        for probe, different in counts.items():
            print(f"{probe}: {len(different)} different results")
            for text, names in list(different.items())[:4]:
                print("  ", sorted(set(names)), len(text.splitlines()), "lines,", " | ".join(text.splitlines()[-6:])[:600])


if __name__ == "__main__":
    main()
