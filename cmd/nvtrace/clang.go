package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"nvtrace/nvattach"
	"nvtrace/nvattach/object"
)

// clangVar names the compiler for sources of probes.
const clangVar = "NVTRACE_CLANG"

// clangFlags are those that make an eBPF object. -mcpu=v3 is known to every clang from 12 on.
var clangFlags = []string{"-g", "-O2", "-target", "bpf", "-mcpu=v3"}

// isSource reports whether a name is that of a probe's source.
func isSource(name string) bool { return strings.HasSuffix(name, ".c") }

// openProbes reads an object, or compiles it from its source.
func (e *env) openProbes(name string) (*object.Object, error) {
	e.reads(name)
	if !isSource(name) {
		return object.Open(name)
	}
	if _, err := os.Stat(name); err != nil {
		return nil, err
	}
	data, err := e.compileProbes(name)
	if err != nil {
		return nil, err
	}
	return object.Load(name, data)
}

// compileProbes has clang make an object of a source. The header for probes is in the
// include path.
func (e *env) compileProbes(name string) (object []byte, err error) {
	clang := e.getenv(clangVar)
	if clang == "" {
		clang = "clang"
	}
	path, err := exec.LookPath(clang)
	if err != nil {
		return nil, fmt.Errorf("%s: clang makes an object of it, and is not there (apt-get install clang, or %s=PATH); on another machine: nvtrace attach --header >%s; clang %s -I . -c %s -o %s",
			name, clangVar, nvattach.HeaderName, strings.Join(clangFlags, " "), name, strings.TrimSuffix(name, ".c")+".o")
	}
	dir, err := os.MkdirTemp("", "nvtrace-clang-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.WriteFile(filepath.Join(dir, nvattach.HeaderName), []byte(nvattach.Header), 0o600); err != nil {
		return nil, err
	}
	out := filepath.Join(dir, "probe.o")
	cmd := exec.Command(path, append(append([]string{}, clangFlags...), "-I", dir, "-c", name, "-o", out)...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %s: %w\n%s", name, clang, err, strings.TrimRight(said.String(), "\n"))
	}
	if said.Len() > 0 { // warnings
		e.notice("%s", strings.TrimRight(said.String(), "\n"))
	}
	return os.ReadFile(out)
}
