// Command nvtrace shows what a process does with an NVIDIA GPU.
package main

import (
	"os"
	"runtime/debug"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/run"
	"nvtrace/cmd/nvtrace/internal/verbs"
)

func main() {
	run.DieQuietly()
	if cli.NoDescriptors() == "" { // timers take some; without, Go's runtime ends with a dump
		postponeGC()
	}
	os.Exit(verbs.Main(&cli.Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Self: "/proc/self/exe"}, os.Args[1:]))
}

// postponeGC lets garbage lie at first: to collect it would take time from a program that
// has just begun, and threads, which nvtrace's end waits for.
func postponeGC() {
	if os.Getenv("GOGC") != "" {
		return
	}
	const percent, defaultPercent = 400, 100
	debug.SetGCPercent(percent)
	time.AfterFunc(2*time.Second, func() { debug.SetGCPercent(defaultPercent) })
}
