#!/usr/bin/env python3
"""What a probe on the host costs at a call, in the program and beside a plain call.

Usage: bench/host_costs.py [--nvtrace PATH] [--calls N]

nvattach/host/testdata/costs.c calls small functions in loops and prints ns a call, of the fastest of 200
rounds: one without a program, and one each with an empty program, one that updates a hash, one at the
return, and one that answers in place of the function; a system call with empty programs at its entry and
its exit, and one without. Of system calls the same program's under a seccomp filter that allows all are
taken off: what those cost is the kernel's. Needs gcc, and no GPU. On a busy machine, take few calls: a
round that is interrupted counts for nothing.
"""
import argparse
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LIMITS = {"uprobe": 30, "uprobe_hash_update": 100, "uretprobe": 60, "override": 40}  # ns above a plain call
CALLS = {"syscall": 150, "untraced_syscall": 5}  # ns above the same call under a filter that allows all


def costs_of(p):
    if p.returncode:
        sys.exit(f"status {p.returncode}: {p.stdout[-500:]}\n{p.stderr[-2000:]}")
    return {name: float(ns) for name, ns in (line.split() for line in p.stdout.splitlines() if len(line.split()) == 2)}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--nvtrace", default="bin/nvtrace")
    ap.add_argument("--calls", type=int, default=100_000)
    args = ap.parse_args()
    host = os.path.join(HERE, "../nvattach")
    with tempfile.TemporaryDirectory() as tmp:
        app = os.path.join(tmp, "costs")
        subprocess.run(["gcc", "-O1", "-w", "-o", app, os.path.join(host, "host/testdata/costs.c")], check=True)
        probes = [args.nvtrace, "-q", "--attach", os.path.join(host, "testdata/obj/costs.bpf.o")]
        for name in ["empty", "update", "empty_return", "override", "call_enter", "call_exit"]:
            probes += ["--prog", name]
        alone = costs_of(subprocess.run([app, str(args.calls)], capture_output=True, text=True))
        filtered = costs_of(subprocess.run([app, str(args.calls), "filter"], capture_output=True, text=True))
        costs = costs_of(subprocess.run([*probes, "--", app, str(args.calls)], capture_output=True, text=True))
    bad = 0

    def row(name, ns, most):
        print(f"  {name:20} {ns:7.1f} ns, wanted at most {most}{'' if ns <= most else '  BAD'}")
        return ns > most

    print(f"a plain call takes {costs['plain']:.1f} ns; above that:")
    for name, most in LIMITS.items():
        bad += row(name, costs[name] - costs["plain"], most)
    kernel = filtered["untraced_syscall"] - alone["untraced_syscall"]
    print(f"a system call takes {alone['syscall']:.1f} ns, {kernel:.1f} more under any seccomp filter; above that:")
    for name, most in CALLS.items():
        bad += row(name, costs[name] - filtered[name], most)
    return bad > 0


sys.exit(main())
