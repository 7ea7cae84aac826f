package run

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/ioctl/lookout"
	"nvtrace/nvattach/api"
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
// somebody asks. Of older calls it keeps those that handles have their names from, and those that
// have not returned. It implements record.Sink.
type flight struct {
	e      *cli.Env
	window time.Duration
	hang   time.Duration // a call that doesn't return for so long is a hang; 0: never
	header *traces.Header
	head   []byte // that, as a file begins with it
	name   func(dump int) (string, error)

	mu     sync.Mutex
	w      *traces.Writer // of recent
	recent chunks
	old    chunks // without library calls
	oldW   *traces.Writer
	last   int64 // the latest end of an event
	from   int64 // library calls that returned before were dropped; 0: none were
	lost   bool  // from old
	dumps  int
	failed string       // why the program's end is one to write the file for; "": it is not
	cost   *traces.Cost // of the whole run, when it has ended

	threads  map[int32]*flying
	reported time.Time // when a hang was; zero: none was
	returned bool      // a library call has since
	looked   int       // the latest look of the tracing process that has come whole
	arrived  chan struct{}

	baseline *baselineFlag // nil: how fast the program is does not matter
	pace     *pace
	usual    chan paced // of the baseline

	heard func() // is called before something is said; nil: nothing

	stop chan struct{}
	asks net.Listener // of dumpVerb; nil: nobody can ask
}

// paced is a pace that was read, or why it could not be.
type paced struct {
	*pace
	err error
}

// flying is a thread that is in library calls.
type flying struct {
	pid   int32
	open  []openCall // that have not returned, the outermost first
	kept  []openCall // of these and later, those whose call is in old
	since time.Time  // when the latest call was made, or returned
	told  bool       // that it is in the innermost for long
}

// openCall is a library call that has not returned.
type openCall struct {
	name string
	time int64
}

// maxFlying bounds the open calls of a thread that are known.
const maxFlying = 256

// call takes in that a thread makes a call.
func (t *flying) call(ev *traces.Event) {
	if t.since, t.told = time.Now(), false; len(t.open) < maxFlying {
		t.open = append(t.open, openCall{ev.Name, ev.Time})
	}
}

// returns takes in that a call has returned: those inside of it have been left.
func (t *flying) returns(ev *traces.Event) {
	t.since, t.told = time.Now(), false
	t.open, _ = without(t.open, ev.Name)
}

// without takes the innermost call of a name, and those inside of it, out of a list.
func without(list []openCall, name string) ([]openCall, bool) {
	for i, c := range slices.Backward(list) {
		if c.name == name {
			return list[:i], true
		}
	}
	return list, false
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

// memoryWriter returns a writer into chunks, and the header of a file with library calls from a time on,
// which is not in the chunks.
func (f *flight) memoryWriter(to *chunks, from int64) (w *traces.Writer, head []byte) {
	to.end = &f.last
	h := *f.header
	h.CallsFrom = from
	w, err := traces.NewWriter(to, &h, &traces.WriterOptions{Blocks: true, Compress: true})
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		panic("BUG: writing to memory: " + err.Error())
	}
	head = to.list[0].data
	*to = chunks{end: to.end}
	return w, head
}

// begin puts it to work. pid is the program's.
func (f *flight) begin(pid int) {
	f.w, f.head = f.memoryWriter(&f.recent, 0)
	f.oldW, _ = f.memoryWriter(&f.old, 0)
	f.stop, f.threads, f.arrived = make(chan struct{}), make(map[int32]*flying), make(chan struct{}, 1)
	if l, err := net.Listen("unix", dumpSocket(pid)); err == nil {
		f.asks = l
		go f.answer(l)
	} else {
		f.e.Notice("--flight: nvtrace dump will not be heard: %v", err)
	}
	if f.hang > 0 {
		go f.watch()
	}
	if f.baseline != nil {
		f.usual = make(chan paced, 1)
		go func() {
			p, err := f.baseline.read()
			f.usual <- paced{p, err}
		}()
	}
}

// say tells something.
func (f *flight) say(format string, args ...any) {
	if f.heard != nil {
		f.heard()
	}
	f.e.Notice(format, args...)
}

// Event implements record.Sink.
func (f *flight) Event(ev *traces.Event) {
	if why := f.take(ev); why != "" {
		f.report(why)
	}
}

// take takes in an event, and returns why the file is to be written now, or "".
func (f *flight) take(ev *traces.Event) (why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch ev.Kind {
	case traces.KindEnd:
		f.cost = ev.Cost
		return "" // it is written with the file
	case traces.KindCall:
		if ev.Flags&traces.FlagNoExit == 0 {
			t := f.threads[ev.TID]
			if t == nil {
				t = &flying{pid: ev.PID}
				f.threads[ev.TID] = t
			}
			t.call(ev)
		}
	case traces.KindReturn:
		f.returned = true
		if t := f.threads[ev.TID]; t != nil {
			t.returns(ev)
		}
	case traces.KindFault:
		f.failed = "a kernel failed"
	case traces.KindChannels:
		why = f.channels(ev)
	case traces.KindExit:
		delete(f.threads, ev.TID)
		if ev.TID == ev.PID && (ev.PID == f.header.PID || ev.Ret&0x7f != 0) && ev.Ret != 0 {
			if f.failed = fmt.Sprintf("process %d exited with %d", ev.PID, ev.Ret>>8&0xff); ev.Ret&0x7f != 0 {
				f.failed = fmt.Sprintf("process %d was killed by signal %d", ev.PID, ev.Ret&0x7f)
			}
		}
	}
	if f.pace != nil {
		f.pace.event(ev)
	}
	f.last = max(f.last, ev.Time+ev.Dur)
	f.w.Write(ev)
	for len(f.recent.list) > 0 && (f.recent.list[0].until < f.last-int64(f.window) || f.recent.bytes > maxFlight) {
		f.age(f.recent.shift())
	}
	return why
}

// channels takes in what a process's channels are at. It returns what hangs, when the look is whole.
func (f *flight) channels(ev *traces.Event) (why string) {
	if ev.Args[1] != 0 {
		return "" // more of this look follows
	}
	f.looked = int(ev.Args[0])
	select {
	case f.arrived <- struct{}{}:
	default:
	}
	if ev.Flags&traces.FlagUnfinished == 0 || !f.newHang() {
		return ""
	}
	first, _, _ := strings.Cut(ev.Text, "\n")
	return cmp.Or(strings.TrimSuffix(first, "."), "a channel of the GPU does not get on")
}

// newHang reports whether a hang is to be reported, which is then taken for done: what hangs in the
// shadow of another is in that one's file.
func (f *flight) newHang() bool {
	if !f.reported.IsZero() && time.Since(f.reported) < f.hang {
		return false
	}
	f.reported, f.returned = time.Now(), false
	return true
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
		if f.keeps(ev) {
			f.oldW.Write(ev)
		}
	}
	_ = r.Close() // of memory
	f.from = max(f.from, c.until)
	for f.old.bytes > maxFlightOld {
		f.old.shift()
		f.lost = true
	}
}

// keeps says whether an event stays that is older than the window, and marks calls of which only is kept
// what they name.
func (f *flight) keeps(ev *traces.Event) bool {
	t := f.threads[ev.TID]
	switch ev.Kind {
	case traces.KindCall:
		if c := (openCall{ev.Name, ev.Time}); t != nil && slices.Contains(t.open, c) && len(t.kept) < maxFlying {
			t.kept = append(t.kept, c)
			return true // it has not returned
		}
	case traces.KindReturn:
		ended := false
		if t != nil {
			t.kept, ended = without(t.kept, ev.Name)
		}
		if ended {
			ev.Flags |= traces.FlagKept
			return true // the call stands in the file as one that has not
		}
	default:
		return true
	}
	if !api.NamesHandles(ev.Name) {
		return false
	}
	ev.Flags |= traces.FlagKept
	return true
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
	t, head := f.memoryWriter(&end, f.from)
	if f.lost {
		t.Write(&traces.Event{Kind: traces.KindGap, Time: f.last, FD: -1, Text: "--flight: device calls and the like from the beginning were dropped, for their size"})
	}
	t.Write(&traces.Event{Kind: traces.KindNote, Time: f.last, FD: -1, Text: fmt.Sprintf("library calls are those of the last %v: %s", f.window, why)})
	t.Write(&traces.Event{Kind: traces.KindEnd, Time: f.last, FD: -1, Cost: f.cost})
	if err := t.Flush(); err != nil {
		return name, err
	}
	out, err := f.e.CreateWhole(name, cli.ModePrivate)
	if err != nil {
		return name, err
	}
	_, err = out.Write(head)
	for _, list := range [][]chunk{f.old.list, f.recent.list, end.list} {
		for _, c := range list {
			if err == nil {
				_, err = out.Write(c.data)
			}
		}
	}
	return name, out.Finish(err)
}

// report dumps, and says so.
func (f *flight) report(why string) {
	name, err := f.dump(why)
	if err != nil {
		f.say("--flight: %v", err)
		return
	}
	f.say("%s: the last %v are in %s", why, f.window, name)
}

// close ends the flight; the file is written if the program's end is a failure.
func (f *flight) close() {
	close(f.stop)
	if f.asks != nil {
		_ = f.asks.Close()
	}
	if f.failed == "" && f.baseline != nil {
		f.failed = f.slow()
	}
	if f.failed != "" && (f.reported.IsZero() || f.returned) { // else the hang's file has all there is
		f.report(f.failed)
	}
}

// slow says by how much the program was slower than it should be; "": it was not.
func (f *flight) slow() string {
	usual := <-f.usual
	if usual.err != nil {
		f.say("--baseline: %v", usual.err)
		return ""
	}
	text, compared := f.baseline.slower(usual.pace, f.pace)
	if !compared {
		f.say("--baseline: %s does not say how long a program or its steps take: it was attached to, or was cut off", f.baseline.file)
	}
	return text
}

// watch looks for calls that don't return. What channels do is looked at by the tracing process.
func (f *flight) watch() {
	tick := time.NewTicker(max(f.hang/8, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-f.stop:
			return
		case <-tick.C:
		}
		if why := f.stuck(); why != "" {
			f.look()
			f.report(why)
		}
	}
}

// stuck says which threads hang in calls that weren't reported before; "": none.
func (f *flight) stuck() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []int32
	for tid, t := range f.threads {
		if len(t.open) > 0 && !t.told && time.Since(t.since) >= f.hang {
			list = append(list, tid)
		}
	}
	if len(list) == 0 || !f.newHang() {
		return ""
	}
	slices.Sort(list)
	for _, tid := range list {
		f.threads[tid].told = true
	}
	t := f.threads[list[0]]
	why := fmt.Sprintf("thread %d of process %d has been in %s for %v", list[0], t.pid, t.open[len(t.open)-1].name, f.hang)
	if n := len(list) - 1; n > 0 {
		why += fmt.Sprintf(", and %s in calls for as long", cli.Counted(uint64(n), "other thread"))
	}
	return why
}

// Bounds of waiting for a look, which searches for names and waits for threads.
const (
	lookAsks    = 20 * time.Second
	lookArrives = 2 * time.Second
)

// look has the tracing process record what threads and channels are at, and waits until that has come.
// Without a tracing process that answers, it does nothing.
func (f *flight) look() {
	number, ok := lookout.Ask(f.header.PID, lookAsks)
	if !ok {
		return
	}
	for late := time.After(lookArrives); !f.hasLook(number); {
		select {
		case <-f.arrived:
		case <-late:
			return
		}
	}
}

// hasLook reports whether a look has come whole.
func (f *flight) hasLook(number int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.looked >= number
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
		if u, ok := c.(*net.UnixConn); ok && lookout.SameUser(u) {
			f.look()
			name, err := f.dump("nvtrace dump has asked for it")
			if err != nil {
				name = "error: " + err.Error()
			}
			_, _ = io.WriteString(c, name+"\n") // who asks may have gone
		}
		_ = c.Close()
	}
}

// DumpVerb has a flight recorder write its file.
func DumpVerb(e *cli.Env, args, command []string) int {
	fs := cli.NewFlagSet(e, "dump", "PID")
	pid := 0
	fs.IntVar(&pid, "p", 0, "the process `PID`, which may also stand alone")
	words, status, ok := cli.ParseAnywhere(fs, args)
	if !ok {
		return status
	}
	switch {
	case command != nil || len(words) > 1 || pid != 0 && len(words) > 0:
		pid = 0 // which is refused
	case len(words) == 1:
		pid, _ = strconv.Atoi(words[0])
	}
	if pid <= 0 || pid > math.MaxInt32 {
		return e.Fail(cli.ExitUsage, "dump wants the process id of the program that nvtrace --flight traces")
	}
	c, err := net.Dial("unix", dumpSocket(pid))
	if err != nil {
		return e.Fail(cli.ExitFailed, "no nvtrace --flight traces process %d", pid)
	}
	defer c.Close()
	u, ok := c.(*net.UnixConn)
	if !ok || !lookout.SameUser(u) {
		return e.Fail(cli.ExitFailed, "what answers for process %d is another user's", pid)
	}
	answer, err := io.ReadAll(io.LimitReader(c, 1<<16))
	answer = bytes.TrimSpace(answer)
	if text, bad := bytes.CutPrefix(answer, []byte("error: ")); err != nil || bad || len(answer) == 0 {
		return e.Fail(cli.ExitFailed, "process %d: %s", pid, text)
	}
	fmt.Fprintf(e.Stdout, "%s\n", answer)
	return cli.ExitOK
}
