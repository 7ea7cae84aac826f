package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/traces"
)

// maxFlight bounds what a flight recorder keeps of library calls, maxFlightOld of what is
// needed to understand them.
const (
	maxFlight    = 1 << 30
	maxFlightOld = 256 << 20
)

// flight keeps the library calls of the last seconds in memory, as the blocks of a recording,
// and all else since the beginning, and writes them to a file when something has gone wrong, or
// somebody asks. It implements record.Sink.
type flight struct {
	e      *env
	window time.Duration
	hang   time.Duration // no call returning for so long, while one has not, is a hang; 0: never
	header *traces.Header
	head   []byte // that, as a file begins with it
	name   func(dump int) (string, error)

	mu     sync.Mutex
	w      *traces.Writer // of recent
	recent chunks
	old    chunks // without library calls
	oldW   *traces.Writer
	last   int64 // the latest end of an event
	lost   bool  // from old
	dumps  int
	failed string // why the program's end is one to write the file for; "": it is not

	open  map[int32]int // library calls of threads that have not returned
	quiet time.Time     // since when none has
	hung  bool          // that was reported
	stop  chan struct{}
	asks  net.Listener // of dumpVerb; nil: nobody can ask
}

// chunks are compressed blocks, which can each be read behind a header.
type chunks struct {
	list  []chunk
	bytes int
	end   *int64 // where the latest end of an event stands
}

type chunk struct {
	data  []byte
	until int64
}

// Write implements io.Writer: each flush of a traces.Writer is a chunk.
func (c *chunks) Write(b []byte) (int, error) {
	c.list = append(c.list, chunk{bytes.Clone(b), *c.end})
	c.bytes += len(b)
	return len(b), nil
}

// shift takes the first chunk out.
func (c *chunks) shift() chunk {
	first := c.list[0]
	c.list[0] = chunk{}
	c.list = c.list[1:]
	c.bytes -= len(first.data)
	return first
}

// memoryWriter returns a writer into chunks, from which the header has been taken.
func (f *flight) memoryWriter(to *chunks) *traces.Writer {
	to.end = &f.last
	w, err := traces.NewWriter(to, f.header, &traces.WriterOptions{Blocks: true, Compress: true})
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		panic("BUG: writing to memory: " + err.Error())
	}
	f.head = to.list[0].data
	*to = chunks{end: to.end}
	return w
}

// begin puts it to work. pid is the program's.
func (f *flight) begin(pid int) {
	f.w, f.oldW = f.memoryWriter(&f.recent), f.memoryWriter(&f.old)
	f.stop, f.quiet, f.open = make(chan struct{}), time.Now(), make(map[int32]int)
	if l, err := net.Listen("unix", dumpSocket(pid)); err == nil {
		f.asks = l
		go f.answer(l)
	} else {
		f.e.notice("--flight: nvtrace dump will not be heard: %v", err)
	}
	if f.hang > 0 {
		go f.watch()
	}
}

// Event implements record.Sink.
func (f *flight) Event(ev *traces.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch ev.Kind {
	case traces.KindEnd:
		return // it is written with the file
	case traces.KindCall:
		if ev.Flags&traces.FlagNoExit == 0 {
			if len(f.open) == 0 {
				f.quiet, f.hung = time.Now(), false
			}
			f.open[ev.TID]++
		}
	case traces.KindReturn:
		f.quiet, f.hung = time.Now(), false
		if f.open[ev.TID]--; f.open[ev.TID] <= 0 {
			delete(f.open, ev.TID)
		}
	case traces.KindFault:
		f.failed = "a kernel failed"
	case traces.KindExit:
		delete(f.open, ev.TID)
		if ev.TID == ev.PID && (ev.PID == f.header.PID || ev.Ret&0x7f != 0) && ev.Ret != 0 {
			if f.failed = fmt.Sprintf("process %d exited with %d", ev.PID, ev.Ret>>8&0xff); ev.Ret&0x7f != 0 {
				f.failed = fmt.Sprintf("process %d was killed by signal %d", ev.PID, ev.Ret&0x7f)
			}
		}
	}
	f.last = max(f.last, ev.Time+ev.Dur)
	f.w.Write(ev)
	for len(f.recent.list) > 0 && (f.recent.list[0].until < f.last-int64(f.window) || f.recent.bytes > maxFlight) {
		f.age(f.recent.shift())
	}
}

// age keeps of a chunk what later events refer to.
func (f *flight) age(c chunk) {
	r, err := traces.NewReader(io.MultiReader(bytes.NewReader(f.head), bytes.NewReader(c.data)))
	if err != nil {
		return
	}
	for ev, err := range r.All() {
		if err != nil {
			break // it was written by this process
		}
		if ev.Kind != traces.KindCall && ev.Kind != traces.KindReturn {
			f.oldW.Write(ev)
		}
	}
	_ = r.Close() // of memory
	for f.old.bytes > maxFlightOld {
		f.old.shift()
		f.lost = true
	}
}

// Idle implements record.Sink.
func (f *flight) Idle() {}

// dump writes what there is to a file, and returns its name.
func (f *flight) dump(why string) (name string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dumps++
	if name, err = f.name(f.dumps); err != nil {
		return "", err
	}
	if err := errors.Join(f.w.Flush(), f.oldW.Flush()); err != nil {
		return name, err
	}
	end := chunks{end: &f.last}
	t := f.memoryWriter(&end)
	if f.lost {
		t.Write(&traces.Event{Kind: traces.KindGap, Time: f.last, FD: -1, Text: "--flight: device calls and the like from the beginning were dropped, for their size"})
	}
	t.Write(&traces.Event{Kind: traces.KindNote, Time: f.last, FD: -1, Text: fmt.Sprintf("library calls are those of the last %v: %s", f.window, why)})
	t.Write(&traces.Event{Kind: traces.KindEnd, Time: f.last, FD: -1, Cost: &traces.Cost{}})
	if err := t.Flush(); err != nil {
		return name, err
	}
	out, err := f.e.createWhole(name, modePrivate)
	if err != nil {
		return name, err
	}
	_, err = out.Write(f.head)
	for _, list := range [][]chunk{f.old.list, f.recent.list, end.list} {
		for _, c := range list {
			if err == nil {
				_, err = out.Write(c.data)
			}
		}
	}
	return name, out.finish(err)
}

// report dumps, and says so.
func (f *flight) report(why string) {
	name, err := f.dump(why)
	if err != nil {
		f.e.notice("--flight: %v", err)
		return
	}
	f.e.notice("%s: the last %v are in %s", why, f.window, name)
}

// close ends the flight; the file is written if the program's end is a failure.
func (f *flight) close() {
	close(f.stop)
	if f.asks != nil {
		_ = f.asks.Close()
	}
	if f.failed != "" && !f.hung { // what came behind a hang is its end: the file has more of it
		f.report(f.failed)
	}
}

// watch looks for hangs.
func (f *flight) watch() {
	tick := time.NewTicker(max(f.hang/8, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-f.stop:
			return
		case <-tick.C:
		}
		f.mu.Lock()
		hung := len(f.open) > 0 && !f.hung && time.Since(f.quiet) >= f.hang
		f.hung = f.hung || hung
		f.mu.Unlock()
		if hung {
			f.report(fmt.Sprintf("no library call has returned for %v", f.hang))
		}
	}
}

// dumpSocket is where a flight recorder can be asked: the abstract name of a program's.
func dumpSocket(pid int) string { return "@nvtrace-flight-" + strconv.Itoa(pid) }

// answer dumps when this user, or root, asks for it.
func (f *flight) answer(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if u, ok := c.(*net.UnixConn); ok && sameUser(u) {
			name, err := f.dump("nvtrace dump has asked for it")
			if err != nil {
				name = "error: " + err.Error()
			}
			_, _ = io.WriteString(c, name+"\n") // who asks may have gone
		}
		_ = c.Close()
	}
}

// sameUser says whether the other side is of this process's user, or root.
func sameUser(c *net.UnixConn) (same bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		same = err == nil && (cred.Uid == 0 || int(cred.Uid) == os.Geteuid())
	})
	return same && err == nil
}

// dumpVerb has a flight recorder write its file.
func dumpVerb(e *env, args, command []string) int {
	fs := newFlagSet(e, "dump", "PID")
	words, status, ok := parseAnywhere(fs, args)
	if !ok {
		return status
	}
	pid := 0
	if len(words) == 1 && command == nil {
		pid, _ = strconv.Atoi(words[0]) // 0 is refused
	}
	if pid <= 0 || pid > math.MaxInt32 {
		return e.fail(exitUsage, "dump wants the process id of the program that nvtrace --flight traces")
	}
	c, err := net.Dial("unix", dumpSocket(pid))
	if err != nil {
		return e.fail(exitFailed, "no nvtrace --flight traces process %d", pid)
	}
	defer c.Close()
	u, ok := c.(*net.UnixConn)
	if !ok || !sameUser(u) {
		return e.fail(exitFailed, "what answers for process %d is another user's", pid)
	}
	answer, err := io.ReadAll(io.LimitReader(c, 1<<16))
	answer = bytes.TrimSpace(answer)
	if text, bad := bytes.CutPrefix(answer, []byte("error: ")); err != nil || bad || len(answer) == 0 {
		return e.fail(exitFailed, "process %d: %s", pid, text)
	}
	fmt.Fprintf(e.stdout, "%s\n", answer)
	return exitOK
}
