#!/usr/bin/env python3
"""Probes in NCCL's kernels, on a machine with two GPUs.

Usage: bench/nccl.py [--nvtrace PATH] [--limit SECONDS] [--probe KIND ...] [ELEMENTS ...]

bench/stacks/nccl.py alone and with probes of each kind, all at once: what it prints and its status must be the same, and as many
threads must enter and leave NCCL's kernels as their launches' grids have.
Exit status 1 if something differs.
"""
import argparse
import concurrent.futures
import os
import re
import sys

from machine_code import KINDS
from stacks import HERE, run

# Without a key, since a search in a hash branches, which kernels that call functions leave no room for.
THREADS = (
    "launch:ncclDevKernel* { @launched = sum(nctaid.x * nctaid.y * nctaid.z * ntid.x * ntid.y * ntid.z); } "
    "kernel:ncclDevKernel* { @entered = count(); } kernret:ncclDevKernel* { @left = count(); }"
)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--nvtrace", default="bin/nvtrace")
    ap.add_argument("--limit", type=float, default=60, help="seconds for each run")
    ap.add_argument("--probe", action="append", help="threads or of " + ", ".join(KINDS))
    ap.add_argument("elements", nargs="*", help="how many each collective has")
    args = ap.parse_args()
    command = ["python3", os.path.join(HERE, "stacks", "nccl.py"), *args.elements]
    kinds = {"threads": ["-e", THREADS], **KINDS}
    kinds = {"alone": [], **{k: v for k, v in kinds.items() if not args.probe or k in args.probe}}
    with concurrent.futures.ThreadPoolExecutor(len(kinds)) as pool:
        done = pool.map(lambda f: run([args.nvtrace, *f, "--", *command] if f else command, args.limit), kinds.values())
        got = dict(zip(kinds, done))
    status, want, err, took = got.pop("alone")
    print(f"alone: status {status}, {len(want.splitlines())} lines, {took:.1f} s", flush=True)
    if status != 0 or b"WRONG" in want:
        print(want.decode(), err[-2000:])
        return 1
    bad = 0
    for name, (s, out, err, took) in got.items():
        same = (s, out[: len(want)]) == (status, want)
        bad += not same
        print(f"{name}: {'same' if same else 'DIFFERS'}, status {s}, {took:.1f} s", flush=True)
        if not same:
            print(out[-1500:].decode(errors="replace"), err[-1500:])
        for line in err.splitlines():
            if re.match(r"NOT probed .*nccl|probed \d+ of", line):
                print("    ", line[:240])
        if name != "threads":
            continue
        counts = re.findall(r"^@(\w+): (\d+)$", out.decode(errors="replace") + err, re.M)
        good = len(counts) == 3 and len({n for _, n in counts}) == 1
        bad += not good
        print(f"     {'good' if good else 'BAD'}: threads {counts}")
    print("verdict:", "BAD" if bad else "good")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
