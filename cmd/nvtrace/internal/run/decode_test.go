package run

import (
	"io"
	"os"
	"testing"
)

// TestIdler: a reader of a pipe says when there is nothing more to read; what comes then is
// read, up to the end.
func TestIdler(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	idle := make(chan bool, 8)
	in := newIdler(r)
	in.idle = func() { idle <- true }
	go func() {
		defer w.Close()
		for _, s := range []string{"one ", "two ", "three"} {
			_, _ = w.WriteString(s)
			<-idle
		}
	}()
	b, err := io.ReadAll(in)
	if string(b) != "one two three" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
}
