#!/usr/bin/env python3
"""Checks recordings against an independent count, on a machine with a GPU.

Usage: bench/gpucheck.py [--nvtrace PATH] [--iolog PATH] [--out DIR] NAME=COMMAND ...

Each program runs untraced, then under `nvtrace -o` with iolog.so preloaded
(ioctl/record/testdata/iolog.c: a logger of the ioctls that libc makes on
/dev/nvidia*). Compared are the program's output and exit status, and for each
thread the order of its device ioctls and their results. The recordings stay in
DIR.
"""
import argparse
import collections
import json
import os
import shlex
import subprocess
import sys


def threads(log):
    """pid,tid -> [(request, result)] of iolog's lines."""
    seen = collections.defaultdict(list)
    for line in log.splitlines():
        pid, tid, request, ret = line.split()
        seen[int(pid), int(tid)].append((int(request, 16), int(ret)))
    return seen


def recorded(nvtrace, path):
    raw = subprocess.run([nvtrace, "export", "--format", "raw", path], capture_output=True, check=True).stdout
    seen = collections.defaultdict(list)
    for line in raw.splitlines():
        ev = json.loads(line)
        if ev.get("k") == "ioctl":
            seen[ev["p"], ev.get("h", ev["p"])].append((int(ev["a"][1], 16) & 0xFFFFFFFF, ev.get("r", 0)))
    return seen


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--nvtrace", default="bin/nvtrace")
    ap.add_argument("--iolog", default="bin/iolog.so")
    ap.add_argument("--out", default=".")
    ap.add_argument("programs", nargs="+")
    args = ap.parse_args()
    bad = 0
    for program in args.programs:
        name, _, line = program.partition("=")
        command = shlex.split(line)
        plain = subprocess.run(command, capture_output=True)
        log, rec = f"{args.out}/{name}.iolog", f"{args.out}/{name}.nvt"
        if os.path.exists(log):
            os.remove(log)
        env = dict(os.environ, IOLOG=os.path.abspath(log))
        traced = subprocess.run([args.nvtrace, "-q", "-o", rec, "--", "env", f"LD_PRELOAD={os.path.abspath(args.iolog)}"] + command,
                                capture_output=True, env=env)
        same = (plain.stdout, plain.returncode) == (traced.stdout, traced.returncode)
        want = threads(open(log).read()) if os.path.exists(log) else {}
        got = recorded(args.nvtrace, rec)
        diffs = [k for k in sorted(set(want) | set(got)) if want.get(k) != got.get(k)]
        n = sum(map(len, got.values()))
        print(f"{name}: {n} device ioctls in {len(got)} threads, independent count {sum(map(len, want.values()))}, "
              f"threads that differ {len(diffs)}, output and status {'same' if same else 'DIFFER'} ({traced.returncode})")
        for k in diffs[:5]:
            w, g = want.get(k, []), got.get(k, [])
            at = next((i for i, (a, b) in enumerate(zip(w, g)) if a != b), min(len(w), len(g)))
            print(f"  thread {k}: {len(w)} logged, {len(g)} recorded, first difference at {at}: {w[at:at+2]} {g[at:at+2]}")
        if not same:
            print("  untraced:", plain.stdout[-500:], plain.returncode, "\n  traced:", traced.stdout[-500:], traced.stderr[-500:])
        bad += bool(diffs) or not same
    return 1 if bad else 0


sys.exit(main())
