#!/usr/bin/env python3
"""Runs the helpers of programs in kernels on a GPU, in PTX and in machine code, against known truths.

    bench/helpers.py --nvtrace ./nvtrace [--nvcc nvcc] [--arch sm_90] [--sim]

Memory at any address, also of memory that is freed while the kernel reads it; what the threads of a warp
do together; the highest and lowest of numbers; values of other multiprocessors, and of copies to shared memory.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#define CHECK(x) do { cudaError_t e = (x); if (e) { printf("%s: %s\n", #x, cudaGetErrorString(e)); exit(1); } } while (0)

__global__ void vectorAdd(const unsigned *a, const unsigned *b, unsigned *c, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		c[i] = a[i] + b[i];
}

// copied takes its input by asynchronous copies of 16, 8 and 4 bytes, of the last but the first three.
__global__ void copied(const unsigned *in, unsigned *out, unsigned left)
{
	__shared__ __align__(16) unsigned s[32 * 7];
	int t = threadIdx.x;
	unsigned at = (unsigned)__cvta_generic_to_shared(s);
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at + 16 * t), "l"(in + 4 * t) : "memory");
	asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" :: "r"(at + 512 + 8 * t), "l"(in + 128 + 2 * t), "r"(t < 4 ? left : 8) : "memory");
	if (t < 20)
		asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(at + 768 + 4 * t), "l"(t < 3 ? 0 : in + 192 + t), "r"(t < 3 ? 0 : 4) : "memory");
	asm volatile("cp.async.wait_all;" ::: "memory");
	__syncthreads();
	unsigned sum = s[4 * t] + s[4 * t + 1] + s[4 * t + 2] + s[4 * t + 3] + s[128 + 2 * t] + s[129 + 2 * t];
	out[t] = t < 20 ? sum + s[192 + t] : sum;
}

// rounds takes a pointer that it does not follow.
__global__ void rounds(const unsigned *unused, unsigned *out, int n)
{
	unsigned x = threadIdx.x;
	for (int i = 0; i < n; i++) {
		x = x * 1664525 + 1013904223;
		if (x % 5 == 0)
			x += i;
		else
			out[threadIdx.x] = x;
	}
	out[threadIdx.x] = x;
}

const int N = 1000;

static unsigned *filled(bool managed)
{
	unsigned v[N], *d;
	for (int i = 0; i < N; i++)
		v[i] = i;
	if (managed)
		CHECK(cudaMallocManaged(&d, sizeof v));
	else
		CHECK(cudaMalloc(&d, sizeof v));
	CHECK(cudaMemcpy(d, v, sizeof v, cudaMemcpyDefault));
	return d;
}

static void nothing(unsigned *a) { vectorAdd<<<8, 128>>>(a, a, a, 0); CHECK(cudaDeviceSynchronize()); }

int main(int argc, char **argv)
{
	const char *mode = argv[1];
	if (!strcmp(mode, "reads")) {
		unsigned *before = filled(false), *after = filled(false), *managed = filled(true);
		nothing(before); nothing(after); nothing(managed);
		CHECK(cudaFree(after));
		CHECK(cudaFree(managed));
		nothing(after); nothing(managed); nothing(0); nothing(before);
	} else if (!strcmp(mode, "freed")) { // while a kernel runs whose probe reads it
		cudaStream_t s;
		unsigned *out, *p[20], sum = 0, host[64];
		CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
		CHECK(cudaMalloc(&out, sizeof host));
		for (int i = 0; i < 20; i++)
			p[i] = filled(false);
		for (int i = 0; i < 20; i++) {
			rounds<<<4, 64, 0, s>>>(p[i], out, 200);
			CHECK(cudaFree(p[i]));
		}
		CHECK(cudaDeviceSynchronize());
		CHECK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
		for (int i = 0; i < 64; i++)
			sum += host[i];
		printf("sum %u\n", sum);
	} else if (!strcmp(mode, "copied")) {
		unsigned *a = filled(false), *c = filled(false), sum = 0, host[32];
		copied<<<1, 32>>>(a, c, 3);
		CHECK(cudaDeviceSynchronize());
		CHECK(cudaMemcpy(host, c, sizeof host, cudaMemcpyDeviceToHost));
		for (int i = 0; i < 32; i++)
			sum += host[i];
		printf("sum %u\n", sum);
	} else {
		unsigned *a = filled(false), *c = filled(false), sum = 0, host[210];
		vectorAdd<<<3, 70>>>(a, a, c, 210);
		CHECK(cudaDeviceSynchronize());
		CHECK(cudaMemcpy(host, c, sizeof host, cudaMemcpyDeviceToHost));
		for (int i = 0; i < 210; i++)
			sum += host[i];
		printf("sum %u\n", sum);
	}
	printf("PASSED\n");
}
"""

failures = 0


def check(what, got, want):
    global failures
    if got == want:
        print(f"ok    {what}")
    else:
        failures += 1
        print(f"FAIL  {what}: {got}, want {want}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--nvtrace", default="./nvtrace")
    ap.add_argument("--nvcc", default="nvcc")
    ap.add_argument("--arch", default="sm_90")
    ap.add_argument("--flag", action="append", default=[], help="for nvcc")
    ap.add_argument("--sim", action="store_true", help="on the simulated GPU, which runs PTX alone")
    o = ap.parse_args()
    objects = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "nvattach", "testdata", "obj")
    with tempfile.TemporaryDirectory() as tmp:
        src, app = os.path.join(tmp, "helpers.cu"), os.path.join(tmp, "helpers")
        with open(src, "w") as f:
            f.write(PROGRAM)
        sm = o.arch[3:]
        subprocess.run([o.nvcc, "-gencode", f"arch=compute_{sm},code=[sm_{sm},compute_{sm}]", "-o", app] + o.flag + [src], check=True)
        for code in ["PTX"] if o.sim else ["PTX", "machine code"]:
            run(o, code, app, objects, tmp)
    print("PASSED" if failures == 0 else f"{failures} FAILED")
    return failures > 0


def run(o, code, app, objects, tmp):
    def attach(mode, *flags):
        out = os.path.join(tmp, "maps.json")
        if os.path.exists(out):
            os.remove(out)
        argv = [o.nvtrace] + (["--sim"] if o.sim else []) + list(flags) + ([] if "-e" in flags else ["--maps", out])
        if not o.sim:
            argv.append("--machine-code=" + ("true" if code == "machine code" else "false"))
        p = subprocess.run(argv + ["--", app, mode], capture_output=True, text=True, timeout=60)
        text = p.stdout + p.stderr
        if "PASSED\n" not in p.stdout or p.returncode != 0:
            check(f"{code}: {mode} {flags} ran", f"status {p.returncode}\n{text[-1500:]}", "PASSED")
        for line in text.splitlines():
            if any(w in line for w in ("not probed", "can't", "without probes", "BUG")):
                print(f"      {code}: {mode}: {line[:200]}")
        if "-e" in flags:
            return {}, text
        try:
            with open(out) as f:
                maps = json.load(f)
        except (OSError, ValueError) as e:
            check(f"{code}: maps of {flags}", str(e), "JSON")
            maps = []
        return {m["map"]: {json.dumps(e["key"]): e.get("value") for e in m.get("entries", [])} for m in maps if "map" in m}, text

    def obj(name):
        return "--attach", os.path.join(objects, name + ".bpf.o")

    n, threads = 1000, 1024
    m, _ = attach("reads", *obj("readparam"))
    check(f"{code}: memory that is there, and that is not", list(m.get("sums", {}).values()), [4 * n, 7 * threads - 4 * n, 4 * n * (n - 1) // 2])

    m, text = attach("freed", "-e", "block:rounds* { @all = count(); @there = sum(read32(arg0 + 4 * 7) == 7); }")
    plain = subprocess.run([o.nvtrace, "--sim", "--", app, "freed"] if o.sim else [app, "freed"], capture_output=True, text=True).stdout
    wanted = next((x for x in plain.splitlines() if x.startswith("sum ")), None)
    check(f"{code}: the kernel's result where memory is freed while probes read it", next((x for x in text.splitlines() if x.startswith("sum ")), ""), wanted)
    print("      " + "; ".join(x for x in text.splitlines() if x.startswith("@")))

    m, _ = attach("once", *obj("together"), "--kernel", "vectorAdd*")
    bad = 0
    for i in range(3 * 70):
        block, thread = divmod(i, 70)
        lane, first = thread % 32, block * 70 + thread // 32 * 32
        size = min(32, 70 - thread // 32 * 32)
        warp = range(size)
        any_ = any(first + l == 7 for l in warp)
        want = {
            "together": (1 << size) - 1, "ballot": sum(1 << l for l in warp if (first + l) % 3 == 0), "any": int(any_),
            "all": int(all(first + l < 64 for l in warp)), "leader": int(lane == 0),
            "shuffled": (1 << 40 | (first + (lane ^ 1))) if lane ^ 1 < size else 0, "none": 0,
            "behind": sum(1 << l for l in warp if l & 1) if any_ else 0,
        }
        got = m.get("out", {}).get(str(i))
        if got != want:
            if bad == 0:
                print(f"      thread {i}: {got}, want {want}")
            bad += 1
    check(f"{code}: threads of a warp together: threads with other values", bad, 0)

    m, _ = attach("once", *obj("extremes"), "--kernel", "vectorAdd*")
    for k in range(4):
        v = [(i + 1) * 0x9E3779B97F4A7C15 % 2**64 for i in range(k, 210, 4)]
        h = [x >> 7 & 0xFFFFFFFF for x in v]
        s, s32 = [x - 2**64 if x >> 63 else x for x in v], [x - 2**32 if x >> 31 else x for x in h]
        bits = 0
        for x in v:
            bits |= 1 << (x >> 58)
        want = {"max": max(v), "min": 0, "smax": max([0] + s), "smin": min([0] + s), "max32": max(h), "min32": 0, "smax32": max([0] + s32), "smin32": min([0] + s32), "bits": bits}
        check(f"{code}: highest and lowest, key {k}", m.get("kept", {}).get(str(k)), want)

    m, _ = attach("once", *obj("percpu"), "--kernel", "vectorAdd*")
    sums = list(m.get("sums", {}).values())
    check(f"{code}: other multiprocessors' values", sums[:2] + sums[3:] if len(sums) == 4 and 0 < sums[2] <= 64 else sums, [0, 0, 0])

    m, text = attach("once", "-e", "mem:vectorAdd* { @sum[kind] = sum(value); }")
    sums = re.findall(r"^@sum\[(\w+)\]: (\d+)$", text, re.M)
    check(f"{code}: values that are loaded and stored", sorted(sums), [("load", "43890"), ("store", "43890")])

    # 8 of the first 16 bytes in value; of the first four copies of 8 bytes 3 are there.
    m, text = attach("copied", "-e", "mem:copied* /space == \"global\" && kind != \"store\"/ { @low[size] = sum(value & 0xffffffff); @high[size] = sum(value >> 32); @then[size] = sum(value2 >> 32); @n[size] = count(); }")
    got = {(a, int(b)): int(c) for a, b, c in re.findall(r"^@(\w+)\[(\d+)\]: (\d+)$", text, re.M)}
    t32 = range(32)
    want = {
        ("n", 16): 32, ("n", 8): 32, ("n", 4): 20,
        ("low", 16): sum(4 * t for t in t32), ("high", 16): sum(4 * t + 1 for t in t32), ("then", 16): sum(4 * t + 3 for t in t32),
        ("low", 8): sum(128 + 2 * t for t in t32), ("high", 8): sum(129 + 2 * t for t in range(4, 32)), ("then", 8): 0,
        ("low", 4): sum(192 + t for t in range(3, 20)), ("high", 4): 0, ("then", 4): 0,
    }
    check(f"{code}: what asynchronous copies carry", got, want)
    total = sum(range(128)) + want["low", 8] + want["high", 8] + want["low", 4]
    check(f"{code}: results of copies", re.findall(r"^sum (\d+)$", text, re.M), [str(total)])

    m, _ = attach("once", *obj("bpftime"), "--kernel", "vectorAdd*")
    check(f"{code}: text of loads and stores", list(m.get("shared", {}).values()), [420, 210])

    m, text = attach("once", *obj("leave"), "--allow-exit", "--kernel", "vectorAdd*")
    check(f"{code}: threads that a program ends store nothing", re.findall(r"^sum (\d+)$", text, re.M), [str(sum(i if i % 2 else 2 * i for i in range(210)))])

    m, text = attach("once", "-e", "kernel:vectorAdd* { @sum = sum(read32(arg0 + 4 * tid)); @votes[ballot(tid.x % 16 == 0)] = count(); @other = sum(shuffle(tid, laneid ^ 1)); }")
    want = {"@sum: 21945", "@votes[1]: 18", "@votes[65537]: 192", f"@other: {sum(range(210))}"}
    check(f"{code}: in one line", {x for x in text.splitlines() if x.startswith("@")}, want)


if __name__ == "__main__":
    sys.exit(main())
