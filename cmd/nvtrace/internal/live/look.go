package live

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/look"
	"nvtrace/ioctl/channels"
	"nvtrace/ioctl/query"
	"nvtrace/traces/escape"
)

// PsVerb says what the GPU's channels of processes are at, from outside.
func PsVerb(e *cli.Env, args, command []string) int {
	fs := cli.NewFlagSet(e, "ps", "[flags] [PID...]")
	var pids cli.PIDList
	var asJSON cli.OptString
	fs.Var(&pids, "p", "look at the processes `PID`[,PID...] (default: all that have a GPU open)")
	names := fs.Bool("names", false, "search the processes' memory for the names of kernels, about a second for each GiB")
	memory := fs.Bool("memory", false, "ask the driver how much memory of GPUs each process has, as nvidia-smi does; a driver that hangs holds up who asks it")
	rings := ringsFlag(fs)
	var wait cli.SecondsFlag
	fs.Var(&wait, "w", "look again each `SECONDS`")
	asJSON.RegisterJSON(fs)
	words, status, ok := cli.ParseAnywhere(fs, args)
	if !ok {
		return status
	}
	if status, ok := pidWords(e, "ps", &pids, words, command); !ok {
		return status
	}
	return lookAtAll(e, pids, *names, *memory, access(rings), time.Duration(wait), &asJSON)
}

// ringsFlag registers --no-rings.
func ringsFlag(fs *flag.FlagSet) *bool {
	return fs.Bool("no-rings", false, "read no memory of GPUs, where rings are: find channels by their pushbuffers, as where that memory can't be read")
}

// access returns which memory of a process is read with --no-rings, or without.
func access(noRings *bool) channels.Access {
	if *noRings {
		return channels.SystemMemory
	}
	return channels.AllMemory
}

// pidWords adds the words of a command line to its processes.
func pidWords(e *cli.Env, verb string, pids *cli.PIDList, words, command []string) (status int, ok bool) {
	if command != nil {
		return e.Fail(cli.ExitUsage, "%s looks at processes that run: nvtrace %s PID", verb, verb), false
	}
	for _, w := range words {
		if err := pids.Set(w); err != nil {
			return e.Fail(cli.ExitUsage, "%s wants process ids, and %q is none; pgrep -f finds a program's, nvtrace ps those that have a GPU", verb, w), false
		}
	}
	return cli.ExitOK, true
}

// lookAtAll looks at processes once, or again and again.
func lookAtAll(e *cli.Env, pids cli.PIDList, names, memory bool, access channels.Access, every time.Duration, asJSON *cli.OptString) int {
	processes := look.Processes{Access: access}
	defer processes.Close()
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	defer signal.Stop(interrupted)
	gpus := look.GPUs()
	for {
		list := pids
		var denied cli.PIDList
		if len(list) == 0 {
			list, denied = cli.GpuProcesses()
		}
		found := []look.Process{}
		for _, r := range processes.LookAll(list, names) {
			found = append(found, look.Describe(&r, gpus))
		}
		if memory {
			askMemory(e, found)
		}
		if status := e.Answer(asJSON, nil, found, func() error { return writePS(e.Stdout, found, deniedText(denied)) }); status != cli.ExitOK || every == 0 {
			return status
		}
		select {
		case <-interrupted:
			return cli.ExitOK
		case <-time.After(every):
		}
	}
}

// askMemory adds what the driver knows of processes' memory.
func askMemory(e *cli.Env, list []look.Process) {
	var pids []int
	for i := range list {
		pids = append(pids, list[i].PID)
	}
	known, err := query.MemoryOf(pids)
	if err != nil {
		e.Notice("%v", err)
	}
	for i := range list {
		for _, m := range known[list[i].PID] {
			list[i].Memory = append(list[i].Memory, look.Memory(m))
		}
	}
}

// writePS prints the table of nvtrace ps.
func writePS(w io.Writer, list []look.Process, denied string) error {
	rows := look.Rows(list)
	if len(rows) == 0 {
		if _, err := fmt.Fprintln(w, "No process that can be read has a GPU open."); err != nil {
			return err
		}
	}
	header := slices.Clone(look.Header)
	if !slices.ContainsFunc(list, func(p look.Process) bool { return len(p.Memory) > 0 }) {
		header, rows = without(header, rows, slices.Index(header, ">MEMORY"))
	}
	if err := cli.RenderTable(w, "", header, rows); err != nil {
		return err
	}
	lines := look.Legend(list)
	if denied != "" {
		lines = append(lines, denied)
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, escape.String(line)); err != nil {
			return err
		}
	}
	return nil
}

// without returns a table without one of its columns.
func without(header []string, rows [][]string, column int) ([]string, [][]string) {
	for i := range rows {
		rows[i] = slices.Delete(rows[i], column, column+1)
	}
	return slices.Delete(header, column, column+1), rows
}

// deniedText says which processes with a GPU can't be read, or that there may be some, and what to do; "" if all
// can.
func deniedText(denied cli.PIDList) string {
	switch {
	case len(denied) > 0 && scope() > 0:
		return fmt.Sprintf("Not read: %s. /proc/sys/kernel/yama/ptrace_scope is %d, so that root alone may: sudo nvtrace ps", &denied, scope())
	case len(denied) > 0:
		return fmt.Sprintf("Not read: %s, which belong to other users or can't be debugged: sudo nvtrace ps", &denied)
	case os.Geteuid() != 0 && scope() > 0:
		return fmt.Sprintf("/proc/sys/kernel/yama/ptrace_scope is %d, so that root alone may read processes: sudo nvtrace ps", scope())
	case os.Geteuid() != 0:
		return "Processes of other users are not shown: sudo nvtrace ps"
	}
	return ""
}

// scope returns the kernel's restriction of debuggers (ptrace_scope); 0: there is none.
func scope() int {
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		return 0 // the kernel is without Yama
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0
	}
	return n
}

// WhereVerb says what one process's channels and threads are at, from outside.
func WhereVerb(e *cli.Env, args, command []string) int {
	fs := cli.NewFlagSet(e, "where", "[flags] PID")
	var pids cli.PIDList
	var asJSON cli.OptString
	fs.Var(&pids, "p", "the process `PID`; of those that it has started, the ones that use a GPU are shown, too")
	names := fs.Bool("names", true, "search the process's memory for the names of kernels, up to a second for each GiB")
	recording := fs.String("recording", "", "take the channels from `FILE`, which nvtrace -o is writing of the process, instead of looking for them")
	rings := ringsFlag(fs)
	noStacks := fs.Bool("no-stacks", false, "stop no thread: of threads that run, functions of machine code are not known")
	asJSON.RegisterJSON(fs)
	words, status, ok := cli.ParseAnywhere(fs, args)
	if !ok {
		return status
	}
	if status, ok := pidWords(e, "where", &pids, words, command); !ok {
		return status
	}
	if len(pids) != 1 {
		return e.Fail(cli.ExitUsage, "where wants one process: nvtrace where PID")
	}
	o := look.Options{Names: *names, Stacks: !*noStacks, Access: access(rings)}
	if *recording != "" && *rings {
		return e.Fail(cli.ExitUsage, "--recording tells where rings are, and --no-rings leaves them alone")
	}
	if *recording != "" {
		var err error
		if o.Places, err = placesOf(e, *recording, pids[0]); err != nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
	}
	list, err := look.WhereIs(pids[0], o)
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	return e.Answer(&asJSON, nil, list, func() error { return list.Write(e.Stdout) })
}
