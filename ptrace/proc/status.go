package proc

import (
	"os"
	"strconv"
	"strings"
)

// Path returns the name of a file that /proc has of a process or a thread.
func Path(id int, file string) string { return "/proc/" + strconv.Itoa(id) + "/" + file }

// FD returns the name of the link that /proc has of a thread's open descriptor.
func FD(tid int, fd int32) string { return Path(tid, "fd/"+strconv.Itoa(int(fd))) }

// All returns the ids of the processes that are there, none where that can't be seen.
func All() []int { return numbers("/proc") }

// Threads returns the ids of a process's threads. The error is fs.ErrNotExist where it has
// ended.
func Threads(pid int) ([]int, error) {
	dir := Path(pid, "task")
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	return numbers(dir), nil
}

// numbers returns those of a folder's entries that are numbers.
func numbers(dir string) []int {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	names, _ := f.Readdirnames(-1) // as far as it could be read
	var list []int
	for _, name := range names {
		if n, err := strconv.ParseUint(name, 10, 31); err == nil {
			list = append(list, int(n))
		}
	}
	return list
}

// FirstEnded reports whether a process lives whose first thread has ended: /proc says nothing of its memory
// and its files then.
func FirstEnded(pid int) bool {
	threads, err := Threads(pid)
	return err == nil && len(threads) > 1 && Stat(pid, pid, StatState) == "Z"
}

// Comm returns the name of a thread, "" if it has ended.
func Comm(tid int) string {
	b, _ := os.ReadFile(Path(tid, "comm"))
	return strings.TrimSuffix(string(b), "\n")
}

// Status returns what a thread's status says under a key, without white space around it.
// ok is false where the thread has ended, or this kernel does not say it.
func Status(tid int, key string) (value string, ok bool) {
	b, err := os.ReadFile(Path(tid, "status"))
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.TrimSpace(v), true
		}
	}
	return "", false
}

// StatusNumber returns the first number of [Status]: of IDs, it is the real one.
func StatusNumber(tid int, key string) (n int, ok bool) {
	v, _ := Status(tid, key)
	v, _, _ = strings.Cut(v, "\t")
	n, err := strconv.Atoi(v)
	return n, err == nil
}

// Of the fields of a thread's stat, as proc_pid_stat(5) counts them.
const (
	StatState = 3  // a letter
	StatFlags = 9  // PF_* of the kernel
	StatStart = 22 // when it began, in ticks since the machine did
	StatSize  = 23 // what is mapped, in bytes
	StatCPU   = 39 // the processor that it ran on last
)

// Stat returns a field of a thread's stat, "" if it has ended. It can't be one of the first
// two, the id and the name.
func Stat(pid, tid, field int) string {
	b, _ := os.ReadFile(Path(pid, "task/"+strconv.Itoa(tid)+"/stat"))
	// The name in parentheses may have anything in it.
	text := string(b)
	f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if field < StatState || field-StatState >= len(f) {
		return ""
	}
	return f[field-StatState]
}
