package run

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"nvtrace/traces"
)

// paceOf is that of a program with so many steps.
func paceOf(n int, each, whole time.Duration, name func(i int) string) *pace {
	p := newPace(7)
	p.event(&traces.Event{Kind: traces.KindExec, PID: 7, TID: 7, Time: 5})
	for i := range n {
		text := append([]byte(name(i)), 0)
		for _, tid := range []int32{7, 8} { // another thread has other ranges
			if tid == 8 {
				text = []byte("load\x00")
			}
			p.event(&traces.Event{
				Kind: traces.KindCall, PID: 7, TID: tid, Time: int64(i) * int64(each), Name: "nvtxRangePush", Args: [6]uint64{0x10},
				Mem: []traces.Seg{{Addr: 0x10, Len: uint32(len(text)), In: text}},
			})
		}
	}
	if whole > 0 {
		p.event(&traces.Event{Kind: traces.KindExit, PID: 7, TID: 7, Time: int64(whole) + 5})
	}
	return p
}

// TestPace: steps are compared where both runs have them, whatever their number; else the whole time.
func TestPace(t *testing.T) {
	f := new(baselineFlag)
	if err := f.Set("base.nvt,20%"); err != nil || f.file != "base.nvt" || f.margin != 0.2 {
		t.Fatalf("%+v, %v", f, err)
	}
	numbered := func(i int) string { return fmt.Sprintf("train step %d", i) }
	for _, tt := range []struct {
		name      string
		base, run *pace
		want      string // "": not slower; "?": not known
	}{
		{"steps", paceOf(100, 10*time.Millisecond, time.Second, numbered), paceOf(300, 13*time.Millisecond, 4*time.Second, numbered), "a step takes"},
		{"as fast", paceOf(100, 10*time.Millisecond, time.Second, numbered), paceOf(300, 11900*time.Microsecond, 4*time.Second, func(int) string { return "step" }), ""},
		{"no steps", paceOf(100, 10*time.Millisecond, time.Second, numbered), paceOf(300, 10*time.Millisecond, 3*time.Second, func(int) string { return "stepping" }), "the program took"},
		{"few steps", paceOf(5, time.Millisecond, time.Second, numbered), paceOf(5, time.Second, time.Second, numbered), ""},
		{"cut off", paceOf(0, 1, 0, numbered), paceOf(0, 1, time.Second, numbered), "?"},
	} {
		text, compared := f.slower(tt.base, tt.run)
		if compared == (tt.want == "?") || tt.want != "?" && (tt.want == "") != (text == "") || tt.want != "?" && !strings.Contains(text, tt.want) {
			t.Errorf("%s: %q, %v", tt.name, text, compared)
		}
	}
	for _, bad := range []string{"", ",10%", "x,-1%", "x,y%"} {
		if err := new(baselineFlag).Set(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// TestHeld: what is held back is lost, or comes whole and in order.
func TestHeld(t *testing.T) {
	var out bytes.Buffer
	h := &held{to: &out}
	fmt.Fprintln(h, "a")
	if out.Len() > 0 {
		t.Error(out.String())
	}
	fmt.Fprint(h, strings.Repeat("x", maxHeld))
	h.release()
	fmt.Fprintln(h, "b")
	h.release()
	if want := "a\nnvtrace: … and more\nb\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	(*held)(nil).release()
}
