package host

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/nvattach/mapmem"
)

// TestText: what helpers make of text in the process is what they do here, and, where C knows
// it, right.
func TestText(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "queues")
	compile(t, "-O1", "-o", bin, "testdata/queues.c", "-lpthread")
	tables := map[bool]*mapmem.Table{}
	both(t, func(t *testing.T, inside bool) {
		r := rigOf(t, "../testdata/obj/text.bpf.o", inside, "on_step")
		if status := r.run(bin); status != 0 {
			t.Fatalf("exit %d", status)
		}
		var err error
		if tables[inside], err = r.maps.Read(r.mem, r.maps.Find("results")); err != nil {
			t.Fatal(err)
		}
		if inside && r.agent.Stats().Probes < 1 {
			t.Error(r.tracer.Slow())
		}
	})
	if tables[true] == nil || tables[false] == nil {
		return
	}
	read, seen := 0, map[string]bool{}
	for i := range tables[true].Rows {
		in, out := tables[true].Rows[i].Value, tables[false].Rows[i].Value
		if !bytes.Equal(in, out) {
			t.Fatalf("step %d: in the process %q, here %q", i, in, out)
		}
		text, _, _ := strings.Cut(string(in[:48]), "\x00")
		if n := binary.LittleEndian.Uint64(in[48:]); int(n) <= len(text) || len(text) > 47 {
			t.Fatalf("step %d: %q of %d bytes", i, text, n)
		}
		if cut, _, _ := strings.Cut(string(in[88:96]), "\x00"); len(cut) > 7 || !strings.HasPrefix(text, cut) {
			t.Fatalf("step %d: %q, cut %q", i, text, cut)
		}
		if int64(binary.LittleEndian.Uint64(in[64:])) > 0 {
			read++
		}
		seen[text] = true
	}
	if read < 500 || len(seen) < 2000 {
		t.Errorf("%d numbers of %d texts", read, len(seen))
	}
}
