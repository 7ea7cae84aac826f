#!/usr/bin/env python3
"""Whether nvtrace answers what users of PyTorch ask. Needs a GPU and torch.

Usage: bench/pytorch.py [--nvtrace PATH] [--only NAME ...] [--out DIR]

alloc   PyTorch reports its own torch.OutOfMemoryError when the third cudaMalloc and those after it fail
exit    five trainings end under --gpu-times as they do alone, with the same losses
hang    --flight names the kernel that does not end, its stream, and the lines of Python that wait
oom     one command names the line of Python that allocated most when there was no more memory
ranges  ranges by torch.cuda.nvtx and by emit_nvtx come with their names, in the right order
"""
import argparse
import concurrent.futures
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))

HANG = """
import torch

def begin():
    torch.cuda._sleep(1 << 62)

def wait():
    torch.cuda.synchronize()

torch.ones(1, device="cuda").item()
begin()
wait()
"""

OOM = """
import torch
kept = []

def small():
    kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))

def greedy():
    kept.append(torch.empty(8 << 30, dtype=torch.uint8, device="cuda"))

small()
while True:
    greedy()
"""

ALLOC = """
import torch
kept = []
for i in range(10):
    kept.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
    print(i, flush=True)
"""

RANGES = """
import torch
a = torch.ones(64, 64, device="cuda")
with torch.cuda.nvtx.range("outer one"):
    b = a @ a
    with torch.cuda.nvtx.range("inner two"):
        c = b + a
    torch.cuda.nvtx.mark("a mark")
with torch.autograd.profiler.emit_nvtx(), torch.profiler.record_function("by record_function"):
    d = torch.nn.functional.relu(c)
torch.cuda.synchronize()
"""


def run(argv, limit=120):
    p = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=limit)
    return p.returncode, p.stdout, p.stderr


class Checks:
    def __init__(self, nvtrace, out):
        self.nvtrace, self.out = nvtrace, out

    def program(self, name, text):
        path = os.path.join(self.out, name + ".py")
        with open(path, "w") as f:
            f.write(text.lstrip())
        return path, [line.strip() for line in text.lstrip().split("\n")]

    def report(self, nvt):
        status, out, err = run([self.nvtrace, "report", nvt])
        return out if status == 0 else f"report: {err}"

    def alloc(self):
        path, _ = self.program("alloc", ALLOC)
        probe = os.path.join(HERE, "../examples/probes/fail.bpf.o")
        status, out, err = run([self.nvtrace, "-q", "--attach", probe, "--", "python3", path])
        lines = [line for line in err.splitlines() if "OutOfMemoryError" in line or "failed" in line]
        return status == 1 and out.split() == ["0", "1"] and "torch.OutOfMemoryError" in err, f"status {status}, printed {out.split()}\n    " + "\n    ".join(lines[:4])

    def exit(self):
        train = ["python3", os.path.join(HERE, "stacks", "train.py"), "15", "--attention", "flash"]
        want = run(train)[:2]

        def traced(i):
            return run([self.nvtrace, "-q", "--gpu-times=events", "-o", os.path.join(self.out, f"exit{i}.nvt"), "--", *train])

        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            got = list(pool.map(traced, range(5)))
        same = [g[:2] == want for g in got]
        return want[0] == 0 and all(same), f"alone {want[0]}, {len(want[1].splitlines())} lines; under nvtrace {[g[0] for g in got]}, same output {same}"

    def hang(self):
        path, lines = self.program("hang", HANG)
        nvt = os.path.join(self.out, "hang.nvt")
        if os.path.exists(nvt):
            os.remove(nvt)
        p = subprocess.Popen([self.nvtrace, "-q", "--gpu-times=events", "--flight", "5", "--hang", "3", "-o", nvt, "--", "python3", path],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        end = time.monotonic() + 60
        while not os.path.exists(nvt) and p.poll() is None and time.monotonic() < end:
            time.sleep(0.2)
        try:
            text = self.report(nvt) if os.path.exists(nvt) else "no file"
        finally:
            try:
                os.killpg(p.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        p.communicate()
        wait = 1 + lines.index("torch.cuda.synchronize()")
        first = [line for line in text.splitlines() if "GPU not over" in line or "thread waits" in line]
        named = any("spin" in line or "sleep" in line for line in first)
        return named and any(f"hang.py:{wait} wait" in line for line in first), "\n    ".join(first) or text[:300]

    def oom(self):
        path, lines = self.program("oom", OOM)
        nvt = os.path.join(self.out, "oom.nvt")
        status, _, err = run([self.nvtrace, "-q", "--stacks=alloc", "-o", nvt, "--", "python3", path])
        text = self.report(nvt)
        greedy = 1 + next(i for i, line in enumerate(lines) if "8 << 30" in line)
        at = text.find("GPU memory by line")
        rows = text[at:].splitlines()[:6] if at >= 0 else text.splitlines()[:4]
        return status == 1 and "OutOfMemory" in err and len(rows) > 2 and f"oom.py:{greedy} greedy" in rows[2], "\n    ".join(rows)

    def ranges(self):
        path, _ = self.program("ranges", RANGES)
        nvt = os.path.join(self.out, "ranges.nvt")
        status, _, err = run([self.nvtrace, "-q", "--api", "-o", nvt, "--", "python3", path])
        names = []
        p = subprocess.run([self.nvtrace, "log", "-e", "api=nvtx*", nvt], capture_output=True, text=True)
        for line in p.stdout.splitlines():
            if 'message="' in line:
                names.append(line.split('message="')[1].split('"')[0])
        want = ["outer one", "inner two", "a mark", "by record_function", "aten::relu"]
        found = [next((i for i, n in enumerate(names) if n.startswith(w)), -1) for w in want]
        return status == 0 and -1 not in found and found == sorted(found), f"status {status}, {len(names)} ranges and marks: {names[:8]} {err[-200:] if status else ''}"


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--nvtrace", default="bin/nvtrace")
    ap.add_argument("--only", action="append", choices=["alloc", "exit", "hang", "oom", "ranges"])
    ap.add_argument("--out", default="/tmp/pytorch")
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    checks, bad = Checks(os.path.abspath(args.nvtrace), args.out), 0
    for name in args.only or ["alloc", "exit", "ranges", "oom", "hang"]:
        begin = time.perf_counter()
        try:
            good, text = getattr(checks, name)()
        except subprocess.TimeoutExpired:
            good, text = False, "no end"
        bad += not good
        print(f"{name}: {'as it should' if good else 'WRONG'} ({time.perf_counter() - begin:.0f} s): {text}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
