"""Takes every route by which code reaches the CUDA driver, under nvtrace, and holds
what was captured against what it must have been.

    python3 examples/cuda/routes/check.py --nvtrace bin/nvtrace [--driver DIR] [NAME...]

What it must have been comes from elsewhere: the bytes of the files that were loaded,
hashed here; what cuobjdump takes out of executables; the caches of Triton and CuPy;
for libraries, the files themselves. Also each program must do what it does untraced,
and nvtrace must find no gap. The exit status is the number of routes that failed.
Routes whose tools are missing are skipped and listed. --driver DIR takes the libcuda.so.1
there (a driver for tests) and leaves out what needs a GPU.
"""
import argparse
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))

TRITON = '''
import torch, triton, triton.language as tl
@triton.jit
def scale(p, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(p + i, tl.load(p + i, mask=i < n) * 2, mask=i < n)
x = torch.ones(1000, device="cuda")
scale[(4,)](x, 1000, B=256)
print(int(x.sum()))
'''
CUPY = '''
import cupy
k = cupy.RawKernel('extern "C" __global__ void twice(int *p) { p[threadIdx.x] *= 2; }', "twice")
x = cupy.arange(100, dtype=cupy.int32)
k((1,), (100,), (x,))
print(int(x.sum()))
'''
TORCH = '''
import torch
a = torch.arange(64 * 64, dtype=torch.float32, device="cuda").reshape(64, 64) % 3
print(int((a @ a).relu().sum()))
'''
TORCH_MORE = '''
import torch
a = torch.arange(64 * 64, dtype=torch.float32, device="cuda").reshape(64, 64) % 3
print(torch.fft.fft2(a).shape, torch.fft.rfft(torch.ones(3 * 5 * 7 * 11, device="cuda")).shape)
print(torch.nn.functional.conv2d(a.reshape(1, 1, 64, 64), torch.ones(4, 1, 3, 3, device="cuda")).shape)
print(torch.linalg.svd(a + torch.eye(64, device="cuda"))[1].shape, a.sort().values.shape, a.to_sparse_csr().matmul(a).shape)
torch.cuda.synchronize()
'''


def sha(data):
    return hashlib.sha256(data).hexdigest()


def read(name):
    with open(name, "rb") as f:
        return f.read()


def image(name):
    """A file as the driver takes it: text ends at a NUL."""
    data = read(name)
    return data if data[:4] in (b"\x7fELF", b"\x50\xed\x55\xba") else data.removesuffix(b"\0")


class Skip(Exception):
    pass


class Lab:
    """The programs and images, built in a folder of their own."""

    def __init__(self, work, driver):
        self.work, self.driver = work, driver
        self.path = lambda name: os.path.join(work, name)
        self.env = dict(os.environ)
        dirs = [work] + ([driver] if driver else [])
        self.env["LD_LIBRARY_PATH"] = ":".join(dirs + [d for d in [os.environ.get("LD_LIBRARY_PATH")] if d])
        libcuda = os.path.join(driver, "libcuda.so.1") if driver else find_libcuda()
        self.sh("gcc", "-O1", "-w", "-o", self.path("routes"), "routes.c", "-ldl", "-lpthread")
        self.have = {"gcc"}
        if libcuda:
            self.sh("gcc", "-O1", "-w", "-DLINKED", "-o", self.path("linked"), "routes.c", libcuda, "-ldl", "-lpthread")
            self.sh("gcc", "-O1", "-w", "-shared", "-fPIC", "-o", self.path("libneed.so"), "need.c", libcuda)
            self.have.add("libcuda")
        self.attempt("static", "gcc", "-O1", "-w", "-static", "-o", self.path("static"), "routes.c", "-ldl", "-lpthread")
        self.sh("gcc", "-O1", "-w", "-o", self.path("nvrtc"), "nvrtc.c", "-ldl")
        subprocess.run([self.path("routes"), "dump", self.path("own.ptx"), self.path("own.fatbin")], check=True)
        if shutil.which("nvcc") and not driver:
            arch = ["-gencode", "arch=compute_90,code=sm_90", "-gencode", "arch=compute_90,code=compute_90"]
            self.sh("nvcc", "-cubin", "-arch=sm_90", "-o", self.path("nothing.cubin"), "nothing.cu")
            self.sh("nvcc", "-fatbin", *arch, "-o", self.path("nothing.fatbin"), "nothing.cu")
            self.sh("nvcc", "-ptx", "-arch=compute_90", "-o", self.path("nothing.ptx"), "nothing.cu")
            self.sh("nvcc", *arch, "-o", self.path("va_static"), "../vectoradd.cu")
            self.sh("nvcc", *arch, "-cudart", "shared", "-o", self.path("va_shared"), "../vectoradd.cu")
            self.sh("nvcc", *arch, "-rdc=true", "-o", self.path("va_rdc"), "../vectoradd.cu")
            self.have.add("nvcc")
            self.env["LD_LIBRARY_PATH"] += ":" + os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(shutil.which("nvcc")))), "lib64")

    def sh(self, *args):
        subprocess.run(args, check=True, cwd=HERE)

    def attempt(self, name, *args):
        if subprocess.run(args, cwd=HERE, stderr=subprocess.DEVNULL).returncode == 0:
            self.have.add(name)


def find_libcuda():
    out = subprocess.run(["sh", "-c", "ldconfig -p 2>/dev/null || /sbin/ldconfig -p"], capture_output=True, text=True).stdout
    for line in out.splitlines():
        if "libcuda.so.1" in line and "=>" in line:
            return line.split("=>")[1].strip()
    found = glob.glob("/usr/local/nvidia/lib64/libcuda.so.1") + glob.glob("/usr/lib/x86_64-linux-gnu/libcuda.so.1")
    return found[0] if found else None


def routes(lab):
    """Yields name, what it needs, command, and what must have been captured: a set of
    hashes, or a function of the report that returns what is wrong."""
    p = lab.path
    own, fat = p("own.ptx"), p("own.fatbin")
    for name, program, args, files in [
        ("linked with the driver", "linked", ["linked"], [own]),
        ("dlsym(RTLD_NEXT)", "linked", ["next"], [own]),
        ("DT_NEEDED of a dlopened library", "routes", ["needed"], [own]),
        ("RTLD_DEEPBIND", "routes", ["deepbind"], [own]),
        ("dlopen + dlsym", "routes", ["dlsym"], [own]),
        ("dlmopen", "routes", ["dlmopen"], [own]),
        ("cuGetProcAddress_v2", "routes", ["gpa"], [own]),
        ("symbol table by hand", "routes", ["hand"], [own]),
        ("CUDART_INTERFACE[1]", "routes", ["slot1"], [fat]),
        ("CUDART_INTERFACE[6]", "routes", ["slot6"], [fat]),
        ("CUDART_INTERFACE[8]", "routes", ["slot8"], [fat]),
        ("static executable", "static", ["dlsym"], [own]),
        ("fork, then load", "routes", ["fork"], [own]),
        ("exec without environment", "routes", ["execscrub"], [own]),
        ("cuModuleLoadDataEx, PTX", "routes", ["ex"], [own]),
        ("cuModuleLoadFatBinary", "routes", ["fatbin"], [fat]),
        ("cuModuleLoad, a file", "routes", ["file", own], [own]),
        ("cuLibraryLoadData, a wrapper", "routes", ["libdata"], [fat]),
        ("cuLibraryLoadData, PTX", "routes", ["libdata", own], [own]),
        ("cuLibraryLoadFromFile", "routes", ["libfile", own], [own]),
        ("cuLink, data", "routes", ["link"], [own, p("linked.out")]),
        ("cuLink, a file", "routes", ["link", own], [own, p("linked.out")]),
        ("cuLaunchKernelEx", "routes", ["launch-ex"], [own]),
        ("a graph's kernel node", "routes", ["launch-graph"], [own]),
        ("cuModuleLoadData, cubin", "routes", ["image", p("nothing.cubin")], [p("nothing.cubin")]),
        ("cuModuleLoadData, fat binary", "routes", ["image", p("nothing.fatbin")], [p("nothing.fatbin")]),
        ("cuModuleLoadData, nvcc's PTX", "routes", ["image", p("nothing.ptx")], [p("nothing.ptx")]),
        ("cuModuleLoad, cubin", "routes", ["file", p("nothing.cubin")], [p("nothing.cubin")]),
        ("cuLibraryLoadData, cubin", "routes", ["libdata", p("nothing.cubin")], [p("nothing.cubin")]),
        ("NVRTC", "nvrtc", [p("nvrtc.ptx")], [p("nvrtc.ptx")]),
    ]:
        needs = {"linked": "libcuda", "static": "static"}.get(program, "nvcc" if any("nothing." in a for a in args) or program == "nvrtc" else "gcc")
        if name.startswith("DT_NEEDED") or name == "RTLD_DEEPBIND":
            needs = "libcuda"
        yield name, needs, [p(program)] + args, lambda r, files=files: same({sha(image(f)) for f in files}, r)
    yield "static executable, a load alone", "static", [p("static"), "alone"], lambda r: given({sha(image(own))}, r)
    yield "a load without cuInit", "gcc", [p("routes"), "alone"], lambda r: given({sha(image(own))}, r)
    many = p("nothing.cubin") if "nvcc" in lab.have else own
    yield "8 threads, 16,000 loads", "gcc", [p("routes"), "threads8", many], lambda r: same({sha(read(many))}, r) or counted(r, 16000)
    yield "another thread writes the image", "gcc", [p("routes"), "race"], lambda r: counted(r, 50)
    for name, program in [("static cudart", "va_static"), ("shared cudart", "va_shared"), ("relocatable device code", "va_rdc")]:
        yield name, "nvcc", [p(program)], lambda r, program=program: cuobjdump(lab, r, p(program))
    for name, code, cache in [
        # CuPy leaves out the last byte; the NUL that ends Python's bytes stands for it
        ("CuPy", CUPY, lambda: [b[b.index(b"\x7fELF"):] + b"\0" for b in map(read, glob.glob(p("cache_cupy/**/*.cubin"), recursive=True)) if b"\x7fELF" in b]),
        ("Triton", TRITON, lambda: list(map(read, glob.glob(p("cache_triton/**/*.cubin"), recursive=True)))),
        ("PyTorch, cuBLAS", TORCH, lambda: []),
        ("PyTorch, further libraries", TORCH_MORE, lambda: []),
    ]:
        script = p("use_" + "".join(c for c in name.lower() if c.isalpha()) + ".py")  # not the package's name: scripts are found first
        with open(script, "w") as f:
            f.write(code)
        module = "torch" if name.startswith("PyTorch") else name.lower()
        yield name, "python:" + module, [sys.executable, script], lambda r, cache=cache: libraries(r, cache())


def captured(report):
    """The hashes of what loaders took and did not refuse."""
    return {m["sha256"] for m in report["images"] if any(l["failed"] < l["count"] and l["function"] != "cuLinkComplete" for l in m["loads"])}


def same(want, report):
    got = captured(report)
    wrong = ["missing " + s[:12] for s in want - got] + ["unexpected " + s[:12] for s in got - want]
    if not any(m["launched"] for m in report["images"]) and not any(l["count"] > 1000 for m in report["images"] for l in m["loads"]):
        wrong.append("no launch was traced to an image")
    return "; ".join(wrong)


def given(want, report):
    """Also what the driver refused was captured."""
    got = {m["sha256"] for m in report["images"]}
    return "" if got == want else f"captured {sorted(s[:12] for s in got)}, want {sorted(s[:12] for s in want)}"


def counted(report, want):
    n = sum(l["count"] - l["failed"] for m in report["images"] for l in m["loads"] if l["function"] != "cuLinkComplete")
    return "" if n == want else f"{n} loads were captured, want {want}"


def pieces(lab, name):
    """What cuobjdump takes out of a file, relocatable code too: hashes of the cubins and
    the PTX that have kernels. The device linker adds a fat binary without any, which no
    program loads."""
    out = tempfile.mkdtemp(dir=lab.work)
    for kind in ["-xelf", "-xptx"]:
        subprocess.run(["cuobjdump", "-all", kind, "all", os.path.abspath(name)], cwd=out, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    code = [read(f) for f in glob.glob(out + "/*")]
    return {sha(b) for b in code if b".text." in b or b".entry" in b}


def cuobjdump(lab, report, program):
    if not shutil.which("cuobjdump"):
        raise Skip("no cuobjdump")
    want, got = pieces(lab, program), set()
    for name in glob.glob(report["extracted"] + "/*.fatbin"):
        got |= pieces(lab, name)
    if not got or not got <= want:
        return f"{len(got)} pieces were captured, cuobjdump finds {len(want)}, {len(got - want)} of the captured are not among them"
    if got != want and not program.endswith("rdc"):  # what a lazy runtime never loads is not captured
        return f"{len(want - got)} pieces of the program were not captured"
    return ""


def libraries(report, cache):
    """Each image is in a file, or in the cache of who compiled it; all of the cache was captured."""
    got = captured(report)
    sizes = {m["size"] for m in report["images"] if m["sha256"] in got}
    want, wrong = set(), []
    for b in cache:  # the driver reads as far as the image says, and there may be more in the cache
        found = {sha(b[:n]) for n in sizes if n <= len(b)} & got
        want |= found
        if not found:
            wrong.append(f"of the cache, not captured: {sha(b)[:12]}, {len(b)} bytes; captured were {sorted(sizes)}")
    unexplained = {}
    for m in report["images"]:
        if m["sha256"] in want or m["sha256"] not in got or any(in_file(m, l) for l in m["loads"]):
            continue
        by = os.path.basename(m["loads"][0]["library"]) + " " + m["format"]
        unexplained[by] = unexplained.get(by, 0) + 1
    if unexplained:
        print("  images that lie in no file:", unexplained)
    if not got:
        wrong.append("nothing was captured")
    return "; ".join(wrong)


def in_file(image, load):
    try:
        with open(load.get("file", ""), "rb") as f:
            f.seek(load.get("offset", 0))
            return sha(f.read(image["size"])) == image["sha256"]
    except OSError:
        return False


def run(lab, nvtrace, name, command, check, flags):
    env = dict(lab.env, ROUTES_LINKED=lab.path("linked.out"), CUPY_CACHE_DIR=lab.path("cache_cupy"), TRITON_CACHE_DIR=lab.path("cache_triton"))
    plain = subprocess.run(command, env=env, cwd=lab.work, capture_output=True)
    if plain.returncode:
        raise Skip("does not work untraced: " + plain.stderr.decode(errors="replace").strip()[-200:])
    recording = lab.path("run.nvt")
    traced = subprocess.run([nvtrace, "--modules", *flags, "-q", "-o", recording, "--", *command], env=env, cwd=lab.work, capture_output=True)
    wrong = []
    if traced.returncode or traced.stdout != plain.stdout:
        wrong.append(f"status {traced.returncode} under nvtrace: {traced.stderr.decode(errors='replace').strip()[-300:]}")
    extracted = lab.path("extracted")
    shutil.rmtree(extracted, ignore_errors=True)
    out = subprocess.run([nvtrace, "modules", "--json", "--extract", extracted, "--require-complete", recording], capture_output=True)
    try:
        report = json.loads(out.stdout)
    except ValueError:
        return None, [out.stderr.decode(errors="replace")]
    report["extracted"] = extracted
    wrong += report["gaps"]
    if out.returncode != 0:
        wrong.append(f"nvtrace modules --require-complete: status {out.returncode}")
    said = check(report)
    return report, wrong + ([said] if said else [])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nvtrace", default="bin/nvtrace")
    parser.add_argument("--driver", help="folder of a libcuda.so.1 for tests")
    parser.add_argument("--flag", action="append", default=[], help="a further flag for nvtrace, e.g. --flag=--interpose")
    parser.add_argument("names", nargs="*", help="only routes whose name has one of these in it")
    args = parser.parse_args()
    nvtrace = os.path.abspath(args.nvtrace)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="nvtrace-routes-") as work:
        lab = Lab(work, args.driver and os.path.abspath(args.driver))
        print(f"{'route':36} {'result':8} images loads launched")
        for name, needs, command, check in routes(lab):
            if args.names and not any(n.lower() in name.lower() for n in args.names):
                continue
            try:
                if needs.startswith("python:"):
                    if args.driver or subprocess.run([sys.executable, "-c", "import " + needs[7:]], capture_output=True).returncode:
                        raise Skip("no " + needs[7:])
                elif needs not in lab.have:
                    raise Skip("no " + needs)
                report, wrong = run(lab, nvtrace, name, command, check, args.flag)
            except Skip as why:
                print(f"{name:36} skipped  {why}")
                continue
            images = report["images"] if report else []
            print(f"{name:36} {'WRONG' if wrong else 'ok':8} {len(images):6} {sum(l['count'] for m in images for l in m['loads']):5} "
                  f"{sum(len(m['launched']) for m in images):8}", flush=True)
            for text in wrong:
                print("    " + text)
            failed += bool(wrong)
    return failed


if __name__ == "__main__":
    sys.exit(main())
