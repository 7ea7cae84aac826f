package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/cmd/nvtrace/internal/code"
	"nvtrace/cmd/nvtrace/internal/verbs"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/fatbin"
	"nvtrace/traces"
)

// allocated runs a verb with its output thrown away, and returns how many bytes it
// allocated and how many it printed.
func allocated(t *testing.T, args ...string) (bytes uint64, out int64) {
	t.Helper()
	var before, after runtime.MemStats
	var n counter
	e := &cli.Env{Stdout: &n, Stderr: &n, Getenv: func(string) string { return "" }}
	runtime.ReadMemStats(&before)
	verbs.Main(e, args)
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc, int64(n)
}

type counter int64

func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return len(b), nil
}

// manyEvents writes a recording of n events.
func manyEvents(t *testing.T, n int, event func(i int) *traces.Event) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "many.nvt")
	w, err := clitest.CreateRecording(name, &traces.Header{Schema: traces.SchemaVersion, Driver: "580.159.04", PID: 1})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		ev := event(i)
		ev.PID, ev.TID, ev.FD, ev.Time = 1, 1, -1, int64(i)
		w.Write(ev)
	}
	w.Write(&traces.Event{Kind: traces.KindEnd, FD: -1, Cost: &traces.Cost{}})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestGapsBounded: a recording of some hundred KiB holds 150 MB of gaps. What they
// allocate does not grow with them, whatever looks at them.
func TestGapsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("reads 150 MB five times, in one thread")
	}
	text := strings.Repeat("what is the same each time takes no room in zstd ", 60)
	name := manyEvents(t, 50_000, func(i int) *traces.Event {
		return &traces.Event{Kind: traces.KindGap, Text: text + fmt.Sprint(i)}
	})
	for _, args := range [][]string{{"modules"}, {"modules", "--json"}, {"report"}, {"failures"}, {"export", "--format", "pprof"}} {
		n, _ := allocated(t, append(args, name)...)
		// Each text is read into memory of its own once: 3 KB, 50,000 times.
		if limit := uint64(50_000*(len(text)+200)) * 5 / 4; n > limit {
			t.Errorf("%q allocates %d bytes, limit %d", args, n, limit)
		}
	}
	var out bytes.Buffer
	e := &cli.Env{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }}
	verbs.Main(e, []string{"modules", name})
	if out.Len() > 2*view.MaxTextBytes || !strings.Contains(out.String(), "what escaped: 50000\n") {
		t.Errorf("%d bytes: %.200s", out.Len(), out.String())
	}
	// A report counts all of them, whatever it has room for.
	out.Reset()
	verbs.Main(e, []string{"report", name})
	if out.Len() > 20*len(text) || !strings.Contains(out.String(), fmt.Sprintf("\nincomplete: %d more reasons (--rows 0 shows all)\n", 50_000-view.DefaultRows)) {
		t.Errorf("report: %d bytes: %.200s", out.Len(), out.String())
	}
	out.Reset()
	verbs.Main(e, []string{"report", "--rows", "0", name})
	if shown := strings.Count(out.String(), "incomplete: what"); out.Len() > 2*view.MaxTextBytes || !strings.Contains(out.String(), fmt.Sprintf("\nincomplete: %d more reasons\n", 50_000-shown)) {
		t.Errorf("report --rows 0: %d gaps, %d bytes", shown, out.Len())
	}
}

// TestNamesLinear: 300,000 kernels, images, notes or libraries are looked up, not
// searched for. Where each is compared with all others, this does not end.
func TestNamesLinear(t *testing.T) {
	if testing.Short() {
		t.Skip("reads 600,000 events, in one thread")
	}
	const n = 300_000
	hash := strings.Repeat("a", 64)
	for what, event := range map[string]func(i int) *traces.Event{
		"kernels": func(i int) *traces.Event {
			return &traces.Event{Kind: traces.KindKernel, Name: fmt.Sprintf("kernel_%d", i), Image: &traces.Image{SHA256: hash, Size: 1, Format: "cubin"}}
		},
		"replacements": func(i int) *traces.Event {
			return &traces.Event{Kind: traces.KindImage, Name: "cuModuleLoadData", Image: &traces.Image{SHA256: hash, Size: 1, Format: "cubin", Replaced: fmt.Sprintf("%064x", i)}}
		},
		"unknown formats": func(i int) *traces.Event {
			return &traces.Event{Kind: traces.KindImage, Name: fmt.Sprintf("load%d", i), Image: &traces.Image{}}
		},
	} {
		name := manyEvents(t, n, event)
		st, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if got, out := allocated(t, "modules", "--json", name); got > n*2048 {
			t.Errorf("%s: %d bytes for a file of %d, %d printed", what, got, st.Size(), out)
		}
	}
}

// bomb returns an entry of so many zeros: 32 KiB a GiB.
func bomb(t *testing.T, size int) []byte {
	t.Helper()
	const block = 128 << 10
	b := []byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0} // one segment, its size in 8 bytes
	b = binary.LittleEndian.AppendUint64(b, uint64(size))
	for at := 0; at < size; at += block {
		head := uint32(min(block, size-at))<<3 | 1<<1 // a block of one byte, repeated
		if at+block >= size {
			head |= 1
		}
		b = append(b, byte(head), byte(head>>8), byte(head>>16), 0)
	}
	en, err := fatbin.NewEntry(fatbin.KindPTX, fatbin.Arch{SM: 80}, []byte(".version 7.0\n.target sm_80\n"), &fatbin.EntryOptions{Compression: fatbin.Zstd})
	if err != nil {
		t.Fatal(err)
	}
	h := bytes.Clone(en.Header())
	stored := len(b)
	b = append(b, make([]byte, (8-len(b)%8)%8)...)
	binary.LittleEndian.PutUint64(h[8:], uint64(len(b)))
	binary.LittleEndian.PutUint32(h[16:], uint32(stored))
	binary.LittleEndian.PutUint64(h[56:], uint64(size))
	return append(h, b...)
}

// TestContentBounded: a fat binary of 100 KB does not decompress to gigabytes, unless
// the user says so.
func TestContentBounded(t *testing.T) {
	var entries []byte
	for range 3 {
		entries = append(entries, bomb(t, 1<<30)...)
	}
	head := binary.LittleEndian.AppendUint32(nil, fatbin.ContainerMagic)
	head = binary.LittleEndian.AppendUint16(head, 1)
	head = binary.LittleEndian.AppendUint16(head, 16)
	head = binary.LittleEndian.AppendUint64(head, uint64(len(entries)))
	name := filepath.Join(t.TempDir(), "bomb.fatbin")
	if err := os.WriteFile(name, append(head, entries...), 0o600); err != nil {
		t.Fatal(err)
	}
	limit := uint64(fatbin.DefaultBudget(int64(len(entries)))) * 2
	dir := t.TempDir()
	for _, args := range [][]string{{"fatbin", "ls", "-k"}, {"fatbin", "ls", "-k", "--json"}, {"fatbin", "extract", "--out", dir}} {
		if n, _ := allocated(t, append(args, name)...); n > limit {
			t.Errorf("%q: %d bytes for a file of %d", args, n, len(entries))
		}
		var out bytes.Buffer
		status := verbs.Main(&cli.Env{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }}, append(args, name))
		if status != cli.ExitFailed || !strings.Contains(out.String(), "--max-content raises the limit") {
			t.Errorf("%q: status %d, %.300s", args, status, out.String())
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("%d files, %v", len(files), err)
	}
	small := filepath.Join(t.TempDir(), "small.fatbin")
	entries = bomb(t, 24<<20)
	binary.LittleEndian.PutUint64(head[8:], uint64(len(entries)))
	if err := os.WriteFile(small, append(head, entries...), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--max-content", "25000000"}, {"--max-content", "26000000"}} {
		var out bytes.Buffer
		status := verbs.Main(&cli.Env{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }}, append([]string{"fatbin", "extract", "--out", dir, args[0], args[1]}, small))
		if want := map[string]int{"25000000": cli.ExitFailed, "26000000": cli.ExitOK}[args[1]]; status != want {
			t.Errorf("%q: status %d, want %d: %s", args, status, want, &out)
		}
	}
}

// TestKernelsBounded: names take little room in a compressed file, and much in a list.
func TestKernelsBounded(t *testing.T) {
	var text bytes.Buffer
	text.WriteString(".version 7.0\n.target sm_80\n.address_size 64\n")
	for i := range 200_000 {
		fmt.Fprintf(&text, ".visible .entry k%06d(){ret;}\n", i)
	}
	en, err := fatbin.NewEntry(fatbin.KindPTX, fatbin.Arch{SM: 80}, text.Bytes(), &fatbin.EntryOptions{Compression: fatbin.Zstd})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "names.fatbin")
	if err := os.WriteFile(name, (&fatbin.Container{Entries: []fatbin.Entry{en}}).Append(nil), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	status := verbs.Main(&cli.Env{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }}, []string{"fatbin", "ls", "-k", name})
	if status != cli.ExitFailed || !strings.Contains(out.String(), "200000 kernels, which are not listed") {
		t.Errorf("status %d: %.300s", status, out.String())
	}
}

// TestSecurityNumbers: what SECURITY.md promises is what the code does.
func TestSecurityNumbers(t *testing.T) {
	b, err := os.ReadFile("../../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	slack := fatbin.DefaultBudget(0)
	for _, want := range []string{
		fmt.Sprintf("at most %d MiB + %d *n*", slack>>20, fatbin.DefaultBudget(1)-slack),
		fmt.Sprintf("at most %s + *n*/%d kernels", thousands(code.MaxKernels(0)), 6400/(code.MaxKernels(6400)-code.MaxKernels(0))),
		fmt.Sprintf("at most %d MiB as text", traces.MaxLine>>20),
		fmt.Sprintf("remarks up to %d MiB", view.MaxTextBytes>>20),
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("SECURITY.md does not say %q", want)
		}
	}
}

func thousands(n int64) string { return fmt.Sprintf("%d,%03d", n/1000, n%1000) }
