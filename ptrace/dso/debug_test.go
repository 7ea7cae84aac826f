package dso_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/ptrace/dso"
)

// TestSymbolsOf: a stripped file's symbols are found in its debug file, by the link and by the build ID, and not in
// the debug file of another build.
func TestSymbolsOf(t *testing.T) {
	gcc, objcopy := need.Tool(t, "gcc", ""), need.Tool(t, "objcopy", "")
	dir := t.TempDir()
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	source := filepath.Join(dir, "app.c")
	build := func(id, body string) {
		t.Helper()
		if err := os.WriteFile(source, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		run(gcc, "-O1", "-Wl,--build-id="+id, "-o", "app", "app.c")
		run(objcopy, "--only-keep-debug", "app", "app.debug")
		run(objcopy, "--strip-all", "--add-gnu-debuglink=app.debug", "app")
	}
	look := func() bool {
		t.Helper()
		r, err := os.Open(filepath.Join(dir, "app"))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		f, err := dso.Read(r)
		if err != nil {
			t.Fatal(err)
		}
		list, err := f.SymbolsOf(filepath.Join(dir, "app"), "")
		if err != nil {
			t.Error(err)
		}
		return slices.ContainsFunc(list, func(s dso.Symbol) bool { return s.Name == "hidden" && s.Function() })
	}
	const text = "__attribute__((noinline)) static int hidden(int n) { __asm__ volatile(\"\"); return n; }\nint main(void) { return hidden(0); }\n"
	t.Setenv("DEBUGINFOD_CACHE_PATH", filepath.Join(dir, "cache"))
	for _, id := range []string{"none", "sha1"} {
		build(id, text)
		if !look() {
			t.Errorf("build ID %s: not found beside the file", id)
		}
		debug := filepath.Join(dir, "app.debug")
		if err := os.Mkdir(filepath.Join(dir, ".debug"), 0o700); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
		if err := os.Rename(debug, filepath.Join(dir, ".debug", "app.debug")); err != nil {
			t.Fatal(err)
		}
		if !look() {
			t.Errorf("build ID %s: not found in .debug", id)
		}
		kept, err := os.ReadFile(filepath.Join(dir, ".debug", "app.debug"))
		if err != nil {
			t.Fatal(err)
		}
		build(id, "int other;\n"+text)
		if err := os.WriteFile(debug, kept, 0o600); err != nil {
			t.Fatal(err)
		}
		if look() {
			t.Errorf("build ID %s: the debug file of another build was taken", id)
		}
		if err := os.RemoveAll(filepath.Join(dir, ".debug")); err != nil {
			t.Fatal(err)
		}
	}
	cache := filepath.Join(dir, "cache", "0123456789abcdef0123")
	build("0x0123456789abcdef0123", text)
	if err := os.MkdirAll(cache, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "app.debug"), filepath.Join(cache, "debuginfo")); err != nil {
		t.Fatal(err)
	}
	if !look() {
		t.Error("not found in debuginfod's cache")
	}
}

// TestCarriedSymbols: what a stripped file carries in .gnu_debugdata is found; what is damaged there is not believed.
func TestCarriedSymbols(t *testing.T) {
	gcc, objcopy, xz := need.Tool(t, "gcc", ""), need.Tool(t, "objcopy", ""), need.Tool(t, "xz", "")
	dir := t.TempDir()
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	const text = "__attribute__((noinline)) static int hidden(int n) { __asm__ volatile(\"\"); return n; }\nint main(void) { return hidden(0); }\n"
	if err := os.WriteFile(filepath.Join(dir, "app.c"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run(gcc, "-O1", "-o", "whole", "app.c")
	look := func(packed []byte) bool {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "packed"), packed, 0o600); err != nil {
			t.Fatal(err)
		}
		run(objcopy, "--strip-all", "--add-section", ".gnu_debugdata=packed", "whole", "app")
		r, err := os.Open(filepath.Join(dir, "app"))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		f, err := dso.Read(r)
		if err != nil {
			t.Fatal(err)
		}
		list, err := f.SymbolsOf(filepath.Join(dir, "app"), "")
		if err != nil {
			t.Error(err)
		}
		return slices.ContainsFunc(list, func(s dso.Symbol) bool { return s.Name == "hidden" && s.Function() })
	}
	run(xz, "-k", "--threads=1", "whole")
	packed, err := os.ReadFile(filepath.Join(dir, "whole.xz"))
	if err != nil {
		t.Fatal(err)
	}
	if !look(packed) {
		t.Error("not found")
	}
	run(xz, "-kf", "--threads=2", "whole") // has sizes in the block's header
	if sized, err := os.ReadFile(filepath.Join(dir, "whole.xz")); err != nil || !look(sized) {
		t.Errorf("with sizes: not found, %v", err)
	}
	for _, n := range []int{0, 5, 13, 20, len(packed) / 2} {
		if look(packed[:n]) {
			t.Errorf("found in %d of %d bytes", n, len(packed))
		}
	}
	for i := range 24 {
		damaged := slices.Clone(packed)
		damaged[i] ^= 0xff
		look(damaged) // must end
	}
}
