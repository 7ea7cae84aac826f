#!/usr/bin/env python3
"""Checks probes on a machine with an NVIDIA GPU, nvcc and the nvtrace binary.

Usage: check.py [--nvtrace PATH] [--nvcc PATH] [--arch NN] [--only WORD] [--out DIR] [-v]

Builds the CUDA programs of this folder (with the static and the shared runtime,
from machine code and PTX, relocatable, and as machine code alone), runs each
without nvtrace and with probes, and holds together:

- the program's own verdict, its output and exit status with and without probes;
- the threads that it launched, as it counts them itself, with the entries and
  exits that the probe counted: all three must be equal;
- for other probes, what they must find out about those threads.

Prints one line a check and "N checks, all good" (or what failed); exit status 1 if
something failed.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
MODES = ("early loop functions globals shared streams graph cooperative clusters many templates "
         "reset unsynced fork devices peers quick").split()


def probe(name):
    return os.path.join(ROOT, "nvattach", "testdata", "obj", f"example_{name}.bpf.o")


class Run:
    """One run of a program."""

    def __init__(self, argv, env=None, limit=120):
        start = time.perf_counter()
        try:
            p = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=limit, env=env)
            self.status, self.out, self.err = p.returncode, p.stdout.decode(errors="replace"), p.stderr.decode(errors="replace")
        except subprocess.TimeoutExpired as e:
            self.status, self.out = "timeout", (e.stdout or b"").decode(errors="replace")
            self.err = (e.stderr or b"").decode(errors="replace")
        self.took = time.perf_counter() - start

    def launched(self):
        m = re.search(r"launched (\d+)", self.out)
        return int(m[1]) if m else None

    def objects(self):
        """The JSON objects that nvtrace wrote."""
        found = []
        decoder, i, text = json.JSONDecoder(), 0, self.err
        while (i := text.find("{", i)) >= 0:
            try:
                v, i = decoder.raw_decode(text, i)
            except ValueError:
                i += 1
                continue
            if isinstance(v, dict):
                found.append(v)
        return found

    def sums(self, name, last=False):
        """key -> the sum of the map's entries in all contexts; of a map named name, or object:name

        With last, the map is shown several times, and only the last one counts."""
        total = {}
        for o in self.objects():
            if o.get("map", "").split("#")[0].split(":")[-1] != name:
                continue
            if last:
                total = {}
            for e in o.get("entries", []):
                k = json.dumps(e["key"])
                v = e.get("sum", e.get("value", 0))
                if isinstance(v, (int, float)):
                    total[k] = total.get(k, 0) + v
        return total


class Checks:
    def __init__(self, verbose):
        self.n, self.bad, self.verbose = 0, [], verbose

    def say(self, name, problems, run, note=""):
        self.n += 1
        if not problems:
            print(f"ok    {name:34} {run.took:6.2f} s  {note}")
            return
        self.bad.append(name)
        print(f"FAIL  {name:34} {'; '.join(problems)}")
        tail = (run.out[-300:] + "\n" + run.err[-(3000 if self.verbose else 700):]).strip()
        print("      " + tail.replace("\n", "\n      "))


def build(args, out):
    """name -> command line; the kinds that can't be built are reported."""
    cc = args.arch
    if not cc:
        cap = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True)
        cc = cap.stdout.split()[0].replace(".", "")
    both = ["-gencode", f"arch=compute_{cc},code=[compute_{cc},sm_{cc}]"]
    kinds = {
        "static": ["-cudart", "static"] + both,
        "shared": ["-cudart", "shared"] + both,
        "ptx": ["-cudart", "static", "-gencode", f"arch=compute_{cc},code=compute_{cc}"],
        "old": ["-cudart", "static", "-gencode", "arch=compute_75,code=compute_75"],
        "rdc": ["-cudart", "static", "-rdc=true"] + both,
        "sass": ["-cudart", "static", "-gencode", f"arch=compute_{cc},code=sm_{cc}"],
    }
    jobs, programs = [], {}
    for kind, flags in kinds.items():
        exe = os.path.join(out, "counts-" + kind)
        jobs.append((f"counts-{kind}", exe, [args.nvcc, "-O2", "-o", exe, os.path.join(HERE, "counts.cu")] + flags))
    if cc == "90":
        exe = os.path.join(out, "wgmma")
        jobs.append(("wgmma", exe, [args.nvcc, "-O2", "-o", exe, os.path.join(HERE, "wgmma.cu"), "-gencode",
                                    "arch=compute_90a,code=[compute_90a,sm_90a]"]))
    exe = os.path.join(out, "nvrtc")
    jobs.append(("nvrtc", exe, [args.nvcc, "-O2", "-o", exe, os.path.join(HERE, "nvrtc.cpp"), "-lnvrtc", "-lcuda"]))
    exe = os.path.join(out, "drv_vectoradd")
    sim = os.path.join(ROOT, "nvattach", "sim", "testdata")
    jobs.append(("driver", exe, ["gcc", "-O1", "-w", "-o", exe, os.path.join(sim, "drv_vectoradd.c"), "-ldl", "-lpthread"]))
    for name in "graphs occupancy managed globals streams dynshared cooperative reduction matmul histogram".split():
        exe = os.path.join(out, "t-" + name)
        jobs.append(("t-" + name, exe, [args.nvcc, "-O2", "-o", exe, os.path.join(sim, name + ".cu"), "-cudart", "static"] + both))
    running = [(name, exe, cmd, subprocess.Popen(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)) for name, exe, cmd in jobs]
    for name, exe, cmd, p in running:
        text = p.communicate()[0].decode(errors="replace")
        if p.returncode == 0:
            programs[name] = [exe]
        else:
            print(f"skip  {name}: {' '.join(cmd)}: {text.strip()[-300:]}")
    return programs


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--nvtrace", default=os.path.join(ROOT, "bin", "nvtrace"))
    ap.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    ap.add_argument("--arch", default="", help="90; of the first GPU if it is not given")
    ap.add_argument("--only", default="")
    ap.add_argument("--out", default="/tmp/nvtrace-check")
    ap.add_argument("-v", action="store_true")
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    programs = build(args, args.out)
    c = Checks(args.v)

    def attach(command, *flags, objs=("count",), env=None, limit=120):
        words = [args.nvtrace, "-q", "--no-sim", "--maps", "json"]
        for o in objs:
            words += ["--attach", probe(o)]
        return Run(words + list(flags) + ["--"] + command, env, limit)

    def counted(name, command, *flags, copies=1, objs=("count",), env=None):
        if args.only not in name:
            return None
        plain = Run(command)
        r = attach(command, *flags, objs=objs, env=env)
        want, got = r.launched(), r.sums("threads", "--interval" in flags)
        if want is None:
            want = plain.launched()
        problems = []
        if plain.status != 0:
            problems.append(f"without nvtrace: status {plain.status}")
        if r.status != plain.status or r.out != plain.out:
            problems.append(f"status {r.status}, output differs" if r.out != plain.out else f"status {r.status}")
        if want is not None and (got.get("0") != want * copies or got.get("1") != want * copies):
            problems.append(f"launched {want}, entries {got.get('0')}, exits {got.get('1')}")
        for o in r.objects():
            if o.get("unprobed"):
                problems.append(f"{o.get('demangled')}: {o['unprobed']}"[:300])
        c.say(name, problems, r, f"{want} threads; {plain.took:.2f} s without")
        return r

    for kind in "static shared ptx old".split():
        if f"counts-{kind}" not in programs:
            continue
        for mode in MODES if kind == "static" else ["early", "globals", "graph", "shared", "fork"]:
            counted(f"counts-{kind} {mode}", programs[f"counts-{kind}"] + [mode])
    for name in ["wgmma", "nvrtc"]:
        if name in programs:
            counted(name, programs[name])
    for name, command in programs.items():
        if name.startswith("t-") or name == "driver":
            r = counted(name, command)
            if r is not None:
                got = r.sums("threads")
                c.say(name + " entries = exits", [] if got.get("0") and got.get("0") == got.get("1") else [f"{got}"], r, f"{got.get('0')}")
    static = programs.get("counts-static")
    if static:
        counted("the same object twice", static + ["graph"], copies=2, objs=("count", "count"))
        counted("100 probes", static + ["graph"], copies=50, objs=("count",) * 50)
        counted("eager loading", static + ["graph"], env=dict(os.environ, CUDA_MODULE_LOADING="EAGER"))
        counted("--modules too", static + ["graph"], "--modules=hash")
        counted("--api too", static + ["graph"], "--api")
        counted("--interval", static + ["many"], "--interval", "20ms")
        others(c, args, attach, static)
    for kind in "sass", "rdc":  # relocatable code was linked to machine code
        if f"counts-{kind}" in programs and args.only in "machine code alone " + kind:
            sass(c, attach, programs[f"counts-{kind}"], kind)
    print(f"{c.n} checks, " + ("all good" if not c.bad else f"{len(c.bad)} FAILED: " + ", ".join(c.bad)))
    return 1 if c.bad else 0


def others(c, args, attach, static):
    """The other example probes, on launches of known shape."""
    def one(name, probe_name, mode, judge):
        if args.only not in name:
            return
        r = attach(static + [mode], objs=(probe_name,))
        problems = [] if r.status == 0 and "PASSED" in r.out else [f"status {r.status}"]
        problems += judge(r)
        c.say(name, problems, r)

    def memory(r):
        # v[i] += 1 of 96 threads, 150 times: a load and a store of 4 bytes each.
        hist = r.sums("size_hist")
        want = 2 * 96 * 150
        return [] if sum(hist.values()) == want else [f"sizes {hist}, want {want} accesses"]

    def trace(r):
        lines = [o for o in r.objects() if "starts on SM" in o.get("printk", "")]
        return [] if len(lines) == 150 else [f"{len(lines)} lines of bpf_printk, want 150 (a block each)"]

    def duration(r):
        hist = r.sums("cycles_hist")
        return [] if sum(hist.values()) == 150 * 96 else [f"{sum(hist.values())} durations, want {150 * 96}"]

    def blocks(r):
        runs = r.sums("block_runs")
        return [] if runs.get("0") == 150 * 96 else [f"block 0 ran {runs.get('0')} times, want {150 * 96}"]

    one("memory probe", "memory", "graph", memory)
    one("trace probe", "trace", "graph", trace)
    one("duration probe", "duration", "graph", duration)
    one("blocks probe", "blocks", "graph", blocks)


def sass(c, attach, command, kind):
    """Kernels of which there is only machine code run unprobed, or not at all."""
    r = attach(command + ["early"])
    reasons = [o for o in r.objects() if o.get("unprobed")]
    problems = [] if r.status == 0 and "PASSED" in r.out else [f"status {r.status}"]
    if not reasons:
        problems.append("no kernel is reported as unprobed")
    c.say("machine code alone " + kind, problems, r)
    r = attach(command + ["early"], "--require")
    problems = []
    if r.status != 125 or "PASSED" in r.out or "can't be probed" not in r.err:
        problems.append(f"--require: status {r.status}")
    c.say(f"machine code alone {kind} --require", problems, r)


if __name__ == "__main__":
    sys.exit(main())
