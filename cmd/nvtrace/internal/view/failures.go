package view

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/objects"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/fatbin"
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/rm"
	"nvtrace/traces"
)

// failureBook gathers the failed calls of a recording, of the driver and of CUDA's
// libraries, with what the object tree and the driver's source say about them.
type failureBook struct {
	l    *objects.ObjectLog
	rows map[failureKey]*failure
	list []*failure
	more uint64

	silent string   // which calls the book can't know of, "" if it knows of all
	total  uint64   // failed calls
	first  *failure // the earliest; nil: none
}

type failureKey struct {
	call   ioctl.Key
	status rm.Status
	errno  int32
	object rm.Ref
	node   string // of a failed open
	// Of a library call.
	function, result string
}

// failure is one kind of failure.
type failure struct {
	Result string `json:"result"` // NV_ERR_…, an errno, CUDA_ERROR_…
	Call   string `json:"call"`
	Args   string `json:"args,omitempty"`   // of a library call, the first
	About  string `json:"about,omitempty"`  // control command, class, node
	Object string `json:"object,omitempty"` // "client0/dev0/subdev0"
	Count  uint64 `json:"count"`
	First  int64  `json:"first"`            // ns since the recording began
	PID    int32  `json:"pid"`              // of the first
	During string `json:"during,omitempty"` // the library call that the first was made in
	// What the source of the driver, of opens that of Linux, says; absent where it knows many causes.
	Cause  string `json:"cause,omitempty"`
	Advice string `json:"advice,omitempty"`
	Source string `json:"source,omitempty"`
	// Diagnosis is where and why a kernel failed on the simulated GPU.
	Diagnosis string `json:"diagnosis,omitempty"`
	// Log is what CUDA itself has written about the first, of --cuda-log.
	Log []string `json:"cuda_log,omitempty"`

	library bool  // it is of a library call
	took    int64 // by the first
}

// maxFailureRows bounds what a hostile run may make the book remember.
const maxFailureRows = 1 << 14

func newFailureBook(d *ioctl.Decoder) *failureBook {
	l := objects.NewObjectLog(d)
	l.Bare = true
	return &failureBook{l: l, rows: make(map[failureKey]*failure)}
}

// Observe implements observe.Observer.
func (b *failureBook) Observe(e *observe.Event) {
	if e.Flags&(traces.FlagNoExit|traces.FlagUnfinished|traces.FlagRestarted) == 0 && e.Call.Failed() {
		b.note(e)
	}
	b.l.Observe(e)
}

func (b *failureBook) note(e *observe.Event) {
	ev, c, in := e.Event, e.Call, e.Frame
	b.total++
	if c.Returned.Failed {
		b.count(failureKey{function: in.Name, result: c.Returned.Name}, func() *failure { return describeReturn(e) })
		return
	}
	o := b.object(c)
	k := failureKey{call: c.Key(), errno: c.Errno}
	if c.HasStatus {
		k.status = c.Status
	}
	if o != nil {
		k.object = o.Ref
	}
	if ev.Kind == traces.KindOpen {
		k.node = ev.Path
	}
	b.count(k, func() *failure {
		f := b.describe(e, o)
		if in != nil {
			f.During = in.Name
		}
		return f
	})
}

// count counts a failure of one kind; describe describes the first.
func (b *failureBook) count(k failureKey, describe func() *failure) {
	f := b.rows[k]
	if f == nil {
		if len(b.list) >= maxFailureRows {
			b.more++
			return
		}
		f = describe()
		b.rows[k] = f
		b.list = append(b.list, f)
		if b.first == nil || f.First < b.first.First {
			b.first = f
		}
	}
	f.Count++
}

// fault takes in a kernel that failed on the simulated GPU.
func (b *failureBook) fault(ev *traces.Event) {
	result, text, _ := strings.Cut(ev.Text, ": ")
	b.count(failureKey{function: ev.Name, result: ev.Text}, func() *failure {
		return &failure{Result: result, Call: "kernel " + fatbin.Demangle(ev.Name), First: ev.Time, PID: ev.PID, Diagnosis: text}
	})
}

// describeReturn describes a library call that returned an error.
func describeReturn(e *observe.Event) *failure {
	ev, c, f := e.Event, e.Call, e.Frame
	args := api.AppendCall(nil, f, ev, nil, nil)
	x := &failure{Result: c.Returned.Name, Call: f.Name, Object: f.LibraryName(), First: f.Start, PID: ev.PID}
	x.library, x.took = true, max(ev.Time-f.Start, ev.Dur)
	x.Args = strings.TrimPrefix(string(args), f.Name)
	if f.Parent != nil {
		x.During = f.Parent.Name
	}
	return x
}

// object finds what a failed call was made on: of a failed allocation the
// parent.
func (b *failureBook) object(c *ioctl.Call) *rm.Object {
	if c.Client == 0 {
		return nil
	}
	for _, h := range []uint32{c.Object, c.Parent, c.Client} {
		if c.Class != nil && h == c.New {
			continue
		}
		if o := b.l.Tree.Object(rm.Ref{Client: c.Client, Handle: h}); h != 0 && o != nil {
			return o
		}
	}
	return nil
}

func (b *failureBook) describe(e *observe.Event, o *rm.Object) *failure {
	ev, c, d := e.Event, e.Call, e.Decoder
	f := &failure{
		Call: string(c.AppendName(nil)), About: string(c.AppendSub(nil, d.ABI(ev.PID))), First: ev.Time, PID: ev.PID,
	}
	if ev.Kind == traces.KindOpen {
		f.About = ev.Path
	}
	switch {
	case o != nil:
		f.Object = o.Path()
	case c.Client != 0:
		f.Object = fmt.Sprintf("%#x:%#x, not alive", c.Client, cmp.Or(c.Object, c.Parent))
	}
	if c.Errno != 0 {
		f.Result = ioctl.ErrnoName(c.Errno)
	}
	if ev.Kind == traces.KindOpen {
		cause := openCause(ev.Path, unix.Errno(c.Errno))
		f.Cause, f.Advice, f.Source = cause.Text, cause.Advice, cause.Source
	}
	if !c.HasStatus || c.Status == rm.OK {
		return f
	}
	if f.Result != "" {
		f.Result += " "
	}
	f.Result += c.StatusName()
	if cause, ok := c.Status.Cause(c.Control, c.Class); ok {
		f.Cause, f.Advice, f.Source = cause.Text, cause.Advice, cause.Source
	}
	return f
}

// failures returns what was gathered: the most frequent first, then by time.
func (b *failureBook) failures() []*failure {
	out := append([]*failure{}, b.list...) // an empty list is one in JSON, too
	slices.SortStableFunc(out, func(x, y *failure) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), cmp.Compare(x.First, y.First))
	})
	return out
}

// maxArgs is how much of a failed call's arguments a table shows.
const maxArgs = 60

// text names a failed call, with what it was about.
func (f *failure) text() string {
	s := f.Call
	switch {
	case f.About != "":
		s += " " + f.About
	case utf8.RuneCountInString(f.Args) > maxArgs:
		s += string([]rune(f.Args)[:maxArgs]) + "…"
	default:
		s += f.Args
	}
	return s
}

// write draws the table, and the causes below it. Summaries use it too.
func (b *failureBook) write(w io.Writer, l *Layout) error {
	list := b.failures()
	shown := list[:l.cut(len(list), fewFailures)]
	header := []string{">count", ">first", ">pid", "result", "call", "on"}
	during := slices.ContainsFunc(shown, func(f *failure) bool { return f.During != "" })
	if during {
		header = append(header, "during")
	}
	var rows [][]string
	for _, f := range list {
		row := []string{
			fmt.Sprint(f.Count), fmt.Sprintf("%.6f", float64(f.First)/1e9), fmt.Sprint(f.PID), f.Result, f.text(), f.Object,
		}
		if during {
			row = append(row, f.During)
		}
		rows = append(rows, row)
	}
	var buf bytes.Buffer
	if err := l.write(&buf, []table{{"Failed calls", header, rows, fewFailures}}); err != nil {
		return err
	}
	if len(list) == 0 {
		if b.silent == "" {
			fmt.Fprintln(&buf, "No call failed.")
		} else {
			fmt.Fprintf(&buf, "No call of the driver failed; %s.\n", b.silent)
		}
	}
	if b.more > 0 {
		fmt.Fprintf(&buf, "  … and %d more failures of other kinds\n", b.more)
	}
	said := make(map[string]bool)
	for _, f := range shown {
		text := f.causeText()
		if text == "" || said[text] {
			continue
		}
		if len(said) == 0 {
			fmt.Fprint(&buf, "\nCauses, with the source that says so\n")
		}
		said[text] = true
		fmt.Fprintf(&buf, "  %s\n", text)
	}
	for _, f := range shown {
		if f.Diagnosis != "" {
			fmt.Fprintf(&buf, "\n%s in process %d: %s\n", f.Result, f.PID, cli.Printable(f.Diagnosis))
		}
	}
	_, err := w.Write(buf.Bytes())
	return err
}

// causeText says what is known of a cause in a line, "" if nothing is.
func (f *failure) causeText() string {
	if f.Cause == "" {
		return ""
	}
	s := f.Result + " of " + cli.Printable(cmp.Or(f.About, f.Call)) + ": " + f.Cause
	if f.Advice != "" {
		s += "; " + f.Advice
	}
	return s + " (" + f.Source + ")"
}

// FailuresVerb explains the failed calls of a recording.
func FailuresVerb(e *cli.Env, args, command []string) int {
	var rf cli.ReadFlags
	var asJSON cli.OptString
	fs := cli.NewFlagSet(e, "failures", "[flags] run.nvt")
	rf.Register(fs)
	asJSON.RegisterJSON(fs)
	logName := fs.String("cuda-log", "", "say what CUDA wrote about the failures, too: `FILE` is what CUDA_LOG_FILE named in the run (CUDA 12.9 and later)")
	name, status, ok := e.OneRecording(fs, args, command)
	if !ok {
		return status
	}
	r, d, err := rf.Open(e, name)
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	defer r.Close()
	b, holds, counted := newFailureBook(d), &holdings{header: heldOf(r.Header.API)}, api.NewSummary()
	feed := observe.NewFeed(d, holds, b, observe.Func(func(e *observe.Event) {
		counted.Add(e.Event, e.Tracker, e.Frame)
		if e.Kind == traces.KindFault {
			b.fault(e.Event)
		}
	}))
	feed.Follow()
	damage := e.Each(r, name, e.Notice, feed.Event)
	if n := d.Notice(); n != "" {
		e.Notice("%s", n)
	}
	b.l.Caution(e, name)
	if b.silent = holds.held(reportOf(counted)).silent(); b.silent != "" && (len(b.list) > 0 || asJSON.Given) {
		e.Notice("%s: %s", name, b.silent)
	}
	list := b.failures()
	var cuda *cudaLog
	if *logName != "" {
		if cuda, err = openCUDALog(*logName); err != nil {
			return e.Fail(cli.ExitFailed, "--cuda-log: %v", err)
		}
		cuda.join(list, r.Header.Start)
	}
	return e.Answer(&asJSON, damage, list, func() error {
		err := b.write(e.Stdout, new(Layout))
		if cuda != nil && err == nil {
			var page bytes.Buffer
			cuda.write(&page, list)
			_, err = e.Stdout.Write(page.Bytes())
		}
		return err
	})
}
