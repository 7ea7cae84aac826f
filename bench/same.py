#!/usr/bin/env python3
"""Runs every program of a folder alone and under nvtrace, and compares what they do.

Usage: bench/same.py [--nvtrace PATH] [--flags "-q"] [--alone N] [--limit SECONDS]
                     [--jobs N] [--only GLOB] [--json FILE] FOLDER

Compared are the exit status (or signal), stdout and stderr. Numbers that differ from
run to run (addresses, process ids, times, temporary names) are left out: what two runs
alone do not have in common is not compared. Each run has an empty folder of its own as
working directory and a process group of its own, and is ended with it after --limit
seconds. Exits with 1 if a program differed.

A program differs only if none of its runs under nvtrace did what one of its runs alone
did: programs that race are run --alone times each way.
"""
import argparse
import concurrent.futures
import fnmatch
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile

VARIES = [
    (re.compile(rb"0x[0-9a-fA-F]+"), b"0x#"),
    (re.compile(rb"\b[0-9a-f]{8,16}\b"), b"#"),
    (re.compile(rb"\d+(\.\d+)?"), b"#"),
    (re.compile(rb"/tmp/[^\s'\"]*"), b"/tmp/#"),
]


def plain(text):
    for pattern, by in VARIES:
        text = pattern.sub(by, text)
    return text


def run(argv, limit):
    """Returns what argv did: (status, stdout, stderr), with what varies left out."""
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        # Below a shell, so that the program leads no session, however it runs.
        argv = ["sh", "-c", '"$@"; exit $?', "sh", *argv]
        p = subprocess.Popen(argv, cwd=home, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        try:
            status = p.wait(limit)
        except subprocess.TimeoutExpired:
            status = "no end"
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        p.wait()
        if status == "no end":
            return status, b"", b""  # how far it came says nothing
        texts = []
        for f in out, err:
            f.seek(0)
            texts.append(plain(f.read(1 << 20)))
        return status, *texts


def ordered(did):
    return did[0], *(sorted(text.splitlines()) for text in did[1:])


def compare(path, args):
    flags = shlex.split(args.flags)
    alone = [run([path], args.limit)]
    traced = []
    for i in range(args.alone):
        traced.append(run([args.nvtrace, *flags, "--", path], args.limit))
        if traced[-1] in alone:
            return "same", alone, traced
        alone.append(run([path], args.limit))
        if traced[-1] in alone:
            return "same", alone, traced
    if any(ordered(t) in map(ordered, alone) for t in traced):
        return "other order", alone, traced
    # Not equal as a whole: is each part what it is in some run alone, where that varies?
    varies = [len({a[i] for a in alone}) > 1 for i in range(3)]
    for t in traced:
        if all(t[i] in [a[i] for a in alone] or varies[i] and i > 0 for i in range(3)):
            return "varies alone", alone, traced
    return "differs", alone, traced


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--nvtrace", default="bin/nvtrace")
    ap.add_argument("--flags", default="-q", help="flags of nvtrace (-q)")
    ap.add_argument("--alone", type=int, default=4, help="how often a program that differs is run each way (4)")
    ap.add_argument("--limit", type=float, default=60, help="seconds that a run may take (60)")
    ap.add_argument("--jobs", type=int, default=1)
    ap.add_argument("--only", default="*", help="a glob that names have to match")
    ap.add_argument("--json", help="writes all runs there")
    ap.add_argument("folder")
    args = ap.parse_args()
    args.nvtrace = os.path.abspath(args.nvtrace)
    programs = []
    for e in sorted(os.scandir(args.folder), key=lambda e: e.name):
        if e.is_file() and os.access(e.path, os.X_OK) and fnmatch.fnmatch(e.name, args.only):
            programs.append(os.path.abspath(e.path))
    counts, runs = {}, {}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for path, (verdict, alone, traced) in zip(programs, pool.map(lambda p: compare(p, args), programs)):
            name = os.path.basename(path)
            counts[verdict] = counts.get(verdict, 0) + 1
            runs[name] = {"verdict": verdict, "alone": [[s, o.decode("latin1"), e.decode("latin1")] for s, o, e in alone],
                          "traced": [[s, o.decode("latin1"), e.decode("latin1")] for s, o, e in traced]}
            if verdict != "same":
                print(f"{name}: {verdict}: alone {[a[0] for a in alone]}, traced {[t[0] for t in traced]}", flush=True)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(runs, f, indent=1)
    print(f"{len(programs)} programs: " + ", ".join(f"{n} {v}" for v, n in sorted(counts.items())))
    return 1 if counts.get("differs") else 0


if __name__ == "__main__":
    sys.exit(main())
