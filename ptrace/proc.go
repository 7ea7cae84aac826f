package ptrace

// FD is an open file of a process, as /proc/PID/fd shows it.
type FD struct {
	Num    int
	Target string // what the link points to
}
