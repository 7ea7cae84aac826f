package cli

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"nvtrace/ptrace/proc"
)

// PIDList is the value of -p.
type PIDList []int

// String implements flag.Value.
func (l *PIDList) String() string {
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
func (l *PIDList) Set(s string) error {
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

// IsPID reports whether a word of a command line is a process id: a number alone. A file of such a name is
// ./1234.
func IsPID(word string) bool {
	n, err := strconv.ParseInt(word, 10, 32)
	return err == nil && n > 0 && word == strconv.FormatInt(n, 10)
}

// Words is the list as Set takes it.
func (l PIDList) Words() string {
	var words []string
	for _, pid := range l {
		words = append(words, strconv.Itoa(pid))
	}
	return strings.Join(words, ",")
}

// GpuProcesses lists the processes that have a GPU open, this one excepted: those
// that can be attached to, and others whose memory can't be read.
func GpuProcesses() (pids, denied PIDList) {
	self := os.Getpid()
	for _, pid := range proc.All() {
		base := fmt.Sprintf("/proc/%d/", pid)
		if pid == self || !HasGPU(base) {
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

// HasGPU reports whether the process of a folder of /proc has a GPU's node open. Those that
// only manage the driver have others.
func HasGPU(base string) bool {
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
