package view

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/nvattach/capture"
	"nvtrace/traces"
)

// moduleRecording writes a recording with images, and returns its name. The store
// lacks the last image.
func moduleRecording(t *testing.T, gaps ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "run.nvt")
	store := capture.NewStore(0)
	if err := store.Begin(name); err != nil {
		t.Fatal(err)
	}
	put := func(file string) *traces.Image {
		b, err := os.ReadFile(filepath.Join("../../../../fatbin/testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		sum, err := store.Put(b)
		if err != nil {
			t.Fatal(err)
		}
		return &traces.Image{SHA256: sum, Size: int64(len(b)), Origin: "breakpoint"}
	}
	both := put("kernels.13.0.fatbin")
	both.Format, both.Handle = "fatbin", 0x5500
	sass := put("kernels.11.8.sm_80.cubin")
	sass.Format, sass.Handle = "cubin", 0x6600
	gone := &traces.Image{SHA256: strings.Repeat("ab", 32), Size: 100, Format: "ptx", File: "/does/not/exist", Offset: 4096}
	w, err := clitest.CreateRecording(name, &traces.Header{Schema: traces.SchemaVersion, Argv: []string{"app"}, PID: 100})
	if err != nil {
		t.Fatal(err)
	}
	events := []traces.Event{
		{Kind: traces.KindExec, PID: 100, TID: 100, Path: "/usr/bin/python3"},
		{Kind: traces.KindImage, PID: 100, TID: 100, Time: 1e6, Name: "cuLibraryLoadData", Path: "/opt/lib/libcublas.so.13", Image: both},
		{Kind: traces.KindImage, PID: 100, TID: 101, Time: 2e6, Name: "cuLibraryLoadData", Path: "/opt/lib/libcublas.so.13", Image: both},
		{Kind: traces.KindFork, PID: 100, TID: 100, Child: 102},
		{Kind: traces.KindImage, PID: 102, TID: 102, Time: 3e6, Name: "cuModuleLoadData", Path: "/opt/lib/libtriton.so", Image: sass},
		{Kind: traces.KindImage, PID: 102, TID: 102, Time: 4e6, Name: "cuModuleLoadData", Path: "/opt/lib/libtriton.so", Image: gone, Ret: 209},
		{Kind: traces.KindImage, PID: 102, TID: 102, Time: 4e6, Name: "cuModuleLoad", Path: "/opt/lib/libtriton.so", Image: &traces.Image{Format: "unknown"}, Ret: 200},
		{Kind: traces.KindKernel, PID: 100, TID: 100, Time: 5e6, Name: "_ZN6shapes6reduceIfLi64EEEvPT_PKS1_4Pair", Image: both},
	}
	for _, g := range gaps {
		events = append(events, traces.Event{Kind: traces.KindGap, Text: g})
	}
	events = append(events, traces.Event{Kind: traces.KindCaptured, Captured: &traces.Captured{Mode: traces.CaptureBreakpoints, Images: 3, Gaps: uint64(len(gaps))}},
		traces.Event{Kind: traces.KindEnd, Cost: &traces.Cost{}})
	for i := range events {
		events[i].FD = -1
		w.Write(&events[i])
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return name
}

// runModules runs the verb.
func runModules(args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	e := &cli.Env{Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }}
	status = ModulesVerb(e, args, nil)
	return status, out.String(), errs.String()
}

func TestModules(t *testing.T) {
	name := moduleRecording(t)
	status, out, errs := runModules(name)
	if status != cli.ExitOK || errs != "" {
		t.Fatalf("status %d, stderr %q", status, errs)
	}
	if strings.Contains(out, "INCOMPLETE") {
		t.Errorf("a complete recording is called incomplete:\n%s", out)
	}
	line := ""
	for l := range strings.Lines(out) {
		if strings.Contains(l, "libcublas.so.13") {
			line = strings.Join(strings.Fields(l), " ")
		}
	}
	const want = "fatbin 31.0 KiB 90a 90a 100f 5 1 2 cuLibraryLoadData libcublas.so.13 python3 100 0.001000 0x5500"
	if !strings.HasSuffix(line, want) {
		t.Errorf("line %q, want it to end in %q", line, want)
	}
	clitest.Want(t, out, "python3 102", "abababababab: not in the module store beside the recording; it lay in /does/not/exist, which --files reads",
		"1 (error 209)", "captured: images: 3, loads: 0",
		"process 102 gave cuModuleLoad an image of an unknown format, which was not captured; the driver refused it (error 200)")

	_, out, _ = runModules("-v", name)
	clitest.Want(t, out, "SASS sm_90a", "void shapes::reduce<float, 64>(float*, float const*, Pair)", "3: 40 B")

	status, out, _ = runModules("--json", name)
	var r modulesReport
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != cli.ExitOK {
		t.Fatalf("status %d: %v", status, err)
	}
	if !r.Complete || len(r.Images) != 3 || len(r.Images[0].Entries) != 3 || len(r.Images[0].Loads) != 1 || r.Images[0].Loads[0].Count != 2 {
		t.Errorf("JSON: %s", out)
	}
}

// TestModulesWhy asks for kernels by their names in several forms.
func TestModulesWhy(t *testing.T) {
	name := moduleRecording(t)
	_, out, _ := runModules("--why", "shapes::reduce", name)
	clitest.Want(t, out, "void shapes::reduce<float, 64>(float*, float const*, Pair)\n  symbol: _ZN6shapes6reduce",
		"  on sm_90: the driver takes the machine code for sm_90a: probes go there, with --machine-code=false into the PTX for compute_90a in its place\n",
		"  on sm_100: the driver takes the machine code for sm_100f, there is no PTX: probes go there with --untested-arch\n",
		"  on sm_103: the driver takes the machine code for sm_100f, there is no PTX: it can't be probed: cubin: section .nv.capmerc.text.",
		"(Mercury)",
		"loaded by libcublas.so.13 through cuLibraryLoadData, in process python3 100, 2 times\n  launched\n",
		"  on sm_80, sm_86, sm_87, sm_89: the driver takes the machine code for sm_80, there is no PTX: probes go there with --untested-arch\n", "loaded by libtriton.so through cuModuleLoadData, in process python3 102")
	_, star, _ := runModules("--why", "*reduce*", name)
	if star != out {
		t.Errorf("a pattern gives another answer:\n%s", star)
	}
	_, out, _ = runModules("--why", "reduce", "--arch", "sm_103", name)
	clitest.Want(t, out, "  on sm_103: the driver takes the machine code for sm_100f", "  no GPU that is looked at can load it\n")
	if strings.Contains(out, "on sm_90") || strings.Contains(out, "on sm_80") {
		t.Errorf("GPUs that were not asked for:\n%s", out)
	}
	if status, _, errs := runModules("--why", "reduce", "--arch", "nine", name); status != cli.ExitUsage || !strings.Contains(errs, "--arch") {
		t.Errorf("status %d: %s", status, errs)
	}
	status, out, _ := runModules("--why", "nosuch", name)
	if status != cli.ExitDiffers {
		t.Errorf("status %d for a kernel that is not there", status)
	}
	clitest.Want(t, out, `no image has a kernel that "nosuch" means; images: 3, not readable: 1`)
}

// The recording of a run tells what its GPU is.
func TestModulesGPU(t *testing.T) {
	r, err := readModules(&cli.Env{Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }}, "../../../../traces/corpus/vectoradd.nvt", false, nil)
	if err != nil || !slices.Equal(r.gpus, []uint32{90}) {
		t.Errorf("GPUs %v, %v", r.gpus, err)
	}
}

// TestModulesComplete: what escaped comes first, and is the status if one asks.
func TestModulesComplete(t *testing.T) {
	name := moduleRecording(t, "something escaped\x1b[2J")
	status, out, _ := runModules(name)
	if status != cli.ExitOK || !strings.HasPrefix(out, "INCOMPLETE: what escaped: 1\n  something escaped\\x1b[2J\n") {
		t.Errorf("status %d:\n%s", status, out)
	}
	if status, _, _ := runModules("--require-complete", name); status != cli.ExitDiffers {
		t.Errorf("--require-complete of an incomplete recording: status %d", status)
	}
	if status, _, _ := runModules("--require-complete", moduleRecording(t)); status != cli.ExitOK {
		t.Errorf("--require-complete of a complete recording: status %d", status)
	}
	// One that did not capture at all proves nothing.
	status, out, _ = runModules("--require-complete", "../../../../traces/corpus/vectoradd.nvt")
	if status != cli.ExitDiffers || !strings.Contains(out, "not captured") {
		t.Errorf("a recording without images: status %d:\n%s", status, out)
	}
}

func TestModulesExtract(t *testing.T) {
	name := moduleRecording(t)
	dir := filepath.Join(t.TempDir(), "out")
	status, _, errs := runModules("--extract", dir, name)
	if status != cli.ExitDiffers { // not all of them
		t.Fatalf("status %d: %s", status, errs)
	}
	clitest.Want(t, errs, "abababababab: not in the module store", "extracted 2 of 3 images")
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	want, err := os.ReadFile("../../../../fatbin/testdata/kernels.11.8.sm_80.cubin")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(files, func(f os.DirEntry) bool { return strings.HasSuffix(f.Name(), ".cubin") })
	if i < 0 {
		t.Fatalf("no cubin among %v", files)
	}
	if got, err := os.ReadFile(filepath.Join(dir, files[i].Name())); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the cubin is not what was stored: %v", err)
	}

	// Changed images are not believed.
	store, err := capture.OpenStore(name)
	if err != nil {
		t.Fatal(err)
	}
	sums, err := store.Images()
	if err != nil || len(sums) != 2 {
		t.Fatalf("%v: %v", sums, err)
	}
	file, err := store.Path(sums[0])
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("something else"), 0o666); err != nil {
		t.Fatal(err)
	}
	_, out, _ := runModules(name)
	clitest.Want(t, out, "was changed: it has 14 bytes, the image ")
	if err := os.WriteFile(file, make([]byte, st.Size()), 0o600); err != nil {
		t.Fatal(err)
	}
	_, out, _ = runModules(name)
	clitest.Want(t, out, "was changed: its SHA-256 is ")

	// Without a store the rest is still there.
	if err := os.RemoveAll(capture.StoreDir(name)); err != nil {
		t.Fatal(err)
	}
	status, out, _ = runModules(name)
	if status != cli.ExitOK {
		t.Errorf("status %d", status)
	}
	clitest.Want(t, out, "the recording has no module store beside it", "libcublas.so.13")
}

// TestArchList: architectures are in the order of their numbers.
func TestArchList(t *testing.T) {
	if got := archList([]string{"sm_100f", "sm_90a", "sm_90", "sm_120", "sm_75"}); got != "75 90 90a 100f 120" {
		t.Error(got)
	}
	if got := archList(nil); got != "" {
		t.Error(got)
	}
}
