package live

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/traces"
)

// A Top shows a table of processes every second: on a terminal in full screen, with keys,
// elsewhere a line each time. Its methods may be called by several goroutines.
type Top struct {
	mu     sync.Mutex // of all; events are added under it, too
	sink   *view.Sink
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

// NewTop begins to show. tty is the terminal, nil for lines.
func NewTop(sink *view.Sink, out io.Writer, tty *os.File) *Top {
	if tty != nil { // names are made harmless one by one
		out = cli.Beneath(out)
	}
	t := &Top{sink: sink, out: out, now: time.Now, tty: tty, stop: make(chan struct{})}
	t.start = t.now()
	t.shown = t.start
	return t
}

// Event implements record.Sink.
func (t *Top) Event(ev *traces.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sink.Event(ev)
}

// Idle implements record.Sink.
func (t *Top) Idle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sink.Idle()
}

// Begin shows tables until end.
func (t *Top) Begin() {
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

// End shows the last table, and leaves the terminal as it was.
func (t *Top) End() {
	close(t.stop)
	t.ended.Wait()
	if t.tty == nil {
		t.show(true)
		return
	}
	t.leave()
}

// enter puts the terminal into full screen, and returns what is typed.
func (t *Top) enter() chan byte {
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

func (t *Top) leave() {
	fmt.Fprint(t.out, "\x1b[?25h\x1b[?1049l")
	if t.saved != nil {
		_ = unix.IoctlSetTermios(int(t.tty.Fd()), unix.TCSETS, t.saved)
	}
	_ = t.tty.Close()
}

// size is that of the terminal.
func (t *Top) size() (width, height int) {
	if ws, err := unix.IoctlGetWinsize(int(t.tty.Fd()), unix.TIOCGWINSZ); err == nil && ws.Col > 0 && ws.Row > 0 {
		return int(ws.Col), int(ws.Row)
	}
	return 80, 24
}

// show prints a table, or a line. next says that a period is over.
func (t *Top) show(next bool) {
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
func (t *Top) key(k byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.screen.key(k)
}
