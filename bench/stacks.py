#!/usr/bin/env python3
"""Programs of the stacks that people use, alone and under nvtrace.

Usage: bench/stacks.py [--nvtrace PATH] [--out DIR] [--only NAME ...] [--attach OBJECT]

Runs each program of bench/stacks alone, with `--api --modules -o` and with --attach, and
prints whether its output and exit status are the same, how many gaps the recording has,
how long nvtrace's own text is, and what it says that is no table. Exit status 1 if
something differs, an image is missing, a map is not of the end, or the text is longer
than 60 lines. What is printed is written to stacks.txt in --out, too, line by line.
"""
import argparse
import json
import os
import subprocess
import shutil
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = ["train.py", "triton_ops.py", "cupy_ops.py", "jax_ops.py", "inductor.py"]


MOST_LINES = 60


def run(argv, limit=300):
    begin = time.perf_counter()
    try:
        p = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=limit)
    except subprocess.TimeoutExpired as e:
        return "timeout", e.stdout or b"", (e.stderr or b"").decode(errors="replace"), limit
    return p.returncode, p.stdout, p.stderr.decode(errors="replace"), time.perf_counter() - begin


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--nvtrace", default="bin/nvtrace")
    ap.add_argument("--out", default=".")
    ap.add_argument("--attach", default=os.path.join(HERE, "..", "examples", "probes", "count.bpf.o"))
    ap.add_argument("--attach-options", default="", help="more options of the runs with --attach")
    ap.add_argument("--modules", default="hash", help="what --modules= keeps: all, hash or refs")
    ap.add_argument("--only", action="append")
    ap.add_argument("--skip-api", action="store_true")
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    log = open(os.path.join(args.out, "stacks.txt"), "w")
    bad = []

    def say(line):
        print(line, flush=True)
        print(line, file=log, flush=True)

    for name in PROGRAMS:
        stem = name.removesuffix(".py")
        if args.only and stem not in args.only:
            continue
        command = ["python3", os.path.join(HERE, "stacks", name)]
        run(command)  # fills the caches of compilers
        status, want, err, took = run(command)
        say(f"{stem}: alone {took:.1f} s, status {status}, {len(want.splitlines())} lines")
        if status != 0:
            say(err[-2000:])
            bad.append(f"{stem}: does not run alone")
            continue
        plain = len(err.splitlines())
        nvt = os.path.join(args.out, stem + ".nvt")
        ways = {"attach": [args.nvtrace, *args.attach_options.split(), "--attach", args.attach, "--"]}
        if not args.skip_api:
            modules = "--modules" if args.modules == "all" else "--modules=" + args.modules
            ways = {"api": [args.nvtrace, "--api", modules, "-o", nvt, "--"], **ways}
        for way, prefix in ways.items():
            s, out, err, took = run(prefix + command)
            same = "same" if (s, out) == (status, want) else "DIFFERS"
            lines = err.splitlines()
            own = len(lines) - plain
            say(f"  {way}: {same}, status {s}, {took:.1f} s, {own} lines of nvtrace's")
            with open(os.path.join(args.out, f"{stem}.{way}.err"), "w") as f:
                f.write(err)
            for wrong, what in ((same != "same", "differs"), (own > MOST_LINES, f"{own} lines"), ("before its end: " in err, "a map is not of the end")):
                if wrong:
                    bad.append(f"{stem}, {way}: {what}")
            if way == "api":
                p = subprocess.run([args.nvtrace, "modules", "--json", nvt], capture_output=True, text=True)
                try:
                    m = json.loads(p.stdout)
                    gaps = len(m.get("gaps") or [])
                    say(f"  modules: complete {m.get('complete')}, {gaps} gaps")
                    if gaps or not m.get("complete"):
                        bad.append(f"{stem}: {gaps} gaps")
                except ValueError:
                    say(f"  modules: {p.stdout[:200]} {p.stderr[:200]}")
                    bad.append(f"{stem}: no list of images")
                if os.path.exists(nvt):
                    os.remove(nvt)
                shutil.rmtree(nvt + ".d", ignore_errors=True)
            for line in lines:
                if any(w in line for w in ("before its end", "are lost", "NOT ", "incomplete", "gap")):
                    say("    " + line[:200])
    say("\n".join(bad) or "all good")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
