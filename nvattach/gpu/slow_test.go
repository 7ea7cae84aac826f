package gpu

import (
	"testing"
	"time"

	"nvtrace/traces/record"
)

// TestProgress: how far compiling has come is told while it takes long, and not of what has ended.
func TestProgress(t *testing.T) {
	said := make(chan string, 10)
	tr := New(&Options{Report: func(text string) { said <- text }}, record.ExtensionClass)
	tr.progress(time.Hour, "never").end()
	p := tr.progress(time.Millisecond, "process 7 waits")
	p.add(41, 2)
	if got := <-said; got != "compiling kernels with probes: process 7 waits" && got != "compiling 3 of 41 kernels with probes: process 7 waits" {
		t.Errorf("%q", got)
	}
	p.add(0, 39)
	for got := range said {
		if got == "compiling 41 of 41 kernels with probes: process 7 waits" {
			break
		}
	}
	p.end()
	p.say() // a timer that fired as it ended
	select {
	case got := <-said:
		t.Errorf("told of what has ended: %q", got)
	default:
	}
}
