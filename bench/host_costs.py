#!/usr/bin/env python3
"""What a probe on the host costs at a call, in the program and beside a plain call.

Usage: bench/host_costs.py [--nvtrace PATH] [--calls N]

nvattach/host/testdata/costs.c calls small functions in loops and prints ns a call: one without a
program, and one each with an empty program, one that updates a hash, one at the return, and one that
answers in place of the function. Needs gcc, and no GPU.
"""
import argparse
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LIMITS = {"uprobe": 30, "uprobe_hash_update": 100, "uretprobe": 60, "override": 40}  # ns above a plain call


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--nvtrace", default="bin/nvtrace")
    ap.add_argument("--calls", type=int, default=1_000_000)
    args = ap.parse_args()
    host = os.path.join(HERE, "../nvattach")
    with tempfile.TemporaryDirectory() as tmp:
        app = os.path.join(tmp, "costs")
        subprocess.run(["gcc", "-O1", "-w", "-o", app, os.path.join(host, "host/testdata/costs.c")], check=True)
        probes = [args.nvtrace, "-q", "--attach", os.path.join(host, "testdata/obj/costs.bpf.o")]
        for name in ["empty", "update", "empty_return", "override"]:
            probes += ["--prog", name]
        p = subprocess.run([*probes, "--", app, str(args.calls)], capture_output=True, text=True)
    costs = {name: float(ns) for name, ns in (line.split() for line in p.stdout.splitlines() if len(line.split()) == 2)}
    if p.returncode or "plain" not in costs:
        sys.exit(f"status {p.returncode}: {p.stdout[-500:]}\n{p.stderr[-2000:]}")
    bad = 0
    print(f"a plain call takes {costs['plain']:.1f} ns; above that:")
    for name, most in LIMITS.items():
        ns = costs[name] - costs["plain"]
        bad += ns > most
        print(f"  {name:20} {ns:7.1f} ns, wanted at most {most}{'' if ns <= most else '  BAD'}")
    return bad > 0


sys.exit(main())
