package jit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/internal/gen/built"
	"nvtrace/internal/need"
)

// fakeLibrary compiles testdata/fake.c.
func fakeLibrary(t testing.TB) string {
	t.Helper()
	need.Tool(t, "gcc", "")
	out := filepath.Join(t.TempDir(), LibraryName)
	if b, err := exec.Command("gcc", "-w", "-shared", "-fPIC", "-o", out, "testdata/fake.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, b)
	}
	return out
}

func open(t testing.TB, o *Options) *Compiler {
	t.Helper()
	c, err := Open(fakeLibrary(t), o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCompile(t *testing.T) {
	c := open(t, &Options{Cache: privateDir(t)})
	if major, minor, err := c.Version(); major != 13 || minor != 1 || err != nil {
		t.Fatalf("version %d.%d, %v", major, minor, err)
	}
	for _, want := range []bool{false, true} {
		r, err := c.Compile(context.Background(), []byte(".version 8.0"), "sm_90a", "--verbose")
		if err != nil {
			t.Fatal(err)
		}
		if string(r.Cubin) != "cubin: --gpu-name=sm_90a --verbose .version 8.0" || r.Info != "info" || r.Cached != want {
			t.Fatalf("%q, %q, cached %v", r.Cubin, r.Info, r.Cached)
		}
	}
	if r, err := c.Compile(context.Background(), []byte(".version 8.0\x00"), "sm_80", "--verbose"); err != nil || r.Cached {
		t.Fatalf("another target: %+v, %v", r, err)
	}
}

// TestFaults: whatever the library does, there is an answer.
func TestFaults(t *testing.T) {
	c := open(t, &Options{Cache: "off", MaxBytes: 1 << 30})
	compile := func(text string) error {
		_, err := c.Compile(context.Background(), []byte(text), "sm_90")
		return err
	}
	var refused *CompileError
	if err := compile("bad"); !errors.As(err, &refused) || refused.Result != 5 || !strings.HasSuffix(err.Error(), "line 3; fatal: bad") {
		t.Errorf("bad: %v", err)
	}
	if err := compile("memory"); !errors.As(err, &refused) || refused.Result != 2 {
		t.Errorf("memory: %v", err)
	}
	if err := compile("crash"); !errors.Is(err, ErrCrashed) {
		t.Errorf("crash: %v", err)
	}
	if err := compile("garbage"); !errors.Is(err, ErrCrashed) {
		t.Errorf("garbage: %v", err)
	}
	c = open(t, &Options{Cache: "off", Timeout: time.Second, MaxBytes: 1 << 30})
	if err := compile("hang"); !errors.Is(err, ErrTimeout) {
		t.Errorf("hang: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.Compile(ctx, []byte("x"), "sm_90"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestOpenFails(t *testing.T) {
	if _, err := Open("/nonexistent/"+LibraryName, nil); !errors.Is(err, ErrNoLibrary) {
		t.Errorf("missing: %v", err)
	}
	text := filepath.Join(t.TempDir(), LibraryName)
	if err := os.WriteFile(text, []byte("no library"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := Open(text, &Options{Cache: "off"})
	if err != nil {
		t.Fatal(err)
	}
	unusable := func(err error) bool {
		return errors.Is(err, ErrUnusable) && (strings.Contains(err.Error(), "invalid ELF header") || strings.Contains(err.Error(), "too short"))
	}
	if _, _, err := c.Version(); !unusable(err) {
		t.Errorf("version of a text: %v", err)
	}
	if _, err := c.Compile(context.Background(), []byte("x"), "sm_90"); !unusable(err) {
		t.Errorf("compiled by a text: %v", err)
	}
}

// TestCacheKey: results are those of a library's content, whatever its name and its
// times say.
func TestCacheKey(t *testing.T) {
	lib := filepath.Join(t.TempDir(), LibraryName)
	good, err := os.ReadFile(fakeLibrary(t))
	if err != nil {
		t.Fatal(err)
	}
	cache, now := privateDir(t), time.Now()
	compile := func(image []byte) (*Result, error) {
		if err := errors.Join(os.WriteFile(lib, image, 0o644), os.Chtimes(lib, now, now)); err != nil {
			t.Fatal(err)
		}
		c, err := Open(lib, &Options{Cache: cache})
		if err != nil {
			t.Fatal(err)
		}
		return c.Compile(context.Background(), []byte("x"), "sm_90")
	}
	if r, err := compile(good); err != nil || r.Cached {
		t.Fatalf("%+v, %v", r, err)
	}
	if r, err := compile(make([]byte, len(good))); !errors.Is(err, ErrUnusable) {
		t.Errorf("another library of the same name, size and time: %+v, %v", r, err)
	}
	if r, err := compile(good); err != nil || !r.Cached {
		t.Errorf("the first library again: %+v, %v", r, err)
	}
}

// TestIdentity: a library that changes while it is used is another one.
func TestIdentity(t *testing.T) {
	name := filepath.Join(t.TempDir(), LibraryName)
	content := bytes.Repeat([]byte("0123456789abcdef"), 3<<16) // 3 parts
	write := func() string {
		t.Helper()
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := openLibrary(name)
		if err != nil {
			t.Fatal(err)
		}
		defer l.file.Close()
		id, err := l.identity()
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	first := write()
	for _, at := range []int{0, 1 << 20, len(content) - 1} {
		content[at]++
		if write() == first {
			t.Errorf("byte %d changed, and the identity did not", at)
		}
		content[at]--
	}
	if write() != first {
		t.Error("the same content has another identity")
	}
	content = append(content, 0)
	if write() == first {
		t.Error("a longer file has the same identity")
	}

	l, err := openLibrary(name)
	if err != nil {
		t.Fatal(err)
	}
	defer l.file.Close()
	before, err := l.identity()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, content[1:], 0o600); err != nil {
		t.Fatal(err)
	}
	if after, err := l.identity(); err != nil || after == before {
		t.Errorf("changed while it was open: %s, %v", after, err)
	}
}

// place makes a folder of the file system's with a compiler library in it.
func place(t *testing.T, root, dir string) string {
	t.Helper()
	name := filepath.Join(root, dir, LibraryName)
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(dir), 0o644)); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestFind: the system's library comes before the one that the program brings
// along, unless the program uses another of the system's folders.
func TestFind(t *testing.T) {
	root := t.TempDir()
	t.Setenv("LD_LIBRARY_PATH", filepath.Join(root, "user")+"::.")
	system := []string{filepath.Join(root, "first"), filepath.Join(root, "second")}
	expect := func(libcuda, want string) {
		t.Helper()
		got, err := find(filepath.Join(root, libcuda), system)
		if want == "" {
			if !errors.Is(err, ErrNoLibrary) {
				t.Errorf("%s: %q, %v", libcuda, got, err)
			}
			return
		}
		if err != nil || got != filepath.Join(root, want, LibraryName) {
			t.Errorf("%s: %q, %v, want that in %s", libcuda, got, err, want)
		}
	}
	expect("program/libcuda.so.1", "")
	place(t, root, "program")
	expect("program/libcuda.so.1", "program")
	place(t, root, "user")
	expect("program/libcuda.so.1", "user")
	place(t, root, "second")
	expect("program/libcuda.so.1", "second")
	place(t, root, "first")
	expect("program/libcuda.so.1", "first")
	expect("second/libcuda.so.1", "second")
	place(t, root, "second/current")
	expect("second/current/libcuda.so.1", "second/current")
}

// TestFindTrust: what others can change is passed over, wherever on its path they
// can, and nothing that waits or that is no file is opened.
func TestFindTrust(t *testing.T) {
	type change func(t *testing.T, dir, name string) error
	other := func(path func(dir, name string) string) change {
		return func(t *testing.T, dir, name string) error {
			if os.Geteuid() != 0 {
				t.Skip("needs root, to give a file away")
			}
			return os.Chown(path(dir, name), 12345, 12345)
		}
	}
	file := func(dir, name string) string { return name }
	for what, test := range map[string]struct {
		change change
		want   string
	}{
		"nothing":                 {func(*testing.T, string, string) error { return nil }, ""},
		"file of another user":    {other(file), "belongs to user 12345"},
		"folder of another user":  {other(func(dir, name string) string { return dir }), "belongs to user 12345"},
		"folder above of another": {other(func(dir, name string) string { return filepath.Dir(dir) }), "belongs to user 12345"},
		"file open to all":        {func(t *testing.T, dir, name string) error { return os.Chmod(name, 0o666) }, "written to by others"},
		"file open to its group":  {func(t *testing.T, dir, name string) error { return os.Chmod(name, 0o664) }, "written to by others"},
		"folder open to all":      {func(t *testing.T, dir, name string) error { return os.Chmod(dir, 0o777) }, "written to by others"},
		"sticky folder":           {func(t *testing.T, dir, name string) error { return os.Chmod(dir, 0o777|os.ModeSticky) }, ""},
		"folder above open":       {func(t *testing.T, dir, name string) error { return os.Chmod(filepath.Dir(dir), 0o777) }, "written to by others"},
		"FIFO": {func(t *testing.T, dir, name string) error {
			return errors.Join(os.Remove(name), syscall.Mkfifo(name, 0o600))
		}, "no regular file"},
		"link to an open folder": {func(t *testing.T, dir, name string) error {
			open := filepath.Join(t.TempDir(), "open")
			return errors.Join(os.Mkdir(open, 0o755), os.Chmod(open, 0o777), os.Rename(name, filepath.Join(open, "lib")), os.Symlink(filepath.Join(open, "lib"), name))
		}, "written to by others"},
	} {
		t.Run(what, func(t *testing.T) {
			root := t.TempDir()
			name := place(t, root, "above/dir")
			if err := test.change(t, filepath.Dir(name), name); err != nil {
				t.Fatal(err)
			}
			got, err := find(filepath.Join(filepath.Dir(name), "libcuda.so.1"), nil)
			_, openErr := Open(name, &Options{Cache: "off"})
			if test.want == "" {
				if err != nil || got != name || openErr != nil {
					t.Errorf("%q, %v, opened: %v", got, err, openErr)
				}
				return
			}
			if !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%q, %v, want %q", got, err, test.want)
			}
			if openErr == nil || !strings.Contains(openErr.Error(), test.want) {
				t.Errorf("opened: %v, want %q", openErr, test.want)
			}
		})
	}
}

// TestConfined: the library can read the system's libraries and compute, and that
// is all.
func TestConfined(t *testing.T) {
	victim := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(victim, []byte("secret"), 0o666); err != nil {
		t.Fatal(err)
	}
	leaked, err := os.Open(victim)
	if err != nil {
		t.Fatal(err)
	}
	defer leaked.Close()
	if _, err := unix.FcntlInt(leaked.Fd(), unix.F_SETFD, 0); err != nil { // as one that nvtrace was started with
		t.Fatal(err)
	}
	t.Setenv("NVTRACE_SECRET", "1")
	r, err := open(t, &Options{Cache: "off"}).Compile(context.Background(), []byte("confined:"+victim+":"), "sm_90")
	if err != nil {
		t.Fatal(err)
	}
	got := strings.TrimPrefix(r.Info, "could:")
	if _, _, missing := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 1); missing != 0 {
		got = strings.Replace(got, " read a file,", "", 1)
	}
	if got != "" {
		t.Errorf("the library could%s", got)
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "secret" {
		t.Errorf("%q, %v", b, err)
	}
}

// privateDir returns a folder that a cache may be in.
func privateDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestCacheFolder: a folder that others can look into or change is not used.
func TestCacheFolder(t *testing.T) {
	dir := privateDir(t)
	if _, err := openCache(dir, 0); err != nil {
		t.Error(err)
	}
	for _, mode := range []os.FileMode{0o777, 0o770, 0o701} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := openCache(dir, 0); err == nil || !strings.Contains(err.Error(), "other") {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := errors.Join(os.Chmod(dir, 0o700), os.Chown(dir, 12345, 12345)); err != nil {
		t.Fatal(err)
	}
	if _, err := openCache(dir, 0); err == nil || !strings.Contains(err.Error(), "belongs to user 12345") {
		t.Errorf("another's: %v", err)
	}
	t.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "home"))
	if c, err := openCache("", 0); c == nil || err != nil {
		t.Errorf("a new folder of ours in another's: %v, %v", c, err)
	}
	if err := os.Chown(filepath.Join(dir, "home/nvtrace/jit"), 12345, 12345); err != nil {
		t.Fatal(err)
	}
	if c, err := openCache("", 0); c != nil || err != nil {
		t.Errorf("the default folder belongs to another: %v, %v", c, err)
	}
}

// What was kept is found again by all that it depends on, and by nothing else.
func TestKept(t *testing.T) {
	dir := privateDir(t)
	c, err := Open(fakeLibrary(t), &Options{Cache: dir})
	if err != nil {
		t.Fatal(err)
	}
	c.Keep([]string{"a", "bc"}, "info", []byte("data"))
	if info, data, ok := c.Kept([]string{"a", "bc"}); !ok || info != "info" || string(data) != "data" {
		t.Errorf("%q, %q, %v", info, data, ok)
	}
	for _, parts := range [][]string{{"ab", "c"}, {"a"}, nil} {
		if _, _, ok := c.Kept(parts); ok {
			t.Errorf("%q is found", parts)
		}
	}
	other := filepath.Join(privateDir(t), "other.so")
	if err := os.WriteFile(other, []byte("another compiler"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, o := range []*Options{{Cache: dir}, {Cache: "off"}} {
		c, err := Open(other, o)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, ok := c.Kept([]string{"a", "bc"}); ok {
			t.Errorf("found with %+v and another compiler", o)
		}
	}
}

// TestCacheEntries: an entry that is no file, is another's, or is that of another
// key is not taken, and nothing waits for it.
func TestCacheEntries(t *testing.T) {
	dir := privateDir(t)
	c, err := openCache(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)
	fresh := func() {
		t.Helper()
		_ = os.RemoveAll(filepath.Join(dir, a))
		c.put(a, &Result{Cubin: []byte("cubin")})
		if c.get(a) == nil {
			t.Fatal("not kept")
		}
	}
	refused := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if r := c.get(a); r != nil {
			t.Errorf("%s: served", what)
		}
	}
	name := filepath.Join(dir, a)
	fresh()
	refused("open to others", os.Chmod(name, 0o644))
	fresh()
	refused("FIFO", errors.Join(os.Remove(name), syscall.Mkfifo(name, 0o600)))
	fresh()
	refused("link", errors.Join(os.Rename(name, filepath.Join(t.TempDir(), "x")), os.Symlink("/dev/zero", name)))
	fresh()
	refused("folder", errors.Join(os.Remove(name), os.Mkdir(name, 0o700)))
	fresh()
	if err := os.Truncate(name, 10<<30); err != nil { // sparse
		t.Fatal(err)
	}
	refused("10 GiB", nil)
	fresh()
	c.put(b, &Result{Cubin: []byte("another")})
	refused("that of another key", os.Rename(filepath.Join(dir, b), name))
	if os.Geteuid() == 0 {
		fresh()
		refused("another user's", os.Chown(name, 12345, 12345))
	}
}

// TestCacheDamage: what is not what was put in is compiled again.
func TestCacheDamage(t *testing.T) {
	dir := privateDir(t)
	c := open(t, &Options{Cache: dir})
	compile := func() *Result {
		t.Helper()
		r, err := c.Compile(context.Background(), []byte("x"), "sm_90")
		if err != nil || string(r.Cubin) != "cubin: --gpu-name=sm_90 x" {
			t.Fatalf("%+v, %v", r, err)
		}
		return r
	}
	compile()
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	name := filepath.Join(dir, files[0].Name())
	good, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if err := os.WriteFile(name, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if r := c.cache.get(files[0].Name()); r != nil {
			t.Fatalf("byte %d changed: %q", i, r.Cubin)
		}
		if err := os.WriteFile(name, good[:i], 0o600); err != nil {
			t.Fatal(err)
		}
		if r := c.cache.get(files[0].Name()); r != nil {
			t.Fatalf("cut to %d bytes: %q", i, r.Cubin)
		}
	}
	if compile().Cached {
		t.Error("damaged file served")
	}
}

// TestCacheTrim: the results that were not used for the longest time go, and nothing
// that is not the cache's.
func TestCacheTrim(t *testing.T) {
	dir := privateDir(t)
	c, err := openCache(dir, 4096)
	if err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-2 * time.Hour)
	file := func(name, content string) {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(name, []byte(content), 0o600), os.Chtimes(name, past, past)); err != nil {
			t.Fatal(err)
		}
	}
	key := func(letter string) string { return strings.Repeat(letter, 64) }
	theirs := []string{"thesis.tex", "new-thesis.tex", key("d"), "NEW"}
	for _, name := range theirs {
		file(name, strings.Repeat("theirs", 1000))
	}
	file("new-LEFTBEHIND", cacheMagic[:5])
	file("new-EMPTY", "")
	file(key("e"), "nvtrace jit 1\nan older format")
	older := past.Add(-time.Hour)
	for _, l := range []string{"d", "e"} {
		if err := os.Chtimes(filepath.Join(dir, key(l)), older, older); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range []string{"a", "b", "c"} {
		c.put(key(l), &Result{Cubin: make([]byte, 1500)})
		if err := os.Chtimes(filepath.Join(dir, key(l)), past, past); err != nil && l != "c" {
			t.Fatal(err)
		}
		if l == "b" {
			c.get(key("a")) // now b is the oldest
		}
	}
	for _, name := range theirs {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Size() != 6000 {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"new-LEFTBEHIND", "new-EMPTY", key("e")} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
	if c.get(key("b")) != nil || c.get(key("a")) == nil || c.get(key("c")) == nil {
		t.Errorf("a %v, b %v, c %v", c.get(key("a")) != nil, c.get(key("b")) != nil, c.get(key("c")) != nil)
	}
}

// TestHelperCurrent: the compiled helper is of these sources.
func TestHelperCurrent(t *testing.T) {
	if err := built.Check("helper/zstamp.txt"); err != nil {
		t.Error(err)
	}
}

// TestHelperReproducible: the compiled helper is what these sources make.
func TestHelperReproducible(t *testing.T) {
	if why, ok := built.Reproducible("helper/zstamp.txt"); !ok {
		t.Skip(why)
	}
	out := filepath.Join(t.TempDir(), "ptxjit")
	if b, err := exec.Command("sh", "helper/build.sh", out).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	made, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	f, err := helperFile()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	committed, err := io.ReadAll(f)
	if err != nil || !bytes.Equal(made, committed) {
		t.Errorf("%d bytes are made, %d are committed, and they differ (%v)", len(made), len(committed), err)
	}
}

// FuzzAnswer: the helper's answer is not trusted.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("NTXJ"))
	f.Add([]byte("NTXJ\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00x"))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parseAnswer(b)
		if err == nil && len(a.program)+len(a.info)+len(a.errors) > len(b) {
			t.Errorf("more than there is")
		}
	})
}

// TestDriver compiles with a real library, where there is one.
func TestDriver(t *testing.T) {
	lib, err := Find("")
	if err != nil {
		t.Skip(err)
	}
	c, err := Open(lib, &Options{Cache: "off"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Compile(context.Background(), []byte(".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n"), "sm_90", "--verbose")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(r.Cubin, []byte("\x7fELF")) {
		t.Errorf("%d bytes, no cubin", len(r.Cubin))
	}
	var refused *CompileError
	if _, err := c.Compile(context.Background(), []byte("nonsense"), "sm_90"); !errors.As(err, &refused) || refused.Log == "" {
		t.Errorf("nonsense: %v", err)
	}
}
