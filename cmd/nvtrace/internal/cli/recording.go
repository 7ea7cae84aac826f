package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"nvtrace/traces"
	"nvtrace/traces/record"
)

// ExpandName puts what a recording's header tells into the name of a run's output: %p is
// the program's process id, %n the number of the file with --rotate, %h the host, %r the rank, %t the start in UTC, %q{NAME} an
// environment variable of nvtrace, %% a percent sign.
func ExpandName(name string, h *traces.Header, part int, getenv func(string) string) (string, error) {
	var b strings.Builder
	rest := name
	for {
		text, verb, found := strings.Cut(rest, "%")
		b.WriteString(text)
		if !found {
			return b.String(), nil
		}
		if verb == "" {
			return "", fmt.Errorf("%s: a %% at the end: write %%%% for a percent sign", name)
		}
		value := ""
		switch verb[0] {
		case '%':
			b.WriteByte('%')
			rest = verb[1:]
			continue
		case 'p':
			value = strconv.Itoa(int(h.PID))
		case 'n':
			value = strconv.Itoa(part)
		case 'h':
			value = h.Host
		case 't':
			value = time.Unix(0, h.Start).UTC().Format("20060102T150405.000Z")
		case 'r':
			var ok bool
			if value, ok = record.Rank(h); !ok {
				return "", fmt.Errorf("%s: %%r: there is no rank: no launcher has set RANK, OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK, SLURM_PROCID or the like", name)
			}
		case 'q':
			inside, after, ok := strings.Cut(verb[1:], "}")
			if !ok || !strings.HasPrefix(inside, "{") || inside == "{" {
				return "", fmt.Errorf("%s: %%q: want %%q{NAME}, with the name of an environment variable", name)
			}
			if value = getenv(inside[1:]); value == "" {
				return "", fmt.Errorf("%s: %%q{%s}: the environment variable is not set", name, inside[1:])
			}
			verb = "q" + after
		default:
			return "", fmt.Errorf("%s: %%%c: want %%p (process id), %%n (number with --rotate), %%h (host), %%r (rank), %%t (time), %%q{NAME} (environment) or %%%%", name, verb[0])
		}
		if value == "" {
			return "", fmt.Errorf("%s: %%%c is not known here", name, verb[0])
		}
		// A value is a part of a name, and can't lead to another folder.
		b.WriteString(strings.ReplaceAll(value, "/", "_"))
		rest = verb[1:]
	}
}

// FileSink writes a recording.
type FileSink struct {
	W *traces.Writer
}

// Event implements record.Sink.
func (s *FileSink) Event(ev *traces.Event) { s.W.Write(ev) }

// Idle implements record.Sink. The writer flushes by itself; an idle moment is
// the time to put out what is left.
func (s *FileSink) Idle() {
	if s.W.Pending() > 0 {
		_ = s.W.Flush() // the error sticks, and OnError has told it
	}
}

// Block implements record.BlockSink.
func (s *FileSink) Block(block []byte) { s.W.WriteBlock(block) }
