#!/usr/bin/env python3
"""Checks that what the host and kernels count into one map at once is exact, on a machine with a GPU.

Usage: bench/both_count.py [--nvtrace PATH] [--sim] [--threads N] [--steps N] [--launches N]

Threads of both_count.c call a function while it launches kernels; a program at the function, one
at cuLaunchKernel and one at the kernels' entry add to the same entries of an array
(nvattach/testdata/obj/joined.bpf.c), which must hold all that was added. Needs gcc. Exit status 1 if one does not.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
OBJECT = os.path.join(HERE, "../nvattach/testdata/obj/joined.bpf.o")
HEADERS = os.path.join(HERE, "../nvattach/sim/testdata")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--nvtrace", default=os.path.join(HERE, "../bin/nvtrace"))
    p.add_argument("--sim", action="store_true", help="on the simulated GPU")
    p.add_argument("--threads", type=int, default=8)
    p.add_argument("--steps", type=int, default=1_000_000, help="calls by each thread")
    p.add_argument("--launches", type=int, default=1000, help="kernels of 16,384 threads")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        program, maps = os.path.join(tmp, "both_count"), os.path.join(tmp, "maps.json")
        subprocess.run(["gcc", "-O1", "-pthread", "-I", HEADERS, "-o", program, os.path.join(HERE, "both_count.c"), "-ldl"], check=True)
        command = [a.nvtrace, "-q", *["--sim"][: a.sim], "--maps", maps, "--attach", OBJECT, "--at", f"on_host={program}:step", "--"]
        run = subprocess.run([*command, program, str(a.threads), str(a.steps), str(a.launches)], capture_output=True, text=True)
        sys.stderr.write(run.stderr)
        if run.returncode:
            sys.exit(f"exit status {run.returncode}")
        with open(maps) as f:
            tables = {o["map"]: o for o in json.load(f) if "map" in o}
    entered, steps = int(run.stdout), a.threads * a.steps
    counts = {e["key"]: e["value"] for e in tables["counts"]["entries"]}
    wide = tables["wide"]["entries"][0]["value"]
    wrong = 0
    for what, got, want in [
        ("launches and threads", counts[0], 1_000_000 * a.launches + entered),
        ("calls and threads", counts[3], 1_000_000 * entered + steps),
        ("launches on the host alone", counts[1], a.launches),
        ("sums beside", wide["sum"], 7 * a.launches + entered),
        ("of the host", wide["host"], a.launches),
        ("of kernels", wide["kernel"], entered),
    ]:
        print(f"{what:28} {got:>20,} {'ok' if got == want else f'want {want:,}'}")
        wrong += got != want
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
