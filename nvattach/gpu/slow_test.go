package gpu

import (
	"testing"
	"time"

	"nvtrace/traces/record"
)

// TestSayAfter: what takes long is told while it does, and what has ended is not.
func TestSayAfter(t *testing.T) {
	said := make(chan string, 2)
	tr := New(&Options{Report: func(text string) { said <- text }}, record.ExtensionClass)
	tr.sayAfter(time.Hour, "never")()
	done := tr.sayAfter(0, "100% of it")
	if got := <-said; got != "100% of it" {
		t.Errorf("%q", got)
	}
	done()
}
