#!/usr/bin/env python3
"""Launch latency by one probe object on the host and in the kernel, against a program that measures it
by hand.

Usage: bench/launch_latency.py [--nvtrace PATH] [--launches N] [--sim]

bench/launch_latency.cu prints, for each launch, how long it took from the call to the kernel's first
instruction by the GPU's timer, whose offset to the host's clock it measures itself. It runs alone
and with examples/probes/latency.bpf.o, which has a probe at cudaLaunchKernel, one at the kernel's
entry, one at its exit, and a map that these share. Compared are the medians: 2 us is the limit. With
--sim, on the simulated GPU, only that each launch has its three times in their order.
"""
import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = 2000  # ns


def run(argv):
    p = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", timeout=300)
    if p.returncode:
        sys.exit(f"{' '.join(argv)}: status {p.returncode}\n{p.stdout[-1000:]}\n{p.stderr[-3000:]}")
    hand = [tuple(map(float, m)) for m in re.findall(r"^hand (\d+) (-?\d+) (-?\d+)$", p.stdout, re.M)]
    probe = [tuple(map(int, m)) for m in re.findall(r"launch (\d+) (\d+) (\d+)", p.stdout + p.stderr)]
    return hand, probe, p.stderr


def middle(name, ns):
    ns = sorted(ns)
    print(f"  {name:44} median {statistics.median(ns):8.0f}  10% {ns[len(ns) // 10]:8.0f}  90% {ns[len(ns) * 9 // 10]:8.0f}")
    return statistics.median(ns)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--nvtrace", default="bin/nvtrace")
    ap.add_argument("--nvcc", default=os.environ.get("NVTRACE_NVCC") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    ap.add_argument("--arch", default="sm_90")
    ap.add_argument("--launches", type=int, default=1000)
    ap.add_argument("--sim", action="store_true")
    args = ap.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        app = os.path.join(tmp, "launch_latency")
        # The simulated GPU has a runtime of its own in place of the shared one.
        lib = os.path.join(os.path.dirname(os.path.dirname(args.nvcc)), "lib")
        linked = ["-cudart=none", f"-L{lib}", "-Xlinker", "-l:libcudart.so.13"] if args.sim else []
        subprocess.run([args.nvcc, "-O2", f"-arch={args.arch}", *linked, "-o", app, os.path.join(HERE, "launch_latency.cu")], check=True)
        command = [app, str(args.launches), "0" if args.sim else "2000"]
        flags = ["--sim"] if args.sim else []
        probes = [args.nvtrace, "-q", *flags, "--attach", os.path.join(HERE, "../examples/probes/latency.bpf.o"), "--kernel", "*work*",
                  "--at", f"on_launch={'libcudart.so.13' if args.sim else app}:cudaLaunchKernel", "--at", f"on_done={app}:launch_done", "--"]
        alone, _, _ = run(([args.nvtrace, "-q", "--sim", "--"] if args.sim else []) + command)
        hand, got, err = run(probes + command)
    got = got[-args.launches:]
    bad = [t for t in got if not 0 < t[0] < t[1] < t[2]]
    print(f"{len(got)} of {args.launches} launches have their times; {len(bad)} out of order")
    if len(got) < args.launches or bad or len(alone) < args.launches:
        print(f"BAD {bad[:3]}\n{err[-2000:]}")
        return 1
    if args.sim:
        return 0
    print("from the call to the first thread, ns:")
    by_hand = middle("by hand, nobody watching", [h[1] for h in alone])
    middle("by hand, with the probes", [h[1] for h in hand])
    by_probe = middle("by the probes", [t[1] - t[0] for t in got])
    print("from the first thread to its end, ns (of the work: 20 waits of 100 ns):")
    middle("by the probes", [t[2] - t[1] for t in got])
    middle("CUDA's events around the kernel, alone", [h[2] for h in alone])
    # The program and the probe have the call at the same moment, but for some ns.
    late = [t[0] - h[0] for t, h in zip(got, hand)]
    middle("the probe's call behind the program's clock", late)
    away = by_probe - by_hand
    print(f"{'good' if abs(away) <= LIMIT else 'BAD'}: {away:+.0f} ns from what was measured by hand, {LIMIT} is the limit")
    return abs(away) > LIMIT


sys.exit(main())
