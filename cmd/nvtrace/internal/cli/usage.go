package cli

// Examples are what most people want, as help shows it.
const Examples = `
Examples:
  nvtrace -- ./app args                        a summary at the end
  nvtrace --api --modules -o run.nvt -- ./app  record; nvtrace report reads it
  nvtrace --attach probe.o -- ./app            run eBPF programs in its kernels
`

// RunGroups are the flags of tracing a program, by what they are about.
var RunGroups = []flagGroup{
	{"Output", []string{"ioctl-log", "api", "gpu-times", "stacks", "env", "summary", "stat", "forecast", "top", "json", "q", "t", "r", "T", "x", "z", "handles", "w", "s", "color"}},
	{"Selection", []string{"e"}},
	{"Recording", []string{
		"o", "format", "tables", "run", "rank", "prom", "otlp", "otlp-long", "profiles", "rotate", "flight", "hang", "quiet-success", "baseline", "overflow", "buffer", "delay", "duration", "start-on", "ranks", "p", "all-gpu-processes", "modules", "modules-limit", "modules-watch", "interpose", "counts", "munmap", "fast", "seccomp", "orphans", "on-tracer-death",
	}},
	{"Probes", []string{
		"attach", "clang-flags", "script", "tool", "param", "kernel", "prog", "at", "set", "map", "map-pin", "maps", "interval", "hold", "v", "verify", "require", "machine-code", "untested-arch", "strict", "fuel", "map-threads", "allow-exit",
	}},
	{"Simulator", []string{"sim", "no-sim", "sim-gpus", "sim-memory", "sim-timeout", "sim-probes"}},
}
