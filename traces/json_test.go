package traces

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite golden files")

// oracleEvent reads an event line with encoding/json alone.
func oracleEvent(t *testing.T, line []byte) *Event {
	t.Helper()
	var raw struct {
		K     string   `json:"k"`
		T, D  int64    // keys match without regard to case
		P     int32    `json:"p"`
		H     *int32   `json:"h"`
		Fl    string   `json:"fl"`
		FD    *int32   `json:"fd"`
		File  uint32   `json:"file"`
		Dev   string   `json:"dev"`
		Rdev  string   `json:"rdev"`
		A     []string `json:"a"`
		R     int64    `json:"r"`
		Child int32    `json:"child"`
		Name  string   `json:"name"`
		Path  string   `json:"path"`
		Argv  []string `json:"argv"`
		Text  string   `json:"text"`
		M     []struct {
			A  string  `json:"a"`
			N  uint32  `json:"n"`
			I  *string `json:"i"`
			In *int    `json:"in"`
			O  *string `json:"o"`
			On *int    `json:"on"`
		} `json:"m"`
		Image *struct {
			SHA256, Format, File, Handle, Origin, Replaced string
			Size, Offset                                   int64
		} `json:"image"`
		Captured *struct {
			Mode                                         string
			Images, Loads, Bytes, Drivers, Kernels, Gaps uint64
		} `json:"captured"`
		Cost *struct {
			Stops, Events, Bytes uint64
			CPU, Wall            int64
		} `json:"cost"`
	}
	if err := json.Unmarshal(line, &raw); err != nil {
		t.Fatalf("encoding/json: %v\n%s", err, line)
	}
	num := func(s string) uint64 {
		if s == "" {
			return 0
		}
		v, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	e := &Event{
		PID: raw.P, TID: raw.P, Time: raw.T, Dur: raw.D, FD: -1, File: raw.File, Dev: raw.Dev,
		Rdev: num(raw.Rdev), Ret: raw.R, Child: raw.Child, Path: raw.Path, Argv: raw.Argv, Text: raw.Text,
	}
	e.Kind, e.Name = KindOther, raw.K
	for k, name := range kindNames {
		if name == raw.K && Kind(k) < KindOther {
			e.Kind, e.Name = Kind(k), raw.Name
		}
	}
	if m := raw.Image; m != nil {
		e.Image = &Image{
			SHA256: m.SHA256, Size: m.Size, Format: m.Format, File: m.File, Offset: m.Offset,
			Handle: num(m.Handle), Origin: m.Origin, Replaced: m.Replaced,
		}
	}
	if raw.H != nil {
		e.TID = *raw.H
	}
	if raw.FD != nil {
		e.FD = *raw.FD
	}
	for word := range strings.SplitSeq(raw.Fl, "|") {
		for i, name := range flagNames {
			if word == name {
				e.Flags |= 1 << i
			}
		}
		if strings.HasPrefix(word, "0x") {
			e.Flags |= Flags(num(word))
		}
	}
	for i, a := range raw.A {
		e.Args[i] = num(a)
	}
	for _, m := range raw.M {
		data := func(s *string, n *int) []byte {
			if s == nil {
				return nil
			}
			size := int(m.N)
			if n != nil {
				size = *n
			}
			b, err := hex.DecodeString(*s)
			if err != nil {
				t.Fatal(err)
			}
			return append(b, make([]byte, size-len(b))...)
		}
		s := Seg{Addr: num(m.A), Len: m.N, In: data(m.I, m.In)}
		if m.O != nil && *m.O == "=" {
			s.Out = s.In
		} else {
			s.Out = data(m.O, m.On)
		}
		e.Mem = append(e.Mem, s)
	}
	if c := raw.Captured; c != nil {
		e.Captured = &Captured{c.Mode, c.Images, c.Loads, c.Bytes, c.Drivers, c.Kernels, c.Gaps}
	}
	if c := raw.Cost; c != nil {
		e.Cost = &Cost{c.Stops, c.Events, c.Bytes, c.CPU, c.Wall}
	}
	return e
}

// TestAgainstEncodingJSON reads random events with our parser and with the
// standard library's, and compares both with what was written.
func TestAgainstEncodingJSON(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	p := parser{strings: map[string]string{}}
	var got Event
	for range 1500 {
		e := randomEvent(r)
		line := AppendEvent(nil, e)
		if !utf8.Valid(line) || bytes.IndexByte(line, '\n') != len(line)-1 {
			t.Fatalf("not one line of UTF-8: %q", line)
		}
		line = line[:len(line)-1]
		if err := p.event(line, &got); err != nil {
			t.Fatalf("%v\n%s", err, line)
		}
		want := normal(e)
		if d := diffEvents(want, normal(&got)); d != "" {
			t.Fatalf("ours (-written +read):\n%s\n%s", d, line)
		}
		// The standard library turns what stands for bad UTF-8 into U+FFFD.
		want.Path, want.Text, want.Name = valid(want.Path), valid(want.Text), valid(want.Name)
		if want.Image != nil {
			want.Image.File, want.Image.Replaced = valid(want.Image.File), valid(want.Image.Replaced)
		}
		if want.Captured != nil {
			want.Captured.Mode = valid(want.Captured.Mode)
		}
		for i := range want.Argv {
			want.Argv[i] = valid(want.Argv[i])
		}
		if d := diffEvents(want, oracleEvent(t, line)); d != "" {
			t.Fatalf("encoding/json (-written +read):\n%s\n%s", d, line)
		}
	}
}

// TestCaptured: only ways of capturing that see everything can be complete.
func TestCaptured(t *testing.T) {
	for _, tt := range []struct {
		c    *Captured
		want bool
	}{
		{nil, false},
		{&Captured{}, false},
		{&Captured{Mode: CaptureBreakpoints}, true},
		{&Captured{Mode: CaptureBreakpoints, Gaps: 1}, false},
		{&Captured{Mode: CaptureSimulator}, true},
		{&Captured{Mode: CaptureInterposer}, false},
		{&Captured{Mode: "a later way"}, false},
	} {
		if got := tt.c.Complete(); got != tt.want {
			t.Errorf("%+v: complete %v, want %v", tt.c, got, tt.want)
		}
	}
}

// TestOldHeader: recordings made before a header said where they were made stay readable.
func TestOldHeader(t *testing.T) {
	r, err := NewReader(strings.NewReader(`{"k":"header","schema":1,"tool":"v0.1","start":5,"pid":7}` + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	want := Header{Schema: 1, Tool: "v0.1", Start: 5, PID: 7}
	if d := cmp.Diff(want, r.Header); d != "" {
		t.Errorf("header (-want +got):\n%s", d)
	}
}

// valid replaces every bad byte by U+FFFD.
func valid(s string) string {
	var b strings.Builder
	for _, r := range s {
		b.WriteRune(r)
	}
	return b.String()
}

// TestForeignSpelling reads records as another JSON writer would put them.
func TestForeignSpelling(t *testing.T) {
	line := ` { "later" : {"deep":[1,2,{"x":null}],"s":"\u00e9\ud834\udd1e"} , "m":[ {"o" : "0102" , "n": 4,"i":"", "a":"0x10","z":true} ],
	  "fl":"restarted|someday", "t":-5,"k":"ioctl", "r":-9223372036854775808,"p" :7 , "a":[ "0x1" , "0xFFFFFFFFFFFFFFFF" ], "path":"\/x\u0041\ud834\udd1e\udcff" } `
	p := parser{strings: map[string]string{}}
	var e Event
	if err := p.event([]byte(strings.ReplaceAll(line, "\n", "\r")), &e); err != nil {
		t.Fatal(err)
	}
	want := &Event{
		Kind: KindIoctl, Flags: FlagRestarted, PID: 7, TID: 7, Time: -5, Ret: -1 << 63, FD: -1,
		Args: [6]uint64{1, 1<<64 - 1}, Path: "/xA𝄞\xff",
		Mem: []Seg{{Addr: 0x10, Len: 4, In: make([]byte, 4), Out: []byte{1, 2, 0, 0}}},
	}
	if d := diffEvents(want, normal(&e)); d != "" {
		t.Fatalf("(-want +got):\n%s", d)
	}
}

func TestParseErrors(t *testing.T) {
	for _, row := range []struct{ line, want string }{
		{``, "the record ends where '{' should be"},
		{`[]`, `'[' where '{' should be`},
		{`{"k":"ioctl"`, "the record ends where ',' or '}' should be"},
		{`{"k":"ioctl",}`, `'}' where a key should be`},
		{`{"k":"ioctl"} x`, "text after the record"},
		{`{"t":1}`, "no kind"},
		{`{"k":"header"}`, "a second header"},
		{`{"k":""}`, "a kind of 0 bytes"},
		{`{"k":"ioctl","t":1.5}`, "a fraction"},
		{`{"k":"ioctl","t":9223372036854775808}`, "more than 63 bits"},
		{`{"k":"ioctl","t":99999999999999999999}`, "more than 63 bits"},
		{`{"k":"ioctl","t":"1"}`, "an integer should be"},
		{`{"k":"ioctl","p":2147483648}`, "2147483648 is not between"},
		{`{"k":"ioctl","a":["1"]}`, `does not begin with "0x"`},
		{`{"k":"ioctl","a":["0x"]}`, "malformed"},
		{`{"k":"ioctl","a":["0x1g"]}`, "malformed"},
		{`{"k":"ioctl","a":["0x10000000000000000"]}`, "more than 64 bits"},
		{`{"k":"ioctl","a":["0x1","0x1","0x1","0x1","0x1","0x1","0x1"]}`, "more than 6 arguments"},
		{`{"k":"ioctl","m":[{"n":2,"i":"010"}]}`, "3 hexadecimal digits for 2 bytes"},
		{`{"k":"ioctl","m":[{"n":1,"i":"0102"}]}`, "4 hexadecimal digits for 1 bytes"},
		{`{"k":"ioctl","m":[{"n":1,"i":"0g"}]}`, "no hexadecimal digit"},
		{`{"k":"ioctl","m":[{"n":4294967295,"i":""}]}`, "more than 8388608 bytes of memory"},
		{`{"k":"ioctl","m":[{"n":8388608,"i":"","o":""}]}`, "more than 8388608 bytes of memory"},
		{`{"k":"ioctl","m":[{"n":8388608,"i":"","o":"="}]}`, "more than 8388608 bytes of memory"},
		{`{"k":"ioctl","m":[{"n":4,"o":"="}]}`, `without "i"`},
		{`{"k":"ioctl","path":"\x"}`, `unknown escape \x`},
		{`{"k":"ioctl","path":"\u12g4"}`, `\u without four`},
		{`{"k":"ioctl","path":"a`, "ends inside a string"},
		{`{"k":"ioctl","path":"\`, "ends inside a string"},
		{"{\"k\":\"ioctl\",\"path\":\"\x01\"}", "control character 0x01"},
		{`{"k":"ioctl","later":` + strings.Repeat("[", 100), "nested more than 64 deep"},
		{`{"k":"ioctl","later":nonsense}`, "is no value"},
		{`{"k":"end","cost":{"stops":-1}}`, "not negative"},
		{`{"k":"end","cost":{"stops":18446744073709551616}}`, "more than 64 bits"},
	} {
		p := parser{strings: map[string]string{}}
		err := p.event([]byte(row.line), new(Event))
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s\n\tgot  %v\n\twant %s", row.line[:min(len(row.line), 80)], err, row.want)
		}
	}
}

// TestLimits writes events beyond every limit: what comes out can be read, and
// says that it was cut.
func TestLimits(t *testing.T) {
	long := strings.Repeat("x", MaxText+10)
	zeros := make([]byte, MaxEventBytes)
	for name, e := range map[string]*Event{
		"path":     {Kind: KindOpen, FD: -1, Path: long},
		"text":     {Kind: KindNote, FD: -1, Text: long},
		"argv":     {Kind: KindExec, FD: -1, Argv: []string{"a", long[:MaxText-1], "b"}},
		"segments": {Kind: KindIoctl, FD: -1, Mem: make([]Seg, MaxSegs+1)},
		"bytes":    {Kind: KindIoctl, FD: -1, Mem: []Seg{{Len: MaxEventBytes, In: zeros, Out: zeros}, {Len: 1, In: []byte{1}, Out: []byte{2}}}},
	} {
		line := AppendEvent(nil, e)
		p := parser{strings: map[string]string{}}
		var got Event
		if err := p.event(line[:len(line)-1], &got); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got.Flags&FlagTruncated == 0 {
			t.Errorf("%s: not flagged as truncated", name)
		}
	}
}

func TestAppendEventAllocs(t *testing.T) {
	e := sampleEvent()
	buf := make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(100, func() { buf = AppendEvent(buf[:0], e) }); n != 0 {
		t.Errorf("AppendEvent allocates %v times", n)
	}
	p := parser{strings: map[string]string{}}
	line := AppendEvent(nil, e)
	line = line[:len(line)-1]
	var got Event
	if n := testing.AllocsPerRun(100, func() {
		if err := p.event(line, &got); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("parsing allocates %v times", n)
	}
}

// sampleEvent is a control call as libcuda makes them.
func sampleEvent() *Event {
	arg := make([]byte, 32)
	copy(arg, "\x01\x00\xd0\xc1\x03\x00\x00\x5c\x10\x01\x80\x20")
	copy(arg[16:], "\x00\x57\x34\x12\xfd\x7f\x00\x00\x84")
	in, out := make([]byte, 132), make([]byte, 132)
	copy(out[4:], "NVIDIA H200")
	return &Event{
		Kind: KindIoctl, PID: 4711, TID: 4712, Time: 12_003_412_000, Dur: 21_000, FD: 5, File: 3,
		Dev: "nvidiactl", Rdev: 0xc3ff, Args: [6]uint64{5, 0xc020462a, 0x7ffd12345678},
		Mem: []Seg{
			{Addr: 0x7ffd12345678, Len: 32, In: arg, Out: arg},
			{Addr: 0x7ffd12345700, Len: 132, In: in, Out: out},
		},
	}
}

// TestGolden pins the text of the format.
func TestGolden(t *testing.T) {
	events := []*Event{
		{Kind: KindExec, PID: 4711, TID: 4711, FD: -1, Path: "/usr/bin/app", Argv: []string{"./app", "--x", "a\nb\xff"}},
		{Kind: KindOpen, PID: 4711, TID: 4711, Time: 1_000, Dur: 7_000, FD: 5, File: 3, Dev: "nvidiactl", Rdev: 0xc3ff, Args: [6]uint64{0xffffffffffffff9c, 0x55d0c0de, 0x80002}, Ret: 5, Path: "/dev/nvidiactl"},
		sampleEvent(),
		{Kind: KindIoctl, PID: 4711, TID: 4711, Time: 13_000_000_000, Dur: 2_000, FD: 6, File: 4, Dev: "nvidia-uvm", Rdev: 0xeb00, Args: [6]uint64{6, 0x27, 0x7ffd00000ff0}, Ret: -14, Flags: FlagTruncated, Mem: []Seg{{Addr: 0x7ffd00000ff0, Len: 20, In: []byte{1, 2, 3, 0}, Out: []byte{}}}},
		{Kind: KindMmap, PID: 4711, TID: 4711, Time: 13_000_100_000, Dur: 3_000, FD: 7, File: 5, Dev: "nvidia0", Rdev: 0xc300, Args: [6]uint64{0, 65536, 3, 1, 7, 0}, Ret: 0x7f12c0000000},
		{Kind: KindFork, PID: 4711, TID: 4711, Time: 13_100_000_000, FD: -1, Child: 4713, Flags: FlagThread},
		{Kind: KindClose, PID: 4711, TID: 4711, Time: 13_200_000_000, Dur: 900, FD: 7, File: 5, Dev: "nvidia0", Rdev: 0xc300, Args: [6]uint64{7}},
		{Kind: KindOther, Name: "later", PID: 1, TID: 1, Time: 13_300_000_000, FD: -1},
		{Kind: KindNote, Time: 13_400_000_000, FD: -1, Text: "a note \u202ethat tries \u009b31m tricks"},
		{Kind: KindExit, PID: 4711, TID: 4711, Time: 13_500_000_000, FD: -1, Ret: 256},
		{Kind: KindCaptured, Time: 13_550_000_000, FD: -1, Captured: &Captured{Mode: CaptureBreakpoints, Images: 2, Loads: 3, Bytes: 4096, Drivers: 1, Kernels: 5}},
		{Kind: KindEnd, Time: 13_600_000_000, FD: -1, Cost: &Cost{Stops: 900, Events: 9, Bytes: 336, TracerCPU: 1e6, Wall: 13.6e9}},
	}
	got := AppendHeader(nil, testHeader)
	for _, e := range events {
		got = AppendEvent(got, e)
	}
	const name = "testdata/golden.jsonl"
	if *update {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); d != "" {
		t.Errorf("the format changed: raise SchemaVersion if older readers would misread it, then -update (-want +got):\n%s", d)
	}
	h, read, err := readAll(t, want)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(testHeader, h); d != "" {
		t.Errorf("header (-want +got):\n%s", d)
	}
	for i := range events {
		if d := diffEvents(normal(events[i]), read[i]); d != "" {
			t.Errorf("event %d (-want +got):\n%s", i, d)
		}
	}
}
