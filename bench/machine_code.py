#!/usr/bin/env python3
"""Probes in kernels that ship as machine code only, held against other counts.

Usage: bench/machine_code.py [--nvtrace PATH] [--out DIR] [--steps N] [--only NAME ...] [--probe KIND ...]

For each program of bench/stacks: its output and exit status must be the same with
probes of each kind, and as many threads must leave kernels as enter
them; with --verify, each kernel's first launch must leave the same memory with and without
probes. For the training, that number must be what PyTorch's profiler (CUPTI) says of the launches:
the sum of grid x block. Prints a line for each as it comes; exit status 1 if something differs.
"""
import argparse
import collections
import json
import os
import re
import sys

from stacks import HERE, PROGRAMS, run

PROBES = os.path.join(HERE, "..", "examples", "probes")


def counters(err):
    """The values of the array that count.bpf.o shows."""
    part = err.partition("threads (array)\n")[2]
    return [int(n) for n in re.findall(r"^\s+\[\d+\] = (\d+)", part, re.M)]


def attach(name):
    return ["--attach", os.path.join(PROBES, name + ".bpf.o")]


# What is run in the kernels, by name.
KINDS = {
    "count": attach("count"),
    "duration": attach("duration"),
    "blocks": attach("blocks"),
    "accesses": ["-e", "mem:* { @ = count(); }"],
    "instructions": ["-e", "insn:*:* { @ = count(); }"],
    "memory": attach("memory"),
    "values": ["-e", "mem:* { @[kind] = sum(value); }"],
    "texts": attach("../../nvattach/testdata/obj/bpftime"),
}

# Those that run with --verify, too.
VERIFIED = ["count", "duration", "values"]


def verified(shown):
    """What came of each launched kernel's verification, counted, and the kernels that differ."""
    got, differ = collections.Counter(), []
    try:
        with open(shown) as f:
            lines = [o for o in json.load(f) if o.get("launched") and o.get("sites")]
    except (OSError, ValueError) as e:
        return {str(e): 1}, ["?"]
    for o in lines:
        verify = o.get("verify", {})
        got["equal" if verify.get("equal") else verify.get("reason") or "differs"] += 1
        if verify.get("equal") is False:
            differ.append(o["kernel"])
    return dict(got.most_common()), differ


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--nvtrace", default="bin/nvtrace")
    ap.add_argument("--out", default=".")
    ap.add_argument("--steps", type=int, default=20, help="of the training")
    ap.add_argument("--limit", type=float, default=60, help="seconds for each run")
    ap.add_argument("--only", action="append")
    ap.add_argument("--probe", action="append", help="of " + ", ".join(KINDS))
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    bad = 0

    def say(name, what, good, more=""):
        nonlocal bad
        bad += not good
        print(f"{name:12} {what:30} {'good' if good else 'BAD'}  {more}", flush=True)

    for name in args.only or [p.removesuffix(".py") for p in PROGRAMS]:
        command = ["python3", os.path.join(HERE, "stacks", name + ".py")]
        truth = None
        if name == "train":
            command += [str(args.steps), "--attention", "flash"]  # deterministic
            profile = os.path.join(args.out, "kernels.json")
            run(command + ["--profile", profile], args.limit)
            with open(profile) as f:
                truth = sum(v[1] for v in json.load(f).values())
        status, want, err, took = run(command, args.limit)
        say(name, "alone", status == 0, f"{took:.1f} s")
        for probe in args.probe or KINDS:
            s, out, err, took = run([args.nvtrace, *KINDS[probe], "--", *command], args.limit)
            with open(os.path.join(args.out, f"{name}.{probe}.err"), "w") as f:
                f.write(err)
            # What -e prints comes behind the program's own.
            same = out[: len(want)] if "-e" in KINDS[probe] else out
            say(name, probe + ": output and status", (s, same) == (status, want), f"status {s}, {took:.1f} s")
            if probe == "count":
                n = counters(err)
                say(name, "threads in = threads out", len(n) == 2 and n[0] == n[1] > 0, str(n))
                if truth is not None:
                    say(name, "threads as CUPTI says", n[:1] == [truth], str(truth))
            if probe in VERIFIED:
                shown = os.path.join(args.out, f"{name}.{probe}.json")
                s, out, _, took = run([args.nvtrace, "--verify", "--maps", shown, *KINDS[probe], "--", *command], 5 * args.limit)
                got, differ = verified(shown)
                say(name, probe + " --verify", (s, out[: len(want)]) == (status, want) and not differ and got.get("equal", 0) > 0, f"{got} {differ[:3]} {took:.1f} s")
            for line in err.splitlines():
                if re.match(r"NOT probed|probed \d+ of", line) or "images rewritten" in line:
                    print("   ", line[:200], flush=True)
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
