package cli

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
)

// TestBehind: all comes through, in order, also from a buffer that is used again.
func TestBehind(t *testing.T) {
	var got, want bytes.Buffer
	b := NewBehind(&got)
	buf := make([]byte, 0, 64)
	for i := range 10_000 {
		buf = fmt.Appendf(buf[:0], "line %d\n", i)
		want.Write(buf)
		if n, err := b.Write(buf); n != len(buf) || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}
	if err := b.Close(); err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Errorf("%v, %d bytes of %d", err, got.Len(), want.Len())
	}
}

var errBeneath = errors.New("no space left")

// failing is a writer that fails after some writes.
type failing struct{ left int }

func (f *failing) Write(p []byte) (int, error) {
	if f.left--; f.left < 0 {
		return 0, errBeneath
	}
	return len(p), nil
}

// TestBehindFails: an error is told by a later write, and by Close, whatever came in between.
func TestBehindFails(t *testing.T) {
	for _, left := range []int{0, 3} {
		b := NewBehind(&failing{left})
		told := false
		for range 10_000 { // a few more than there are buffers would do
			if _, err := b.Write([]byte("x")); err != nil {
				told = errors.Is(err, errBeneath)
			}
		}
		if err := b.Close(); !errors.Is(err, errBeneath) || !told {
			t.Errorf("after %d writes: %v, told %v", left, err, told)
		}
	}
	if err := NewBehind(&failing{0}).Close(); err != nil {
		t.Errorf("nothing was written: %v", err)
	}
	b := NewBehind(&failing{0})
	if _, err := b.Write([]byte("x")); err != nil {
		t.Errorf("the first write: %v", err)
	}
	if err := b.Close(); !errors.Is(err, errBeneath) {
		t.Errorf("only Close can tell: %v", err)
	}
}
