#!/usr/bin/env python3
"""Which of the driver's calls come from a call of the CUDA runtime that is recorded, too.

Usage: bench/runtime_share.py [--nvtrace PATH] [--nvcc PATH] [--out DIR] [--recording FILE ...] [NAME=COMMAND ...]

Records calls of the driver and of the runtime, also where that is linked into a program or a
library, and prints for launches, allocations, copies and sets by how many a runtime call is around
them, by the library that this is in; then the driver's functions that were called without, as programs
may do that use the driver themselves. What nvtrace says of runtimes that it has found, and of
functions that it has not, comes before. Without commands: a default build by nvcc, stripped, and
bench/stacks/train.py. --recording reads what was recorded before (--api=driver,runtime).
"""
import argparse
import collections
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))

KINDS = {
    "launch": re.compile(r"cu(Launch|GraphLaunch)"),
    "allocation": re.compile(r"cu(Mem(Alloc|Host(Alloc|Register)|Create$|Free|Pool)|Array(3D)?Create|MipmappedArrayCreate)"),
    "copy": re.compile(r"cuMemcpy"),
    "set": re.compile(r"cuMemset"),
}


def record(nvtrace, path, command):
    p = subprocess.run([nvtrace, "-q", "--api=driver,runtime", "-o", path, "--", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    if p.returncode:
        sys.exit(f"{' '.join(command)}: status {p.returncode}\n{p.stdout[-1000:]}\n{p.stderr[-3000:]}")


def events(nvtrace, path):
    with subprocess.Popen([nvtrace, "export", "--format", "raw", path], stdout=subprocess.PIPE, text=True) as p:
        for line in p.stdout:
            if line.startswith(('{"k":"call"', '{"k":"return"', '{"k":"note"')):
                yield json.loads(line)
    if p.returncode:
        sys.exit(f"nvtrace export {path}: status {p.returncode}")


def library(path):
    return os.path.basename(path)


def show(name, nvtrace, path):
    open_calls, names = collections.defaultdict(list), {}
    count = {k: collections.Counter() for k in KINDS}
    alone = collections.Counter()
    runtime = collections.Counter()
    print(f"{name}:")
    for ev in events(nvtrace, path):
        thread = ev.get("p"), ev.get("h", ev.get("p"))
        if ev["k"] == "note":
            text = ev.get("text", "")
            if "CUDA runtime" in text or "of its functions" in text:
                print("  note:", text)
            continue
        stack = open_calls[thread]
        function, where = ev.get("name", ""), library(ev.get("path", ""))
        if ev["k"] == "return":
            # What was left by an exception or longjmp is above it.
            while stack and stack.pop()[:2] != (function, where):
                pass
            continue
        driver = where.startswith("libcuda.so")
        around = next((w for f, w, d in reversed(stack) if not d), None)
        if not driver:
            if around is None:
                runtime[where] += 1
        elif not any(d for _, _, d in stack):
            for kind, pattern in KINDS.items():
                if pattern.match(function):
                    count[kind][around or "(none)"] += 1
                    if around is None:
                        alone[function] += 1
        stack.append((function, where, driver))
    libraries = sorted({w for c in count.values() for w in c} | set(runtime), key=lambda w: (w == "(none)", w))
    print(f"  {'runtime call in':34}" + "".join(f"{k:>12}" for k in KINDS) + f"{'its calls':>12}")
    for w in libraries:
        print(f"  {w[:34]:34}" + "".join(f"{count[k][w]:12}" for k in KINDS) + f"{runtime[w]:12}")
    shares = []
    for k in KINDS:
        n = sum(count[k].values())
        if n:
            shares.append(f"{k} {100 * (n - count[k]['(none)']) / n:.2f} % of {n}")
    print("  with a runtime call around them: " + (", ".join(shares) or "there are no such calls"))
    for function, n in alone.most_common(8):
        print(f"    without: {n:8} {function}")
    return bool(runtime) and bool(shares)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--nvtrace", default="bin/nvtrace")
    ap.add_argument("--nvcc", default=os.environ.get("NVTRACE_NVCC") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    ap.add_argument("--out")
    ap.add_argument("--recording", action="append", default=[])
    ap.add_argument("programs", nargs="*")
    args = ap.parse_args()
    good = True
    for path in args.recording:
        good &= show(path, args.nvtrace, path)
    with tempfile.TemporaryDirectory() as tmp:
        out = args.out or tmp
        programs = [(n, shlex.split(c)) for n, _, c in (p.partition("=") for p in args.programs)]
        if not programs and not args.recording:
            app = os.path.join(tmp, "launches")
            subprocess.run([args.nvcc, "-O2", "-o", app, os.path.join(HERE, "launch_latency.cu")], check=True)
            subprocess.run(["strip", app], check=True)
            programs = [("stripped", [app, "100", "100"]), ("train", [sys.executable, os.path.join(HERE, "stacks/train.py"), "3"])]
        for name, command in programs:
            path = os.path.join(out, name + ".nvt")
            record(args.nvtrace, path, command)
            good &= show(name, args.nvtrace, path)
    return 0 if good else 1


sys.exit(main())
