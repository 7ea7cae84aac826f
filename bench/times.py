#!/usr/bin/env python3
"""What recording costs a training, step by step, and what is recorded.

Usage: bench/times.py [--nvtrace PATH] [--rounds N] [--steps N] [--only NAME ...] [--out DIR] [--command COMMAND]

Trainings of bench/stacks/train.py, one for each way to record it, live beside each other and do
some steps in turn, in an order of its own each round. Printed are, for each way, the median of
a step and of its ratios, round by round, to the training that nobody watches; then what each
recording has: calls a step, events that are lost, for what the program stopped how often (beside
the start, whose stops are counted, too), and its exit status. Of GPU times, the share of the
kernels without a name, and the ten kernels that take longest against torch.profiler's.

With --graph they replay a CUDA graph in place of training. --command runs another program: one
that answers each line on its standard input by a number, as train.py does with --serve.
"""
import argparse
import json
import os
import random
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def ways(nvtrace, out, command):
    def nvt(name):
        return os.path.join(out, name + ".nvt")

    def record(name, *flags):
        return [nvtrace, "-q", *flags, "-o", nvt(name), "--", *command]

    c = {
        "alone": command,
        "nvtrace": record("nvtrace"),
        "api": record("api", "--api"),
        "all": record("all", "--api=all"),
        "count": record("count", "--api=count"),
        "gpu": record("gpu", "--gpu-times=events"),
        "tracker": record("tracker", "--gpu-times=tracker"),
        "both": record("both", "--gpu-times=tracker+events"),
        "probe": record("probe", "--gpu-times=probe"),
        "stacks": record("stacks", "--stacks=alloc,sync"),
        "entry": record("entry", "-e", "kernel:* { @ = count(); }"),
        "exit": record("exit", "-e", "kernel:* { @in = count(); } kernret:* { @out = count(); }"),
    }
    if command[-1] == "--serve":
        c["profiler"] = [*command, "--profile", os.path.join(out, "profile.json"), "--operators"]
    return c, nvt


class Program:
    """A training that does steps when asked."""

    def __init__(self, name, argv):
        self.name, self.err, self.steps = name, [], 0
        env = dict(os.environ, NVTRACE_DEBUG="1")
        self.p = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", env=env)
        self.reader = threading.Thread(target=lambda: self.err.extend(self.p.stderr), daemon=True)
        self.reader.start()

    def run(self, steps):
        self.steps += steps
        try:
            self.p.stdin.write(f"{steps}\n")
            self.p.stdin.flush()
            return float(self.p.stdout.readline())
        except (ValueError, OSError):
            raise SystemExit(f"{self.name}: ended with {self.p.wait()}\n" + "".join(self.err[-15:]))

    def end(self, limit=120):
        self.p.stdin.close()
        try:
            self.p.wait(limit)
        except subprocess.TimeoutExpired:
            self.p.kill()
            return "no end"
        self.reader.join()
        return self.p.returncode


def stops(lines):
    """Returns for what the program stopped, and how often."""
    found = []
    for line in lines:
        m = re.search(r'msg=stops n=(\d+) held=(\S+) longest=\S+ what="?(.*?)"?$', line.rstrip())
        if m:
            found.append((int(m[1]), m[2], m[3]))
    return found


def kernels(report):
    """Returns the kernels of a report: name → works, ns each."""
    return {w["name"]: (w["works"], w["total"] / w["works"]) for w in report["verdict"].get("gpu", {}).get("works", []) if w["kernel"]}


def plain(names):
    """Returns how CUPTI writes the names of kernels, without blanks."""
    if names and shutil.which("c++filt"):
        names = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True).stdout.split("\n")
    return [n.replace(" ", "") for n in names]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--nvtrace", default="bin/nvtrace")
    ap.add_argument("--rounds", type=int, default=12)
    ap.add_argument("--steps", type=int, default=10, help="in each round")
    ap.add_argument("--only", action="append", help="of the ways alone, nvtrace, api, all, count, gpu, tracker, probe, stacks, entry (a counter in each kernel), exit (two), profiler; may be repeated")
    ap.add_argument("--out", default="/tmp/times")
    ap.add_argument("--command", default=f"python3 {os.path.join(HERE, 'stacks', 'train.py')} --serve")
    ap.add_argument("--graph", action="store_true")
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    every, nvt = ways(os.path.abspath(args.nvtrace), args.out, shlex.split(args.command.replace("--serve", "--graph --serve") if args.graph else args.command))
    only = args.only or [w for w in every if w not in ("probe", "entry", "exit")]
    programs = [Program(w, argv) for w, argv in every.items() if w == "alone" or w in only]
    for p in programs:  # what begins slowly, and the memory of allocators
        begin = time.perf_counter()
        p.run(3 * args.steps)
        print(f"{p.name}: first steps after {time.perf_counter() - begin:.1f} s more", flush=True)
    times = {p.name: [] for p in programs}
    for _ in range(args.rounds):
        for p in random.sample(programs, len(programs)):
            times[p.name].append(p.run(args.steps))
    status = {p.name: p.end() for p in programs}
    base = times["alone"]
    print(f"{args.rounds} rounds of {args.steps} steps; ms a step (smallest, largest round); ratio; status")
    for name, t in times.items():
        ratio = statistics.median(a / b for a, b in zip(t, base))
        print(f"  {name:9} {statistics.median(t):8.3f} ({min(t):.3f}, {max(t):.3f}) {ratio:6.3f}x  {status[name]}")
    bad = [f"{n} ended with {s}" for n, s in status.items() if s]
    found = {}
    for p in programs:
        if p.name in ("alone", "profiler"):
            continue
        r = subprocess.run([args.nvtrace, "report", "--json", nvt(p.name)], capture_output=True, text=True)
        if r.returncode:
            bad.append(f"{p.name}: no report: {r.stderr[-300:]}")
            continue
        d = json.loads(r.stdout)
        calls = d.get("api", {}).get("calls", 0)
        cost = d["cost"]
        print(f"{p.name}: {calls / p.steps:.0f} calls a step, {d.get('api', {}).get('counted', 0) / p.steps:.0f} of them counted; {d['lost']} events lost, complete {d['complete']}; "
              f"{cost['stops']} stops; recording {os.path.getsize(nvt(p.name)) / max(cost['events'], 1):.1f} B an event; CPU of nvtrace {cost['tracer_cpu'] / 1e9:.1f} s in {cost['wall'] / 1e9:.1f} s")
        if d["lost"]:
            bad.append(f"{p.name}: {d['lost']} events lost")
        for n, held, what in stops(p.err)[:6]:
            if n >= p.steps / 4:
                print(f"    {n / p.steps:8.2f} stops a step, {held} in all: {what}")
        slow = sorted({m[1] for line in p.err for m in [re.search(r'hooked by a breakpoint" error="function not patchable: (.*?)"$', line.rstrip())] if m})
        if slow:
            print(f"    {len(slow)} functions by breakpoints: " + "; ".join(slow)[:600])
        notes = [n for n in d.get("notes", []) if "without a time" in n or "without:" in n]
        if notes:
            print("    " + notes[0][:200])
        found[p.name] = d
    for name in "gpu", "tracker", "probe":
        if name not in found:
            continue
        k = kernels(found[name])
        works = sum(n for n, _ in k.values())
        unknown = sum(n for w, (n, _) in k.items() if not w)
        print(f"{name}: {works} kernels timed, {100 * unknown / max(works, 1):.2f} % without a name")
        if unknown:
            bad.append(f"{name}: {unknown} kernels have no name")
        profile = os.path.join(args.out, "profile.json")
        if "profiler" not in times or not os.path.exists(profile):
            continue
        with open(profile) as f:
            want = {n: (v[0], statistics.mean(v[2])) for n, v in json.load(f).items()}
        mine = dict(zip(plain(list(k)), k.values()))
        for whose, which in ("CUPTI", want), ("nvtrace", {n: (c, ns / 1e3) for n, (c, ns) in k.items()}):
            print(f"    kernels a step by {whose}: {sum(c * us for c, us in which.values()) / programs[0].steps / 1e3:.3f} ms")
        differences = []
        for n, (count, us) in sorted(want.items(), key=lambda e: -e[1][0] * e[1][1])[:10]:
            got = mine.get(n.replace(" ", ""))
            if got is None:
                print(f"    {us:9.2f} µs by CUPTI, not found: {n[:90]}")
                continue
            differences.append(got[1] / 1e3 - us)
            print(f"    {us:9.2f} µs by CUPTI, {got[1] / 1e3:9.2f} µs ({got[1] / 1e3 - us:+.2f}), {count} and {got[0]} times: {n[:70]}")
        if differences:
            print(f"    median difference {statistics.median(differences):+.2f} µs")
    print("\n".join(bad) or "all ended well, nothing lost")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
