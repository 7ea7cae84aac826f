package main

import (
	"fmt"
	"io"
	"os"

	"nvtrace/ptx"
	"nvtrace/ptx/emu"
)

const ptxUsage = `usage: nvtrace ptx fmt FILE               print a PTX module in one layout
       nvtrace ptx check [--json] [--run] FILE...
                                          parse; report features that the file's version or target lacks
       nvtrace ptx sites [--json] [--func NAME] FILE
                                          list exits, memory accesses, calls, barriers and blocks
       nvtrace ptx run [flags] FILE       execute a kernel on the CPU (nvtrace ptx run -h)
"-" reads standard input.
`

func ptxVerb(e *env, args, command []string) int {
	switch {
	case len(args) == 0:
		fmt.Fprint(e.stderr, ptxUsage)
		return exitUsage
	case args[0] == "-h" || args[0] == "-help" || args[0] == "--help":
		fmt.Fprint(e.stdout, ptxUsage)
		return exitOK
	case command != nil:
		return e.fail(exitUsage, "ptx takes no command: leave out the --")
	}
	switch args[0] {
	case "fmt":
		return ptxEach(e, "fmt", args[1:], func(f *ptx.File, _ *ptxOptions) (bool, error) {
			return true, ptx.Format(e.stdout, f)
		})
	case "check":
		return ptxEach(e, "check", args[1:], func(f *ptx.File, o *ptxOptions) (bool, error) {
			r := f.Check()
			if o.run {
				r.Missing = emu.Missing(f)
			}
			return r.Write(e.stdout, f.Name, &o.ReportOptions)
		})
	case "sites":
		return ptxEach(e, "sites", args[1:], func(f *ptx.File, o *ptxOptions) (bool, error) {
			return true, ptx.WriteSites(e.stdout, f, &o.ReportOptions)
		})
	case "run":
		return ptxRun(e, args[1:])
	}
	return e.fail(exitUsage, "ptx %s: want fmt, check, sites or run", args[0])
}

// ptxOptions are the flags of fmt, check and sites.
type ptxOptions struct {
	ptx.ReportOptions
	run bool
}

// ptxEach parses each file and calls f; false from f makes the status 1.
func ptxEach(e *env, name string, args []string, f func(*ptx.File, *ptxOptions) (bool, error)) int {
	var o ptxOptions
	fs := newFlagSet(e, "ptx "+name, "[flags] FILE...")
	if name != "fmt" {
		fs.BoolVar(&o.JSON, "json", false, "print JSON")
	}
	if name == "check" {
		fs.BoolVar(&o.run, "run", false, "also list what keeps ptx run from executing the file")
	}
	if name == "sites" {
		fs.StringVar(&o.Func, "func", "", "only the function `NAME`")
	}
	paths, status, ok := parseAnywhere(fs, args)
	if !ok {
		return status
	}
	if len(paths) == 0 {
		return e.fail(exitUsage, "ptx %s wants a file", name)
	}
	for _, path := range paths {
		file, err := parsePTX(e, path)
		if err != nil {
			e.notice("%v", err)
			status = exitDiffers
			continue
		}
		ok, err := f(file, &o)
		if err != nil {
			return e.fail(exitFailed, "%v", err)
		}
		if !ok {
			status = exitDiffers
		}
	}
	return status
}

func parsePTX(e *env, path string) (*ptx.File, error) {
	var src []byte
	var err error
	if path == "-" {
		path = "<stdin>"
		src, err = io.ReadAll(e.stdin)
	} else {
		src, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, err
	}
	return ptx.Parse(path, string(src), nil)
}
