package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"nvtrace/ptrace/proc"
)

// pidList is the value of -p.
type pidList []int

// String implements flag.Value.
func (l *pidList) String() string {
	var b strings.Builder
	for i, pid := range *l {
		switch {
		case i > 0 && i == len(*l)-1:
			b.WriteString(" and ")
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString(strconv.Itoa(pid))
	}
	return b.String()
}

// Set implements flag.Value.
func (l *pidList) Set(s string) error {
	for word := range strings.SplitSeq(s, ",") {
		pid, err := strconv.Atoi(word)
		if err != nil || pid <= 0 {
			return errors.New("not a process id")
		}
		if !slices.Contains(*l, pid) {
			*l = append(*l, pid)
		}
	}
	return nil
}

// isPID reports whether a word of a command line is a process id: a number alone. A file of such a name is
// ./1234.
func isPID(word string) bool {
	n, err := strconv.ParseInt(word, 10, 32)
	return err == nil && n > 0 && word == strconv.FormatInt(n, 10)
}

// pidFlags puts -p before the words of a run's command line that are process ids, wherever they stand.
func pidFlags(e *env, args, command []string) []string {
	if command != nil || !slices.ContainsFunc(args, isPID) {
		return args
	}
	f := newRunFlags(e)
	f.set.SetOutput(io.Discard)
	f.set.Usage = func() {}
	var list []string
	for rest := args; ; rest = f.set.Args()[1:] {
		if f.set.Parse(rest) != nil {
			return args // whoever parses them again says what is wrong
		}
		list = append(list, rest[:len(rest)-f.set.NArg()]...)
		switch {
		case f.set.NArg() == 0:
			return list
		case !isPID(f.set.Arg(0)):
			return args
		}
		list = append(list, "-p", f.set.Arg(0))
	}
}

// words is the list as Set takes it.
func (l pidList) words() string {
	var words []string
	for _, pid := range l {
		words = append(words, strconv.Itoa(pid))
	}
	return strings.Join(words, ",")
}

// pid is the first process to attach to, 0 if a command is started.
func (f *runFlags) pid() int {
	if len(f.pids) == 0 {
		return 0
	}
	return f.pids[0]
}

// choosePIDs finds the processes that --all-gpu-processes is about.
func (f *runFlags) choosePIDs(e *env) error {
	var denied pidList
	f.pids, denied = gpuProcesses()
	if len(denied) > 0 {
		e.notice("not attached to: %s, which belong to others (sudo nvtrace attaches to them)", &denied)
	}
	if len(f.pids) == 0 {
		return errors.New("--all-gpu-processes: no running process that can be attached to has a GPU open")
	}
	return nil
}

// gpuProcesses lists the processes that have a GPU open, this one excepted: those
// that can be attached to, and others whose memory can't be read.
func gpuProcesses() (pids, denied pidList) {
	self := os.Getpid()
	for _, pid := range proc.All() {
		base := fmt.Sprintf("/proc/%d/", pid)
		if pid == self || !hasGPU(base) {
			continue
		}
		mem, err := os.OpenFile(base+"mem", os.O_RDWR, 0)
		if err != nil {
			denied = append(denied, pid)
			continue
		}
		mem.Close()
		pids = append(pids, pid)
	}
	return pids, denied
}

// hasGPU reports whether the process of a folder of /proc has a GPU's node open. Those that
// only manage the driver have others.
func hasGPU(base string) bool {
	list, err := os.ReadDir(base + "fd")
	if err != nil {
		return false
	}
	return slices.ContainsFunc(list, func(d os.DirEntry) bool {
		link, err := os.Readlink(base + "fd/" + d.Name())
		return err == nil && isGPUNode(link)
	})
}

// isGPUNode reports whether a path is that of a GPU's node, or of unified memory's.
func isGPUNode(path string) bool {
	name, ok := strings.CutPrefix(path, "/dev/nvidia")
	if !ok || name == "" {
		return false
	}
	return name == "-uvm" || strings.Trim(name, "0123456789") == ""
}
