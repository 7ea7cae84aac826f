package code

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/fatbin"
	"nvtrace/ptx"
	"nvtrace/ptx/emu"
)

const ptxUsage = `usage: nvtrace ptx fmt FILE
           print a PTX module in one layout
       nvtrace ptx check [--json] [--run] FILE...
           parse; report features that the file's version or target lacks
       nvtrace ptx sites [--json] [--func NAME] FILE
           list exits, memory accesses, calls, barriers and blocks
       nvtrace ptx run [flags] FILE
           execute a kernel on the CPU (nvtrace ptx run -h)
"-" reads standard input.
`

// PTXVerb formats, checks and executes PTX, and lists where probes can be.
func PTXVerb(e *cli.Env, args, command []string) int {
	switch {
	case len(args) == 0:
		fmt.Fprint(e.Stderr, ptxUsage)
		return cli.ExitUsage
	case args[0] == "-h" || args[0] == "-help" || args[0] == "--help":
		fmt.Fprint(e.Stdout, ptxUsage)
		return cli.ExitOK
	case command != nil:
		return e.Fail(cli.ExitUsage, "ptx takes no command: leave out the --")
	}
	switch args[0] {
	case "fmt":
		return ptxEach(e, "fmt", args[1:], func(f *ptx.File, _ *ptxOptions) (bool, error) {
			return true, ptx.Format(e.Content(), f)
		})
	case "check":
		return ptxEach(e, "check", args[1:], func(f *ptx.File, o *ptxOptions) (bool, error) {
			r := f.Check()
			if o.run {
				r.Missing = emu.Missing(f)
			}
			return r.Write(e.Stdout, f.Name, &o.ReportOptions)
		})
	case "sites":
		return ptxEach(e, "sites", args[1:], func(f *ptx.File, o *ptxOptions) (bool, error) {
			return true, ptx.WriteSites(e.Stdout, f, &o.ReportOptions)
		})
	case "run":
		return ptxRun(e, args[1:])
	}
	return e.Fail(cli.ExitUsage, "ptx %s: want fmt, check, sites or run", args[0])
}

// ptxOptions are the flags of fmt, check and sites.
type ptxOptions struct {
	ptx.ReportOptions
	run bool
}

// ptxEach parses each file and calls f; false from f makes the status 1.
func ptxEach(e *cli.Env, name string, args []string, f func(*ptx.File, *ptxOptions) (bool, error)) int {
	var o ptxOptions
	flags := cli.NewFlagSet(e, "ptx "+name, "[flags] FILE...")
	if name != "fmt" {
		flags.BoolVar(&o.JSON, "json", false, "print JSON")
	}
	if name == "check" {
		flags.BoolVar(&o.run, "run", false, "also list what keeps ptx run from executing the file")
	}
	if name == "sites" {
		flags.StringVar(&o.Func, "func", "", "only the function `NAME`")
	}
	paths, status, ok := cli.ParseAnywhere(flags, args)
	if !ok {
		return status
	}
	if len(paths) == 0 {
		return e.Fail(cli.ExitUsage, "ptx %s wants a file: nvtrace ptx %s FILE.ptx, or - for stdin", name, name)
	}
	for _, path := range paths {
		file, err := parsePTX(e, path)
		if err != nil {
			e.Notice("%v", err)
			status = max(status, unparsed(err))
			continue
		}
		ok, err := f(file, &o)
		if err != nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
		if !ok {
			status = max(status, cli.ExitDiffers)
		}
	}
	return status
}

// unparsed returns the status for a file of which there is no PTX: a check that
// found something, or a file that can't be read.
func unparsed(err error) int {
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return cli.ExitFailed
	}
	return cli.ExitDiffers
}

func parsePTX(e *cli.Env, path string) (*ptx.File, error) {
	var src []byte
	var err error
	if path == "-" {
		path = "<stdin>"
		src, err = io.ReadAll(e.Stdin)
	} else {
		e.Reads(path)
		src, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, err
	}
	if f := fatbin.Sniff(src); f == fatbin.FormatHost || f == fatbin.FormatContainer || f == fatbin.FormatCubin {
		return nil, fmt.Errorf("%s: %s, and no PTX; nvtrace fatbin extract --out DIR %s writes what PTX is in it", path, f, path)
	}
	return ptx.Parse(path, string(src), nil)
}
