#!/usr/bin/env python3
"""What nvtrace sample says, against what is known otherwise; wants a GPU, gcc and PyTorch.

Usage: bench/sample.py [--nvtrace PATH] [--steps N] [--out DIR] [--only NAME ...]

kernels: kernels that note their own times by the GPU's clock (bench/sample/kernels.c): by how much begins
and ends differ. training: bench/stacks/train.py, looked at without pause and each millisecond: time by kernel
against torch.profiler's of another run (--profile FILE: one of the same number of steps that was made before),
and steps with and without looks, in turn.
"""
import argparse
import bisect
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def works(nvtrace, recording):
    """The recording's works, and what sampling came to."""
    found, sums, start = [], None, 0
    raw = subprocess.run([nvtrace, "export", "--format", "raw", recording], check=True, capture_output=True).stdout
    for line in raw.splitlines():
        e = json.loads(line)
        if e["k"] == "header":
            start = e["start"]
        elif e["k"] == "gpu":
            a = [int(x, 16) for x in e["a"]]
            a += [0] * (6 - len(a))
            found.append({"start": start + a[1], "dur": a[2], "end_margin": a[0], "channel": a[3], "margin": e.get("r", 0),
                          "name": e.get("text", "copy"), **json.loads(e["data"])})
        elif e["k"] == "sampled":
            sums = json.loads(e["data"])
    found.sort(key=lambda w: w["start"])
    return found, sums


def spread(values):
    if not values:
        return "none"
    values = sorted(values)
    at = lambda q: values[min(len(values) - 1, int(q * len(values)))]
    return f"median {at(.5):.0f}, 5 % {at(.05):.0f}, 95 % {at(.95):.0f}, worst {max(values, key=abs):.0f}"


def matched(found, truth):
    """Pairs of works and launches. The clocks differ by a constant, which is the one that matches most."""
    begins = [t[0] for t in truth]

    def pairs(offset, within, some=found):
        for w in some:
            i = bisect.bisect(begins, w["start"] - offset)
            near = min((j for j in (i - 1, i) if 0 <= j < len(truth)), key=lambda j: abs(begins[j] + offset - w["start"]))
            if abs(begins[near] + offset - w["start"]) < within:
                yield w, truth[near]

    some = found[len(found) // 2:][:40]
    best = max((some[0]["start"] - b for b in begins), key=lambda o: sum(1 for _ in pairs(o, 500, some)))
    offset = statistics.median(w["start"] - t[0] for w, t in pairs(best, 3000))
    return list(pairs(offset, 5000)), offset


def kernels(nvtrace, out):
    program = os.path.join(out, "kernels")
    subprocess.run(["gcc", "-O1", "-o", program, os.path.join(HERE, "sample", "kernels.c"), "-ldl"], check=True)
    for mode, ns, n in (("queue", 2000, 1000), ("queue", 20000, 1000), ("queue", 200000, 500), ("apart", 3000, 1000), ("apart", 50000, 1000), ("graph", 10000, 300)):
        recording = os.path.join(out, f"{mode}{ns}.nvt")
        r = subprocess.run([nvtrace, "sample", "--every", "0", "-o", recording, "--", program, mode, str(ns), str(n)], capture_output=True, text=True, timeout=120)
        truth = [tuple(map(int, line.split())) for line in r.stdout.splitlines()]
        if r.returncode or not truth:
            print(mode, ns, "failed:", r.returncode, r.stderr)
            continue
        print(f"== {mode}, {ns} ns, {n} launches")
        print(r.stderr.rstrip())
        found, _ = works(nvtrace, recording)
        span = truth[-1][0] - truth[0][0]
        found = [w for w in found if w["name"] == "spin" or w["name"].startswith("program ") or w["name"].startswith("(graph")]
        if not found:
            continue
        both, offset = matched(found, truth)
        print(f"  matched {len(both)} of {len(truth)}; the kernel's own duration: {spread([b - a for a, b in truth])}; span {span / 1e6:.1f} ms")
        for end in sorted({w["end"] for w, _ in both}):
            some = [(w, t) for w, t in both if w["end"] == end]
            print(f"  end {end}: {len(some)} works; begin off by {spread([w['start'] - t[0] - offset for w, t in some])}")
            print(f"    end off by {spread([w['start'] + w['dur'] - t[1] - offset for w, t in some])}")
            print(f"    duration off by {spread([w['dur'] - (t[1] - t[0]) for w, t in some])}; end margin {spread([w['end_margin'] for w, t in some])}; margin {spread([w['margin'] for w, t in some])}")


class Training:
    """A training that does steps when asked."""

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, os.path.join(HERE, "stacks", "train.py"), "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.steps(20)

    def steps(self, n):
        self.process.stdin.write(f"{n}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


class Sampler:
    def __init__(self, nvtrace, pid, every, *flags):
        self.process = subprocess.Popen([nvtrace, "sample", "--every", every, *flags, "-p", str(pid)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def end(self):
        self.process.send_signal(signal.SIGINT)
        return self.process.communicate(timeout=60)[0]


def costs(nvtrace, training, rounds, steps):
    """Steps with and without, in turn."""
    ways = {"alone": None, "each 10 ms": "10ms", "each 1 ms": "1ms", "without pause": "0"}
    ratios = {way: [] for way in ways}
    for _ in range(rounds):
        took = {}
        for way in random.sample(list(ways), len(ways)):
            sampler = Sampler(nvtrace, training.process.pid, ways[way], "-q", "--names=false") if ways[way] else None
            if sampler:
                time.sleep(0.15)
            took[way] = training.steps(steps)
            if sampler:
                sampler.end()
        for way in ways:
            ratios[way].append(took[way] / took["alone"])
    for way, r in ratios.items():
        r.sort()
        print(f"  step {way}: {statistics.median(r):.3f} of alone ({r[0]:.3f} to {r[-1]:.3f}), {rounds} rounds of {steps} steps")


def training(nvtrace, out, steps, profile, profiled):
    if not profile:
        profile = os.path.join(out, "profile.json")
        subprocess.run([sys.executable, os.path.join(HERE, "stacks", "train.py"), str(steps), "--profile", profile], check=True, capture_output=True, timeout=200)
    with open(profile) as f:
        known = {name: (k[0], sum(k[2]) * 1e3) for name, k in json.load(f).items()}
    t = Training()
    for every in ("0", "1ms"):
        recording = os.path.join(out, f"train{every}.nvt")
        sampler = Sampler(nvtrace, t.process.pid, every, "-o", recording, "--rows", "8")
        time.sleep(0.5)
        t.steps(steps)
        print(f"== training, {steps} steps, looked at each {every}")
        print(sampler.end().rstrip())
        compare(nvtrace, recording, known, steps / profiled)
    costs(nvtrace, t, 10, 10)
    return t


def compare(nvtrace, recording, known, part):
    """Holds the time of each kernel against the profiler's. part: of the profiled steps."""
    all_known = sum(t for _, t in known.values()) * part
    r = subprocess.run([nvtrace, "report", "--json", recording], capture_output=True, text=True)
    seen = {}
    for process in json.loads(r.stdout)["sampled"].values():
        for w in process["works"]:
            if w.get("kernel"):
                s = seen.setdefault(w["name"], [0, 0.0, 0.0, 0])
                s[0] += w.get("seen", 0) + w.get("missed", 0)
                s[1] += w["share"] * process["wall"]
                s[2] += w["error"] * process["wall"]
                s[3] += w.get("missed", 0)
    demangled = subprocess.run(["c++filt"], input="\n".join(seen), capture_output=True, text=True).stdout.splitlines()
    by_name = dict(zip(demangled, seen.values()))
    print(f"  kernels: {sum(s[0] for s in seen.values())} counted, {sum(n for n, _ in known.values()) * part:.0f} by the profiler; time {sum(s[1] for s in seen.values()) / 1e6:.1f} ms, by the profiler {all_known / 1e6:.1f} ms")
    off, lost, within = [], 0, 0
    for name, (n, t) in sorted(known.items(), key=lambda k: -k[1][1]):
        n, t = n * part, t * part
        if t < all_known / 100:
            break
        s = by_name.get(name)
        if s is None:
            lost += 1
            print(f"    not found: {name[:100]}")
            continue
        off.append(s[1] / t - 1)
        within += abs(s[1] - t) <= max(s[2], 0.05 * t)
        print(f"    {n:6.0f} {s[0]:6} {t / 1e6:9.2f} ms {s[1] / 1e6:9.2f} ms {100 * (s[1] / t - 1):+6.1f} % ± {100 * s[2] / t:4.1f} % missed {s[3]:5}, mean {t / n / 1e3:5.1f} µs {name[:60]}")
    if off:
        print(f"  kernels with 1 % and more: {len(off)}, off by {min(off) * 100:+.1f} to {max(off) * 100:+.1f} %, within 5 % or the error {within}, {lost} not found")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--nvtrace", default=os.path.join(HERE, "..", "bin", "nvtrace"))
    ap.add_argument("--steps", type=int, default=200)
    ap.add_argument("--profile")
    ap.add_argument("--profiled", type=int, help="steps of --profile, if others than --steps")
    ap.add_argument("--out", default="/tmp/nvtrace-sample")
    ap.add_argument("--only", nargs="*", default=["kernels", "training"])
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    if "kernels" in args.only:
        kernels(args.nvtrace, args.out)
    if "training" in args.only:
        t = training(args.nvtrace, args.out, args.steps, args.profile, args.profiled or args.steps)
        t.process.stdin.close()
        t.process.wait(timeout=60)


if __name__ == "__main__":
    main()
