package main

import (
	"bytes"
	"io"
	"os"
	"testing"

	"nvtrace/ioctl"
)

// TestIdler: a reader of a pipe says when there is nothing more to read, and rests when
// that lasts; what comes then is read, up to the end.
func TestIdler(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	idle, rested := 0, make(chan bool, 8)
	in := newIdler(r)
	in.idle, in.rest = func() { idle++ }, func() { rested <- true }
	go func() {
		defer w.Close()
		for _, s := range []string{"one ", "two ", "three"} {
			_, _ = w.WriteString(s)
			<-rested // and not before, even if a rest was just over
		}
	}()
	b, err := io.ReadAll(in)
	if string(b) != "one two three" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if idle < 3 {
		t.Errorf("idle %d times", idle)
	}
}

// TestDrawnTables: what was drawn before is drawn again if a cell has changed, or a row
// has come, and else looks the same.
func TestDrawnTables(t *testing.T) {
	before := make(drawnTables)
	sink := &logSink{book: newFailureBook(ioctl.NewDecoder(nil))}
	for _, calls := range [][]ioctl.CallCount{
		{{Name: "A", Calls: 1}}, {{Name: "A", Calls: 1}}, {{Name: "A", Calls: 2}}, {{Name: "A", Calls: 2}, {Name: "B", Calls: 1}},
	} {
		r := &ioctl.Report{Ioctls: 1, Calls: calls}
		var fresh, again bytes.Buffer
		if err := sink.writeReport(&fresh, r, new(layout)); err != nil {
			t.Fatal(err)
		}
		if err := sink.writeReport(&again, r, &layout{before: before}); err != nil {
			t.Fatal(err)
		}
		if fresh.String() != again.String() || !bytes.Contains(fresh.Bytes(), []byte(calls[len(calls)-1].Name)) {
			t.Errorf("%s\ninstead of\n%s", &again, &fresh)
		}
	}
}
