package interpose

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nvtrace/fatbin"
)

// programs are the ways in which the test programs reach the driver.
func programs(w *world) [][]string {
	image := filepath.Join(w.dir, "image.ptx")
	return [][]string{
		{"linked-now", "linked"},
		{"linked-lazy", "linked"},
		{"linked-nopie", "linked"},
		{"linked-lazy", "dlsym"},
		{"prog", "needlib"},
		{"prog", "deepbind"},
		{"prog", "runpath"},
		{"prog", "dlmopen"},
		{"prog", "dlsym"},
		{"prog", "dlvsym"},
		{"prog", "formats", image},
		{"prog", "lookups"},
		{"prog", "errors"},
		{"linked-lazy", "errors"},
		{"prog", "launches"},
		{"prog", "backtrace"},
		{"prog", "leap"},
		{"prog", "fork"},
		{"prog", "exec"},
		{"prog", "daemon"},
		{"prog", "edge"},
		{"prog", "sandbox"},
		{"prog", "churn"},
		{"prog", "copies"},
		{"prog", "kernels"},
		{"weak"},
		{"weak-now"},
		{"weak-nopie"},
		{"weak-cuda"},
	}
}

// TestTransparent: a program shows the same, to the byte, in all circumstances.
func TestTransparent(t *testing.T) {
	w := getWorld(t)
	for _, args := range programs(w) {
		t.Run(strings.Join(append(args[:1:1], args[1:min(len(args), 2)]...), "-"), func(t *testing.T) {
			want := w.run(t, w.env(), args...)
			if strings.Contains(want.status, "signal") || want.out == "" {
				t.Fatalf("without the shim: %+v", want)
			}
			s, done := listen(t, &log{}, ModeObserve)
			diff(t, "no server", w.run(t, append(w.env(), "LD_PRELOAD="+s.Path()), args...), want)
			diff(t, "dead server", w.run(t, append(w.env(), "LD_PRELOAD="+s.Path(), "NVTRACE_SHIM=2:key:/nonexistent/s"), args...), want)
			diff(t, "observe", w.run(t, s.Env(w.env()), args...), want)
			done()
			diff(t, "capture", w.trace(t, &log{}, ModeCapture, args...), want)
			same := &log{replace: func(*Image) ([]byte, bool) { return nil, false }}
			diff(t, "replace nothing", w.trace(t, same, ModeCapture, args...), want)
		})
	}
}

const testPTX = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n\x00"

// TestRoutes: whatever the way, the load is told and the image is the driver's.
func TestRoutes(t *testing.T) {
	w := getWorld(t)
	for _, r := range []struct {
		args  []string
		loads int
		lib   string
	}{
		{[]string{"linked-now", "linked"}, 4, "linked-now"},
		{[]string{"linked-lazy", "linked"}, 4, "linked-lazy"},
		{[]string{"linked-nopie", "linked"}, 4, "linked-nopie"},
		{[]string{"prog", "needlib"}, 3, ""},
		// The library's own references, and not its dlsym, which is bound past any preload.
		{[]string{"prog", "deepbind"}, 1, "libneed.so"},
		{[]string{"prog", "dlmopen"}, 3, "prog"},
		{[]string{"prog", "dlsym"}, 1, "prog"},
		{[]string{"prog", "dlvsym"}, 1, "prog"},
		{[]string{"prog", "exec"}, 2, "prog"},
		{[]string{"weak-cuda"}, 1, "weak-cuda"},
	} {
		t.Run(r.args[0]+"-"+strings.Join(r.args[1:], "-"), func(t *testing.T) {
			for _, mode := range []Mode{ModeObserve, ModeCapture} {
				l := &log{}
				w.trace(t, l, mode, r.args...)
				loads := l.of("cuModuleLoadData")
				if len(loads) != r.loads {
					t.Errorf("%s: %d loads, want %d", mode, len(loads), r.loads)
				}
				for _, n := range loads {
					if n.Size != int64(len(testPTX)) || n.Hash != quickHash([]byte(testPTX)) || n.Handle>>24 != 1 || n.Ret != 0 || n.Dur <= 0 {
						t.Errorf("%s: %+v", mode, n.Call)
					}
					if r.lib != "" && filepath.Base(n.Library) != r.lib {
						t.Errorf("%s: called from %q, want %s", mode, n.Library, r.lib)
					}
					if n.TID != n.PID || n.Process == nil || n.Process.OwnID != n.PID {
						t.Errorf("%s: thread %d of process %d", mode, n.TID, n.PID)
					}
				}
				if mode == ModeObserve && len(l.images) != 0 {
					t.Errorf("observe: %d images", len(l.images))
				}
				for _, n := range loads {
					if (n.SHA256 != "") != (mode == ModeCapture) {
						t.Errorf("%s: hash %q", mode, n.SHA256)
					}
				}
				if got := l.data(); mode == ModeCapture && r.args[1:] != nil && r.args[len(r.args)-1] != "exec" && !slices.Equal(got, []string{testPTX}) {
					t.Errorf("capture: images %q, want the program's once", got)
				}
				if len(l.gaps) != 0 {
					t.Errorf("%s: gaps %v", mode, l.gaps)
				}
			}
		})
	}
}

// TestFormats: each kind of image arrives whole, in each function that takes one.
func TestFormats(t *testing.T) {
	w := getWorld(t)
	image := filepath.Join(w.dir, "image.ptx")
	l := &log{}
	r := w.trace(t, l, ModeCapture, "prog", "formats", image)
	if !strings.Contains(r.status, "exit status 8") {
		t.Fatalf("%+v", r)
	}
	type want struct {
		fn     string
		format fatbin.Format
		size   int
		part   int
		has    string
	}
	for _, x := range []want{
		{"cuLibraryLoadData", fatbin.FormatContainer, 64, 0, "the entries of a container"},
		{"cuLibraryLoadData", fatbin.FormatContainer, 64, 1, "what was there before the link"},
		{"cuModuleLoadData", fatbin.FormatUnknown, 224, 0, "\x7fELF"},
		{"cuModuleLoadData", fatbin.FormatPTX, len(testPTX), 0, ".entry k()"},
		{"cuLinkAddFile_v2", fatbin.FormatPTX, 28, 0, "// from a file"},
		{"cuLinkComplete", fatbin.FormatUnknown, 64, 0, "a linked image"},
	} {
		if !slices.ContainsFunc(l.images, func(im seenImage) bool {
			return im.Function.Name == x.fn && int(im.Size) == x.size && im.Part == x.part && strings.Contains(im.data, x.has)
		}) {
			t.Errorf("no image of %d bytes by %s", x.size, x.fn)
		}
	}
	if len(l.images) != 6 {
		t.Errorf("%d images, want each once: %q", len(l.images), l.data())
	}
	check := func(fn string, i int, ok func(n *Note) bool) {
		t.Helper()
		notes := l.of(fn)
		if len(notes) <= i || !ok(&notes[i]) {
			t.Errorf("%s: %+v", fn, notes)
		}
	}
	check("cuLibraryLoadData", 1, func(n *Note) bool { return n.Parts == 2 && n.Args[0] != 0 && n.SHA256 != "" })
	check("cuModuleLoadData", 0, func(n *Note) bool { return n.Flags&FlagKnown != 0 && n.SHA256 != "" && n.Size == 64 }) // the same container
	check("cuModuleLoadData", 3, func(n *Note) bool { return n.Ret == 1 && n.Size == 0 })
	check("cuModuleLoad", 0, func(n *Note) bool { return n.Text == image && n.Flags&FlagFile != 0 && n.Size == 28 && n.SHA256 != "" })
	check("cuModuleLoad", 1, func(n *Note) bool {
		return n.Text == "/nonexistent" && n.Ret == 301 && n.Flags&FlagUnreadable != 0
	})
	check("cuLinkAddData_v2", 0, func(n *Note) bool { return n.Text == "part" && n.Handle == 0x55 && n.Args[1] == 1 })
	check("cuLinkCreate_v2", 0, func(n *Note) bool { return n.Handle == 0x55 })
	check("cuLinkComplete", 0, func(n *Note) bool { return n.Handle == 0x55 && n.Size == 64 && n.SHA256 != "" })
	check("cuModuleGetFunction", 0, func(n *Note) bool { return n.Text == "k" && n.Handle != 0 && n.Ret == 0 })
	check("cuModuleGetFunction", 1, func(n *Note) bool { return n.Text == "missing" && n.Handle == 0 && n.Ret == 500 })
	check("cuModuleGetFunction", 2, func(n *Note) bool { return n.Text == "" && n.Ret == 1 })
	check("cuModuleGetGlobal_v2", 0, func(n *Note) bool { return n.Text == "g" })
	check("cuLibraryEnumerateKernels", 0, func(n *Note) bool { return len(n.Handles) == 4 && n.Handles[3] == n.Handles[0]+3 })
	check("cuCtxCreate_v2", 0, func(n *Note) bool { return n.Handle == 0xc003 })
	check("cuDevicePrimaryCtxRetain", 0, func(n *Note) bool { return n.Handle == 0xd003 })
	check("cuCtxDestroy_v2", 0, func(n *Note) bool { return n.Handle == 0xc003 })
	check("cuModuleUnload", 0, func(n *Note) bool { return n.Handle>>24 == 2 })
	// The driver's own use of its exports is not the program's.
	if slices.ContainsFunc(l.images, func(im seenImage) bool { return strings.Contains(im.data, "inner") }) {
		t.Error("a call from inside the driver was captured")
	}
}

// TestEdge: an image is read as far as it is there, also where a sandbox forbids
// process_vm_readv.
func TestEdge(t *testing.T) {
	w := getWorld(t)
	for _, route := range []string{"edge", "sandbox"} {
		l := &log{}
		w.trace(t, l, ModeCapture, "prog", route)
		got := l.data()
		if len(got) != 3 || got[0] != testPTX || len(got[1]) != 8192 || got[2] != "/////////\x00" {
			t.Errorf("%s: images %q", route, got)
		}
		refused := l.of("cuModuleLoadDataEx")
		if len(refused) != 3 || len(l.gaps) != 0 {
			t.Errorf("%s: %d notes, gaps %v", route, len(refused), l.gaps)
		}
		for _, n := range refused {
			if n.Flags&FlagUnreadable == 0 || n.Ret != 1 || n.Hashed != 0 {
				t.Errorf("%s: %+v", route, n.Call)
			}
		}
	}
}

func TestLookups(t *testing.T) {
	w := getWorld(t)
	l := &log{}
	w.trace(t, l, ModeObserve, "prog", "lookups")
	// By cuGetProcAddress: an export, one of its own making (whose versions are alike).
	for fn, want := range map[string]int{"cuModuleLoadData": 1, "cuModuleLoadFatBinary": 1, "cuGetExportTable": 4} {
		if got := len(l.of(fn)); got < want-1 || (fn != "cuGetExportTable" && got != want) {
			t.Errorf("%s: told %d times, want %d", fn, got, want)
		}
	}
	tables := l.of("cuGetExportTable")
	if len(tables) != 3 || tables[0].Handle != tables[1].Handle || tables[0].Handle == 0 || tables[2].Ret != 1 || tables[2].UUID[0] != 9 {
		t.Errorf("tables: %+v", tables)
	}
	if got := tables[2].uuidString(); !strings.HasPrefix(got, "09000000-0000-") {
		t.Errorf("id %s", got)
	}
	asked := l.of("cuGetProcAddress_v2")
	if len(asked) < 18 || asked[0].Text != "cuModuleLoadData" || asked[0].Args[2] != 2000 || asked[2].Text != "cuNoSuch" || asked[2].Ret != 500 {
		t.Errorf("requests: %+v", asked)
	}
	if len(l.gaps) != 0 {
		t.Errorf("gaps %v", l.gaps)
	}
}

// TestLaunches: each function's first launch is told, whatever launches it.
func TestLaunches(t *testing.T) {
	w := getWorld(t)
	l := &log{}
	r := w.trace(t, l, ModeObserve, "prog", "launches")
	want := map[string][]uint64{
		"cuLaunchKernel":                       {0x4000},
		"cuLaunchKernel_ptsz":                  {0x4001},
		"cuLaunchCooperativeKernel":            {0x4002},
		"cuLaunchCooperativeKernel_ptsz":       {0x4003},
		"cuLaunchKernelEx":                     {0x4004},
		"cuLaunchKernelEx_ptsz":                {0x4005},
		"cuLaunchCooperativeKernelMultiDevice": {0x4201},
		"cuLaunch":                             {0x4006},
		"cuLaunchGrid":                         {0x4007},
		"cuLaunchGridAsync":                    {0x4008},
		"cuGraphLaunch":                        {0x6000},
		"cuGraphAddKernelNode":                 {0x4101},
		"cuGraphAddKernelNode_v2":              {0x4102},
		"cuGraphAddNode_v2":                    {0x4103},
		"cuGraphKernelNodeSetParams":           {0x4111},
		"cuGraphExecKernelNodeSetParams_v2":    {0x4112},
		"cuGraphExecNodeSetParams":             {0x4113},
	}
	for fn, handles := range want {
		var got []uint64
		for _, n := range l.of(fn) {
			got = append(got, n.Handle)
			if n.Ret != 0 {
				t.Errorf("%s: result %d", fn, n.Ret)
			}
		}
		if !slices.Equal(got, handles) {
			t.Errorf("%s: told %x, want %x", fn, got, handles)
		}
	}
	if strings.Contains(r.out, "7") && strings.Contains(r.out, " 7 ") {
		t.Errorf("an argument did not arrive: %s", r.out)
	}
}

func TestForkExecDaemon(t *testing.T) {
	w := getWorld(t)
	for route, texts := range map[string][]string{
		"fork":   {testPTX, ".version 7.1\n// child\x00", ".version 7.2\n// parent\x00"},
		"daemon": {testPTX, ".version 7.3\n// daemon\x00"},
	} {
		l := &log{}
		w.trace(t, l, ModeCapture, "prog", route)
		// Those of two processes come in any order.
		if got := slices.Sorted(slices.Values(l.data())); !slices.Equal(got, texts) {
			t.Errorf("%s: images %q, want %q", route, got, texts)
		}
		if route == "fork" {
			if len(l.hellos) != 2 || l.hellos[0].PID == l.hellos[1].PID {
				t.Errorf("fork: %+v", l.hellos)
			}
			loads := make(map[int]int)
			for _, n := range l.of("cuModuleLoadData") {
				loads[n.PID]++
			}
			if len(loads) != 2 || loads[l.hellos[0].PID]+loads[l.hellos[1].PID] != 3 {
				t.Errorf("fork: loads by process: %v", loads)
			}
		}
	}
	l := &log{}
	w.trace(t, l, ModeCapture, "prog", "exec")
	if len(l.hellos) != 2 || l.hellos[0].PID != l.hellos[1].PID || l.hellos[0].Born == l.hellos[1].Born {
		t.Errorf("exec: %+v", l.hellos)
	}
	if p := l.hellos[0]; filepath.Base(p.Exe) != "prog" || p.Libc != LibcGlibc || p.Major != 2 || p.Minor < 17 {
		t.Errorf("hello: %+v", p)
	}
}

// TestThreads: 8 threads load 2,000 images each, 500 different ones.
func TestThreads(t *testing.T) {
	w := getWorld(t)
	for _, mode := range []Mode{ModeObserve, ModeCapture} {
		l := &log{}
		r := w.trace(t, l, mode, "prog", "threads")
		if r.out != "0 failed of 16000\n" {
			t.Errorf("%s: %q", mode, r.out)
		}
		// A machine that is busy elsewhere may have the server fall behind; then that is told, to the call.
		lost := 0
		for _, g := range l.gaps {
			if g.Code == GapLost {
				lost += g.Count
			}
		}
		if got := len(l.of("cuModuleLoadData")); got+lost != 16000 {
			t.Errorf("%s: %d loads were told, gaps %v", mode, got, l.gaps)
		}
		if len(l.hellos) != 1 {
			t.Errorf("%s: %d hellos", mode, len(l.hellos))
		}
		if mode == ModeObserve {
			continue
		}
		seen := make(map[string]int)
		for _, d := range l.data() {
			seen[d]++
		}
		if len(seen) != 500 || len(l.images) != 500 {
			t.Errorf("%d images, %d different, want 500", len(l.images), len(seen))
		}
		for _, n := range l.of("cuModuleLoadData") {
			if n.SHA256 == "" && n.Flags&FlagKnown == 0 {
				t.Errorf("an image without its hash: %+v", n.Call)
				break
			}
		}
	}
}

// TestFull: what no longer fits the shim's tables is told, and works.
func TestFull(t *testing.T) {
	w := getWorld(t)
	l := &log{}
	r := w.trace(t, l, ModeObserve, "prog", "copies")
	want := fmt.Sprintf("%d functions, 24 work\n", 24*(len(Functions())-2))
	if r.out != want || len(l.gaps) == 0 || l.gaps[0].Code != GapThunks || l.gaps[0].Function == "" {
		t.Errorf("%q, want %q; gaps %v", r.out, want, l.gaps)
	}
	targets := make(map[uint64]bool)
	for _, n := range l.of("cuModuleLoadData") {
		targets[n.Target] = true
	}
	if len(targets) < 12 || len(targets) >= 24 {
		t.Errorf("%d instances of the loader were wrapped", len(targets))
	}
	// Drivers that come and go, at addresses that come again.
	l = &log{}
	if r := w.trace(t, l, ModeObserve, "prog", "churn"); r.out != "0 bad\n" || len(l.of("cuModuleLoadData")) != 600 || len(l.gaps) != 0 {
		t.Errorf("%q, %d loads, gaps %v", r.out, len(l.of("cuModuleLoadData")), l.gaps)
	}
	l = &log{}
	w.trace(t, l, ModeObserve, "prog", "kernels")
	if n := len(l.of("cuLaunchKernel")); n < 8000 || n > 16384 || len(l.gaps) != 1 || l.gaps[0].Code != GapLaunches {
		t.Errorf("%d launches told, gaps %v", n, l.gaps)
	}
}

// TestReplace: the driver is given what nvtrace wants.
func TestReplace(t *testing.T) {
	w := getWorld(t)
	image := filepath.Join(w.dir, "image.ptx")
	other := []byte(".version 7.0\n// another text")
	container := append([]byte{0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0, 16, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 16)...)
	sum := func(b []byte) uint32 {
		s := uint32(2166136261)
		for _, c := range b {
			s = (s ^ uint32(c)) * 16777619
		}
		return s & 0xffffff
	}
	handle := func(base int, b []byte) string {
		return strings.ToLower("0x" + hexNumber(uint64(base)<<24+uint64(sum(b))))
	}
	l := &log{replace: func(im *Image) ([]byte, bool) {
		switch {
		case im.Part > 0:
			return nil, false
		case im.Function.Name == "cuLinkComplete":
			return append([]byte("\x7fELF replaced"), make([]byte, 51)...), true
		case im.Format == fatbin.FormatContainer:
			return container, true
		case im.Format == fatbin.FormatPTX:
			return other, true
		}
		return nil, false
	}}
	r := w.trace(t, l, ModeCapture, "prog", "formats", image)
	for _, want := range []string{
		"\nwrapper 2 = 0, " + handle(1, container), "\ncontainer = 0, " + handle(1, container), "\ntext = 0, " + handle(1, other),
		"\nfile = 0, " + handle(2, append(slices.Clip(other), 0)), "\nlibrary file = 0, " + handle(2, append(slices.Clip(other), 0)),
		"\ncomplete = 0, 0x40\n7f454c46207265706c61636564",
	} {
		if !strings.Contains("\n"+r.out, want) {
			t.Errorf("%q is missing in\n%s", want, r.out)
		}
	}
	if !strings.HasPrefix(r.out, "wrapper = 0, "+handle(1, container)) {
		t.Errorf("wrapper: %s", r.out)
	}
	replaced := 0
	for _, n := range l.notes {
		if n.Flags&FlagReplaced != 0 {
			replaced++
		}
	}
	if replaced != 9 {
		t.Errorf("%d calls are marked as replaced, want 9", replaced)
	}
}
