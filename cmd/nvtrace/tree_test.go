package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"nvtrace/internal/testrec"
	"nvtrace/ioctl"
	"nvtrace/ptrace/proc"
	"nvtrace/rm"
	"nvtrace/traces"
)

// runVerbFunc runs a verb and returns what it printed.
func runVerbFunc(t testing.TB, verb func(*env, []string, []string) int, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	e := &env{stdin: os.Stdin, stdout: &out, stderr: &errs, getenv: func(string) string { return "" }}
	status = verb(e, args, nil)
	return status, out.String(), errs.String()
}

// save writes a recording to a file of the test's folder.
func save(t testing.TB, name string, r *testrec.Recording) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, r.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	return file
}

// goldenFile compares files with an archive of testdata, or rewrites it.
func goldenFile(t *testing.T, name string, got []txtar.File) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, txtar.Format(&txtar.Archive{Files: got}), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := txtar.Parse(b).Files
	if len(want) != len(got) {
		t.Fatalf("%s has %d files, want %d", file, len(want), len(got))
	}
	for i, f := range got {
		if f.Name != want[i].Name || !bytes.Equal(f.Data, want[i].Data) {
			t.Errorf("%s: %s: got\n%s\nwant %s:\n%s", file, f.Name, f.Data, want[i].Name, want[i].Data)
		}
	}
}

// scripted is two processes that share memory: by handle, and by a file.
func scripted() *testrec.Recording {
	r := testrec.New("580.142")
	a := r.Program(100)
	testrec.App(a)
	// A subtree that goes with its root, and what depends on it elsewhere.
	share := r.New("NV_CTXSHARE_ALLOCATION_PARAMETERS").Set("hVASpace", testrec.Space)
	a.Alloc(testrec.Client, testrec.Group, 0x5c000020, 0x9067, share.B, rm.OK)
	// Memory under two handles, and one exported to a file that the child gets.
	a.Duplicate(testrec.Client, testrec.Device, 0x5c000030, testrec.Client, testrec.Vidmem)
	a.Open(11, "nvidiactl")
	exp := r.New("NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS").Set("object.type", 1).Set("fd", 11).
		Set("object.data.rmObject.hDevice", testrec.Device).Set("object.data.rmObject.hParent", testrec.Device).Set("object.data.rmObject.hObject", testrec.Sysmem)
	a.Control(testrec.Client, testrec.Client, 0x3d05, exp.B, nil, rm.OK)
	ev := r.New("NV0005_ALLOC_PARAMETERS").Set("hParentClient", testrec.Client).Set("hClass", 0x79).Set("notifyIndex", 35).Set("data", 12)
	a.Alloc(testrec.Client, testrec.Subdev, testrec.Event, 0x79, ev.B, rm.OK)

	b := a.Fork(200)
	b.Exec("/usr/bin/child")
	b.Open(20, "nvidiactl")
	b.Ctl = 20
	b.Client(0xc1d00002)
	b.Alloc(0xc1d00002, 0xc1d00002, 0x5c000001, 0x80, r.New("NV0080_ALLOC_PARAMETERS").B, rm.OK)
	b.Duplicate(0xc1d00002, 0x5c000001, 0x5c000002, testrec.Client, testrec.Vidmem)
	b.Receive(21, a, 11)
	imp := r.New("NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS").Set("fd", 21).Set("object.type", 1).
		Set("object.data.rmObject.hDevice", 0x5c000001).Set("object.data.rmObject.hParent", 0x5c000001).Set("object.data.rmObject.hObject", 0x5c000003)
	b.Control(0xc1d00002, 0xc1d00002, 0x3d06, imp.B, nil, rm.OK)

	a.Free(testrec.Client, testrec.Device, testrec.Space, rm.OK)
	a.Free(testrec.Client, testrec.Device, testrec.Group, rm.OK)
	a.Free(testrec.Client, testrec.Device, 0x5c00dead, 0x57)
	a.OpenFails("nvidia\x1b[2J\n", 2)
	b.Exit(0)
	return r
}

func TestTreeGolden(t *testing.T) {
	file := save(t, "scripted.nvt", scripted())
	var got []txtar.File
	for _, c := range []struct {
		name string
		verb func(*env, []string, []string) int
		args []string
	}{
		{"tree", treeVerb, nil},
		{"tree --all", treeVerb, []string{"--all"}},
		{"tree --at 20ms", treeVerb, []string{"--at", "20ms"}},
		{"tree --at peak", treeVerb, []string{"--at=peak"}},
		{"maps", mapsVerb, nil},
		{"maps --all --pid 100", mapsVerb, []string{"--all", "--pid", "100"}},
		{"failures", failuresVerb, nil},
	} {
		status, out, errs := runVerbFunc(t, c.verb, append([]string{file}, c.args...)...)
		wantErrs := ""
		if c.name == "failures" {
			wantErrs = "nvtrace: " + file + ": calls of CUDA's libraries: not recorded (--api)\n"
		}
		if status != exitOK || errs != wantErrs {
			t.Fatalf("%s: status %d, %s", c.name, status, errs)
		}
		got = append(got, txtar.File{Name: c.name, Data: []byte(out)})
		status, out, _ = runVerbFunc(t, c.verb, append([]string{"--json", file}, c.args...)...)
		if status != exitOK || !json.Valid([]byte(out)) {
			t.Errorf("%s --json: status %d, %.100s", c.name, status, out)
		}
	}
	goldenFile(t, "tree.txtar", got)
}

// TestTreeScript checks the scripted run's tree against what its script says.
func TestTreeScript(t *testing.T) {
	_, out, _ := runVerbFunc(t, treeVerb, "--json", "--all", save(t, "s.nvt", scripted()))
	var r treeReport
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
	for in, want := range map[string]moment{
		"end": {word: "end"}, "peak": {word: "peak"}, "1.5s": {at: 1_500_000_000}, "20ms": {at: 20_000_000}, "2": {at: 2_000_000_000}, "0.25": {at: 250_000_000},
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

func TestVerbUsage(t *testing.T) {
	file := save(t, "s.nvt", scripted())
	for _, c := range []struct {
		verb func(*env, []string, []string) int
		args []string
		want int
	}{
		{diffVerb, []string{file}, exitUsage},
		{diffVerb, []string{file, file}, exitOK},
		{diffVerb, []string{file, "--window", "5", file, "--json"}, exitOK},
		{diffVerb, []string{file, file, "-e", "nonsense"}, exitUsage},
		{diffVerb, []string{file, file, "-window", "-7"}, exitUsage},
		{diffVerb, []string{file, "/nonexistent"}, exitFailed},
		{diffVerb, []string{"-h"}, exitOK},
		{abiVerb, []string{"diff", "580.142", "580.142"}, exitOK},
		{abiVerb, []string{"diff", "570.211.01", "580.142", "*CHANNEL_ALLOC*"}, exitOK},
		{abiVerb, []string{"diff", "535.54.03", "580.142", "*CHANNEL_ALLOC*"}, exitDiffers},
		{abiVerb, []string{"diff", "580.142"}, exitUsage},
		{abiVerb, []string{"diff", "580.142", "x"}, exitUsage},
		{abiVerb, []string{"list"}, exitUsage},
		{allowlistVerb, []string{"--format", "json", file}, exitOK},
		{allowlistVerb, []string{"--format", "seccomp", file, "--succeeded"}, exitOK},
		{allowlistVerb, []string{"--format", "nvproxy", file, file}, exitOK},
		{allowlistVerb, []string{"--format", "xml", file}, exitUsage},
		{allowlistVerb, nil, exitUsage},
		{allowlistVerb, []string{"/nonexistent"}, exitFailed},
		{checkVerb, []string{file}, exitUsage},
		{checkVerb, []string{"--allow", "/nonexistent", file}, exitFailed},
		{treeVerb, nil, exitUsage},
		{treeVerb, []string{file, "--at", "soon"}, exitUsage},
		{treeVerb, []string{"/nonexistent"}, exitFailed},
		{mapsVerb, []string{file, "--live", "1"}, exitUsage},
		{mapsVerb, []string{"--live", "999999999"}, exitFailed},
		{mapsVerb, []string{file, "--at", "soon"}, exitUsage},
		{failuresVerb, nil, exitUsage},
		{failuresVerb, []string{"--json", file}, exitOK},
	} {
		status, out, errs := runVerbFunc(t, c.verb, c.args...)
		if status != c.want {
			t.Errorf("%q: status %d, want %d\n%s%s", c.args, status, c.want, out, errs)
		}
		if (c.want == exitUsage || c.want == exitFailed) != (errs != "" && c.args != nil && out == "" || errs != "" && c.args == nil) && c.args != nil && c.args[0] != "-h" {
			t.Errorf("%q: stdout %q, stderr %q", c.args, out, errs)
		}
	}
}

// TestCaution: reports say what a recording does not tell.
func TestCaution(t *testing.T) {
	r := scripted()
	for _, ev := range r.Events[10:20] {
		ev.Flags |= traces.FlagNoExit
	}
	r.Note(&traces.Event{Kind: traces.KindLost, FD: -1, Ret: 3})
	file := save(t, "s.nvt", r)
	for _, verb := range []func(*env, []string, []string) int{treeVerb, mapsVerb, failuresVerb} {
		status, _, errs := runVerbFunc(t, verb, file)
		if status != exitOK || !strings.Contains(errs, "calls were recorded without their results") || !strings.Contains(errs, "3 events were not recorded") {
			t.Errorf("status %d: %s", status, errs)
		}
	}
	cut := filepath.Join(t.TempDir(), "cut.nvt")
	b := r.Bytes()
	if err := os.WriteFile(cut, b[:len(b)*2/3], 0o666); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []func(*env, []string, []string) int{treeVerb, mapsVerb, failuresVerb, allowlistVerb} {
		status, out, errs := runVerbFunc(t, verb, cut)
		if status != exitFailed || out == "" || !strings.Contains(errs, "damaged") {
			t.Errorf("a damaged recording: status %d, stdout %.60q, stderr %s", status, out, errs)
		}
	}
	if status, out, errs := runVerbFunc(t, diffVerb, file, cut); status != exitFailed || out == "" || !strings.Contains(errs, "damaged") {
		t.Errorf("diff with a damaged recording: status %d, stdout %.60q, stderr %s", status, out, errs)
	}
}

// TestCheckVerb: the round trip by files.
func TestCheckVerb(t *testing.T) {
	file := save(t, "s.nvt", scripted())
	list := filepath.Join(t.TempDir(), "list")
	if status, _, errs := runVerbFunc(t, allowlistVerb, "-o", list, file); status != exitOK {
		t.Fatal(errs)
	}
	status, out, _ := runVerbFunc(t, checkVerb, "--allow", list, file)
	if status != exitOK || out != file+": lacks nothing\n" {
		t.Errorf("status %d: %s", status, out)
	}
	b, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.DeleteFunc(strings.SplitAfter(string(b), "\n"), func(l string) bool { return strings.HasPrefix(l, "class   0x40 ") })
	if err := os.WriteFile(list, []byte(strings.Join(lines, "")), 0o666); err != nil {
		t.Fatal(err)
	}
	status, out, _ = runVerbFunc(t, checkVerb, "--allow", list, file)
	if want := file + ": uses what the list does not allow:\n  class 0x40 NV01_MEMORY_LOCAL_USER: first at 0.009000 by pid 100, once\n"; status != exitDiffers || out != want {
		t.Errorf("status %d: %s, want %s", status, out, want)
	}
	status, out, _ = runVerbFunc(t, checkVerb, "--json", "--allow", list, file)
	if status != exitDiffers || !strings.Contains(out, `"nr": "0x40"`) {
		t.Errorf("status %d: %s", status, out)
	}
}

func TestLive(t *testing.T) {
	const text = `200600000-200800000 rw-s 00000000 00:06 471   /dev/nvidia0
200800000-204000000 rw-s 00000000 00:06 470   /dev/nvidiactl
7f0000000000-7f0000010000 -w-s 00000000 00:06 471   /dev/nvidia0 (deleted)
7f4000000000-7f4000200000 rw-s 7f4000000000 00:06 480   /dev/nvidia-uvm
7f5000000000-7f5000001000 r--p 00000000 08:01 99   /lib/x/libcuda.so.1
7f6000000000-7f6000001000 rw-p 00000000 00:00 0
`
	r := liveReportOf(7, proc.ParseMaps([]byte(text)))
	var buf bytes.Buffer
	if err := r.write(&env{stdout: &buf}); err != nil {
		t.Fatal(err)
	}
	goldenFile(t, "live.txtar", []txtar.File{{Name: "maps --live", Data: buf.Bytes()}})
}

// TestLineNames: a line names what it makes and what it ends.
func TestLineNames(t *testing.T) {
	r := scripted()
	d := ioctl.NewDecoder(&r.Header)
	names := newLineNames(d)
	o := &ioctl.LineOptions{Name: names.namer(), Clock: ioctl.ClockNone, NoPID: true}
	var lines []byte
	for _, ev := range r.Events {
		c := d.Decode(ev)
		names.around(ev, &c, func() {
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
