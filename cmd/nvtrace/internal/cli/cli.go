package cli

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"nvtrace/ptrace/agent"
	"nvtrace/traces/escape"
	"nvtrace/traces/record"
)

// Exit statuses of nvtrace itself, those of env(1) and timeout(1). A traced
// program's own status is passed on.
const (
	ExitOK       = 0
	ExitDiffers  = 1   // of verbs that compare
	ExitUsage    = 2   // a bad command line, where no program was to be started
	ExitFailed   = 125 // nvtrace failed
	ExitNoExec   = 126 // the program can't be executed
	ExitNotFound = 127 // the program was not found
)

// Env is what a verb may touch.
type Env struct {
	Stdin          *os.File
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Devices        *Devices            // nil: the machine's own; tests set others
	Self           string              // the file to execute for another nvtrace; "" none
	Sink           record.Sink         // gets each event that is decoded, too; for tests, which plant faults
	Debug          *slog.Logger        // of debugVar; without it, it discards
	inputs         []input             // files that the verb reads
	public         bool                // others may read what is written
	Tracing        bool                // what is written holds the memory of running programs
	Help           func(*flag.FlagSet) // gets a verb's flags instead of their being printed; nil: none
	Verbs          []string            // the words that a command line may begin with
	stdinRead      bool                // by "-" for a file
}

// SplitArgs cuts the words at the first "--".
func SplitArgs(words []string) (args, command []string, cut bool) {
	if i := slices.Index(words, "--"); i >= 0 {
		return words[:i], words[i+1:], true
	}
	return words, nil, false
}

// Beneath returns what is below an output: for bytes that are no text, and what only
// nvtrace writes.
func Beneath(w io.Writer) io.Writer {
	if e, ok := w.(*escape.Writer); ok {
		return e.Unwrap()
	}
	return w
}

// Content returns where a verb's result goes that is not nvtrace's text but the file's
// or the kernel's own, byte for byte, unless a terminal shows it.
func (e *Env) Content() io.Writer {
	if IsTerminal(e.Stdout) {
		return e.Stdout
	}
	return Beneath(e.Stdout)
}

// Fail prints a message, as a rule one line, and returns the status. Names of
// files and programs in it can't steer a terminal.
func (e *Env) Fail(status int, format string, args ...any) int {
	for line := range strings.SplitSeq(fmt.Sprintf(format, args...), "\n") {
		fmt.Fprintf(e.Stderr, "nvtrace: %s\n", Printable(line))
	}
	return status
}

// Notice prints one line that does not change the status.
func (e *Env) Notice(format string, args ...any) { e.Fail(ExitOK, format, args...) }

// Devices lets tests record calls on files that are no device nodes.
type Devices struct {
	NodeName  func(rdev uint64, path string) (string, bool)
	MayBeNode func(path []byte) bool
	NodePaths []agent.Path // in its place: then opens need not stop
	Stat      func(pid int, fd int32) (rdev uint64, path string, ok bool)
}
