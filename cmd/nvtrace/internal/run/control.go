package run

import (
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/nvattach/control"
)

// given reports whether a flag was.
func given(fs *flag.FlagSet, name string) (ok bool) {
	fs.Visit(func(f *flag.Flag) { ok = ok || f.Name == name })
	return ok
}

// controlFlags say what is to be done with a probe of a run.
type controlFlags struct {
	json cli.OptString // of the list
	what string
	id   string // of an attachment, with its run's number before it if there are several runs
}

func (f *controlFlags) register(fs *flag.FlagSet) {
	fs.Var(&f.json, "json", "with --list, print the programs that run as JSON, to stdout or with =`FILE` to a file")
	for name, text := range map[string]string{
		control.DoDetach:  "end a program of a run on the host: its `ID`, or PID:ID where several runs of nvtrace have some",
		control.DoDisable: "do not run a program of a run on the host until it is enabled: its `ID`, or PID:ID",
		control.DoEnable:  "run it again: its `ID`, or PID:ID",
	} {
		fs.Func(name, text, func(id string) error {
			if f.what != "" {
				return errors.New("one of --detach, --disable and --enable at a time")
			}
			f.what, f.id = name, id
			return nil
		})
	}
}

// do does what was asked for, or lists what runs.
func (f *controlFlags) do(e *cli.Env, names []string) int {
	if len(names) > 0 {
		return e.Fail(cli.ExitUsage, "attach --%s wants no objects", f.what)
	}
	dir := control.Folder()
	runs, err := control.Runs(dir)
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if f.what == "" {
		return listRuns(e, dir, runs, &f.json)
	}
	of, id, qualified := strings.Cut(f.id, ":")
	if !qualified {
		of, id = "", of
	}
	n, err := strconv.Atoi(id)
	if err != nil {
		return e.Fail(cli.ExitUsage, "attach --%s: %q is no ID; attach --list shows them", f.what, f.id)
	}
	pid := 0
	switch {
	case qualified:
		if pid, err = strconv.Atoi(of); err != nil {
			return e.Fail(cli.ExitUsage, "attach --%s: %q is no process; attach --list shows them", f.what, of)
		}
	case len(runs) == 1:
		pid = runs[0]
	case len(runs) == 0:
		return e.Fail(cli.ExitFailed, "no run of nvtrace has programs on the host")
	default:
		return e.Fail(cli.ExitUsage, "attach --%s: %d runs of nvtrace have programs on the host; write %d:%d for the first one's", f.what, len(runs), runs[0], n)
	}
	if err := control.Do(dir, pid, f.what, n); err != nil {
		return e.Fail(cli.ExitFailed, "attach --%s %s: %v", f.what, f.id, err)
	}
	return cli.ExitOK
}

// listRuns lists the programs of all runs.
func listRuns(e *cli.Env, dir string, runs []int, asJSON *cli.OptString) int {
	var rows [][]string
	programs := []runningProgram{}
	for _, pid := range runs {
		list, err := control.List(dir, pid)
		if err != nil {
			e.Notice("run %d: %v", pid, err) // it may have ended
			continue
		}
		for _, a := range list {
			programs = append(programs, runningProgram{fmt.Sprintf("%d:%d", pid, a.ID), a.Program, a.Section, a.State, append([]string{}, a.Places...)})
			places := strings.Join(a.Places, ", ")
			if len(a.Places) > 3 {
				places = fmt.Sprintf("%s and %d more", strings.Join(a.Places[:3], ", "), len(a.Places)-3)
			}
			if places == "" {
				places = "nowhere yet"
			}
			rows = append(rows, []string{fmt.Sprintf("%d:%d", pid, a.ID), a.Program, a.Section, a.State, places})
		}
	}
	return e.Answer(asJSON, nil, map[string][]runningProgram{"programs": programs}, func() error {
		if len(rows) == 0 {
			e.Notice("no run of nvtrace has programs on the host")
		}
		return cli.RenderTable(e.Stdout, "", []string{"ID", "program", "section", "state", "runs at"}, rows)
	})
}

// runningProgram is a program of a run, for programs.
type runningProgram struct {
	ID      string   `json:"id"`
	Program string   `json:"program"`
	Section string   `json:"section"`
	State   string   `json:"state"`
	Places  []string `json:"places"`
}
