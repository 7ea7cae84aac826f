package need

import (
	"context"
	"testing"
	"time"
)

// hang is how long a test waits for what must come. It is no measure of speed: on a busy
// machine, under the race detector, a minute is soon over.
const hang = 10 * time.Minute

// Limit returns a context for what a test waits for, so that what hangs is told in the
// test's own words. It ends after ten minutes, or shortly before the test binary would be
// ended (go test -timeout).
func Limit(tb testing.TB) context.Context {
	end := time.Now().Add(hang)
	if t, ok := tb.(interface{ Deadline() (time.Time, bool) }); ok {
		if last, limited := t.Deadline(); limited {
			end = earlier(end, last.Add(-10*time.Second))
		}
	}
	ctx, cancel := context.WithDeadline(context.Background(), end)
	tb.Cleanup(cancel)
	return ctx
}

// Until waits until done says so, as long as [Limit] lets a test wait, and reports whether
// it did.
func Until(tb testing.TB, done func() bool) bool {
	tb.Helper()
	for limit := Limit(tb); !done(); time.Sleep(time.Millisecond) {
		if limit.Err() != nil {
			return false
		}
	}
	return true
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
