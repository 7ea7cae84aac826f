#!/usr/bin/env python3
"""Threads of a warp that are together stay together with probes in machine code.

Usage: bench/converged.py [--nvtrace PATH] [--nvcc PATH | --program PATH]

Builds converged.cu, whose kernels write which threads of the warp are active after each
step, and compares what it prints alone and with probes of several kinds. Exit status 1 if
something differs.
"""
import argparse
import os
import subprocess
import sys
import tempfile

from machine_code import KINDS as ALL
from stacks import HERE

KINDS = {name: ALL[name] for name in ("count", "blocks", "memory", "accesses")} | {
    "by size": ["-e", "mem:* { @[size] = count(); }"],
    "one lane": ["-e", "mem:* /laneid == 3/ { @ = count(); }"],
    "maximum": ["-e", "mem:* { @ = max(addr); }"],
}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--nvtrace", default="bin/nvtrace")
    ap.add_argument("--nvcc", default="nvcc")
    ap.add_argument("--program", help="converged.cu, built")
    args = ap.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = args.program
        if not program:
            program = os.path.join(folder, "converged")
            arch = "arch=compute_90,code=sm_90"
            subprocess.run([args.nvcc, "-std=c++17", "-gencode", arch, "-o", program, os.path.join(HERE, "converged.cu")], check=True)
        want = subprocess.run([program], stdout=subprocess.PIPE, check=True).stdout
        bad = 0
        for name, options in KINDS.items():
            shown = os.path.join(folder, "maps.json")
            p = subprocess.run([args.nvtrace, "--maps", shown, *options, "--", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            good = p.returncode == 0 and p.stdout.startswith(want) and b"NOT in" not in p.stderr
            bad += not good
            print(f"{name:12} {'good' if good else 'BAD'}")
            if not good:
                print(p.stdout.decode(), p.stderr.decode(errors="replace"))
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
