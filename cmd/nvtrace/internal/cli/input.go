package cli

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// stdinName is what "-" is called where a file is read.
const stdinName = "/dev/stdin"

// Input returns the name of a file that a verb reads: "-" is stdin. What comes through a pipe is kept in
// memory, so that any verb can look where it likes in it, and as often as it likes.
func (e *Env) Input(name string) (string, error) {
	if name != "-" {
		return name, nil
	}
	if e.stdinRead {
		return "", errors.New("-: stdin can be read once: name a file in the other place")
	}
	e.stdinRead = true
	if e.Stdin == nil {
		return "", errors.New("-: there is no stdin")
	}
	st, err := e.Stdin.Stat()
	switch {
	case err != nil:
		return "", fmt.Errorf("-: stdin: %w", err)
	case IsTerminal(e.Stdin):
		return "", errors.New("-: stdin is a terminal: send a file there, as in: cat FILE | nvtrace …")
	case st.Mode().IsRegular():
		return stdinName, nil
	}
	if err := keepStdin(e.Stdin); err != nil {
		return "", fmt.Errorf("-: stdin: %w", err)
	}
	return stdinName, nil
}

// streamed is Input for who reads a file once, from its beginning to its end: a pipe is read as it comes.
func (e *Env) streamed(name string) (string, error) {
	if st, err := os.Stat(stdinName); name != "-" || e.stdinRead || err != nil || st.Mode()&os.ModeNamedPipe == 0 {
		return e.Input(name)
	}
	e.stdinRead = true
	return stdinName, nil
}

// keepStdin reads a pipe to its end into a file without a name, which takes the place of stdin.
func keepStdin(in *os.File) error {
	fd, err := unix.MemfdCreate("stdin", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	kept := os.NewFile(uintptr(fd), stdinName)
	err = unix.Fchmod(fd, uint32(ModePrivate)) // it would have 0777, and what is made from it as many readers
	if err == nil {
		_, err = io.Copy(kept, in)
	}
	if err == nil {
		err = unix.Dup2(fd, int(in.Fd()))
	}
	return errors.Join(err, kept.Close())
}

// Inputs is Input for several names, in place.
func (e *Env) Inputs(names []string) error {
	for i, name := range names {
		to, err := e.Input(name)
		if err != nil {
			return err
		}
		names[i] = to
	}
	return nil
}
