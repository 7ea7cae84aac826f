package telemetry

import (
	"bytes"
	"regexp"

	"nvtrace/traces"
)

// maxRangeText bounds what is looked at of a range's name.
const maxRangeText = 1 << 10

// Names of ranges that stand for a step each: those with a number in them, and those without, which stand for the next one.
var (
	numbered   = regexp.MustCompile(`(?i)(?:step|iter|iteration)[ _#:=-]*\d+(?:\D|$)`)
	unnumbered = regexp.MustCompile(`(?i)^(?:\w+[ _])?(?:step|iter|iteration)$`)
)

// IsStep reports whether a range or mark of a name begins a step.
func IsStep(name []byte) bool { return unnumbered.Match(name) || numbered.Match(name) }

// IsNextStep reports whether the name is that of a step without a number.
func IsNextStep(name []byte) bool { return unnumbered.Match(name) }

// RangeText returns the name of the NVTX range or mark that a call begins.
func RangeText(ev *traces.Event) (text []byte, ok bool) {
	at := 0
	switch ev.Name {
	case "nvtxMark", "nvtxRangePush":
	case "nvtxRangeStart":
		at = 1
	default:
		return nil, false
	}
	for i := range ev.Mem {
		if s := &ev.Mem[i]; s.Addr == ev.Args[at] {
			text, _, _ := bytes.Cut(s.In[:min(len(s.In), maxRangeText)], []byte{0})
			return text, true
		}
	}
	return nil, true
}
