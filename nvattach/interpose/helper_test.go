package interpose

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"nvtrace/internal/need"
	"nvtrace/nvattach/interpose/internal/build"
)

// world is a folder with a simulated driver and programs that use it.
type world struct {
	dir  string
	libs string // of another C library, in front of the search path
}

var makeWorld = sync.OnceValues(func() (*world, error) { return newWorld("") })

// newWorld makes it for the machine's C library, or for the one that is unpacked
// (libc6, libc6-dev, linux-libc-dev) in root, whose links must not lead out of it.
func newWorld(root string) (*world, error) {
	dir, err := os.MkdirTemp("", "interpose-test-")
	if err != nil {
		return nil, err
	}
	w := &world{dir: dir}
	flags := ""
	if root != "" {
		w.libs = root + "/lib/x86_64-linux-gnu:" + root + "/usr/lib/x86_64-linux-gnu:"
		lib := root + "/usr/lib/x86_64-linux-gnu"
		flags = "--sysroot=" + root + " -B" + lib + " -L" + lib + " -L" + root + "/lib/x86_64-linux-gnu -Wl,--dynamic-linker=" + root + "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
	}
	src, err := filepath.Abs("testdata")
	if err != nil {
		return w, err
	}
	var names strings.Builder
	for _, f := range Functions() {
		if f.Class != ClassOther {
			fmt.Fprintf(&names, "%q,", f.Name)
		}
	}
	script := `
set -e
g="gcc $FLAGS -DFUNCTIONS=$FUNCTIONS -O1 -g -Wall -Werror -fno-builtin-dladdr -Wno-unused"
d="-ldl -lpthread"
$g -shared -fPIC -Wl,-soname,libcuda.so.1 -o libcuda.so.1 "$S"/fakecuda.c $d
ln -s libcuda.so.1 libcuda.so
echo 'CUDA_1 { global: cu*; local: *; };' > map
$g -shared -fPIC -Wl,-soname,libcudav.so -Wl,--version-script=map -o libcudav.so "$S"/fakecuda.c $d
$g -shared -fPIC -o libneed.so "$S"/need.c -L. -lcuda $d
for i in $(seq 0 23); do cp libcuda.so.1 libcopy$i.so; done
mkdir -p lib/sub
$g -shared -fPIC -o lib/sub/libplug.so "$S"/plug.c
$g -shared -fPIC -Wl,--enable-new-dtags -Wl,-rpath,'$ORIGIN/sub' -o lib/libcaller.so "$S"/caller.c $d
$g -rdynamic -o prog "$S"/prog.c $d
$g -DLINKED -o linked-now "$S"/prog.c -L. -lcuda -Wl,-z,now -Wl,-z,relro $d
$g -DLINKED -o linked-lazy "$S"/prog.c -L. -lcuda -Wl,-z,lazy $d
$g -DLINKED -fno-pie -no-pie -o linked-nopie "$S"/prog.c -L. -lcuda -Wl,-z,lazy $d
$g -DWEAK -o weak "$S"/prog.c $d
$g -DWEAK -fno-plt -Wl,-z,now -o weak-now "$S"/prog.c $d
$g -DWEAK -fno-pie -no-pie -Wl,-z,lazy -o weak-nopie "$S"/prog.c $d
$g -DWEAK -o weak-cuda "$S"/prog.c -L. -Wl,--no-as-needed -lcuda $d
`
	cmd := exec.Command("bash", "-c", script)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "S="+src, "FUNCTIONS="+names.String(), "FLAGS="+flags)
	if out, err := cmd.CombinedOutput(); err != nil {
		return w, fmt.Errorf("%w\n%s", err, out)
	}
	err = os.WriteFile(filepath.Join(dir, "image.ptx"), []byte(".version 8.0\n// from a file\n"), 0o644)
	return w, err
}

func getWorld(t testing.TB) *world {
	t.Helper()
	w, err := makeWorld()
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestMain(m *testing.M) {
	code := m.Run()
	if w, _ := makeWorld(); w != nil {
		_ = os.RemoveAll(w.dir)
	}
	os.Exit(code)
}

// env is what the programs are started with.
func (w *world) env() []string {
	return []string{"LD_LIBRARY_PATH=" + w.libs + w.dir + ":" + w.dir + "/lib", "PATH=" + os.Getenv("PATH"), "HOME=" + w.dir, "LC_ALL=C"}
}

// result is what a program showed.
type result struct {
	out, err string
	status   string
}

func (w *world) run(t testing.TB, env []string, args ...string) result {
	t.Helper()
	ctx := need.Limit(t)
	name := args[0]
	if !strings.Contains(name, "/") {
		if p, err := exec.LookPath(name); err == nil && !fileExists(filepath.Join(w.dir, name)) {
			name = p
		} else {
			name = filepath.Join(w.dir, name)
		}
	}
	cmd := exec.CommandContext(ctx, name, args[1:]...)
	cmd.Env, cmd.Dir = env, w.dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatalf("%v: %v", args, err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.String()}
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// log collects what a server is told.
type log struct {
	mu     sync.Mutex
	hellos []Process
	notes  []Note
	images []seenImage
	gaps   []Gap
	// replace answers OnImage, if set.
	replace func(im *Image) ([]byte, bool)
}

type seenImage struct {
	Call
	data string
}

func (l *log) options(mode Mode) *Options {
	return &Options{
		Mode: mode, Replace: l.replace != nil, Wait: 20 * time.Second,
		OnHello: func(p *Process) { l.mu.Lock(); l.hellos = append(l.hellos, *p); l.mu.Unlock() },
		OnNote:  func(n *Note) { l.mu.Lock(); l.notes = append(l.notes, *n); l.mu.Unlock() },
		OnGap:   func(g *Gap) { l.mu.Lock(); l.gaps = append(l.gaps, *g); l.mu.Unlock() },
		OnImage: func(im *Image) ([]byte, bool) {
			b := make([]byte, im.Size)
			if _, err := im.ReadAt(b, 0); err != nil {
				b = []byte(err.Error())
			}
			l.mu.Lock()
			l.images = append(l.images, seenImage{im.Call, string(b)})
			l.mu.Unlock()
			if l.replace != nil {
				return l.replace(im)
			}
			return nil, false
		},
	}
}

// of returns the notes of a function.
func (l *log) of(name string) []Note {
	var out []Note
	for _, n := range l.notes {
		if n.Function.Name == name {
			out = append(out, n)
		}
	}
	return out
}

func (l *log) data() []string {
	var out []string
	for _, im := range l.images {
		out = append(out, im.data)
	}
	return out
}

// listen starts a server; close ends it and makes the log complete.
func listen(t testing.TB, l *log, mode Mode) (s *Server, closeServer func()) {
	t.Helper()
	s, err := Listen(l.options(mode))
	if err != nil {
		t.Fatal(err)
	}
	closeServer = sync.OnceFunc(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(closeServer)
	return s, closeServer
}

// trace runs a program under the shim.
func (w *world) trace(t testing.TB, l *log, mode Mode, args ...string) result {
	t.Helper()
	s, done := listen(t, l, mode)
	r := w.run(t, s.Env(w.env()), args...)
	done()
	return r
}

var rebuilt = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "interpose-shim-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	out := filepath.Join(dir, "libnvtrace.so")
	if err := build.Shim("shim", out); err != nil {
		return nil, err
	}
	return os.ReadFile(out)
})

func diff(t *testing.T, what string, got, want result) {
	t.Helper()
	if got == want {
		return
	}
	g, w := strings.Split(got.out, "\n"), strings.Split(want.out, "\n")
	for i := range max(len(g), len(w)) {
		var a, b string
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			t.Errorf("%s: line %d: %q, without the shim %q", what, i+1, a, b)
			break
		}
	}
	if got.err != want.err {
		t.Errorf("%s: stderr %q, without the shim %q", what, got.err, want.err)
	}
	if got.status != want.status {
		t.Errorf("%s: %s, without the shim %s", what, got.status, want.status)
	}
}

func hexNumber(n uint64) string { return strconv.FormatUint(n, 16) }
