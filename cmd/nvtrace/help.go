package main

// examples are what most people want, as help shows it.
const examples = `
Examples:
  nvtrace -- ./app args                        a summary at the end
  nvtrace --api --modules -o run.nvt -- ./app  record; nvtrace report reads it
  nvtrace --attach probe.o -- ./app            run eBPF programs in its kernels
`

// runGroups are the flags of tracing a program, by what they are about.
var runGroups = []flagGroup{
	{"Output", []string{"ioctl-log", "api", "env", "summary", "stat", "top", "json", "q", "t", "r", "T", "x", "z", "handles", "w", "s", "color"}},
	{"Selection", []string{"e"}},
	{"Recording", []string{
		"o", "p", "modules", "modules-limit", "modules-watch", "interpose", "counts", "munmap", "fast", "seccomp", "orphans", "on-tracer-death",
	}},
	{"Probes", []string{
		"attach", "script", "tool", "kernel", "prog", "at", "set", "map", "maps", "interval", "v", "verify", "require", "machine-code", "untested-arch", "strict", "fuel", "map-threads", "allow-exit",
	}},
	{"Simulator", []string{"sim", "no-sim", "sim-gpus", "sim-memory", "sim-timeout"}},
}
