#!/usr/bin/env python3
"""What probes cost on a GPU.

Usage: bench/attach.py [--nvtrace PATH] [--nvcc PATH] [--out DIR] [--objects DIR] [--json FILE]

Kernel times are ratios of a kernel with probes to its twin without, in one process
and in turns, by CUDA events (attach.cu, attach_triton.py); best of some rounds. Every
result is checked, and the threads that the entry counter found are held against
those that were launched. The host's side of a launch and the time to start are
compared with the program without nvtrace. --objects names a folder with objects
built from bpftime's published examples; each is measured where it is there.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
OBJ = os.path.join(os.path.dirname(HERE), "nvattach", "testdata", "obj")
WORKS = ["vadd 1M", "vadd 16M", "matmul 1024", "reduce 16M"]
KERNELS = ["vectorAdd(*", "matmul(*", "reduce(*", "empty()", "scale_add"]

# name, object, programs, works ([]: all), rounds and launches a round, targets by work
PROBES = [
    ("entry count", "example_count.bpf.o", ["on_entry"], [], (5, 20), {"vadd 1M": 1.02, "vadd 16M": 1.06}),
    ("entry and exit count", "example_count.bpf.o", [], [], (5, 20), {}),
    ("duration histogram", "example_duration.bpf.o", [], [], (5, 20), {"vadd 1M": 1.15, "vadd 16M": 1.15}),
    ("a record a warp", "example_trace.bpf.o", [], WORKS[:2], (3, 5), {}),
    ("blocks, loads", "example_blocks.bpf.o", [], [], (3, 10), {}),
    ("accesses by kind, in a hash", "example_memory.bpf.o", [], WORKS[:1], (2, 2), {}),
    ("per-thread array, by pointer", "bpftime.bpf.o", ["cuda__threads"], WORKS[:2], (3, 10), {}),
    ("threadhist of bpftime", "threadhist_threadhist.o", [], WORKS[:2], (5, 20), {"vadd 1M": 1.30, "vadd 16M": 2.15}),
    ("gpu_shared_map of bpftime", "gpu_shared_map_gpu_shared_map.o", [], WORKS[:2], (3, 10), {"vadd 1M": 1.1, "vadd 16M": 1.1}),
    ("mem_trace of bpftime", "mem_trace_mem_trace.o", [], WORKS[:2], (3, 10), {"vadd 1M": 2, "vadd 16M": 2}),
]


class Bench:
    def __init__(self, args, out):
        self.args, self.out, self.bad, self.results = args, out, [], []
        self.program = os.path.join(out, "attach")
        self.cache = os.path.join(out, "cache")

    def run(self, command, flags=None, cache=None, limit=60):
        """The program's JSON lines, standard error, and the time that it took; flags None is without nvtrace."""
        if flags is not None:
            command = [self.args.nvtrace, "-q", *self.args.flag, *flags, "--", *command]
        env = dict(os.environ, XDG_CACHE_HOME=cache or self.cache)
        start = time.perf_counter()
        try:
            p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=limit, env=env)
            status, out, err = p.returncode, p.stdout.decode(errors="replace"), p.stderr.decode(errors="replace")
        except subprocess.TimeoutExpired as e:
            status, out, err = f"more than {limit} s", (e.stdout or b"").decode(errors="replace"), ""
        took = time.perf_counter() - start
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        if status != 0 or any(not l["ok"] for l in lines):
            self.fail(f"{' '.join(command)}: status {status}\n{out[-300:]}{err[-800:]}")
        return lines, err, took

    def fail(self, text):
        self.bad.append(text)
        print("FAIL " + text, file=sys.stderr)

    def flags(self, name, programs):
        path = os.path.join(OBJ, name)
        if not os.path.exists(path):
            path = os.path.join(self.args.objects or "", name)
        if not os.path.exists(path):
            return None
        flags = ["--attach", path, "--map-threads", str(1 << 24)]
        if name == "example_count.bpf.o":
            flags += ["--maps", "json"]  # to be read here; of maps with a row a thread it would be long
        for k in KERNELS:
            flags += ["--kernel", k]
        for p in programs:
            flags += ["--prog", p]
        return flags

    def row(self, probe, line, target=None):
        line = dict(line, probe=probe, target=target)
        self.results.append(line)
        regs, local = line["registers"], line["local"]
        verdict = "" if target is None else f"<= {target:.2f}x {'met' if line['ratio'] <= target else 'MISSED'}"
        print(f"{probe:30} {line['work']:12} {line['plain_us']:10.2f} {line['probed_us']:10.2f} {line['ratio']:8.3f}x  "
              f"{regs[0]:3} -> {regs[1]:3}  {local[0]:4} -> {local[1]:<4} {verdict}", flush=True)

    def counted(self, lines, err):
        """Holds the entry counter against the launches."""
        want = sum(l["threads"] * l["launches"] for l in lines)
        m = re.search(r'\{"map": "threads".*', err)
        got = next((e["value"] for e in json.loads(m[0])["entries"] if e["key"] == 0), 0) if m else 0
        if got != want:
            self.fail(f"the entry counter found {got} threads of {want}")

    def kernels(self, works):
        print(f"{'probe':30} {'work':12} {'plain us':>10} {'probed us':>10} {'ratio':>9}  registers   local bytes  target")
        lines, _, _ = self.run([self.program, "5", "20", *works])
        for line in lines:
            self.row("none, without nvtrace", line)
        for name, obj, programs, some, (rounds, launches), targets in PROBES:
            flags = self.flags(obj, programs)
            if flags is None:
                continue
            if not self.args.flag:
                some = some or works
            else:
                some, rounds, launches = works, 1, 2
            lines, err, _ = self.run([self.program, str(rounds), str(launches), *some], flags)
            for line in lines:
                self.row(name, line, targets.get(line["work"]))
            if obj == "example_count.bpf.o":
                self.counted(lines, err)

    def triton(self):
        command = [sys.executable, os.path.join(HERE, "attach_triton.py")]
        if subprocess.run([sys.executable, "-c", "import torch, triton"], capture_output=True).returncode:
            print("no PyTorch with Triton here: the Triton-made kernel is left out")
            return
        for name, obj, programs in [("entry count", "example_count.bpf.o", ["on_entry"]), ("duration histogram", "example_duration.bpf.o", [])]:
            lines, err, _ = self.run(command, self.flags(obj, programs))
            for line in lines:
                self.row(name, line)
            if programs:
                self.counted(lines, err)

    def launches(self, work):
        """The host's side of launching an empty kernel, in three processes each."""
        command, flags = [self.program, "7", "1", work], self.flags("example_count.bpf.o", [])
        plain, other, probed = [], [], []
        for _ in range(3):
            lines, _, _ = self.run(command)
            plain += [l["plain_us"] for l in lines]
            lines, _, _ = self.run(command, flags)
            other += [l["plain_us"] for l in lines]
            probed += [l["probed_us"] for l in lines]
        if plain and probed:
            a, b, c = (min(v) * 1e3 for v in (plain, other, probed))
            self.results.append({"work": "launch", "alone_ns": a, "unprobed_ns": b, "probed_ns": c})
            print(f"launch on the host: {a:.0f} ns without nvtrace; attached {b:.0f} ns of an unprobed kernel, {c:.0f} ns of a probed one "
                  f"({c - a:+.0f} ns; target <= +200 ns {'met' if c - a <= 200 else 'MISSED'})")

    def starts(self, work):
        """Time from start to end of a short program."""
        command, flags = [self.program, "1", "1", work], self.flags("example_count.bpf.o", [])
        self.run(command)
        alone, first, second = [], [], []
        for i in range(3):
            fresh = os.path.join(self.out, f"fresh{i}")
            alone.append(self.run(command)[2])
            first.append(self.run(command, flags, fresh)[2])
            second.append(self.run(command, flags, fresh)[2])
        a, b, c = (statistics.median(v) * 1e3 for v in (alone, first, second))
        self.results.append({"work": "start", "alone_ms": a, "first_ms": b, "second_ms": c})
        print(f"whole short program: {a:.0f} ms without nvtrace; attached first {b:.0f} ms ({b - a:+.0f}), with the cache {c:.0f} ms "
              f"({c - a:+.0f}; target <= +50 ms {'met' if c - a <= 50 else 'MISSED'})")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--nvtrace", default="bin/nvtrace")
    ap.add_argument("--nvcc", default="nvcc")
    ap.add_argument("--program", help="attach.cu, compiled, in place of compiling it")
    ap.add_argument("--out", help="folder for what is built; default a temporary one")
    ap.add_argument("--objects", help="folder with objects of bpftime's examples")
    ap.add_argument("--json", help="write the figures to this file")
    ap.add_argument("--flag", action="append", default=[], help="further flag of nvtrace; with --flag=--sim small works try the script out")
    args = ap.parse_args()
    out = args.out or tempfile.mkdtemp()
    os.makedirs(out, exist_ok=True)
    b = Bench(args, out)
    if args.program:
        b.program = args.program
    else:
        cap = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True)
        arch = (cap.stdout.split() or ["9.0"])[0].replace(".", "")  # with PTX, which -arch=native leaves out
        subprocess.run([args.nvcc, "-O2", f"-arch=sm_{arch}", "-o", b.program, os.path.join(HERE, "attach.cu")], check=True)
    small = any("--sim" in f for f in args.flag)
    if small:  # where there is no GPU, nothing runs without nvtrace
        run = b.run
        b.run = lambda command, flags=None, *rest: run(command, flags or [], *rest)
    b.kernels(["vadd 4K", "matmul 32", "reduce 64K"] if small else WORKS)
    if not small:
        b.triton()
    b.launches("launch few" if small else "launch")
    b.starts("vadd 4K")
    if args.json:
        with open(args.json, "w") as f:
            json.dump(b.results, f)
    if not args.out:
        shutil.rmtree(out)
    print("all results right" if not b.bad else f"{len(b.bad)} failed")
    return 1 if b.bad else 0


sys.exit(main())
