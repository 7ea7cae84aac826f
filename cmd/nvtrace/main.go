// Command nvtrace shows what a process does with an NVIDIA GPU.
package main

import (
	"os"
)

// version is set by the linker (Makefile).
var version = "unknown"

func main() {
	os.Exit(main1(&env{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, self: "/proc/self/exe"}, os.Args[1:]))
}
