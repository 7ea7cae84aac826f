package ioctl

import (
	"encoding/json"
	"strings"
	"testing"

	"nvtrace/traces"
)

// libraryEvents are events of library calls and images, each with its line and
// some of its JSON.
var libraryEvents = []struct {
	ev   traces.Event
	line string
	json string
}{
	{
		traces.Event{Kind: traces.KindCall, Name: "cuInit\x1b", Path: "/l/libcuda.so.1", Args: [6]uint64{1, 2}},
		`cuInit\x1b(0x1, 0x2, 0x0, 0x0, 0x0, 0x0)`, `"call":"call","path":"/l/libcuda.so.1","name":"cuInit\u001b","args":["0x1","0x2","0x0","0x0","0x0","0x0"]}`,
	},
	{
		traces.Event{Kind: traces.KindReturn, Name: "cuInit", Ret: 100, Dur: 5},
		`<... cuInit returned> = 0x64`, `"call":"return","name":"cuInit","ret":"0x64"}`,
	},
	{
		traces.Event{Kind: traces.KindReturn, Name: "cuInit", Flags: traces.FlagUnfinished},
		`<... cuInit returned> = ? <unfinished ...>`, `"flags":"unfinished","name":"cuInit"}`,
	},
	{
		traces.Event{Kind: traces.KindImage, Name: "cuModuleLoadData", Path: "/a/app", Image: &traces.Image{SHA256: "0123456789abcdef", Size: 77, Format: "ptx", Handle: 16}},
		`--- image 0123456789ab (ptx, 77 bytes) loaded by cuModuleLoadData from /a/app ---`,
		`"name":"cuModuleLoadData","image":{"sha256":"0123456789abcdef","format":"ptx","size":77,"handle":"0x10"}}`,
	},
	{traces.Event{Kind: traces.KindImage}, `--- image loaded ---`, `"call":"image"}`},
	{
		traces.Event{Kind: traces.KindKernel, Name: "_Z1kv", Image: &traces.Image{SHA256: "01", Size: 1}},
		`--- first launch of _Z1kv, from image 01 ---`, `"name":"_Z1kv"`,
	},
	{traces.Event{Kind: traces.KindKernel, Name: "k"}, `--- first launch of k ---`, `"call":"kernel","name":"k"}`},
	{traces.Event{Kind: traces.KindGap, Text: "an image\n"}, `--- nvtrace: incomplete: an image\n ---`, `"text":"an image\n"}`},
}

func TestLibraryEvents(t *testing.T) {
	d := NewDecoder(nil)
	none, err := ParseFilter("ioctl=FIOASYNC")
	if err != nil {
		t.Fatal(err)
	}
	byName, err := ParseFilter("api=cuI*")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range libraryEvents {
		ev := c.ev
		ev.FD, ev.PID, ev.TID = -1, 7, 8
		call := d.Decode(&ev)
		got := string(d.AppendCall(nil, &ev, &call, &LineOptions{NoPID: true, Clock: ClockNone, Indent: 4}))
		if want := "    " + c.line + "\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		js := string(d.AppendJSON(nil, &ev, &call))
		var any map[string]any
		if err := json.Unmarshal([]byte(js), &any); err != nil || !strings.Contains(js, c.json) {
			t.Errorf("%s\nhas not %s (%v)", js, c.json, err)
		}
		if got, want := none.Match(&ev, &call), ev.Kind == traces.KindGap; got != want {
			t.Errorf("%v: selected %v, want %v", ev.Kind, got, want)
		}
		isCall := ev.Kind == traces.KindCall || ev.Kind == traces.KindReturn
		if got, want := byName.Match(&ev, &call), isCall || ev.Kind == traces.KindGap; got != want {
			t.Errorf("%v: selected by name %v, want %v", ev.Kind, got, want)
		}
	}
}

func TestAppendText(t *testing.T) {
	d := NewDecoder(nil)
	ev := &traces.Event{PID: 1, TID: 22, Time: 1_500_000}
	if got, want := string(d.AppendText([]byte(">"), ev, []byte("words"), nil)), ">[    1    22]     0.001500 words\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	ev.Time += 2_000_000
	o := &LineOptions{Clock: ClockDelta, Indent: 1 << 30, Width: 40}
	got := string(d.AppendText(nil, ev, []byte("words"), o))
	if want := "[   22] 0.002000 " + strings.Repeat(" ", 22) + "…\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
