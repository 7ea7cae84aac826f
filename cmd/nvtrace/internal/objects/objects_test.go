package objects

import (
	"encoding/json"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/internal/testrec"
	"nvtrace/ioctl"
	"nvtrace/traces"
)

// TestTreeScript checks the scripted run's tree against what its script says.
func TestTreeScript(t *testing.T) {
	_, out, _ := clitest.Run(t, TreeVerb, "--json", "--all", clitest.Save(t, "s.nvt", testrec.Shared()))
	var r TreeReport
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	type key struct{ client, handle string }
	by := make(map[key]treeObject)
	id := make(map[uint32]treeObject)
	for _, o := range r.Objects {
		by[key{o.Client, o.Handle}] = o
		id[o.ID] = o
	}
	const a, b = "0xc1d00001", "0xc1d00002"
	for _, c := range []struct {
		client, handle, parent, same, end, by string
	}{
		{a, "0x5c000001", a, "", "live", ""},
		{a, "0x5c000003", "0x5c000001", "", "freed by the program", ""},
		{a, "0x5c000004", "0x5c000001", "", "freed with what it depends on", "0x5c000003"},
		{a, "0x5c000005", "0x5c000004", "", "freed with its parent", "0x5c000004"},
		{a, "0x5c000006", "0x5c000005", "", "freed with its parent", "0x5c000005"},
		{a, "0x5c000020", "0x5c000004", "", "", ""},
		{a, "0x5c000010", "0x5c000001", "", "live", ""},
		{a, "0x5c000030", "0x5c000001", "0x5c000010", "live", ""},
		{b, "0x5c000002", "0x5c000001", "0x5c000010", "freed by the driver when the process ended", ""},
		{b, "0x5c000003", "0x5c000001", "0x5c000011", "freed by the driver when the process ended", ""},
	} {
		o, ok := by[key{c.client, c.handle}]
		if !ok {
			t.Errorf("%s:%s is missing", c.client, c.handle)
			continue
		}
		if p := id[o.Parent].Handle; p != c.parent {
			t.Errorf("%s is under %s, want %s", c.handle, p, c.parent)
		}
		if s := id[o.SameAs].Handle; s != c.same {
			t.Errorf("%s:%s is the same as %q, want %q", c.client, c.handle, s, c.same)
		}
		if c.end != "" && o.End != c.end {
			t.Errorf("%s:%s ended %q, want %q", c.client, c.handle, o.End, c.end)
		}
		if b := id[o.By].Handle; c.by != "" && b != c.by {
			t.Errorf("%s ended by %s, want %s", c.handle, b, c.by)
		}
	}
	if o := by[key{b, "0x5c000003"}]; o.Import == 0 || o.Size != 64<<10 || len(by[key{a, "0x5c000011"}].Exports) != 1 || by[key{a, "0x5c000011"}].Exports[0] != o.Import {
		t.Errorf("import: %+v of %+v", o, by[key{a, "0x5c000011"}])
	}
}

func TestMoments(t *testing.T) {
	for in, want := range map[string]Moment{
		"end": {Word: "end"}, "peak": {Word: "peak"}, "1.5s": {at: 1_500_000_000}, "20ms": {at: 20_000_000}, "2": {at: 2_000_000_000}, "0.25": {at: 250_000_000},
	} {
		if m, err := parseMoment(in); err != nil || m != want {
			t.Errorf("%s: %v, %v", in, m, err)
		}
	}
	for _, in := range []string{"", "later", "-1s", "1.5x"} {
		if _, err := parseMoment(in); err == nil {
			t.Errorf("%q is accepted", in)
		}
	}
}

// TestLineNames: a line names what it makes and what it ends.
func TestLineNames(t *testing.T) {
	r := testrec.Shared()
	d := ioctl.NewDecoder(&r.Header)
	names := NewLineNames(d)
	o := &ioctl.LineOptions{Name: names.Namer(), Clock: ioctl.ClockNone, NoPID: true}
	var lines []byte
	for _, ev := range r.Events {
		c := d.Decode(ev)
		names.Around(&observe.Event{Event: ev, Call: &c, Decoder: d}, func() {
			if ev.Kind == traces.KindIoctl && c.Escape != nil {
				lines = d.AppendCall(lines, ev, &c, o)
			}
		})
	}
	for _, want := range []string{"vidmem0{0040}", "chan0{c86f}", "compute0{cbc0}"} {
		if !strings.Contains(string(lines), want) {
			t.Errorf("no line has %s:\n%s", want, lines)
		}
	}
	free := 0
	for line := range strings.Lines(string(lines)) {
		if strings.Contains(line, "NV_ESC_RM_FREE") && strings.Contains(line, "vas0{90f1}") {
			free++
		}
	}
	if free != 1 {
		t.Errorf("%d lines of NV_ESC_RM_FREE name vas0:\n%s", free, lines)
	}
	if n := names.objs.Tree().Live(); n == 0 {
		t.Error("nothing lives")
	}
}
