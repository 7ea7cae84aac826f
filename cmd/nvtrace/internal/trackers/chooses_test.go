package trackers

import (
	"os"
	"runtime"
	"testing"

	"nvtrace/traces/record"
)

// TestChooses wants launches timed by channels only where there are four processors for each process.
func TestChooses(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(perProcess - 1))
	few := NewBeside(new(record.Recorder), true)
	if few.Chooses(os.Getpid()) || few.chose(os.Getpid()) {
		t.Errorf("chosen with %d processors", perProcess-1)
	}
	runtime.GOMAXPROCS(2*perProcess - 1)
	if few.Chooses(os.Getpid()) {
		t.Error("chosen after it was not")
	}
	many := NewBeside(new(record.Recorder), true)
	const none = 1 << 30 // no process has such a number
	if many.Chooses(none) {
		t.Error("a process that can't be read is chosen")
	}
	if !many.Chooses(os.Getpid()) || !many.chose(os.Getpid()) {
		t.Error("not chosen with processors enough")
	}
	if parent := os.Getppid(); many.Chooses(parent) {
		t.Error("a second process is chosen, for which there are no processors")
	}
	many.end()
}
