package proc

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Exe returns the executable of a process, "" if unknown.
func Exe(pid int) string {
	p, err := os.Readlink(Path(pid, "exe"))
	if err != nil {
		return ""
	}
	return filepath.Clean(strings.TrimSuffix(p, " (deleted)"))
}

// Cmdline returns the argument vector of a process, nil if unknown.
func Cmdline(pid int) []string { return stringsOf(pid, "cmdline") }

// Environ returns the environment that a process began with, nil if unknown.
func Environ(pid int) []string { return stringsOf(pid, "environ") }

// stringsOf returns the strings, each ended by a zero, of a file of a process.
func stringsOf(pid int, file string) []string {
	b, err := os.ReadFile(Path(pid, file))
	if err != nil || len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
}

// FDs returns the open descriptors of a process, ascending.
func FDs(pid int) []int32 {
	var fds []int32
	for _, n := range numbers(Path(pid, "fd")) {
		fds = append(fds, int32(n))
	}
	slices.Sort(fds)
	return fds
}
