package run

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/ptrace"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// What nvtrace ctl has a run do.
const (
	ctlStart = "start"
	ctlStop  = "stop"
	ctlMark  = "mark"
)

// Bounds of a request, which is a line, and of the time for it and its answer.
const (
	maxCtlLine = 4 << 10
	ctlTime    = 5 * time.Second
)

// switchSocket is where a run can be asked to begin and end recording: an abstract name, by the
// process of nvtrace that traces.
func switchSocket(pid int) string { return "@nvtrace-run-" + strconv.Itoa(pid) }

// listenSwitch lets this user, and root, switch the recording of calls.
func listenSwitch(r *record.Recorder) (net.Listener, error) {
	l, err := net.Listen("unix", switchSocket(os.Getpid()))
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			answerSwitch(r, c)
		}
	}()
	return l, nil
}

// answerSwitch does what somebody asks for.
func answerSwitch(r *record.Recorder, c net.Conn) {
	defer c.Close()
	if u, ok := c.(*net.UnixConn); !ok || !ofUser(u, os.Geteuid()) || c.SetDeadline(time.Now().Add(ctlTime)) != nil {
		return
	}
	line, err := bufio.NewReader(io.LimitReader(c, maxCtlLine)).ReadString('\n')
	if err != nil {
		return
	}
	answer, err := switched(r, strings.TrimSuffix(line, "\n"))
	if err != nil {
		answer = "error: " + err.Error()
	}
	_, _ = io.WriteString(c, answer+"\n") // who asks may have gone
}

// switched begins or ends recording, or marks the moment.
func switched(r *record.Recorder, line string) (answer string, err error) {
	word, text, _ := strings.Cut(line, " ")
	note, at := "", r.Now()
	switch {
	case word == ctlStart:
		at = r.Record(true)
		note, answer = "library calls are recorded from here on: nvtrace ctl start", "library calls are recorded"
	case word == ctlStop:
		at = r.Record(false)
		note, answer = "library calls are not recorded from here on: nvtrace ctl stop", "library calls are not recorded"
	case word == ctlMark && text != "":
		note, answer = "mark: "+text, "marked"
	default:
		return "", errors.New("want start, stop or mark TEXT")
	}
	r.Send(&traces.Event{Kind: traces.KindNote, Time: ptrace.Now(), FD: -1, Text: note})
	return fmt.Sprintf("%s, at %.6f s", answer, float64(at)/1e9), nil
}

// CtlVerb has a run of nvtrace begin or end recording, or mark a moment.
func CtlVerb(e *cli.Env, args, command []string) int {
	fs := cli.NewFlagSet(e, "ctl", "PID start|stop|mark TEXT")
	words, status, ok := cli.ParseAnywhere(fs, args)
	if !ok {
		return status
	}
	if command != nil || len(words) < 2 {
		return e.Fail(cli.ExitUsage, "ctl wants the process id of nvtrace or of its program, and start, stop or mark TEXT")
	}
	pid, err := strconv.Atoi(words[0])
	if err != nil || pid <= 0 {
		return e.Fail(cli.ExitUsage, "ctl: %q is no process id: nvtrace ctl PID start", words[0])
	}
	line := strings.Join(words[1:], " ")
	switch {
	case words[1] != ctlMark && (words[1] != ctlStart && words[1] != ctlStop || len(words) > 2), words[1] == ctlMark && len(words) == 2:
		return e.Fail(cli.ExitUsage, "ctl %d %s: want start, stop or mark TEXT", pid, cli.ShellText(words[1:]))
	case strings.Contains(line, "\n") || len(line) >= maxCtlLine:
		return e.Fail(cli.ExitUsage, "ctl %d mark: want one line of at most %d bytes", pid, maxCtlLine-len(ctlMark)-2)
	}
	answer, err := askSwitch(pid, line)
	if err != nil {
		return e.Fail(cli.ExitFailed, "process %d: %v", pid, err)
	}
	fmt.Fprintf(e.Stdout, "%s\n", answer)
	return cli.ExitOK
}

// askSwitch asks the run that is the process pid, or traces it.
func askSwitch(pid int, line string) (string, error) {
	at := pid
	if by := tracerOf(pid); by > 0 { // first: the program itself may answer in its own name
		at = by
	}
	c, err := net.Dial("unix", switchSocket(at))
	if err != nil && at != pid {
		at = pid
		c, err = net.Dial("unix", switchSocket(at))
	}
	if err != nil {
		return "", errors.New("no nvtrace that records library calls (--api) traces it")
	}
	defer c.Close()
	if u, ok := c.(*net.UnixConn); !ok || !ofUser(u, os.Geteuid()) && !ofUser(u, ownerOf(at)) {
		return "", fmt.Errorf("what answers in the name of process %d is of another user, and not asked", at)
	}
	if err := c.SetDeadline(time.Now().Add(ctlTime)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return "", fmt.Errorf("nvtrace obeys only its own user and root: %w", err)
	}
	b, err := io.ReadAll(io.LimitReader(c, maxCtlLine))
	answer := strings.TrimSpace(string(b))
	if text, bad := strings.CutPrefix(answer, "error: "); bad {
		return "", errors.New(text)
	}
	if err == nil && answer == "" {
		err = errors.New("nvtrace does not answer")
	}
	return answer, err
}

// tracerOf returns the process that traces another; 0: none.
func tracerOf(pid int) int {
	return statusField(statusField(pid, "TracerPid:"), "Tgid:") // the first is a thread
}

// statusField returns a number that the kernel says of a process or thread; 0: it does not.
func statusField(pid int, name string) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if text, ok := strings.CutPrefix(line, name); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(text))
			return n
		}
	}
	return 0
}

// ownerOf returns the user of a process; -1: it has gone.
func ownerOf(pid int) int {
	var st unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d", pid), &st) != nil {
		return -1
	}
	return int(st.Uid)
}

// ofUser says whether the other side is of a user, or root.
func ofUser(c *net.UnixConn, uid int) (is bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		is = err == nil && (cred.Uid == 0 || int(cred.Uid) == uid)
	})
	return is && err == nil
}
