package export

import (
	"strings"
	"unicode/utf8"

	"nvtrace/traces/escape"
)

// clip cuts a text to n bytes, and copies what it cuts.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return strings.Clone(s[:n]) + "…"
}

// Bounds of what a view keeps of a hostile or endless recording.
const (
	maxTasks   = 1 << 16 // processes; threads
	maxMaps    = 1 << 18 // living mappings, as in ioctl.Summary
	maxSamples = 1 << 17 // distinct samples of a profile
	maxFrames  = 1 << 15 // distinct names in a profile
	maxName    = 256     // bytes of a process's or node's name
	maxText    = 4096    // bytes of another text of the program's
)

// clean makes a text fit for protobuf, whose strings are UTF-8, and for the
// terminal on which pprof prints it as it is.
func clean(s string) string {
	plain := true
	for i := 0; i < len(s) && plain; i++ {
		plain = s[i] >= 0x20 && s[i] < 0x7f
	}
	if plain {
		return s
	}
	return strings.Map(func(r rune) rune {
		if escape.Acts(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}
