package view

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/ras"
)

// fleetRAS asks a job that runs what NCCL itself knows of its ranks.
func fleetRAS(e *cli.Env, args, command []string) int {
	var q ras.Query
	var asJSON cli.OptString
	fs := cli.NewFlagSet(e, "fleet", "ras [flags] [HOST[:PORT]]")
	asJSON.RegisterJSON(fs)
	fs.BoolVar(&q.Verbose, "v", false, "say more of each rank")
	timeout := cli.SecondsFlag(5 * time.Second)
	fs.Var(&timeout, "timeout", "the process that is asked waits for the others of its job for `SECONDS`")
	words, status, ok := cli.ParseAnywhere(fs, args)
	switch {
	case !ok:
		return status
	case len(words) > 1 || command != nil:
		return e.Fail(cli.ExitUsage, "fleet ras wants one host on which the job runs: nvtrace fleet ras HOST")
	case timeout <= 0:
		return e.Fail(cli.ExitUsage, "--timeout wants a time above 0")
	}
	q.JSON, q.Timeout = asJSON.Given, time.Duration(timeout)
	if len(words) == 1 {
		q.Addr = words[0]
	}
	q.Addr = cmp.Or(q.Addr, e.Getenv("NCCL_RAS_ADDR"))
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if !q.JSON {
		lines := &printable{w: e.Stdout}
		if err := errors.Join(ras.Ask(ctx, &q, lines), lines.Close()); err != nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
		return cli.ExitOK
	}
	var answer bytes.Buffer
	var doc json.RawMessage
	err := ras.Ask(ctx, &q, &answer)
	if err == nil {
		if doc = answer.Bytes(); !json.Valid(doc) {
			err = fmt.Errorf("what NCCL answers is no JSON: %.100q", doc)
		}
	}
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	return e.Answer(&asJSON, nil, doc, nil)
}

// maxAnswered bounds a line of an answer.
const maxAnswered = 1 << 20

// printable passes lines on as a terminal can have them.
type printable struct {
	w    io.Writer
	rest []byte // of a line that has not ended
}

// Write implements io.Writer.
func (p *printable) Write(b []byte) (int, error) {
	end := bytes.LastIndexByte(b, '\n') + 1
	if end == 0 && len(p.rest)+len(b) > maxAnswered {
		return 0, fmt.Errorf("the answer has a line of more than %d bytes: that is not NCCL's", maxAnswered)
	}
	if end == 0 {
		p.rest = append(p.rest, b...)
		return len(b), nil
	}
	out := bufio.NewWriter(p.w)
	for line := range strings.Lines(string(p.rest) + string(b[:end])) {
		fmt.Fprintln(out, cli.Printable(strings.TrimRight(line, "\r\n")))
	}
	p.rest = append(p.rest[:0], b[end:]...)
	return len(b), out.Flush()
}

// Close puts out the rest.
func (p *printable) Close() error {
	if len(p.rest) == 0 {
		return nil
	}
	_, err := p.Write([]byte("\n"))
	return err
}
