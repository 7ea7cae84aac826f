#!/usr/bin/env python3
"""The tools and one-liners on a GPU, compared with what the kernels are known to do.

Usage: bench/tools.py [--nvtrace PATH] [--sim] [--ncu PATH] [--only NAME ...]

Runs each command of docs/one-liners.md with examples/cuda/vectoradd_driver.c, and each
tool with cmd/nvtrace/testdata/patterns.c, without the simulated GPU, and compares: the
one-liners with what stands below them, coalesce, bankconflict, divergence, opcodes and
kernels with a model of the kernels that is written down here. With --ncu, coalesce and
bankconflict are also compared with Nsight Compute's metrics, where counters may be
read. Needs gcc. Exits with 1 if anything differs. --sim runs all on the simulated GPU.
"""
import argparse
import csv
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STRIDES = [1, 2, 4, 8, 16, 32]


def sectors(stride):
    """Requests and sectors of 32 bytes of a launch of kernel strided."""
    n = 0
    for warp in range(4 * 128 // 32):
        n += len({4 * stride * (32 * warp + lane) // 32 for lane in range(32)})
    return 16, n


def passes(stride, size):
    """Requests and passes of shared memory of the stores of size bytes of a launch of kernel banks."""
    n = 0
    part = min(32, 128 // size)
    for warp in range(2):
        for first in range(0, 32, part):
            banks = {}
            for lane in range(first, first + part):
                at = (32 * warp + lane) * stride % (16384 // size) * size
                for word in range(at // 4, (at + size) // 4):
                    banks.setdefault(word % 32, set()).add(word)
            n += max(len(words) for words in banks.values())
    return 2 * 2, 2 * n


def build(source, out):
    subprocess.run(["gcc", "-O1", "-o", out, os.path.join(ROOT, source)], check=True)


class Check:
    def __init__(self):
        self.bad = 0

    def say(self, ok, what, more=""):
        self.bad += not ok
        print(("ok   " if ok else "BAD  ") + what + (("\n" + more) if more and not ok else ""), flush=True)


def stderr_of(command, cwd):
    p = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    lines = [l for l in p.stderr.splitlines() if not l.startswith(("probed ", "nvtrace: probes:", "not launched", "nvtrace: no NVIDIA"))]
    return p.returncode, p.stdout, "\n".join(lines).strip("\n")


def threads(text):
    return sum(int(n) * int(times) for n, times in re.findall(r"@warps\[(\d+)\]: (\d+)", text))


def oneliners(args, check, tmp):
    with open(os.path.join(ROOT, "docs/one-liners.md")) as f:
        page = f.read()
    for block in re.findall(r"```console\n(.*?)```", page, re.S):
        for example in ("\n" + block).split("\n$ ")[1:]:
            line, _, want = example.partition("\n")
            words = shlex.split(line)
            rc, out, got = stderr_of([args.nvtrace, "-q"] + args.more + words[1:], tmp)
            rx = re.escape(want.strip("\n")).replace("…", ".+")
            right = re.fullmatch(rx, got) is not None
            if "@warps" in want: # parted warps may run a block apart on a GPU, so that only their threads are certain
                right = threads(want) == threads(got)
            check.say(rc == 0 and right, line, f"rc {rc}\n{got}")


def rows(text):
    return [l.split() for l in text.splitlines()]


def tools(args, check, tmp):
    total = lambda pairs: tuple(sum(p[i] for p in pairs) for i in range(2))
    want = {
        "coalesce": [(*total([sectors(s) for s in STRIDES]), "strided,"), (18, 18, "uneven,")],
        "bankconflict": [(*total([passes(s, 4) for s in STRIDES]), "st.shared.u32"), (*total([passes(s, 8) for s in STRIDES]), "st.shared.u64"),
                         (*total([passes(s, 16) for s in STRIDES]), "st.shared.v2.u64")],
        "kernels": [(6, 24, "strided"), (6, 12, "banks"), (1, 6, "uneven")],
    }
    listed = subprocess.run([args.nvtrace, "tool"], stdout=subprocess.PIPE, text=True, check=True).stdout
    for name in re.findall(r"^(\S+)  ", listed, re.M):
        if args.only and name not in args.only:
            continue
        rc, out, got = stderr_of([args.nvtrace, "tool", name] + args.more + ["--", "./patterns"], tmp)
        ok = rc == 0 and "PASSED" in out
        for n, m, word in want.get(name, []):
            ok = ok and any(r[:2] == [str(n), str(m)] and any(word in w for w in r) for r in rows(got))
        if name == "opcodes":
            ok = ok and "@[strided, ld.volatile.global.u32]: 3072" in got and f"@[uneven, sub.u32]: {12 * sum(100 * b + 1 for b in range(6))}" in got
        if name == "divergence": # blocks may run apart on a GPU, so that only the instructions are certain
            ok = ok and any(r[1:] == ["33792", "strided"] for r in rows(got))
        check.say(ok, f"tool {name}", got)
        if args.verbose:
            print(got)


METRICS = {
    "requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "shared": "smsp__inst_executed_op_shared_st.sum",
    "wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
}


def ncu(args, check, tmp):
    p = subprocess.run([args.ncu, "--csv", "--metrics", ",".join(METRICS.values()), "./patterns"], cwd=tmp, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    at = p.stdout.find('"ID"')
    if at < 0:
        print("skip ncu: " + " ".join(l for l in p.stdout.splitlines() if "ERR" in l or "==ERROR" in l))
        return
    launches = {}
    for r in csv.DictReader(io.StringIO(p.stdout[at:])):
        launches.setdefault((int(r["ID"]), r["Kernel Name"].split("(")[0]), {})[r["Metric Name"]] = float(r["Metric Value"].replace(",", ""))
    strided = [m for (_, k), m in sorted(launches.items()) if k == "strided"]
    banks = [m for (_, k), m in sorted(launches.items()) if k == "banks"]
    for stride, m in zip(STRIDES, strided):
        got = (m[METRICS["requests"]], m[METRICS["sectors"]])
        check.say(got == sectors(stride), f"ncu: strided by {stride}: requests, sectors {got}, the model {sectors(stride)}")
    for stride, m in zip(STRIDES, banks):
        model = sum(passes(stride, size)[1] for size in (4, 8, 16))
        check.say(m[METRICS["wavefronts"]] == model, f"ncu: banks by {stride}: wavefronts {m[METRICS['wavefronts']]:.0f}, the model {model}")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--nvtrace", default=os.path.join(ROOT, "bin/nvtrace"))
    ap.add_argument("--sim", action="store_true")
    ap.add_argument("--ncu", help="Nsight Compute's ncu")
    ap.add_argument("--only", action="append", help="this tool only; may be repeated")
    ap.add_argument("--verbose", action="store_true", help="print what the tools show")
    args = ap.parse_args()
    args.nvtrace = os.path.abspath(args.nvtrace)
    args.more = ["--sim"] if args.sim else []
    check = Check()
    with tempfile.TemporaryDirectory() as tmp:
        build("examples/cuda/vectoradd_driver.c", os.path.join(tmp, "vectoradd"))
        build("cmd/nvtrace/testdata/patterns.c", os.path.join(tmp, "patterns"))
        if not args.only:
            oneliners(args, check, tmp)
        tools(args, check, tmp)
        if args.ncu:
            ncu(args, check, tmp)
    print(f"{check.bad} differ" if check.bad else "all as it should be")
    return 1 if check.bad else 0


if __name__ == "__main__":
    sys.exit(main())
