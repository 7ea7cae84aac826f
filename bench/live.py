#!/usr/bin/env python3
"""Attaches to a program that trains, or answers prompts, and detaches from it, again and again.

Usage: bench/live.py [--nvtrace PATH] [--program train|serve] [--steps N] [--cycles N] [--seconds S] [--attention KIND]

Each cycle runs nvtrace -p for some seconds, by turns with an object and with a program of one
line, and ends it by SIGINT. Its line says how many of the launched kernels were probed, what
the probes counted, when the first and the last kernel got its probe after nvtrace was
started, the longest that nvtrace held a thread, and the steps of the program: the median
before, the median and the longest meanwhile, and the median of the second that begins one
after detaching. At the end as many steps are run untouched, and what they print must be the
same. Exit status 1 if it isn't, a cycle probed or counted nothing, a thread was held for more
than 100 ms, or steps stay slower.
"""
import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
COUNT = os.path.join(HERE, "..", "examples", "probes", "count.bpf.o")
WAYS = [
    ("object", ["--attach", COUNT], r"^  \[0\] = (\d+)$"),
    ("line", ["-e", "kernel:* { @[kernel] = count(); }"], r"^@\[.*\]: (\d+)$"),
]
UNITS = {"s": 1e3, "ms": 1, "µs": 1e-3, "ns": 1e-6}


def steps(path, begin, end):
    """The durations, in ms, of the steps that began between two times and have ended."""
    with open(path) as f:
        lines = [line.split() for line in f if line.endswith("\n")]
    return [1e3 * float(took) for at, took in lines if begin <= float(at) < end]


def median(list):
    return statistics.median(list) if list else float("nan")


def took(text):
    """A duration as Go writes it, in ms."""
    return sum(float(n) * (60e3 if unit == "m" else UNITS[unit]) for n, unit in re.findall(r"([\d.]+)(ms|µs|ns|s|m)", text))


def cycle(args, app, out, stamps, number):
    """One attaching: the line to be shown, and what is wrong with it."""
    way, flags, pattern = WAYS[number % len(WAYS)]
    begin = time.monotonic()
    before = median(steps(stamps, begin - 1, begin))
    text = os.path.join(out, f"cycle{number}.txt")
    with open(text, "w") as f:
        p = subprocess.Popen([args.nvtrace, "-v", *flags, "-p", str(app.pid)], stdout=f, stderr=f, env=dict(os.environ, NVTRACE_DEBUG="1"))
        try:
            p.wait(args.seconds)
        except subprocess.TimeoutExpired:
            p.send_signal(signal.SIGINT)
        try:
            p.wait(30)
        except subprocess.TimeoutExpired:
            p.send_signal(signal.SIGQUIT)  # says where it is
            p.wait()
    end = time.monotonic()
    time.sleep(2)
    with open(text, errors="replace") as f:
        got = f.read()
    total = re.findall(r"^probed \d+ of \d+ launched kernels.*", got, re.M)
    kernels = len(re.findall(r"^probed .*\(\d+ sites?", got, re.M))
    count = sum(int(n) for n in re.findall(pattern, got, re.M))
    at = [float(t) - begin for t in re.findall(r'time=(\d+\.\d+) .*msg="launches get programs"', got)]
    held = max([took(t) for t in re.findall(r"(?:msg=visited .*took|msg=stops .*longest)=(\S+)", got)], default=0)
    during, after = steps(stamps, begin, end), steps(stamps, end + 1, end + 2)
    wrong = []
    if p.returncode != 0:
        wrong.append(f"nvtrace: status {p.returncode}")
    if not kernels or not count:
        wrong.append("nothing was probed")
    if held > 100:
        wrong.append("held for too long")
    if app.poll() is None and median(after) > 1.2 * before + 0.5:
        wrong.append("slower afterwards")
    if app.poll() is not None:
        wrong.append(f"the program has ended with {app.returncode}")
    line = (f"cycle {number:3} {way:6} {total[-1] if total else f'{kernels} kernels probed'}; counted {count:,}; "
            f"first {min(at, default=float('nan')):.2f} s, last {max(at, default=float('nan')):.2f} s; held {held:.1f} ms; "
            f"{end - begin:.1f} s; step ms {before:.1f} before, {median(during):.1f} meanwhile, longest {max(during, default=0):.1f}, {median(after):.1f} after")
    return line, wrong


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--nvtrace", default="bin/nvtrace")
    ap.add_argument("--program", default="train", help="train, serve, or a script with their flags")
    ap.add_argument("--steps", type=int, default=1000000, help="at most; it ends with the last cycle")
    ap.add_argument("--cycles", type=int, default=4)
    ap.add_argument("--seconds", type=float, default=4)
    ap.add_argument("--attention", default="flash")
    ap.add_argument("--out", help="folder for what the cycles print")
    args = ap.parse_args()
    out = args.out or tempfile.mkdtemp()
    os.makedirs(out, exist_ok=True)
    script = os.path.join(HERE, "stacks", args.program + ".py") if os.sep not in args.program else args.program
    stamps, until, said = (os.path.join(out, n) for n in ("stamps", "until", "said"))
    for path in (stamps, until):
        if os.path.exists(path):
            os.remove(path)
    bad = 0
    with open(said, "w") as f, open(said + ".err", "w") as err:
        command = [sys.executable, script, "--attention", args.attention]
        app = subprocess.Popen([*command, str(args.steps), "--stamps", stamps, "--until", until], stdout=f, stderr=err)
    try:
        while app.poll() is None and (not os.path.exists(stamps) or len(steps(stamps, 0, float("inf"))) < 30):
            time.sleep(0.1)
        for number in range(args.cycles):
            if app.poll() is not None:
                break
            line, wrong = cycle(args, app, out, stamps, number)
            bad += len(wrong)
            print(line, *(["BAD:", ", ".join(wrong)] if wrong else ["good"]), flush=True)
        open(until, "w").close()
        try:
            app.wait(30)
        except subprocess.TimeoutExpired:
            print("BAD: the program does not go on")
            bad += 1
    finally:
        app.kill()
        app.wait()
    with open(said) as f:
        got = f.read()
    many = got.count("\n")
    want = subprocess.run([*command, str(many)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    differ = next((i for i, (a, b) in enumerate(zip(got.splitlines(), want.splitlines())) if a != b), None)
    if app.returncode != 0 or got != want or not many:
        bad += 1
        print(f"BAD: status {app.returncode}; of {many} lines the first that differs is {differ}")
        with open(said + ".err") as err:
            print(err.read()[-1500:])
    else:
        print(f"{many} lines, as those of an untouched run")
    print("verdict:", "BAD" if bad else "good", f"({out})")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
