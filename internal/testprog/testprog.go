// Package testprog starts programs that tests talk to while something is done about them.
package testprog

import (
	"bufio"
	"io"
	"os/exec"
	"testing"
)

// Start starts a program, and returns its standard input, and its standard output. If it still
// runs at the test's end it is killed; it is waited for in any case.
func Start(tb testing.TB, cmd *exec.Cmd) (in io.WriteCloser, out *bufio.Reader) {
	tb.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // an error if the test has waited for it, or a tracer has
	})
	return in, bufio.NewReader(pipe)
}
