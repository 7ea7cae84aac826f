#!/usr/bin/env python3
"""What probes in machine code cost kernels of PyTorch's libraries.

Usage: bench/machine_costs.py [--nvtrace PATH] [--rounds N] [--launches N] [--only NAME ...] [--tool NAME=LIBRARY ...]

Processes of bench/stacks/timed_kernels.py, one for each kind of probe, live beside each other and
launch their kernels in turn, in an order of its own each round. Printed are the median times of
each kernel and their ratios, round by round, to those of the process without probes, whose
results all must have. --tool names a library to be injected instead (CUDA_INJECTION64_PATH),
e.g. one of NVBit's tools, which print to standard output what nobody reads here; such a process
launches each kernel once a round.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))

# With atomics on one counter for each kernel, processor or none, as NVBit's tools have them.
KINDS = {
    "entry": "kernel:* { @ = count(); }",
    "entry and exit": "kernel:* { @in = count(); } kernret:* { @out = count(); }",
    "blocks": "block:* { @ = sum(insns); }",
    "accesses": "mem:* { @ = count(); }",
    "bytes by kind": "mem:* { @[kind] = sum(size); }",
    "instructions": "insn:*:* { @ = count(); }",
}


class Process:
    def __init__(self, name, argv, env, folder, launches):
        self.name, self.launches, self.fifo = name, launches, os.path.join(folder, name)
        os.mkfifo(self.fifo)
        self.err = open(self.fifo + ".err", "w+")
        self.p = subprocess.Popen([*argv, "python3", os.path.join(HERE, "stacks", "timed_kernels.py"), self.fifo], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self.err, text=True, env=dict(os.environ, **env))
        self.answers = None

    def ask(self):
        if self.answers is None:  # waits until the program has begun
            self.answers = open(self.fifo)
        self.p.stdin.write(f"{self.launches}\n")
        self.p.stdin.flush()
        line = self.answers.readline()
        return json.loads(line) if line else None

    def end(self):
        self.p.stdin.close()
        try:
            status = self.p.wait(60)
        except subprocess.TimeoutExpired:
            self.p.kill()
            status = "no end"
        self.err.seek(0)
        return status, self.err.read()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--nvtrace", default="bin/nvtrace")
    ap.add_argument("--rounds", type=int, default=10)
    ap.add_argument("--launches", type=int, default=20, help="of each kernel, each round")
    ap.add_argument("--only", action="append", help="of " + ", ".join(KINDS))
    ap.add_argument("--tool", action="append", default=[], metavar="NAME=LIBRARY")
    args = ap.parse_args()
    bad = []
    with tempfile.TemporaryDirectory() as folder:
        processes = [Process("alone", [], {}, folder, args.launches)]
        for name, program in KINDS.items():
            if not args.only or name in args.only:
                processes.append(Process(name, [args.nvtrace, "-e", program, "--"], {}, folder, args.launches))
        for tool in args.tool:
            name, _, library = tool.partition("=")
            processes.append(Process(name, [], {"CUDA_INJECTION64_PATH": os.path.abspath(library), "NOBANNER": "1"}, folder, 1))
        want, times = None, {p.name: [] for p in processes}
        for turn in range(args.rounds + 1):  # the first one loads the kernels
            for p in random.sample(processes, len(processes)) if turn else list(processes):
                begin = time.perf_counter()
                got = p.ask()
                if turn == 0:
                    print(f"{p.name}: first round after {time.perf_counter() - begin:.1f} s", flush=True)
                if got is None:
                    bad.append(f"{p.name}: ended early")
                    processes.remove(p)
                    print(p.name, *p.end())
                    continue
                want = want or got["sums"]
                if got["sums"] != want:
                    bad.append(f"{p.name}: results differ: {got['sums']}, not {want}, in round {turn}")
                if turn:
                    times[p.name].append(got["us"])
        for p in processes:
            status, err = p.end()
            lines = [line for line in err.splitlines() if line.startswith(("probed ", "NOT probed"))]
            print(f"{p.name}: status {status}", *lines, sep="\n    ")
            if status != 0:
                bad.append(f"{p.name}: status {status}")
                print(err[-1500:])
    for work in times["alone"][0]:
        print(work)
        for name, rounds in times.items():
            if rounds:
                ratios = [r[work] / base[work] for r, base in zip(rounds, times["alone"])]
                print(f"    {name:24} {statistics.median(r[work] for r in rounds):10.1f} µs {statistics.median(ratios):8.3f}x ({min(ratios):.3f}, {max(ratios):.3f})")
    print("\n".join(sorted(set(bad))) or "all results same")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
