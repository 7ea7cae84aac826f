#!/usr/bin/env python3
"""Whole programs on a GPU, untraced and under nvtrace, interleaved.

Usage: bench/gpu.py [--rounds N] [--nvtrace PATH] [--json FILE] [--only NAME ...] [NAME=COMMAND ...]

Every run's standard output and exit status are compared with the untraced
program's. Each round has an order of its own, as a run can feel the one before it.
Printed are medians, the median of the ratios round by round, which holds when the
machine's speed drifts, and the ratio of the medians. strace is measured beside it where
it is installed: also with nothing to trace, which is what it costs to be traced at all.
"""
import argparse
import json
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

DEFAULT = [
    "vectoradd=bin/vectoradd",
    "matmul=python3 examples/cuda/matmul.py",
    "rminfo=bin/rminfo",
]


def contenders(nvtrace):
    tmp = tempfile.mkdtemp()
    c = {
        "untraced": [],
        "nvtrace --": [nvtrace, "--"],
        "nvtrace --counts --": [nvtrace, "--counts", "--"],
        "nvtrace --ioctl-log": [nvtrace, f"--ioctl-log={tmp}/log", "--"],
        "nvtrace -o": [nvtrace, "-q", "-o", f"{tmp}/run.nvt", "--"],
    }
    if shutil.which("strace"):
        c["strace --seccomp-bpf"] = ["strace", "-f", "--seccomp-bpf", "-e", "trace=ioctl", "-o", f"{tmp}/strace"]
        c["strace, of nothing"] = ["strace", "-f", "--seccomp-bpf", "-e", "trace=quotactl", "-o", f"{tmp}/strace"]
    return c


def run(prefix, command):
    start = time.perf_counter()
    p = subprocess.run(prefix + command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return time.perf_counter() - start, p.stdout, p.returncode, p.stderr


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=10)
    ap.add_argument("--nvtrace", default="bin/nvtrace")
    ap.add_argument("--json")
    ap.add_argument("--only", action="append", metavar="NAME", help="a contender to run beside the untraced program, and no other: more rounds in the same time; may be repeated")
    ap.add_argument("programs", nargs="*", default=DEFAULT)
    args = ap.parse_args()
    results, bad = {}, 0
    for program in args.programs:
        name, _, line = program.partition("=")
        command = shlex.split(line)
        want = run([], command)[1:3]  # warms the page cache and the driver, too
        order = [(c, prefix) for c, prefix in contenders(args.nvtrace).items() if not args.only or c in ["untraced", *args.only]]
        times = {c: [] for c, _ in order}
        for _ in range(args.rounds):
            for c, prefix in random.sample(order, len(order)):
                t, out, status, err = run(prefix, command)
                if (out, status) != want:
                    bad += 1
                    print(f"{name} under {c}: output or status differs ({status})\n{err.decode()[-2000:]}", file=sys.stderr)
                times[c].append(t)
        base = times["untraced"]
        print(f"{name}: {line}")
        for c, ts in times.items():
            ratio = statistics.median(a / b for a, b in zip(ts, base))
            print(f"  {c:24} {statistics.median(ts) * 1e3:9.1f} ms  min {min(ts) * 1e3:9.1f}  {ratio:6.3f}x  {statistics.median(ts) / statistics.median(base):6.3f}x")
        results[name] = times
    if args.json:
        with open(args.json, "w") as f:
            json.dump(results, f)
    return 1 if bad else 0


sys.exit(main())
