// Command nvtrace shows what a process does with an NVIDIA GPU.
package main

import (
	"os"
	"runtime/debug"
	"time"
)

// version is what the Go tool wrote into the binary: the tag of the commit, or a version
// made of its date and hash; "(devel)" where it was built outside of a repository.
var version = buildVersion()

func buildVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

func main() {
	dieQuietly()
	if noDescriptors() == "" { // timers take some; without, Go's runtime ends with a dump
		postponeGC()
	}
	os.Exit(main1(&env{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, self: "/proc/self/exe"}, os.Args[1:]))
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
