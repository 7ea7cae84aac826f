package cli

import (
	"fmt"
	"log/slog"

	"nvtrace/ptrace"
)

// debugVar is the environment variable that, when it is not empty, has nvtrace tell
// on stderr what it does when: its own steps from the first line of main on, and what
// the program was stopped for, how often, and for how long.
//
// Times are of CLOCK_MONOTONIC, in seconds, so that those of nvtrace's processes and
// of who started them can be compared.
const debugVar = "NVTRACE_DEBUG"

// DebugLogger returns a logger for what debugVar asks for, which discards everything without it.
func DebugLogger(e *Env) *slog.Logger {
	if e.Getenv(debugVar) == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(e.Stderr, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				now := ptrace.Now()
				return slog.String(slog.TimeKey, fmt.Sprintf("%d.%06d", now/1e9, now%1e9/1000))
			}
			return a
		},
	}))
}

// Step tells of a step of nvtrace's own.
func (e *Env) Step(what string) {
	e.Debug.Debug("step", "what", what)
}
