package push

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Bounds of what a receiver may answer.
const (
	maxAnswer = 64 << 10
	maxSaid   = 200 // of its words, that are repeated
)

// endpoint is where requests of a kind go.
type endpoint struct {
	client  *http.Client
	url     string
	grpc    bool
	gzip    bool
	otlp    bool // it answers as OTLP has it
	timeout time.Duration
	header  http.Header
}

// againError is a failure after which the same request is sent again.
type againError struct {
	err   error
	after time.Duration // as the receiver asks for; 0: it does not
}

func (e *againError) Error() string { return e.err.Error() }
func (e *againError) Unwrap() error { return e.err }

// newClient returns a client that keeps one connection and follows nobody elsewhere.
func newClient(t *http.Transport) *http.Client {
	t.Proxy = http.ProxyFromEnvironment
	t.MaxConnsPerHost, t.MaxResponseHeaderBytes, t.DisableCompression = 1, maxAnswer, true
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// send makes one try. It returns how many of what the request has the receiver did not take.
func (e *endpoint) send(ctx context.Context, body []byte) (rejected int, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	if e.gzip {
		body = zipped(body)
	}
	if e.grpc {
		head := make([]byte, 5, 5+len(body)) // whether it is compressed, and the length
		if e.gzip {
			head[0] = 1
		}
		binary.BigEndian.PutUint32(head[1:], uint32(len(body)))
		body = append(head, body...)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header = e.header.Clone()
	switch {
	case e.grpc:
		req.Header.Set("Te", "trailers")
		req.Header.Set("Grpc-Timeout", strconv.FormatInt(e.timeout.Milliseconds(), 10)+"m")
		if e.gzip {
			req.Header.Set("Grpc-Encoding", "gzip")
		}
	case e.gzip:
		req.Header.Set("Content-Encoding", "gzip")
	}
	r, err := e.client.Do(req)
	if err != nil {
		return 0, &againError{err: plainly(e.url, err)}
	}
	defer r.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(r.Body, maxAnswer))
	if err != nil {
		return 0, &againError{err: plainly(e.url, err)}
	}
	if err := e.failed(r, answer); err != nil {
		return 0, err
	}
	if e.grpc && len(answer) > 5 {
		answer = answer[5:]
	}
	if e.otlp && !e.grpc && !strings.HasPrefix(r.Header.Get("Content-Type"), "application/x-protobuf") {
		return 0, nil // no answer of OTLP's
	}
	if e.otlp {
		return partly(answer), nil
	}
	return 0, nil
}

// plainly says what went wrong with a request.
func plainly(at string, err error) error {
	late := errors.Is(err, context.DeadlineExceeded)
	if of, ok := errors.AsType[*url.Error](err); ok {
		late, err = of.Timeout(), of.Err
	}
	if late {
		err = errors.New("the receiver gave no answer in time")
	}
	return fmt.Errorf("%s: %w", shown(at), err)
}

// shown is a URL as it is shown: without its path, and the password that it may have.
func shown(at string) string {
	u, err := url.Parse(at)
	if err != nil {
		return "?"
	}
	return u.Scheme + "://" + u.Host
}

// failed returns what a receiver's answer says to have failed.
func (e *endpoint) failed(r *http.Response, answer []byte) error {
	if r.StatusCode < 200 || r.StatusCode > 299 {
		said := strings.ToValidUTF8(strings.TrimSpace(string(answer[:min(len(answer), maxSaid)])), "")
		if e.otlp || said == "" || strings.ContainsFunc(said, func(c rune) bool { return c < ' ' }) {
			said = http.StatusText(r.StatusCode) // of OTLP's it is a message
		}
		err := fmt.Errorf("%s: status %d: %s", shown(e.url), r.StatusCode, said)
		switch r.StatusCode {
		case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			seconds, _ := strconv.ParseUint(r.Header.Get("Retry-After"), 10, 16) // else there is none, or it is a date
			return &againError{err, time.Duration(seconds) * time.Second}
		}
		return err
	}
	if !e.grpc {
		return nil
	}
	status, message := r.Trailer.Get("Grpc-Status"), r.Trailer.Get("Grpc-Message")
	if status == "" {
		status, message = r.Header.Get("Grpc-Status"), r.Header.Get("Grpc-Message")
	}
	switch status {
	case "0":
		return nil
	case "":
		return fmt.Errorf("%s: it does not speak gRPC", shown(e.url))
	}
	if plain, err := url.PathUnescape(message); err == nil {
		message = plain
	}
	err := fmt.Errorf("%s: gRPC status %s: %s", shown(e.url), status, strings.ToValidUTF8(message[:min(len(message), maxSaid)], ""))
	switch status {
	// As OTLP has it: cancelled, deadline exceeded, resource exhausted, aborted, out of range, unavailable, data loss.
	case "1", "4", "8", "10", "11", "14", "15":
		return &againError{err: err}
	}
	return err
}

// partly returns how much of a request a receiver has not taken, by its answer.
func partly(answer []byte) (rejected int) {
	fields(answer, func(field int, _ uint64, b []byte) {
		if field != responsePartial {
			return
		}
		fields(b, func(field int, n uint64, _ []byte) {
			if field == partialRejected {
				rejected = int(min(n, 1<<30))
			}
		})
	})
	return rejected
}

// zipped is what gzip makes of bytes.
func zipped(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	if err2 := w.Close(); err != nil || err2 != nil {
		panic("BUG: memory can't be written to")
	}
	return out.Bytes()
}
