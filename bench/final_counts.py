#!/usr/bin/env python3
"""Checks that maps are shown as they were at the end, on a machine with a GPU.

Usage: bench/final_counts.py [--nvtrace PATH] [--sim] [--only NAME ...]

Each program of bench/stacks runs to its end and then launches a kernel of PTX that takes
its time, in a stream that the default stream does not wait for, and leaves in one of
several ways without waiting for it. Under `nvtrace --attach count.bpf.o` the threads that
entered and left that kernel must be all of them, and no map may be said to be older.
"none" is no framework: the driver alone. Exit status 1 if something is wrong.
"""
import argparse
import atexit
import contextlib
import ctypes
import io
import json
import os
import re
import runpy
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = ["none", "train", "triton_ops", "cupy_ops", "jax_ops", "inductor"]
WAYS = ["return", "exit", "_exit", "atexit", "reset"]
LAUNCHES, BLOCKS, THREADS = 20, 4, 64
STALE = re.compile(r"before its end|are lost|earlier moment|can't be read")
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry nvtrace_final_counts(.param .u64 cycles)
{
	.reg .b64 %rd<4>;
	.reg .pred %p;
	ld.param.u64 %rd1, [cycles];
	mov.u64 %rd2, %clock64;
again:
	mov.u64 %rd3, %clock64;
	sub.u64 %rd3, %rd3, %rd2;
	setp.lt.u64 %p, %rd3, %rd1;
	@%p bra again;
	ret;
}
"""


class Driver:
    """A kernel in the context that the framework uses."""

    def __init__(self, cycles):
        self.cu = ctypes.CDLL("libcuda.so.1")
        self.cycles = ctypes.c_uint64(cycles)
        self.call("cuInit", 0)
        ctx, module, self.stream, self.function = (ctypes.c_void_p() for _ in range(4))
        self.call("cuCtxGetCurrent", ctypes.byref(ctx))
        if not ctx.value:
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(ctx), 0)
            self.call("cuCtxSetCurrent", ctx)
        self.call("cuModuleLoadData", ctypes.byref(module), PTX)
        self.call("cuModuleGetFunction", ctypes.byref(self.function), module, b"nvtrace_final_counts")
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)  # CU_STREAM_NON_BLOCKING

    def call(self, name, *args):
        status = getattr(self.cu, name)(*args)
        if status:
            sys.exit(f"{name}: CUDA error {status}")

    def launch(self):
        args = (ctypes.c_void_p * 1)(ctypes.addressof(self.cycles))
        for _ in range(LAUNCHES):
            self.call("cuLaunchKernel", self.function, BLOCKS, 1, 1, THREADS, 1, 1, 0, self.stream, args, None)


def child(name, way, cycles):
    if name != "none":
        sys.argv = [name]
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(os.path.join(HERE, "stacks", name + ".py"), run_name="__main__")
    d = Driver(cycles)
    times = 1
    if way == "atexit":
        atexit.register(d.launch)
        times = 2
    d.launch()
    if way == "reset":
        d.call("cuDevicePrimaryCtxReset_v2", 0)
    print(times * LAUNCHES * BLOCKS * THREADS, flush=True)
    if way == "exit":
        ctypes.CDLL(None).exit(0)
    if way == "_exit":
        os._exit(0)


def counted(text):
    """Threads that entered and left, and what is said of their age."""
    got, stale = [0, 0], []
    for line in text.splitlines():
        with contextlib.suppress(ValueError, TypeError):
            o = json.loads(line.lstrip("[,"))
            if o.get("map") == "threads":
                for e in o["entries"]:
                    got[e["key"]] += e["value"]
        if STALE.search(line):
            stale.append(line)
    return got, stale


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--nvtrace", default="bin/nvtrace")
    ap.add_argument("--sim", action="store_true", help="on the simulated GPU, through the driver in the program")
    ap.add_argument("--only", action="append")
    ap.add_argument("--child", nargs=3, metavar=("NAME", "WAY", "CYCLES"), help=argparse.SUPPRESS)
    args = ap.parse_args()
    if args.child:
        child(args.child[0], args.child[1], int(args.child[2]))
        return 0
    options = ["--sim", "--sim-probes=driver"] if args.sim else []
    bad = 0
    for name in args.only or PROGRAMS:
        for way in WAYS:
            command = ["python3", os.path.abspath(__file__), "--child", name, way, "2000" if args.sim else "2000000"]
            probe = os.path.join(HERE, "..", "examples", "probes", "count.bpf.o")
            p = subprocess.run([args.nvtrace, "-q", *options, "--maps", "json", "--attach", probe, "--kernel", "nvtrace_final_counts", "--", *command],
                               capture_output=True, text=True, timeout=600)
            got, stale = counted(p.stderr)
            want = p.stdout.strip()
            right = p.returncode == 0 and want.isdigit() and got == [int(want)] * 2 and not stale
            bad += not right
            print(f"{name} {way}: {'right' if right else 'WRONG'}: {got[0]} entered, {got[1]} left, {want} launched, status {p.returncode}", *stale, flush=True)
            if not right and p.returncode != 0:
                print(p.stderr[-1500:])
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
