package push

import (
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// roundTripper answers requests.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestTried: a request that fails again and again is lost after a while, and the one behind it comes.
func TestTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, tries, last, taken := time.Now(), 0, time.Duration(0), make(chan time.Duration, 1)
		e := &endpoint{url: "http://h", timeout: time.Second, header: make(http.Header)}
		e.client = &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			b, err := io.ReadAll(r.Body)
			a := &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}
			if string(b) == "bad" {
				a.StatusCode = http.StatusServiceUnavailable
				tries++
				last = time.Since(begin)
			} else {
				taken <- time.Since(begin)
			}
			return a, err
		})}
		var said notices
		s := newSender(said.say)
		s.add(item{e, []byte("bad"), "span", 3})
		s.add(item{e, []byte("good"), "span", 2})
		if after := <-taken; tries < 5 || last > maxTried || after < maxTried-maxPause*3/2 || after > maxTried {
			t.Errorf("tried %d times in %v, the next one came after %v", tries, last, after)
		}
		if lost := s.Close(); lost != "3 spans not delivered; the latest failure: http://h: status 503: Service Unavailable" {
			t.Errorf("%s", lost)
		}
		if want := "http://h: status 503: Service Unavailable; it is tried again"; len(said.said) != 1 || said.said[0] != want {
			t.Errorf("said %q", said.said)
		}
	})
}

// TestUnlocked: what a sender says, it says without its lock.
func TestUnlocked(t *testing.T) {
	var s *Sender
	held := false
	s = &Sender{lost: make(map[string]int), ctx: t.Context(), notice: func(string, ...any) {
		if held = !s.mu.TryLock(); !held {
			s.mu.Unlock()
		}
	}}
	if s.tried(&item{what: "span", n: 1}, 0, errors.New("no")); !s.said || held {
		t.Errorf("said %v, locked %v", s.said, held)
	}
}
