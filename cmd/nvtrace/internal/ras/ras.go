// Package ras asks a job of NCCL's what state it is in, by the service for that which NCCL (2.24 and later) runs in each of
// its processes: a socket that takes commands as lines of text.
//
// It refuses to know what the answer says.
package ras

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"time"
)

// Port is where NCCL listens, on localhost, where NCCL_RAS_ADDR does not say otherwise.
const Port = "28028"

// Query is what is asked.
type Query struct {
	Addr    string        // HOST or HOST:PORT; "": localhost
	JSON    bool          // NCCL 2.28.7 or later
	Verbose bool          // with what concerns each rank
	Timeout time.Duration // how long the process that is asked waits for the others
}

// ErrFormat means that the job's NCCL is too old to answer in the format that was asked for.
var ErrFormat = errors.New("this job's NCCL does not answer in JSON, which 2.28.7 and later do")

// Bounds of an exchange.
const (
	connecting = 5 * time.Second
	// NCCL asks other processes in two rounds at most, and answers behind the second.
	spare     = 10 * time.Second
	maxAnswer = 256 << 20
	maxLine   = 4096 // of an answer to a command
)

// address is that with its port.
func address(s string) string {
	if s == "" {
		s = "localhost"
	}
	if _, _, err := net.SplitHostPort(s); err == nil {
		return s
	}
	return net.JoinHostPort(strings.Trim(s, "[]"), Port)
}

// Ask writes the answer as it comes.
func Ask(ctx context.Context, q *Query, w io.Writer) error {
	addr := address(q.Addr)
	d := net.Dialer{Timeout: connecting}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("no job of NCCL's answers at %s (%w): NCCL 2.24 or later listens there while a communicator lives, on localhost unless NCCL_RAS_ADDR of the job says otherwise, and not with NCCL_RAS_ENABLE=0", addr, err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	s := session{c, bufio.NewReaderSize(c, maxLine)}
	answer, err := s.command("CLIENT PROTOCOL 2")
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", addr, err)
	case !hasPrefixFold(answer, "SERVER PROTOCOL "):
		return fmt.Errorf("what listens at %s is not NCCL: it answers %q", addr, answer)
	}
	// Older ones take whole seconds.
	if err := s.set(fmt.Sprintf("TIMEOUT %d", int(math.Ceil(q.Timeout.Seconds())))); err != nil {
		return fmt.Errorf("%s: %w", addr, err)
	}
	if q.JSON {
		if err := s.set("SET FORMAT json"); errors.Is(err, errRefused) {
			return ErrFormat
		} else if err != nil {
			return fmt.Errorf("%s: %w", addr, err)
		}
	}
	status := "STATUS"
	if q.Verbose {
		status = "VERBOSE STATUS"
	}
	if err := s.send(status); err != nil {
		return fmt.Errorf("%s: %w", addr, err)
	}
	n, err := io.Copy(w, io.LimitReader(&patient{s, q.Timeout + spare}, maxAnswer))
	switch {
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("%s: the answer broke off after %d bytes: %w", addr, n, err)
	case n == 0:
		return fmt.Errorf("%s: NCCL closed the connection without an answer", addr)
	case n == maxAnswer:
		return fmt.Errorf("%s: the answer is longer than %d MiB, and was cut", addr, maxAnswer>>20)
	}
	return nil
}

// session is a connection on which commands are given.
type session struct {
	c net.Conn
	r *bufio.Reader
}

func (s session) send(command string) error {
	if err := s.c.SetDeadline(time.Now().Add(connecting)); err != nil {
		return err
	}
	_, err := io.WriteString(s.c, command+"\n")
	return err
}

// command gives one, and returns its answer.
func (s session) command(text string) (string, error) {
	if err := s.send(text); err != nil {
		return "", err
	}
	line, err := s.r.ReadSlice('\n')
	if err != nil && len(line) == 0 {
		return "", fmt.Errorf("no answer to %q: %w", text, err)
	}
	return strings.TrimSpace(string(line)), nil
}

var errRefused = errors.New("refused")

// set gives a command that is to be answered with OK.
func (s session) set(text string) error {
	answer, err := s.command(text)
	if err == nil && !strings.EqualFold(answer, "OK") {
		err = fmt.Errorf("%q: %w: %s", text, errRefused, answer)
	}
	return err
}

// patient reads, and waits so long for each piece.
type patient struct {
	s    session
	time time.Duration
}

// Read implements io.Reader.
func (p *patient) Read(b []byte) (int, error) {
	if err := p.s.c.SetReadDeadline(time.Now().Add(p.time)); err != nil {
		return 0, err
	}
	return p.s.r.Read(b)
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}
