package traces

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"
)

func zip(t testing.TB, text string) []byte {
	t.Helper()
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	return enc.EncodeAll([]byte(text), nil)
}

const head = `{"k":"header","schema":1}` + "\n"

func TestNotRecording(t *testing.T) {
	var gz bytes.Buffer
	zw := gzip.NewWriter(&gz)
	fmt.Fprint(zw, head)
	zw.Close()
	for _, row := range []struct {
		data []byte
		want string
	}{
		{nil, "the file is empty"},
		{[]byte("\n \n"), "nothing but white space"},
		{[]byte("\x7fELF\x02\x01"), "an ELF file"},
		{gz.Bytes(), "gzip data"},
		{[]byte("PK\x03\x04abc"), "a zip archive"},
		{[]byte("SQLite format 3\x00"), "Nsight"},
		{[]byte("#!/bin/sh\n"), "a script"},
		{[]byte(`{"k":"ioctl","p":3}` + "\n"), "its beginning is missing"},
		{[]byte(`{"version":3}` + "\n"), "other JSON"},
		{[]byte("123 ioctl(3, TCGETS) = 0\n"), "strace's output"},
		{[]byte("hello\n"), `text, beginning "hello\n"`},
		{[]byte("\x00\x01\x02\n"), "binary data, beginning 00 01 02"},
		{zip(t, "hello\n"), `zstd data; unpacked, it looks like text`},
		{zip(t, "hello\n")[:9], "zstd data that ends before anything"},
		{[]byte(`{"k":"header","tool":"x"}` + "\n"), "names no format version"},
	} {
		_, _, err := readAll(t, row.data)
		if !errors.Is(err, ErrNotRecording) || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%q\n\tgot  %v\n\twant %s", row.data[:min(20, len(row.data))], err, row.want)
		}
	}
}

func TestNewer(t *testing.T) {
	_, _, err := readAll(t, []byte(`{"k":"header","schema":3,"tool":"v9.9"}`+"\n"))
	if !errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), "format 3") || !strings.Contains(err.Error(), "v9.9") {
		t.Errorf("%v", err)
	}
}

func TestDamage(t *testing.T) {
	good := `{"k":"note","text":"a"}` + "\n"
	for _, row := range []struct {
		name, text string
		events     int
		want       string
	}{
		{"syntax", head + good + "\n" + `{"k":"note","text":}` + "\n" + good, 1, "recording:4: damaged at byte 51 of its text (1 events before that are good): column 20: '}' where a string should be"},
		{"cut", head + good + good[:10], 1, "recording:3: damaged at byte 50 of its text (1 events before that are good): the line is cut short: unexpected EOF"},
		{"header cut", head[:20], 0, "recording:1: damaged at byte 0"},
		{"header broken", `{"k":"header","schema":x}` + "\n", 0, "recording:1: damaged at byte 0"},
		{"header kind", `{"k":"note","x":"header"}` + "\n", 0, `the first record is of kind "note"`},
		{"blank lines", head + "\n\r\n" + good, 1, ""},
		{"long", head + good + `{"k":"note","text":"` + strings.Repeat("x", MaxLine) + "\"}\n", 1, "the line is longer than"},
		{"string", head + good + `{"k":"note","text":"` + strings.Repeat("x", MaxText+1) + "\"}\n", 1, "longer than 1048576"},
	} {
		_, events, err := readAll(t, []byte(row.text))
		if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
			t.Errorf("%s:\n\tgot  %v\n\twant %s", row.name, err, row.want)
		}
		if len(events) != row.events {
			t.Errorf("%s: %d events", row.name, len(events))
		}
	}
}

// TestCorruptFrame flips each byte of a compressed recording. Whatever happens,
// complete earlier frames are delivered.
func TestCorruptFrame(t *testing.T) {
	testCorrupt(t, &WriterOptions{Compress: true, FlushInterval: -1})
	testCorrupt(t, &WriterOptions{Compress: true, Blocks: true, FlushInterval: -1})
}

func testCorrupt(t *testing.T, o *WriterOptions) {
	t.Helper()
	events := randomEvents(11, 40)
	var buf bytes.Buffer
	w, err := NewWriter(&buf, testHeader, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events[:20] {
		w.Write(e)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	first := buf.Len()
	for _, e := range events[20:] {
		w.Write(e)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for i := first; i < buf.Len(); i += 1 + i%7 {
		data := bytes.Clone(buf.Bytes())
		data[i] ^= 0x55
		_, got, err := readAll(t, data)
		if err == nil && len(got) != len(events) || len(got) < 20 {
			t.Fatalf("byte %d: %d events, %v", i, len(got), err)
		}
	}
}

func TestReadError(t *testing.T) {
	data := record(t, randomEvents(1, 10), nil)
	r, err := NewReader(io.MultiReader(bytes.NewReader(data[:2000]), iotest.ErrReader(errFull)))
	if err != nil {
		t.Fatal(err)
	}
	for err = r.Next(new(Event)); err == nil; err = r.Next(new(Event)) {
	}
	if !errors.Is(err, errFull) {
		t.Errorf("%v", err)
	}
	if _, err := NewReader(iotest.ErrReader(errFull)); !errors.Is(err, errFull) {
		t.Errorf("%v", err)
	}
	if _, got, err := readAllFrom(iotest.OneByteReader(bytes.NewReader(data))); got != 10 || err != nil {
		t.Errorf("byte by byte: %d events, %v", got, err)
	}
}

func readAllFrom(src io.Reader) (*Header, int, error) {
	r, err := NewReader(src)
	if err != nil {
		return nil, 0, err
	}
	n := 0
	for _, err := range r.All() {
		if err != nil {
			return nil, n, err
		}
		n++
	}
	return &r.Header, n, nil
}

// TestBombs reads input that unfolds into much more, in bounded memory.
func TestBombs(t *testing.T) {
	seg := `{"k":"ioctl","m":[{"n":8000000,"i":""}]}` + "\n"
	for name, data := range map[string][]byte{
		"zeros":  zip(t, head+strings.Repeat("\x00", 40<<20)),
		"spaces": zip(t, head+strings.Repeat(" ", 40<<20)),
		"memory": zip(t, head+strings.Repeat(seg, 400)),
	} {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, n, err := readAllFrom(bytes.NewReader(data))
		runtime.ReadMemStats(&after)
		if name == "memory" && (n != 400 || err != nil) || name != "memory" && err == nil {
			t.Errorf("%s: %d events, %v", name, n, err)
		}
		// Total, not peak: buffers are reused or dropped, never piled up. The
		// arena is dropped after each large event, so those add up.
		if got := after.TotalAlloc - before.TotalAlloc; name != "memory" && got > 160<<20 {
			t.Errorf("%s: %d MiB allocated for %d bytes of input", name, got>>20, len(data))
		}
	}
}

// FuzzReader reads anything. It must not panic, and what it reads must come out
// the same when written and read again.
func FuzzReader(f *testing.F) {
	f.Add(record(f, randomEvents(1, 3), nil))
	f.Add(record(f, randomEvents(2, 3), &WriterOptions{Compress: true}))
	f.Add(record(f, randomEvents(3, 3), &WriterOptions{Blocks: true}))
	f.Add(record(f, alike(20), &WriterOptions{Blocks: true}))
	f.Add([]byte(head + `{"k":"x","m":[{"n":3,"i":"00","o":"="}],"fl":"a|0x8000"}` + "\n"))
	f.Add([]byte(head + `{"k":"end","cost":{}}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			t.Skip("longer inputs say nothing new")
		}
		r, err := NewReader(bytes.NewReader(data))
		if err != nil {
			return
		}
		defer r.Close()
		var e Event
		p := parser{strings: map[string]string{}}
		for n := 0; r.Next(&e) == nil && n < 1000; n++ {
			line := AppendEvent(nil, &e)
			var again Event
			if err := p.event(line[:len(line)-1], &again); err != nil {
				t.Fatalf("reading what was written: %v\n%s", err, line)
			}
			if second := AppendEvent(nil, &again); !bytes.Equal(line, second) {
				t.Fatalf("not the same when written again:\n%s\n%s", line, second)
			}
		}
	})
}
