package view

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
)

// A cudaLog is what CUDA (12.9 and later) has written about errors to the file that CUDA_LOG_FILE names.
type cudaLog struct {
	failed []cudaFailed
	more   uint64 // that were not kept
}

// cudaFailed is a call that failed, as lines of the log say it of a thread:
//
//	[22:21:32.099][140453850771776][CUDA][E] Requested 0 byte allocation
//	[22:21:32.099][140453850771776][CUDA][E] Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuMemAlloc_v2
//
// The thread is pthread_self's, which a recording lacks; the time has no date and no zone. Some releases have the
// call in brackets before the message, and no line that it returns.
type cudaFailed struct {
	call   string        // "" where no line says it
	result string        // likewise
	at     time.Duration // since midnight
	texts  []string
	used   bool
}

var (
	cudaLine   = regexp.MustCompile(`^\[(\d\d):(\d\d):(\d\d)\.(\d{3})\]\[(\d+)\]\[\w+\]\[\w+\](?:\[(\w*)\])? ?(.*)$`)
	cudaReturn = regexp.MustCompile(`^Returning \d+ \((\w+)\) from (\w+)$`)
)

// Bounds of what is kept of a log, which a program may have written itself.
const (
	maxCUDAFailed = 1 << 16
	maxCUDATexts  = 8 // of a call
	maxCUDAText   = 400
)

// readCUDALog reads a log. Lines of another form are left out.
func readCUDALog(r io.Reader) (*cudaLog, error) {
	l, open := &cudaLog{}, map[string]*cudaFailed{} // by thread
	add := func(c *cudaFailed) {
		if len(l.failed) == maxCUDAFailed {
			l.more++
			return
		}
		l.failed = append(l.failed, *c)
	}
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		m := cudaLine.FindStringSubmatch(in.Text())
		if m == nil {
			continue
		}
		at, err := time.ParseDuration(m[1] + "h" + m[2] + "m" + m[3] + "s" + m[4] + "ms")
		if err != nil {
			continue
		}
		c := open[m[5]]
		if c == nil {
			c = &cudaFailed{}
			if len(open) < maxCUDAFailed {
				open[m[5]] = c
			}
		}
		c.at = at
		if ret := cudaReturn.FindStringSubmatch(m[7]); ret != nil {
			c.call, c.result = ret[2], ret[1]
			add(c)
			delete(open, m[5])
			continue
		}
		text := m[7]
		if r := []rune(text); len(r) > maxCUDAText {
			text = string(r[:maxCUDAText]) + "…"
		}
		if m[6] != "" {
			add(&cudaFailed{call: m[6], at: at, texts: []string{text}})
		} else if len(c.texts) < maxCUDATexts && !slices.Contains(c.texts, text) {
			c.texts = append(c.texts, text)
		}
	}
	for _, thread := range slices.Sorted(maps.Keys(open)) { // the program ended in the call
		if c := open[thread]; len(c.texts) > 0 {
			add(c)
		}
	}
	return l, in.Err()
}

// zones is what time zones differ by: the log's is not known.
const zones = 15 * time.Minute

// slack is by how much the log's clock may be beside the recording's: it counts milliseconds.
const slack = 2 * time.Millisecond

// of takes the messages of a call between two moments.
func (l *cudaLog) of(call, result string, from, to time.Time) []string {
	h, m, s := from.UTC().Clock()
	began := time.Duration(h)*time.Hour + time.Duration(m)*time.Minute + time.Duration(s)*time.Second + time.Duration(from.Nanosecond())
	for i := range l.failed {
		c := &l.failed[i]
		since := ((c.at-began+slack)%zones + zones) % zones // a call may end on the next day
		if c.used || c.call != call || c.result != "" && c.result != result || since > to.Sub(from)+2*slack {
			continue
		}
		c.used = true
		return c.texts
	}
	return nil
}

// join gives failures of library calls the messages that CUDA wrote in the first of each.
func (l *cudaLog) join(list []*failure, start int64) {
	for _, f := range list {
		if f.library {
			from := time.Unix(0, start+f.First)
			f.Log = l.of(f.Call, f.Result, from, from.Add(time.Duration(f.took)))
		}
	}
}

// write shows the messages, and those of calls that are no first failures in the recording.
func (l *cudaLog) write(w io.Writer, list []*failure) {
	head := "\nWhat CUDA's log says\n"
	for _, f := range list {
		for _, text := range f.Log {
			fmt.Fprintf(w, "%s  %s of %s: %s\n", head, f.Result, cli.Printable(f.Call), cli.Printable(text))
			head = ""
		}
	}
	head = "\nIt says of other calls, too\n"
	const most = 20
	shown, said := 0, map[string]bool{}
	for i := range l.failed {
		c := &l.failed[i]
		for _, text := range c.texts {
			line := cmp.Or(c.call, "a call that did not return") + ": " + text
			if c.result != "" {
				line = c.result + " of " + line
			}
			if c.used || said[line] {
				continue
			}
			said[line] = true
			if shown++; shown > most {
				continue
			}
			fmt.Fprintf(w, "%s  %s %s\n", head, time.Time{}.Add(c.at).Format("15:04:05.000"), cli.Printable(line))
			head = ""
		}
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
	if err == nil && len(l.failed) == 0 {
		err = fmt.Errorf("the file has no message of CUDA's log; a program of CUDA 12.9 and later writes them if it is started with CUDA_LOG_FILE=%s", name)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return l, nil
}
