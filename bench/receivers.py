#!/usr/bin/env python3
"""Sends what a traced program does to real receivers, and asks them for it: make check-receivers.

The program is a rank of a made-up training on the simulated GPU (cmd/nvtrace/internal/fleet/testdata/train.c), whose
launches, copies and collectives are known. Receivers: an OpenTelemetry collector (bench/otelcol, built from the Go proxy),
Prometheus and node_exporter (of Debian: in PATH, or unpacked into .cache/prometheus where apt-get can fetch them). Each is
used as it should be, killed and started again in the middle, and stopped (SIGSTOP) while the program runs and beyond. The
program must print and return the same each time.

What can't be had is said to be left out; --require makes that a failure.
"""
import argparse, json, os, re, shutil, signal, socket, subprocess, sys, tempfile, threading, time, urllib.parse, urllib.request

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(here)
cache = os.path.join(root, ".cache")
options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
options.add_argument("--nvtrace", default=os.path.join(root, "bin/nvtrace"))
options.add_argument("--steps", type=int, default=250)
options.add_argument("--require", action="store_true", help="fail if a receiver can't be had")
args = options.parse_args()
work = tempfile.mkdtemp(prefix="receivers-")
failed, missing = [], []


def check(what, ok, more=""):
    print(("ok    " if ok else "WRONG ") + what + (f": {more}" if more != "" else ""), flush=True)
    if not ok:
        failed.append(what)


def lacks(what, why):
    print(f"left out: {what}: {why}", flush=True)
    missing.append(what)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def build():
    """Compiles the training and its stand-in for libnccl."""
    data = os.path.join(root, "cmd/nvtrace/internal/fleet/testdata")
    lib, train = os.path.join(work, "libnccl.so.2"), os.path.join(work, "train")
    subprocess.check_call(["gcc", "-O1", "-w", "-shared", "-fPIC", "-o", lib, data + "/nccl.c", "-ldl", "-lrt"])
    subprocess.check_call(["gcc", "-O1", "-w", "-I" + os.path.join(root, "nvattach/sim/testdata"), "-o", train, data + "/train.c", lib,
                           "-ldl", "-lpthread", "-Wl,-rpath," + work])
    return train


def run(*flags, linger=0, env=None):
    """Runs the training; returns what is wrong with how it ended, what nvtrace said, and the seconds."""
    folder = tempfile.mkdtemp(dir=work)
    command = [args.nvtrace, "--sim", "-q", "--api", "--gpu-times=events", *flags, "--", "sh", "-c",
               f'{work}/train {folder} {args.steps} && sleep {linger}']
    began = time.time()
    p = subprocess.run(command, env=dict(os.environ, RANK="0", WORLD_SIZE="1", OTEL_METRIC_EXPORT_INTERVAL="500", **(env or {})),
                       stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    wrong = "" if p.returncode == 0 and p.stdout == "rank 0 has ended\n" else f"status {p.returncode}, {p.stdout!r}"
    return wrong, p.stderr, time.time() - began


def numbers(launches, copies, done):
    """Whether numbers are right. A step has a copy, a kernel and a collective, each fourth one two collectives more. The
    program does not wait for those of its last step, so that they may not be seen to be over."""
    collectives = args.steps + 2 * (args.steps // 4)
    return launches == args.steps + collectives and copies == args.steps and done is not None and collectives - 3 <= done <= collectives


class Server:
    """A receiver that is started, killed, stopped."""

    def __init__(self, command, log, ready):
        self.command, self.log, self.ready = command, log, ready
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=open(self.log, "a"), stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", self.ready), 1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise SystemExit(f"{self.command[0]} does not listen: see {self.log}")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def signal(self, sig):
        self.process.send_signal(sig)

    def later(self, *steps):
        """Does things after so many seconds each, while the program runs."""
        def do():
            for seconds, what in steps:
                time.sleep(seconds)
                what()
        t = threading.Thread(target=do)
        t.start()
        return t


def collector():
    """Builds the collector, once."""
    binary = os.path.join(cache, "otelcol/otelcol")
    if not os.path.exists(binary):
        os.makedirs(os.path.dirname(binary), exist_ok=True)
        p = subprocess.run(["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, "."], cwd=os.path.join(here, "otelcol"), capture_output=True, text=True)
        if p.returncode:
            lacks("collector", p.stderr.strip().splitlines()[-1])
            return None
    return binary


def found(log, since):
    """What the collector has printed of all signals: values by name, spans by name, profiles' sums by type."""
    with open(log, errors="replace") as f:
        f.seek(since)
        text = f.read()
    values, spans, name, times = {}, {}, "", {}
    attrs, kind = [], ""
    for line in text.splitlines():
        line = line.strip()
        if m := re.match(r"-> Name: (nvtrace\S+)$", line):
            name, attrs = m[1], []
        elif m := re.match(r"Name +: (.*)$", line):
            spans[m[1]] = spans.get(m[1], 0) + 1
        elif line.startswith("NumberDataPoints #"):
            attrs = []
        elif m := re.match(r"-> work: Str\((.*)\)$", line):
            attrs = [m[1]]
        elif m := re.match(r"Value: ([0-9.e+-]+)$", line):
            values[" ".join([name] + attrs)] = float(m[1])
    return values, spans, text.count("Profile ID ")


def check_collector():
    binary = collector()
    if not binary:
        return
    grpc, http = free_port(), free_port()
    config, log = os.path.join(work, "otelcol.yaml"), os.path.join(work, "otelcol.log")
    with open(config, "w") as f:
        pipeline = "{receivers: [otlp], exporters: [debug]}"
        f.write(f"""
receivers:
  otlp:
    protocols:
      grpc: {{endpoint: "127.0.0.1:{grpc}"}}
      http: {{endpoint: "127.0.0.1:{http}"}}
exporters:
  debug: {{verbosity: detailed}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines: {{traces: {pipeline}, metrics: {pipeline}, profiles: {pipeline}}}
""")
    s = Server([binary, "--config", config, "--feature-gates=service.profilesSupport"], log, http)
    def right(what, since, profile=False):
        time.sleep(1)  # it prints behind its answer
        values, spans, profiles = found(log, since)
        got = {k: values.get("nvtrace." + k) for k in ("kernel.launches", "gpu.works copy", "collectives")}
        check(what + ": numbers", numbers(*got.values()), {**got, "metrics": len(values)})
        return values, spans, profiles

    for name, url in (("HTTP", f"http://127.0.0.1:{http}"), ("gRPC", f"grpc://127.0.0.1:{grpc}")):
        for compression in ("none", "gzip"):
            since = os.path.getsize(log)
            wrong, said, _ = run("--otlp", url, "--otlp-long", "1ns", "--profiles", "otlp", env={"OTEL_EXPORTER_OTLP_COMPRESSION": compression})
            check(f"collector, {name}, {compression}: the program", wrong == "" and said == "", wrong + said)
            _, spans, profiles = right(f"collector, {name}, {compression}", since)
            check(f"collector, {name}, {compression}: spans and profiles",
                  spans.get("cuMemcpyHtoD_v2") == args.steps and spans.get("ncclAllReduce", 0) >= args.steps and spans.get("sh") == 1 and profiles >= 6,
                  {"cuMemcpyHtoD_v2": spans.get("cuMemcpyHtoD_v2"), "ncclAllReduce": spans.get("ncclAllReduce"), "run": spans.get("sh"), "profiles": profiles})
        since = os.path.getsize(log)
        t = s.later((2, s.kill), (1.5, s.start))
        wrong, said, _ = run("--otlp", url, "--otlp-long", "1ns")
        t.join()
        check(f"collector, {name}, killed and started again: the program", wrong == "", wrong)
        _, spans, _ = right(f"collector, {name}, killed and started again", since)
        n = spans.get("cuMemcpyHtoD_v2", 0)
        lost = sum(int(x) for x in re.findall(r"(\d+) spans? (?:and|not)", said))
        # What was on its way when it was killed may have been taken without an answer, or been lost with it.
        check(f"collector, {name}, killed and started again: spans", n + lost >= args.steps * 0.9, f"{n} of {args.steps} copies came; said: {said.strip()}")
        since = os.path.getsize(log)
        t = s.later((2, lambda: s.signal(signal.SIGSTOP)), (2, lambda: s.signal(signal.SIGCONT)))
        wrong, said, _ = run("--otlp", url)
        t.join()
        check(f"collector, {name}, stopped for two seconds: the program", wrong == "", wrong + said)
        right(f"collector, {name}, stopped for two seconds", since)
        t = s.later((2, lambda: s.signal(signal.SIGSTOP)))
        wrong, said, seconds = run("--otlp", url, "--otlp-long", "1ns")
        t.join()
        s.kill()  # else it takes what lies in its sockets
        s.start()
        check(f"collector, {name}, stopped for good: the program", wrong == "", wrong)
        check(f"collector, {name}, stopped for good: what is lost is said", re.search(r"\d+ spans? and \d+ values? not delivered", said) is not None, said.strip())
    s.kill()


def debian(package, program):
    """The path of a program of Debian's, from PATH or unpacked into .cache."""
    folder = os.path.join(cache, "prometheus")
    at = shutil.which(program) or os.path.join(folder, "usr/bin", program)
    if not os.path.exists(at):
        os.makedirs(folder, exist_ok=True)
        p = subprocess.run(f"apt-get download {package} && dpkg -x {package}_*.deb .", shell=True, cwd=folder, capture_output=True, text=True)
        if p.returncode:
            lacks(program, p.stderr.strip().splitlines()[-1] if p.stderr.strip() else "apt-get download failed")
            return None
    return at


def check_prometheus():
    prometheus, exporter = debian("prometheus", "prometheus"), debian("prometheus-node-exporter", "prometheus-node-exporter")
    if not prometheus or not exporter:
        return
    port, web, node = free_port(), free_port(), free_port()
    texts, config = os.path.join(work, "texts"), os.path.join(work, "prometheus.yml")
    os.makedirs(texts)
    with open(config, "w") as f:
        f.write(f"""
global: {{scrape_interval: 1s}}
scrape_configs:
  - {{job_name: port, honor_labels: true, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}
  - {{job_name: node, honor_labels: true, static_configs: [{{targets: ["127.0.0.1:{node}"]}}]}}
""")
    log = os.path.join(work, "prometheus.log")
    n = Server([exporter, f"--web.listen-address=127.0.0.1:{node}", "--collector.disable-defaults", "--collector.textfile", f"--collector.textfile.directory={texts}"], log, node)
    s = Server([prometheus, "--config.file", config, "--storage.tsdb.path", os.path.join(work, "tsdb"), f"--web.listen-address=127.0.0.1:{web}"], log, web)

    def ask(query):
        url = f"http://127.0.0.1:{web}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        for _ in range(60):
            try:
                with urllib.request.urlopen(url, timeout=10) as r:
                    return json.load(r)["data"]["result"]
            except OSError:  # it is not ready yet
                time.sleep(0.5)
        return []

    def right(what, job, since):
        labels = f'{{job="{job}"}}'
        seconds = int(time.time() - since) + 5
        got = {}
        for name in ("nvtrace_kernel_launches_total", "nvtrace_collectives_total", "nvtrace_gpu_works_total"):
            for r in ask(f"max by (work, __name__) (last_over_time({name}{labels}[{seconds}s]))"):
                got[name + r["metric"].get("work", "")] = float(r["value"][1])
        labels = ask(f'last_over_time(nvtrace_run_info{{job="{job}"}}[{seconds}s])')
        rank = labels[-1]["metric"].get("rank") if labels else None
        check(what, numbers(got.get("nvtrace_kernel_launches_total"), got.get("nvtrace_gpu_works_totalcopy"), got.get("nvtrace_collectives_total")) and rank == "0", {**got, "rank": rank})

    where = {"port": f":{port}", "node": os.path.join(texts, "run.prom")}
    for job, name in (("port", "Prometheus"), ("node", "node_exporter and Prometheus")):
        server = s if job == "port" else n
        for what, steps in (("", ()), (", killed and started again", ((2, server.kill), (2, server.start))),
                            (", stopped for two seconds", ((2, lambda: server.signal(signal.SIGSTOP)), (2, lambda: server.signal(signal.SIGCONT))))):
            since = time.time()
            t = server.later(*steps)
            wrong, said, _ = run("--prom", where[job], linger=5)
            t.join()
            check(f"{name}{what}: the program", wrong == "" and said == "", wrong + said)
            if job == "node":
                time.sleep(2)  # the file stays
            right(f"{name}{what}: numbers by PromQL", job, since)
    server = s
    t = s.later((2, lambda: s.signal(signal.SIGSTOP)))
    wrong, said, _ = run("--prom", where["port"])
    t.join()
    s.signal(signal.SIGCONT)
    check("Prometheus, stopped for good: the program", wrong == "" and said == "", wrong + said)
    s.kill()
    n.kill()


def check_engines():
    """Has the tests ask the engines that there are."""
    path = os.pathsep.join([os.path.join(cache, e) for e in ("duckdb", "clickhouse", "spark")] + [os.environ.get("PYTHONPATH", "")])
    there = []
    for name, module in (("duckdb", "duckdb"), ("clickhouse", "chdb"), ("spark", "pyspark")):
        if subprocess.run([sys.executable, "-c", "import " + module], env=dict(os.environ, PYTHONPATH=path), capture_output=True).returncode:
            lacks(name, f"no module {module}: make deps-{name}")
        elif name == "spark" and not shutil.which("java"):
            lacks(name, "no java")
        else:
            there.append(name)
    p = subprocess.run(["go", "test", "-v", "-count=1", "-run", "^(TestSQL|TestTablesSQL)$", "./cmd/nvtrace", "./cmd/nvtrace/internal/fleet"], cwd=root,
                       env=dict(os.environ, PYTHONPATH=path, NVTRACE_REQUIRE=",".join(there)), capture_output=True, text=True)
    for line in p.stdout.splitlines():
        if m := re.match(r"\s+--- (PASS|FAIL): (\S+)", line):
            check("SQL: " + m[2], m[1] == "PASS")
    check("SQL", p.returncode == 0, p.stdout[-3000:] if p.returncode else "")


build()
try:
    check_collector()
    check_prometheus()
    check_engines()
    print("stand-ins in the tests, which parse what comes: Pyroscope, Parca (neither is served by the Go proxy)")
finally:
    if failed:
        print("logs are in", work)
    else:
        shutil.rmtree(work)
sys.exit(1 if failed or args.require and missing else 0)
