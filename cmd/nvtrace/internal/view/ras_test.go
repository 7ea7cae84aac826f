package view

import (
	"bytes"
	"strings"
	"testing"
)

// TestPrintable: lines come out whole, in whatever pieces they come, and one that does not end is refused.
func TestPrintable(t *testing.T) {
	const text = "one\r\ntwo\n\x1b[2Jthree"
	for size := 1; size <= len(text); size++ {
		var out bytes.Buffer
		p := &printable{w: &out}
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			if _, err := p.Write([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); !strings.HasPrefix(got, "one\ntwo\n") || !strings.HasSuffix(got, "three\n") || strings.ContainsRune(got, 0x1b) {
			t.Errorf("in pieces of %d: %q", size, got)
		}
	}
	p := &printable{w: new(bytes.Buffer)}
	var err error
	for n := 0; n <= maxAnswered && err == nil; n += 1 << 10 {
		_, err = p.Write(bytes.Repeat([]byte("x"), 1<<10))
	}
	if err == nil {
		t.Error("a line without an end was kept")
	}
}
