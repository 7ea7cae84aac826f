package view

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
)

// A cudaLog is what CUDA (12.9 and later) has written about errors to the file that CUDA_LOG_FILE names.
type cudaLog struct {
	lines []cudaLine
	more  uint64 // that were not kept
}

// cudaLine is a message of the form
//
//	[22:21:32.099][25642][CUDA][E] buffer cannot be NULL
//
// The time has no date and no zone. Some releases have the call in brackets before the message.
type cudaLine struct {
	tid  int32
	at   time.Duration // since midnight
	text string
	used bool
}

var cudaLineForm = regexp.MustCompile(`^\[(\d\d):(\d\d):(\d\d)\.(\d{3})\]\[(\d+)\]\[\w+\]\[\w+\](?:\[(\w*)\])? ?(.*)$`)

// cudaReturn is the message that says what a call returned, which a recording knows.
var cudaReturn = regexp.MustCompile(`^Returning \d+ \(\w+\) from \w+$`)

// Bounds of what is kept of a log, which a program may have written itself.
const (
	maxCUDALines = 1 << 16
	maxCUDAText  = 400
	maxOfFailure = 8 // messages that are shown of one failure
)

// readCUDALog reads a log. Lines of another form belong to none of its messages and are left out.
func readCUDALog(r io.Reader) (*cudaLog, error) {
	l := &cudaLog{}
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		m := cudaLineForm.FindStringSubmatch(in.Text())
		if m == nil || cudaReturn.MatchString(m[7]) {
			continue
		}
		if len(l.lines) == maxCUDALines {
			l.more++
			continue
		}
		var n [5]int
		for i := range n {
			n[i], _ = strconv.Atoi(m[i+1]) // digits; a thread's number that is too large is nobody's
		}
		at := time.Duration(n[0])*time.Hour + time.Duration(n[1])*time.Minute + time.Duration(n[2])*time.Second + time.Duration(n[3])*time.Millisecond
		text := m[7]
		if m[6] != "" {
			text = m[6] + ": " + text
		}
		if r := []rune(text); len(r) > maxCUDAText {
			text = string(r[:maxCUDAText]) + "…"
		}
		l.lines = append(l.lines, cudaLine{tid: int32(n[4]), at: at, text: text})
	}
	return l, in.Err()
}

// zones is what time zones differ by: the log's is not known.
const zones = 15 * time.Minute

// slack is by how much the log's clock may be beside the recording's: it counts milliseconds.
const slack = 2 * time.Millisecond

// of takes the messages that a thread caused between two moments.
func (l *cudaLog) of(tid int32, from, to time.Time) (texts []string) {
	for i := range l.lines {
		c := &l.lines[i]
		if c.used || c.tid != tid {
			continue
		}
		h, m, s := from.UTC().Clock()
		began := time.Duration(h)*time.Hour + time.Duration(m)*time.Minute + time.Duration(s)*time.Second + time.Duration(from.Nanosecond())
		since := ((c.at-began+slack)%zones + zones) % zones // a call may end on the next day
		if since > to.Sub(from)+2*slack {
			continue
		}
		c.used = true
		if len(texts) < maxOfFailure && !slices.Contains(texts, c.text) {
			texts = append(texts, c.text)
		}
	}
	return texts
}

// join gives failures of library calls the messages that CUDA wrote in the first of each.
func (l *cudaLog) join(list []*failure, start int64) {
	inner := slices.Clone(list)
	// A call of the runtime's has that of the driver's in it, whose message it is.
	slices.SortStableFunc(inner, func(a, b *failure) int { return int(min(max(a.took-b.took, -1), 1)) })
	for _, f := range inner {
		if f.tid != 0 {
			from := time.Unix(0, start+f.First)
			f.Log = l.of(f.tid, from, from.Add(time.Duration(f.took)))
		}
	}
}

// write shows the messages, and those that belong to no failure that was recorded.
func (l *cudaLog) write(w io.Writer, list []*failure) {
	head := "\nWhat CUDA's log says\n"
	for _, f := range list {
		for _, text := range f.Log {
			fmt.Fprintf(w, "%s  %s of %s: %s\n", head, f.Result, cli.Printable(f.Call), cli.Printable(text))
			head = ""
		}
	}
	head = "\nCUDA's log has messages of other calls, too\n"
	const most = 20
	shown := 0
	for i := range l.lines {
		c := &l.lines[i]
		if c.used {
			continue
		}
		if shown++; shown > most {
			continue
		}
		clock := time.Time{}.Add(c.at)
		fmt.Fprintf(w, "%s  %s thread %d: %s\n", head, clock.Format("15:04:05.000"), c.tid, cli.Printable(c.text))
		head = ""
	}
	if rest := uint64(max(shown-most, 0)) + l.more; rest > 0 {
		fmt.Fprintf(w, "  … and %d more\n", rest)
	}
}

// openCUDALog reads the log of a name.
func openCUDALog(name string) (*cudaLog, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	l, err := readCUDALog(f)
	if err == nil && len(l.lines) == 0 {
		err = fmt.Errorf("no message of CUDA's log is in it; a program of CUDA 12.9 and later writes them if it is started with CUDA_LOG_FILE=%s", name)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.TrimSpace(name), err)
	}
	return l, nil
}
