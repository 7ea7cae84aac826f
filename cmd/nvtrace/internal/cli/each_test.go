package cli

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"nvtrace/traces"
)

// TestEach: events that are read ahead come in order and whole, up to the damage.
func TestEach(t *testing.T) {
	events := 1283 // some batches
	if testing.Short() {
		events = 771
	}
	var file bytes.Buffer
	w, err := traces.NewWriter(&file, &traces.Header{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range events {
		memory := bytes.Repeat([]byte{byte(i + 1)}, 1+(i%7)*20_000) // more than a batch may hold, too
		w.Write(&traces.Event{Kind: traces.KindIoctl, Time: int64(i), FD: 3, Mem: []traces.Seg{{Addr: 8, Len: uint32(len(memory)), In: memory}}})
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	whole := file.Bytes()
	for _, c := range []struct {
		name string
		file []byte
		want string // of the error or the notice
	}{
		{"without an end", whole, fmt.Sprintf("the recording was cut off after %d events", events)},
		{"cut", whole[:len(whole)-10], "damaged"},
	} {
		r, err := traces.NewReader(bytes.NewReader(c.file))
		if err != nil {
			t.Fatal(err)
		}
		n, said := 0, ""
		err = Each(r, func(f string, args ...any) { said = fmt.Sprintf(f, args...) }, func(ev *traces.Event) {
			in := ev.Mem[0].In
			if ev.Time != int64(n) || len(in) != 1+(n%7)*20_000 || in[0] != byte(n+1) || in[len(in)-1] != byte(n+1) {
				t.Fatalf("%s: event %d is that of %d, with %d bytes", c.name, n, ev.Time, len(in))
			}
			n++
		})
		if err != nil {
			said = err.Error()
		}
		if !strings.Contains(said, c.want) || err == nil && n != events || n == 0 {
			t.Errorf("%s: %d events, %s", c.name, n, said)
		}
	}
}

// TestProgress: who waits at a terminal for a long recording sees how far it is, and
// nothing of that in the end.
func TestProgress(t *testing.T) {
	const name = "../../../../traces/corpus/matmul.nvt"
	r, err := traces.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	st, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	var shown bytes.Buffer
	p := &Progress{e: &Env{Stderr: &shown}, name: name, total: st.Size(), unit: "bytes"} // from the first moment on
	n := 0
	if err := watchedEach(r, p, func(string, ...any) {}, func(*traces.Event) { n++ }); err != nil {
		t.Fatal(err)
	}
	p.Clear()
	want := regexp.MustCompile(fmt.Sprintf("^\rmatmul.nvt: [0-9]+ %% of %d bytes .*\r\x1b\\[K$", st.Size()))
	if n == 0 || !want.MatchString(shown.String()) {
		t.Errorf("%d events, %q", n, shown.String())
	}
}
