#!/usr/bin/env python3
"""Counts of probes in machine code, held against Nsight Compute's.

Usage: bench/machine_ncu.py [--nvtrace PATH] [--ncu PATH] [--out DIR] [--kernels N] [--only NAME ...]

Of the kernels that a program of bench/stacks launches, takes N and counts the threads at
each of their instructions (`insn:KERNEL:*`) and at each access to memory (`mem:KERNEL`), in
which the guard holds, and at each basic block (`block:KERNEL`), over all launches. ncu profiles the
same launches, twice; its metric thread_inst_executed_true has the same count for each instruction,
thread_inst_executed for those of a block. Instructions of which ncu's own
counts differ wait for something in a loop, and are left out, as is what comes right behind
them: it may run only if the wait is in vain. Compares instruction by instruction, and
prints the sums by opcode and what differs; an instruction or block that can't be
probed is counted, one that accesses memory is a difference. Exit status 1 if there is any.

Needs ncu with the right to read the GPU's counters, and its Python module ncu_report, which
lies beside it in extras/python.
"""
import argparse
import collections
import glob
import json
import os
import random
import re
import shutil
import subprocess
import sys

from machine_random import launched
from stacks import HERE, run

MEMORY = re.compile(r"(LD|ST|LDG|STG|LDS|STS|LDL|STL|RED|REDG|REDS|ATOM|ATOMG|ATOMS|LDGSTS)(\.|$)")


def truth(ncu, command, kernels, out):
    """Threads at each instruction of each kernel, over all launches: those whose guard holds, all of them; and its text."""
    # The toolkit's bin/ncu is a script that calls the one of Nsight Compute's own folder.
    near = [os.path.join(os.path.dirname(os.path.realpath(ncu)), "**"), "/opt/nvidia/nsight-compute/*"]
    for folder in near:
        sys.path += glob.glob(os.path.join(folder, "extras", "python"), recursive=True)
    import ncu_report

    report = os.path.join(out, "machine.ncu-rep")
    pattern = "regex:^(" + "|".join(map(re.escape, kernels)) + ")$"
    subprocess.run([ncu, "--target-processes", "all", "--kernel-name-base", "mangled", "-k", pattern, "--section", "SourceCounters", "--metrics", "thread_inst_executed",
                    "--cache-control", "none", "--clock-control", "none", "-f", "-o", report, *command], check=True, stdout=subprocess.DEVNULL)
    counts, everyone = ({k: collections.Counter() for k in kernels} for _ in range(2))
    texts = {k: {} for k in kernels}
    launches = collections.Counter()
    context = ncu_report.load_report(report)
    for i in range(context.num_ranges()):
        actions = context.range_by_idx(i)
        for j in range(actions.num_actions()):
            action = actions.action_by_idx(j)
            name = action.name(ncu_report.IAction.NameBase_MANGLED)
            launches[name] += 1
            for into, metric in ((counts, "thread_inst_executed_true"), (everyone, "thread_inst_executed")):
                metric = action.metric_by_name(metric)
                where = metric.correlation_ids()
                places = [where.as_uint64(n) for n in range(metric.num_instances())]
                first = min(places)
                for n, pc in enumerate(places):
                    index = (pc - first) // 16
                    into[name][index] += metric.as_uint64(n)
                    if index not in texts[name]:
                        texts[name][index] = action.sass_by_pc(pc)
    return counts, everyone, texts, launches


def probed(nvtrace, command, kernels, out, flags, limit):
    """The same by probes."""
    script, shown = os.path.join(out, "machine_ncu.nvtrace"), os.path.join(out, "machine_ncu.json")
    with open(script, "w") as f:
        for i, k in enumerate(kernels):
            f.write(f"insn:{k}:* {{ @i{i}[insn] = count(); }}\nmem:{k} {{ @m{i}[insn] = count(); }}\nblock:{k} {{ @b{i}[insn] = count(); }}\n")
    status, _, err, took = run([nvtrace, *flags, "--maps", shown, "--script", script, "--", *command], limit)
    print(f"with probes: status {status}, {took:.1f} s", flush=True)
    with open(shown) as f:
        lines = json.load(f)
    tables = {o["map"]: {e["key"][0]: e["value"] for e in o["entries"]} for o in lines if "map" in o}
    for o in lines:
        if o.get("unprobed"):
            print(f"NOT probed {o['kernel'][:100]}: {o['unprobed']}")
        for note in o.get("notes", []):
            print(f"     {o['kernel'][:60]}: {note}")
    return [tuple(tables.get(f"@{t}{i}", {}) for t in "imb") for i in range(len(kernels))]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--nvtrace", default="bin/nvtrace")
    ap.add_argument("--ncu", default=shutil.which("ncu") or "/usr/local/cuda/bin/ncu")
    ap.add_argument("--out", default=".")
    ap.add_argument("--kernels", type=int, default=10)
    ap.add_argument("--kernel", action="append", default=[], help="this one, by its mangled name")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--flags", default="", help="more flags of nvtrace")
    ap.add_argument("--limit", type=float, default=300, help="seconds for each run")
    ap.add_argument("--only", action="append")
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    bad = compared = 0
    for name in args.only or ["train"]:
        command = ["python3", os.path.join(HERE, "stacks", name + ".py")]
        if name == "train":
            command += ["1", "--attention", "flash"]  # deterministic
        run(command, args.limit)
        have = sorted(launched(args.nvtrace, command, args.out, args.limit))
        kernels = args.kernel or random.Random(args.seed).sample(have, min(len(have), args.kernels))
        print(f"{name}: {len(kernels)} of {len(have)} kernels", flush=True)
        counts, everyone, texts, launches = truth(args.ncu, command, kernels, args.out)
        again, everyone_again, _, _ = truth(args.ncu, command, kernels, args.out)
        for kernel, (insns, memory, blocks) in zip(kernels, probed(args.nvtrace, command, kernels, args.out, args.flags.split(), args.limit)):
            want, text = counts[kernel], texts[kernel]
            wrong, missing, accesses, waits = [], 0, 0, 0
            by_opcode = collections.Counter()
            differ = {i for i in want if again[kernel][i] != want[i] or everyone_again[kernel][i] != everyone[kernel][i]}
            differ |= {i + 1 for i in differ}
            for index, threads in sorted(want.items()):
                if index in differ:
                    waits += 1
                    continue
                words = [w for w in re.split(r"[\s;]+", text[index]) if w and not w.startswith("@")]
                opcode = words[0] if words else "?"
                access = MEMORY.match(opcode)
                accesses += bool(access)
                if access and memory.get(index, 0) != threads:
                    wrong.append((index, text[index], threads, memory.get(index, 0)))
                if index not in insns and threads > 0:
                    missing += 1
                elif insns.get(index, 0) != threads:
                    wrong.append((index, text[index], threads, insns.get(index, 0)))
                else:
                    by_opcode[opcode.split(".")[0]] += threads
            equal = 0
            for index, threads in sorted(blocks.items()):
                true = everyone[kernel][index]
                if index in differ:
                    continue
                equal += threads == true
                if threads != true:
                    wrong.append((index, "block of " + texts[kernel][index], true, threads))
            compared += 1
            bad += bool(wrong) or not insns
            print(f"{'good' if insns and not wrong else 'BAD '} {kernel[:100]}: launches {launches[kernel]}, instructions {len(want)}, "
                  f"in loops that wait {waits}, without a probe {missing}, accesses {accesses}, blocks equal {equal} of {len(blocks)}, differ {len(wrong)}")
            print("     " + ", ".join(f"{op} {n}" for op, n in by_opcode.most_common(8)))
            for index, words, threads, got in wrong[:8]:
                print(f"     {16 * index:#x} {words}: ncu {threads}, probes {got}")
    print(f"{compared} kernels compared, {bad} differ")
    return bad != 0 or compared == 0


if __name__ == "__main__":
    sys.exit(main())
