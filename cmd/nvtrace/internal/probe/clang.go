package probe

import (
	"os"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/cprobe"
	"nvtrace/nvattach/object"
)

// OpenProbes reads an object, or compiles it from its source.
func OpenProbes(e *cli.Env, name string, flags []string) (*object.Object, error) {
	e.Reads(name)
	if !cprobe.IsSource(name) {
		return object.Open(name)
	}
	if _, err := os.Stat(name); err != nil {
		return nil, err
	}
	data, err := CompileProbes(e, name, flags)
	if err != nil {
		return nil, err
	}
	return object.Load(name, data)
}

// CompileProbes has clang make an object of a source, and passes its warnings on.
func CompileProbes(e *cli.Env, name string, flags []string) ([]byte, error) {
	data, warnings, err := cprobe.Compile(name, e.Getenv(cprobe.ClangVar), flags)
	if warnings != "" {
		e.Notice("%s", warnings)
	}
	return data, err
}

// Words takes flags apart that stand in one argument.
func Words(list []string) (all []string) {
	for _, s := range list {
		all = append(all, strings.Fields(s)...)
	}
	return all
}

// InitProbes makes a folder to begin a probe in.
func InitProbes(e *cli.Env, dir string) int {
	files, err := cprobe.Init(dir)
	if err != nil {
		return e.Fail(cli.ExitFailed, "attach --init: %v", err)
	}
	e.Notice("made %s with %s; next: cd %s && make", dir, cli.SomeOf(files, len(files)), dir)
	return cli.ExitOK
}
