package jit

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
	c := open(t, &Options{Cache: t.TempDir()})
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
	c := open(t, &Options{Cache: "off", Timeout: 2 * time.Second, MaxBytes: 1 << 30})
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
	if err := os.WriteFile(text, []byte("no library"), 0o600); err != nil {
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

// TestCachedNeedsNoLibrary: what is in the cache is there before the library is
// loaded, and when it can't be.
func TestCachedNeedsNoLibrary(t *testing.T) {
	lib := filepath.Join(t.TempDir(), LibraryName)
	good, err := os.ReadFile(fakeLibrary(t))
	if err != nil {
		t.Fatal(err)
	}
	cache, now := t.TempDir(), time.Now()
	compile := func(image []byte) (*Result, error) {
		if err := errors.Join(os.WriteFile(lib, image, 0o600), os.Chtimes(lib, now, now)); err != nil {
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
	if r, err := compile(make([]byte, len(good))); err != nil || !r.Cached || string(r.Cubin) != "cubin: --gpu-name=sm_90 x" {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestFind: the library beside the program's libcuda wins.
func TestFind(t *testing.T) {
	lib := fakeLibrary(t)
	got, err := Find(filepath.Join(filepath.Dir(lib), "libcuda.so.1"))
	if err != nil || got != lib {
		t.Fatalf("%q, %v", got, err)
	}
}

// TestCacheDamage: what is not what was put in is compiled again.
func TestCacheDamage(t *testing.T) {
	dir := t.TempDir()
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

// TestCacheTrim: the results that were not used for the longest time go.
func TestCacheTrim(t *testing.T) {
	c, err := openCache(t.TempDir(), 4096)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "b", "c"} {
		c.put(key, &Result{Cubin: make([]byte, 1500)})
		past := time.Now().Add(-time.Hour)
		if err := os.Chtimes(filepath.Join(c.dir, key), past, past); err != nil && key != "c" {
			t.Fatal(err)
		}
		if key == "b" {
			c.get("a") // now b is the oldest
		}
	}
	if c.get("b") != nil || c.get("a") == nil || c.get("c") == nil {
		t.Errorf("a %v, b %v, c %v", c.get("a") != nil, c.get("b") != nil, c.get("c") != nil)
	}
}

// TestHelperCurrent: the compiled helper is of these sources.
func TestHelperCurrent(t *testing.T) {
	if err := built.Check("helper/zstamp.txt"); err != nil {
		t.Error(err)
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
