package live

import (
	"os"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/ioctl"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// OnlyPIDs returns the processes of a command line that names nothing else: their channels are looked at from
// outside then, and nobody is stopped. Any flag beside -p asks for what needs more.
func OnlyPIDs(args []string) (pids cli.PIDList, ok bool) {
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

// TopOutside shows what processes' channels are at.
func TopOutside(e *cli.Env, pids cli.PIDList) int {
	var t *Top
	f := &sampleFlags{pids: pids, every: 10 * time.Millisecond, names: true, quiet: true, rings: new(bool)}
	defer func() {
		if t != nil {
			t.End()
		}
	}()
	return takeSamples(e, f, nil, func(h *traces.Header) record.Sink {
		sink := view.NewSink(ioctl.NewDecoder(h), e)
		sink.Live = true
		sink.Summarise(h)
		sink.Count()
		var tty *os.File
		if cli.IsTerminal(e.Stderr) && e.Getenv("TERM") != "dumb" {
			tty, _ = os.OpenFile("/dev/tty", os.O_RDWR, 0) // else there are lines
		}
		t = NewTop(sink, e.Stderr, tty)
		t.Begin()
		return t
	})
}
