package main

import (
	"os"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cprobe"
	"nvtrace/nvattach/object"
)

// openProbes reads an object, or compiles it from its source.
func (e *env) openProbes(name string, flags []string) (*object.Object, error) {
	e.reads(name)
	if !cprobe.IsSource(name) {
		return object.Open(name)
	}
	if _, err := os.Stat(name); err != nil {
		return nil, err
	}
	data, err := e.compileProbes(name, flags)
	if err != nil {
		return nil, err
	}
	return object.Load(name, data)
}

// compileProbes has clang make an object of a source, and passes its warnings on.
func (e *env) compileProbes(name string, flags []string) ([]byte, error) {
	data, warnings, err := cprobe.Compile(name, e.getenv(cprobe.ClangVar), flags)
	if warnings != "" {
		e.notice("%s", warnings)
	}
	return data, err
}

// words takes flags apart that stand in one argument.
func words(list []string) (all []string) {
	for _, s := range list {
		all = append(all, strings.Fields(s)...)
	}
	return all
}

// initProbes makes a folder to begin a probe in.
func (e *env) initProbes(dir string) int {
	files, err := cprobe.Init(dir)
	if err != nil {
		return e.fail(exitFailed, "attach --init: %v", err)
	}
	e.notice("made %s with %s; next: cd %s && make", dir, someOf(files, len(files)), dir)
	return exitOK
}
