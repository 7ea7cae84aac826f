package run

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/ioctl"
	"nvtrace/ptrace"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// Decoding has a process of its own: if it runs out of memory, panics or is
// killed, the tracing process, and with it the program, goes on.

// DecodeWord is the hidden verb of the decoding process. It takes run's flags
// and reads a recording on stdin.
const DecodeWord = "decode"

// Descriptors of the decoding process: where it tells how far it is, and, where the
// program outlives the tracing process, what removes its breakpoints.
const (
	tellFD    = 3
	aliveFD   = 4
	journalFD = 5
)

// What the decoding process tells, a byte each.
const (
	statusUp    byte = 1 + iota // it runs
	statusReady                 // the outputs are open
	statusDone                  // everything is put out, and the outputs are closed
)

// errOutlet says that the decoding process could not open its outputs, and has
// told why.
var errOutlet = errors.New("the outputs can't be opened")

// startOutlet returns where the events of a run go: to a decoding process, or,
// where none can be started, to this one.
func startOutlet(e *cli.Env, f *runFlags, args []string, h *traces.Header) (outlet, error) {
	if _, err := ioctl.ParseFilter(f.lines.Exprs...); err != nil {
		return nil, err
	}
	if err := f.checkNames(e, h); err != nil {
		return nil, err
	}
	// The other process opens the files when the program has begun, which waits until it
	// has. Without files nothing can go wrong, and nothing waits.
	files := f.log.Value != "" || f.json.Value != "" || f.out != ""
	switch {
	case f.top, // which reads keys: another process would be in the background of the terminal
		f.attach.shown != nil: // of which the document is written here
		return newOutputs(e, f, args, h)
	}
	if d, err := startDecoding(e, args, h, f.pid() != 0 || f.onDeath == deathLive); err == nil {
		d.checked = !files
		return d, nil
	}
	return newOutputs(e, f, args, h)
}

// checkNames refuses names that can't become those of files, before anything is started.
func (f *runFlags) checkNames(e *cli.Env, h *traces.Header) error {
	guess := *h
	guess.PID = max(guess.PID, 1)
	_, err := f.names(&guess, e.Getenv)
	return err
}

// decoding is the decoding process, seen from the tracing one. It implements
// outlet.
type decoding struct {
	e       *cli.Env
	program ptrace.Options // of the process
	process *os.Process    // nil: not started
	once    sync.Once
	started chan error // of starting the process
	handed  []*os.File // to it
	pipe    *os.File
	header  *traces.Header
	gate    gate
	w       *traces.Writer  // nil before the program has begun
	told    *os.File        // what the process tells; at its end when that has ended
	checked bool            // what could be wrong with the outputs was looked at before
	fault   error           // of the outputs
	journal *ptrace.Journal // of breakpoints; nil: the program ends with the tracing process
}

func startDecoding(e *cli.Env, args []string, h *traces.Header, outlives bool) (_ *decoding, err error) {
	if e.Self == "" {
		return nil, errors.New("this program can't start itself")
	}
	if _, err := os.Stat(e.Self); err != nil {
		return nil, err
	}
	stdout, ok := cli.Beneath(e.Stdout).(*os.File)
	stderr, ok2 := cli.Beneath(e.Stderr).(*os.File)
	if !ok || !ok2 {
		return nil, errors.New("the outputs are no files")
	}
	var files []*os.File
	defer func() {
		if err != nil {
			closeAll(files)
		}
	}()
	stream, pipe, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	files = append(files, stream, pipe)
	told, tell, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	files = append(files, told, tell)
	_, _ = unix.FcntlInt(pipe.Fd(), unix.F_SETPIPE_SZ, 1<<20) // more room, where it is to be had
	d := &decoding{e: e, started: make(chan error, 1), pipe: pipe, header: h, told: told}
	d.program = ptrace.Options{
		Path: e.Self, Argv: append([]string{os.Args[0], DecodeWord}, args...),
		Env:   append(os.Environ(), "GOMAXPROCS=2"), // where there are two, the first counts
		Stdin: stream, Stdout: stdout, Stderr: stderr, ExtraFiles: []*os.File{tell},
	}
	handed := []*os.File{stream, tell}
	if outlives {
		journal, alive, entries, err := ptrace.NewJournal()
		if err != nil {
			return nil, err
		}
		d.journal, handed = journal, append(handed, alive)
		d.program.ExtraFiles = append(d.program.ExtraFiles, alive, entries)
	}
	d.handed = handed
	return d, nil
}

// start starts the process, once. No signal ends it that is meant for the program, also where
// that comes at its start: Go's runtime unblocks some before decodeVerb can have them ignored.
func (d *decoding) start() {
	d.once.Do(func() {
		go func() {
			var err error
			d.process, err = ptrace.StartApart(&d.program)
			d.e.Step("decoder started")
			closeAll(d.handed)
			d.started <- err
		}()
	})
}

// meantForOthers are the signals that do not end the decoding process: those that have been
// sent to the program, of which some mean that it is to end, and that nobody reads stderr
// any more. In a group of its own, it may be stopped for writing to a terminal.
var meantForOthers = []os.Signal{
	unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2, unix.SIGABRT, unix.SIGILL, unix.SIGTRAP,
	unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSTKFLT, unix.SIGSYS, unix.SIGPIPE, unix.SIGTTOU,
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// sinks implements outlet.
func (d *decoding) sinks() []record.Sink { return []record.Sink{&d.gate} }

// ready implements outlet. The header tells the process that the program has begun.
func (d *decoding) ready() error {
	d.start()
	w, err := traces.NewWriter(d.pipe, d.header, &traces.WriterOptions{Blocks: true})
	if err != nil {
		return err
	}
	_ = w.Flush() // an error means that the process has ended
	d.w = w
	d.gate.open(&cli.FileSink{W: w})
	if d.checked {
		return nil
	}
	if !d.waitFor(statusReady) {
		err := <-d.started
		d.started <- err
		if d.fault = errOutlet; err != nil {
			d.fault = err
		}
	}
	return d.fault
}

// prepare starts the process and waits until it runs, so that a program that is being
// attached to need not wait for it.
func (d *decoding) prepare() {
	d.start()
	_ = d.waitFor(statusUp) // ready says what is wrong
}

// waitFor waits until the process tells that it is so far; false means that it has ended
// before.
func (d *decoding) waitFor(what byte) bool {
	var b [1]byte
	for b[0] < what {
		if n, _ := d.told.Read(b[:]); n == 0 {
			return false
		}
	}
	return true
}

// Finish implements outlet: it waits until everything is put out. It does not wait for
// the end of a process that has nothing left to do, which takes longer than its last
// table.
func (d *decoding) Finish() {
	d.start()
	err := <-d.started // what it is handed must not be closed before
	d.journal.Close()
	if d.w != nil {
		_ = d.w.Close() // an error means that the process has ended
	}
	_ = d.pipe.Close()
	if err == nil && !d.waitFor(statusDone) {
		var state *os.ProcessState
		if state, err = d.process.Wait(); err == nil && !state.Success() {
			err = &exec.ExitError{ProcessState: state}
		}
	}
	if err != nil && d.fault == nil {
		d.e.Notice("the process that decodes and writes ended early (%v); the program was not disturbed, what it did since is not recorded", err)
	}
	_ = d.told.Close()
}

// reap lets the kernel reap the process if it ends before this one, which has no other
// children any more.
func (d *decoding) reap() {
	setSignal(unix.SIGCHLD, ignoredSignal)
	if d.process != nil {
		_, _ = unix.Wait4(d.process.Pid, nil, unix.WNOHANG, nil) // it may have ended before
	}
}

// DecodeVerb is the decoding process.
func DecodeVerb(e *cli.Env, args, _ []string) int {
	signal.Ignore(meantForOthers...)
	e.Step("decoder: began")
	f := NewFlags(e)
	if status, ok := cli.Parse(f.Set, args); !ok {
		return programStatus(status)
	}
	if err := f.attach.scripts.Load(e); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if err := f.setQuiet(); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	removed := func() {}
	if f.pid() != 0 || f.onDeath == deathLive {
		removed = ptrace.RemoveOrphaned(os.NewFile(aliveFD, "alive"), os.NewFile(journalFD, "journal"))
	}
	in, tell := newIdler(e.Stdin), os.NewFile(tellFD, "tell")
	_, _ = tell.Write([]byte{statusUp}) // an error shows below
	first := make([]byte, 1)
	if n, _ := in.Read(first); n == 0 { // the program has not begun: no file is touched
		_, _ = tell.Write([]byte{statusDone})
		return cli.ExitOK
	}
	r, err := traces.NewReader(io.MultiReader(bytes.NewReader(first), in))
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	o, err := newOutputs(e, f, args, &r.Header)
	var quiet *held
	if err == nil {
		o.heard = func() { quiet.release() }
		err = o.open()
	}
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	quiet = f.hold(&e.Stderr)
	sinks := record.Guard(o.each(), func(msg string) { e.Notice("%s", msg) }, nil)
	e.Step("decoder: outputs opened")
	in.idle = sinks.Idle
	if _, err = tell.Write([]byte{statusReady}); err != nil {
		return e.Fail(cli.ExitFailed, "%v: the verb %s is for nvtrace itself", err, DecodeWord)
	}
	for ev, err := range r.All() {
		if err != nil {
			e.Notice("the tracing process: %v", err)
			break
		}
		sinks.Event(ev)
		if r.Complete() {
			break // what comes is the end of the file, when the tracing process has cleaned up
		}
	}
	sinks.Idle()
	if !r.Complete() {
		e.Notice("the tracing process was killed: the record ends here")
	}
	e.Step("decoder: got all")
	debug.SetGCPercent(-1) // what is still needed is little, and somebody waits for it
	o.Finish()
	removed()
	e.Step("decoder: ended")
	// Somebody may wait until nobody has them open any more.
	for _, w := range []io.Writer{e.Stdout, e.Stderr} {
		if f, ok := cli.Beneath(w).(io.Closer); ok {
			_ = f.Close()
		}
	}
	_, _ = tell.Write([]byte{statusDone}) // an error means that the tracing process has ended
	return cli.ExitOK
}

// idler reads a pipe, and says when there is nothing to read. It waits in Go's poller:
// in a blocking call, Go would look for some 10 ms, every 20 µs, how it goes on, and what
// wakes up on one CPU can slow down the program on another.
type idler struct {
	f    *os.File
	fd   int
	idle func()
}

func newIdler(f *os.File) *idler {
	r := &idler{f: f, fd: int(f.Fd())}
	// Opened anew, as others may have the same file, and want it to block.
	p, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(r.fd), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return r
	}
	if p.SetReadDeadline(time.Time{}) != nil { // the poller can't have it: it is no pipe
		p.Close()
		return r
	}
	r.f = p
	return r
}

// Read implements io.Reader.
func (r *idler) Read(b []byte) (int, error) {
	if r.idle != nil && r.empty() {
		r.idle()
	}
	return r.f.Read(b)
}

// empty says that there is nothing to read now.
func (r *idler) empty() bool {
	p := []unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err != nil || n == 0
}

// outlet is where the events of a run go. ready is called when the program has begun, which
// gets to its first instruction only if it returns nil; before, no file is touched.
type outlet interface {
	sinks() []record.Sink
	ready() error
	Finish()
}
