package traces

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// alike makes calls of two threads that differ in times, arguments and results.
func alike(n int) []*Event {
	var events []*Event
	for i := range n {
		t := int64(i) * 1000
		name := []string{"cuLaunchKernel", "cuMemAlloc_v2"}[i%2]
		tid := int32(7 + i/3%2)
		mem := []byte{byte(i), 2, 3}
		events = append(events,
			&Event{Kind: KindCall, PID: 7, TID: tid, FD: -1, Time: t, Name: name, Path: "libcuda.so.1", Args: [6]uint64{uint64(i) << 20, 5}},
			&Event{Kind: KindIoctl, PID: 7, TID: tid, FD: 3, File: 1, Dev: "nvidiactl", Time: t + 100, Dur: 300, Args: [6]uint64{3, 0xc020462a, 0x7ffe}, Mem: []Seg{{Addr: 0x7ffe, Len: 3, In: mem, Out: mem}}},
			&Event{Kind: KindReturn, PID: 7, TID: tid, FD: -1, Time: t, Dur: 900 + int64(i%7), Name: name, Ret: int64(uint32(i * i * 2654435761))})
	}
	return events
}

// TestBlockSize: what calls cost in a file.
func TestBlockSize(t *testing.T) {
	const n = 30_000
	data := record(t, alike(n), &WriterOptions{Blocks: true, Compress: true})
	if per := float64(len(data)) / n; per > 12 {
		t.Errorf("%.1f bytes a call, with an ioctl in it", per)
	}
	_, events, err := readAll(t, data)
	if err != nil || len(events) != 3*n {
		t.Fatalf("%d events: %v", len(events), err)
	}
}

// TestBlockAllocs: neither writing nor reading takes memory by the event.
func TestBlockAllocs(t *testing.T) {
	events := alike(1000)
	x := newBlockEncoder()
	var block []byte
	encode := func() {
		for _, e := range events {
			x.add(e)
		}
		block = x.appendTo(block[:0])
	}
	encode()
	if n := testing.AllocsPerRun(20, encode); n > 10 {
		t.Errorf("%v allocations to write %d events", n, len(events))
	}
	p := parser{strings: map[string]string{}}
	d := blockDecoder{p: &p}
	var e Event
	n := testing.AllocsPerRun(20, func() {
		if err := d.begin(block[blockHead:], math.MinInt64); err != nil {
			t.Fatal(err)
		}
		for more := true; more; {
			var err error
			if more, err = d.next(&e); err != nil {
				t.Fatal(err)
			}
		}
	})
	if n > 100 { // some for each group
		t.Errorf("%v allocations to read %d events", n, len(events))
	}
}

// TestSkipTo: what ends before a time can be left out, and a file need not be read there.
func TestSkipTo(t *testing.T) {
	events := alike(40_000)
	const per = 9000
	write := func(name string, o *WriterOptions) string {
		o.FlushBytes, o.FlushInterval = 1<<30, -1
		name = filepath.Join(t.TempDir(), name)
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		w, err := NewFileWriter(f, testHeader, o)
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range events {
			if w.Write(e); i%per == per-1 {
				_ = w.Flush()
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return name
	}
	// from reads a recording from a time on, and returns its first event and how many there are.
	from := func(name string, when int64) (first int64, n int, bytes int64) {
		r, err := Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if err := r.SkipTo(when); err != nil {
			t.Fatal(err)
		}
		for e, err := range r.All() {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n == 1 {
				first = e.Time + e.Dur
			}
		}
		return first, n, r.InputBytes()
	}
	name := write("a.nvt", &WriterOptions{})
	_, all, whole := from(name, 0)
	if all != len(events) {
		t.Fatalf("%d events of %d", all, len(events))
	}
	cut := filepath.Join(t.TempDir(), "cut.nvt")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b = append(b, "\x50\x2a\x4d\x18\x00\x00\x00\x00"...) // a frame that says nothing
	if err := os.WriteFile(cut, b, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, block := range []int{1, 5, len(events) / per} {
		e := events[block*per]
		when := e.Time + e.Dur
		want := len(events) - block*per
		for _, name := range []string{name, cut} {
			first, n, read := from(name, when)
			if first != when || n != want {
				t.Errorf("%s from %d on: %d events, the first at %d; want %d", filepath.Base(name), when, n, first, want)
			}
			if name != cut && block > 5 && read > whole*3/4 {
				t.Errorf("%d of %d bytes read", read, whole)
			}
		}
	}
	if _, n, _ := from(name, 1<<60); n != 0 {
		t.Errorf("%d events after the end", n)
	}
	if _, n, _ := from(write("a.jsonl", &WriterOptions{}), 1<<60); n != len(events) {
		t.Errorf("%d events of text, which is read from the beginning", n)
	}
}

// TestBlockDamage: blocks that lie.
func TestBlockDamage(t *testing.T) {
	text := string(appendHeader(nil, testHeader, SchemaVersion))
	whole := string(record(t, alike(4), &WriterOptions{Blocks: true}))
	block := func(payload string) string {
		return text + blockMagic + string(binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))) + payload
	}
	const note = `{"k":"note"}`
	group := func(columns string) string { return string(appendColumn(nil, []byte(note))) + columns }
	for _, row := range []struct {
		name, data string
		events     int
		want       string
	}{
		{"whole", whole, 12, ""},
		{"two", whole + whole[len(text):], 24, ""},
		{"text behind it", whole + note + "\n", 13, ""},
		{"cut in the head", whole + blockMagic, 12, "the block is cut short"},
		{"cut", whole[:len(whole)-1], 0, "recording:2: damaged at byte "},
		{"a later version", strings.Replace(whole, blockMagic, "nvb\x02", 1), 0, "block of a version"},
		{"too long", text + blockMagic + "\xff\xff\xff\xff", 0, "a block of 4294967295 bytes"},
		{"a length that is not there", text + blockMagic + "\x00\x00\x00\x01", 0, "cut short"},
		{"empty", block(""), 0, "contradicts itself"},
		{"no events", block("\x00\x00\x00\x00\x00\x00\x00"), 0, ""},
		{"an event", block("\x01\x00\x00\x00\x01\x00\x01\x08\x01" + group("\x00")), 1, ""},
		{"an unknown column", block("\x01\x00\x00\x00\x01\x00\x01\x08\x01" + group("\x01?\x03abc")), 1, ""},
		{"bytes behind", block("\x01\x00\x00\x00\x01\x00\x01\x08\x01" + group("\x00") + "\x00"), 0, "contradicts itself"},
		{"no such group", block("\x01\x00\x00\x00\x01\x05\x01\x08\x01" + group("\x00")), 0, "contradicts itself"},
		{"more events", block("\x02\x00\x00\x00\x01\x00\x01\x08\x01" + group("\x00")), 0, "contradicts itself"},
		{"more groups", block("\x01\x00\x00\x00\x01\x00\x01\x08\x02" + group("\x00") + group("\x00")), 0, "contradicts itself"},
		{"an event of its own, twice", block("\x02\x00\x00\x00\x02\x00\x00\x02\x08\x08\x01" + group("\x01x\x00")), 1, "contradicts itself"},
		{"a column too short", block("\x02\x00\x00\x00\x02\x00\x00\x02\x08\x08\x01" + group("\x01d\x01\x04")), 1, "contradicts itself"},
		{"no JSON", block("\x01\x00\x00\x00\x01\x00\x01\x08\x01\x03{k}\x00"), 0, "a key"},
	} {
		_, events, err := readAll(t, []byte(row.data))
		if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
			t.Errorf("%s:\n\tgot  %v\n\twant %s", row.name, err, row.want)
		}
		var damage *DamageError
		if len(events) != row.events || err != nil && (!errors.As(err, &damage) || damage.Events != uint64(row.events)) {
			t.Errorf("%s: %d events, want %d (%v)", row.name, len(events), row.events, err)
		}
	}
}

// TestBlockBombs: what a block unfolds into takes memory by its own length.
func TestBlockBombs(t *testing.T) {
	seg := `{"k":"ioctl","m":[{"n":8000000,"i":""}]}`
	const groups = 2000
	var payload []byte
	payload = appendUnsigned(payload, groups)
	payload = append(payload, 0, 0, 0)
	order, ends := []byte(nil), make([]byte, groups)
	for i := range groups {
		order = appendUnsigned(order, uint64(i))
	}
	payload = appendColumn(appendColumn(payload, order), ends)
	payload = appendUnsigned(payload, groups)
	for range groups {
		payload = append(appendColumn(payload, []byte(seg)), 1, columnOwn, 0)
	}
	data := appendHeader(nil, testHeader, SchemaVersion)
	data = append(data, blockMagic...)
	data = append(binary.LittleEndian.AppendUint32(data, uint32(len(payload))), payload...)
	r, err := NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	var m runtime.MemStats
	for e, err := range r.All() {
		if err != nil || len(e.Mem[0].In) != 8000000 {
			t.Fatal(err)
		}
		if n++; n%100 == 0 {
			runtime.GC()
			if runtime.ReadMemStats(&m); m.HeapAlloc > 64<<20 {
				t.Fatalf("%d MiB in use", m.HeapAlloc>>20)
			}
		}
	}
	if n != groups {
		t.Errorf("%d events", n)
	}
}

// FuzzBlock reads a block of anything behind a good header. What can be read comes out the same
// when it is written and read again.
func FuzzBlock(f *testing.F) {
	for _, events := range [][]*Event{alike(3), alike(20), randomEvents(1, 5), randomEvents(4, 30)} {
		x := newBlockEncoder()
		for _, e := range events {
			x.add(e)
		}
		f.Add(x.appendTo(nil)[blockHead:])
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		if len(payload) > 1<<16 {
			t.Skip("longer inputs say nothing new")
		}
		p := parser{strings: map[string]string{}}
		d := blockDecoder{p: &p}
		if d.begin(bytes.Clone(payload), math.MinInt64) != nil {
			return
		}
		x := newBlockEncoder()
		var lines []byte
		var e Event
		for {
			more, err := d.next(&e)
			if err != nil || !more {
				break
			}
			x.add(&e)
			lines = AppendEvent(lines, &e)
		}
		if err := d.begin(x.appendTo(nil)[blockHead:], math.MinInt64); err != nil {
			t.Fatalf("reading what was written: %v", err)
		}
		var again []byte
		for {
			more, err := d.next(&e)
			if err != nil {
				t.Fatalf("reading what was written: %v", err)
			}
			if !more {
				break
			}
			again = AppendEvent(again, &e)
		}
		if !bytes.Equal(lines, again) {
			t.Fatalf("not the same when written again:\n%s\n%s", lines, again)
		}
	})
}
