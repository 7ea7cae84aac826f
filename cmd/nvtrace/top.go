package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/ioctl"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// topVerb shows what processes do, while they do it.
func topVerb(e *env, args, command []string) int {
	if command == nil && len(args) == 1 && !isPID(args[0]) && isRecording(args[0]) {
		return e.fail(exitFailed, "%q: top shows what runs; of a recording: nvtrace stat %s, nvtrace report %s", args[0], args[0], args[0])
	}
	if pids, ok := onlyPIDs(args); ok && command == nil {
		return e.topOutside(pids)
	}
	return runAs(e, "top", []string{"--top", "-q"}, "[flags of run] -- command [args] | PID", args, command)
}

// onlyPIDs returns the processes of a command line that names nothing else: their channels are looked at from
// outside then, and nobody is stopped. Any flag beside -p asks for what needs more.
func onlyPIDs(args []string) (pids pidList, ok bool) {
	for i := 0; i < len(args); i++ {
		word := strings.TrimLeft(args[i], "-")
		value, joined := strings.CutPrefix(word, "p=")
		switch {
		case args[i] == word: // a bare number
			value = word
		case joined:
		case word == "p" && i+1 < len(args):
			i++
			value = args[i]
		default:
			return nil, false
		}
		if pids.Set(value) != nil {
			return nil, false
		}
	}
	return pids, len(pids) > 0
}

// topOutside shows what processes' channels are at.
func (e *env) topOutside(pids pidList) int {
	var t *top
	f := &sampleFlags{pids: pids, every: 10 * time.Millisecond, names: true, quiet: true}
	defer func() {
		if t != nil {
			t.end()
		}
	}()
	return e.sample(f, nil, func(h *traces.Header) record.Sink {
		sink := &logSink{decoder: ioctl.NewDecoder(h), live: true, notice: func(n string) { e.notice("%s", n) }, meter: newMeter()}
		sink.summarise(h)
		var tty *os.File
		if isTerminal(e.stderr) && e.getenv("TERM") != "dumb" {
			tty, _ = os.OpenFile("/dev/tty", os.O_RDWR, 0) // else there are lines
		}
		t = newTop(sink, e.stderr, tty)
		t.begin()
		return t
	})
}

// A top shows a table of processes every second: on a terminal in full screen, with keys,
// elsewhere a line each time. Its methods may be called by several goroutines.
type top struct {
	mu     sync.Mutex // of all; events are added under it, too
	sink   *logSink
	out    io.Writer
	now    func() time.Time
	tty    *os.File // nil: no full screen
	saved  *unix.Termios
	start  time.Time
	shown  time.Time // the latest table
	screen screen
	stop   chan struct{}
	ended  sync.WaitGroup
}

// topEvery is the time between two tables.
const topEvery = time.Second

// newTop begins to show. tty is the terminal, nil for lines.
func newTop(sink *logSink, out io.Writer, tty *os.File) *top {
	if tty != nil { // names are made harmless one by one
		out = beneath(out)
	}
	t := &top{sink: sink, out: out, now: time.Now, tty: tty, stop: make(chan struct{})}
	t.start = t.now()
	t.shown = t.start
	return t
}

// Event implements record.Sink.
func (t *top) Event(ev *traces.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sink.Event(ev)
}

// Idle implements record.Sink.
func (t *top) Idle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sink.Idle()
}

// begin shows tables until end.
func (t *top) begin() {
	var keys chan byte
	if t.tty != nil {
		keys = t.enter()
	}
	t.ended.Go(func() {
		tick := time.NewTicker(topEvery)
		defer tick.Stop()
		for {
			select {
			case <-t.stop:
				return
			case <-tick.C:
				t.show(true)
			case k := <-keys:
				if t.key(k) { // as Ctrl-C does, for all of the terminal's foreground
					_ = unix.Kill(0, unix.SIGINT)
				}
				t.show(false)
			}
		}
	})
}

// end shows the last table, and leaves the terminal as it was.
func (t *top) end() {
	close(t.stop)
	t.ended.Wait()
	if t.tty == nil {
		t.show(true)
		return
	}
	t.leave()
}

// enter puts the terminal into full screen, and returns what is typed.
func (t *top) enter() chan byte {
	keys := make(chan byte, 16)
	if old, err := unix.IoctlGetTermios(int(t.tty.Fd()), unix.TCGETS); err == nil {
		raw := *old
		raw.Lflag &^= unix.ICANON | unix.ECHO
		raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
		if unix.IoctlSetTermios(int(t.tty.Fd()), unix.TCSETS, &raw) == nil {
			t.saved = old
		}
	}
	fmt.Fprint(t.out, "\x1b[?1049h\x1b[?25l")
	t.ended.Go(func() {
		const patience = 100 // milliseconds, after which it looks whether the work has ended
		fd := int(t.tty.Fd())
		for b := make([]byte, 1); ; {
			select {
			case <-t.stop:
				return
			default:
			}
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, patience)
			if n == 0 || err == unix.EINTR {
				continue
			}
			if n, err = unix.Read(fd, b); err != nil || n == 0 {
				return
			}
			select {
			case keys <- b[0]:
			case <-t.stop:
				return
			}
		}
	})
	return keys
}

func (t *top) leave() {
	fmt.Fprint(t.out, "\x1b[?25h\x1b[?1049l")
	if t.saved != nil {
		_ = unix.IoctlSetTermios(int(t.tty.Fd()), unix.TCSETS, t.saved)
	}
	_ = t.tty.Close()
}

// size is that of the terminal.
func (t *top) size() (width, height int) {
	if ws, err := unix.IoctlGetWinsize(int(t.tty.Fd()), unix.TIOCGWINSZ); err == nil && ws.Col > 0 && ws.Row > 0 {
		return int(ws.Col), int(ws.Row)
	}
	return 80, 24
}

// show prints a table, or a line. next says that a period is over.
func (t *top) show(next bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if next {
		now := t.now()
		t.screen.update(t.sink, now.Sub(t.shown), now.Sub(t.start))
		t.shown = now
	}
	if t.tty == nil {
		fmt.Fprint(t.out, t.screen.line())
		return
	}
	width, height := t.size()
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i, line := range t.screen.draw(width, height) {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line + "\x1b[K")
	}
	b.WriteString("\x1b[J")
	fmt.Fprint(t.out, b.String())
}

// key does what a key says; true ends the work.
func (t *top) key(k byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.screen.key(k)
}
