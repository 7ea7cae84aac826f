#!/usr/bin/env python3
"""Random probes in machine code: what kernels compute must stay as it was.

Usage: bench/machine_random.py [--nvtrace PATH] [--out DIR] [--triples N] [--seed N] [--only NAME ...]

Each run of a program of bench/stacks gets, for each kernel that it launches, a probe drawn
at random: at entry, at exits, at accesses to memory, at blocks, or at the instructions of
one to four opcodes that the kernel has. `--verify` runs the first launch of each kernel
with and without probes from the same memory. A triple is a kernel, the places in it and the
probe. Counts those that are equal, that differ, that could not be verified and that the
checker or the weaver refused, until there are N that were verified; the program's output and
exit status must be the same in each run. Prints a line for each run, and what differs in
full; exit status 1 if something does.
"""
import argparse
import collections
import concurrent.futures
import glob
import json
import os
import random
import re
import subprocess
import sys

from stacks import HERE, PROGRAMS, run

# What a probe does: adds, in a register or two more, or with a key of several fields.
ACTIONS = {
    "kernel": ["@x = count();", "@x[kernel] = count();"],
    "kernret": ["@x = count();", "@x[kernel] = count();"],
    "mem": ["@x = count();", "@x = sum(size);", "@x[kind, space] = count();", "@x = max(addr);"],
    "insn": ["@x = count();", "@x[opcode] = count();"],
    "block": ["@x = count();", "@x = sum(insns);"],
}

# The kernels that get a probe in one run: each probe is an eBPF program, of which an object has 1024 at most.
MOST = 250


def opcodes(nvtrace, file, kernel):
    """The opcodes of a kernel in a file, by nvtrace's own disassembly; none if it is not there."""
    out = subprocess.run([nvtrace, "sass", "dis", "--kernel", kernel, file], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return set(re.findall(r"^  [0-9a-f]{5,}  \S+  (?:@!?U?P\d )?([A-Z][A-Z0-9_.]*)", out, re.M))


def launched(nvtrace, command, out, limit):
    """The kernels that a program launches, with the opcodes that each has."""
    nvt, images = os.path.join(out, "random.nvt"), os.path.join(out, "random.images")
    run([nvtrace, "--modules", "-q", "-o", nvt, "--", *command], limit)
    report = json.loads(subprocess.run([nvtrace, "modules", "--json", nvt], stdout=subprocess.PIPE).stdout)
    subprocess.run([nvtrace, "modules", "--extract", images, nvt], stdout=subprocess.DEVNULL)
    have = collections.defaultdict(set)
    places = [(name, kernel) for image in report["images"] for name in glob.glob(os.path.join(images, image["sha256"][:16] + ".*")) for kernel in image["launched"]]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for (_, kernel), ops in zip(places, pool.map(lambda p: opcodes(nvtrace, *p), places)):
            have[kernel] |= ops
    return {kernel: ops for kernel, ops in have.items() if ops}


def script(rnd, kernels):
    """A program in nvtrace's language that gives each kernel, of MOST chosen at random,
    a probe drawn at random. Kernels for which the same is drawn share a statement."""
    drawn = collections.defaultdict(list)
    chosen = rnd.sample(sorted(kernels), min(len(kernels), MOST))
    for kernel, ops in ((k, kernels[k]) for k in chosen):
        kind = rnd.choice(list(ACTIONS))
        places = [f"{kind}:{kernel}"]
        if kind == "insn":
            places = [f"insn:{kernel}:{op}" for op in rnd.sample(sorted(ops), min(len(ops), rnd.randint(1, 4)))]
        drawn[rnd.choice(ACTIONS[kind])] += places
    return "".join(f"{', '.join(places)} {{ {action.replace('@x', f'@x{n}')} }}\n" for n, (action, places) in enumerate(drawn.items()))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--nvtrace", default="bin/nvtrace")
    ap.add_argument("--out", default=".")
    ap.add_argument("--triples", type=int, default=10_000)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--limit", type=float, default=120, help="seconds for each run")
    ap.add_argument("--runs", type=int, default=0, help="end after so many runs, 0: never")
    ap.add_argument("--flags", default="", help="more flags of nvtrace, e.g. --untested-arch")
    ap.add_argument("--only", action="append")
    ap.add_argument("--arguments", default="", help="arguments of the programs, e.g. 1/4 of torch_ops")
    args = ap.parse_args()
    rnd = random.Random(args.seed)
    os.makedirs(args.out, exist_ok=True)
    total, bad = collections.Counter(), 0
    programs = []
    for name in args.only or [p.removesuffix(".py") for p in PROGRAMS]:
        command = ["python3", os.path.join(HERE, "stacks", name + ".py")]
        if name == "train":
            command += ["2", "--attention", "flash"]  # deterministic
        command += args.arguments.split()
        run(command, args.limit)  # fills the caches of compilers
        status, want, err, _ = run(command, args.limit)
        kernels = launched(args.nvtrace, command, args.out, args.limit) if status == 0 else {}
        print(f"{name}: status {status}, {len(kernels)} kernels in machine code", flush=True)
        if kernels:
            programs.append((name, command, status, want, kernels))
        elif status != 0:
            print(err[-500:])
    n = 0
    while programs and total["equal"] + total["differs"] < args.triples and (args.runs == 0 or n < args.runs):
        name, command, status, want, kernels = programs[n % len(programs)]
        n += 1
        file, shown = os.path.join(args.out, f"random.{n}.nvtrace"), os.path.join(args.out, f"random.{n}.json")
        with open(file, "w") as f:
            f.write(script(rnd, kernels))
        s, out, err, took = run([args.nvtrace, "--verify", *args.flags.split(), "--maps", shown, "--script", file, "--", *command], args.limit)
        got, why = collections.Counter(), collections.Counter()
        try:
            with open(shown) as f:
                lines = [o for o in json.load(f) if "kernel" in o]
        except (OSError, ValueError) as e:
            lines, err = [], f"{shown}: {e}\n{err}"
        for o in lines:
            verify = o.get("verify", {})
            if "equal" in verify and o["sites"] > 0:
                got["equal" if verify["equal"] else "differs"] += 1
                if not verify["equal"]:
                    print(f"DIFFERS: {o['kernel']}: {verify}: {file}", flush=True)
            elif o["unprobed"]:
                got["refused"] += 1
                why[re.sub(r"\+?0x[0-9a-f]+|\d+", "N", o["unprobed"])[:120]] += 1
            elif o.get("launched") and o["sites"] > 0:
                got["not verified"] += 1
                why[re.sub(r"0x[0-9a-f]+|\d+", "N", verify.get("reason", "?"))[:120]] += 1
        same = (s, out) == (status, want)
        bad += (not same) + got["differs"] + (not lines)
        total += got
        print(f"{n}: {name}: output {'same' if same else 'DIFFERS'}, {dict(got)}, {took:.1f} s", flush=True)
        for reason, count in why.most_common(5):
            print(f"    {count}: {reason}", flush=True)
        if not same or not lines:
            print(err[-1500:], flush=True)
        elif not got["differs"]:
            os.remove(file)
            os.remove(shown)
    print(f"{n} runs: {dict(total)}")
    return bad != 0 or not programs


if __name__ == "__main__":
    sys.exit(main())
