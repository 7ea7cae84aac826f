package capture

import (
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Exports are what the dynamic symbol table has, at their places in the file.
func TestExports(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src := filepath.Join(dir, "a.c")
	if err := os.WriteFile(src, []byte("int exit_here(void) { return 1; }\nstatic int hidden(void) { return 2; }\nint (*p)(void) = hidden;\nint main(void) { return 0; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, hash := range []string{"gnu", "sysv"} {
		lib := filepath.Join(dir, hash+".so")
		if b, err := exec.Command("gcc", "-shared", "-fPIC", "-Wl,--hash-style="+hash, "-o", lib, src).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, b)
		}
		f, err := os.Open(lib)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		got, err := Exports(f, "exit_here", "hidden", "missing")
		if err != nil || len(got) != 1 {
			t.Fatalf("%s: %v, %v", hash, got, err)
		}
		e, err := elf.NewFile(f)
		if err != nil {
			t.Fatal(err)
		}
		symbols, err := e.DynamicSymbols()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range symbols {
			text := e.Sections[s.Section%elf.SectionIndex(len(e.Sections))]
			if want := s.Value - text.Addr + text.Offset; s.Name == "exit_here" && got[s.Name] != want {
				t.Errorf("%s: at %#x, want %#x", hash, got[s.Name], want)
			}
		}
	}
	static := filepath.Join(dir, "static")
	if b, err := exec.Command("gcc", "-static", "-o", static, src).CombinedOutput(); err != nil {
		t.Skipf("gcc -static: %v\n%s", err, b)
	}
	f, err := os.Open(static)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := Exports(f, "exit"); !errors.Is(err, ErrNoExports) {
		t.Errorf("static: %v", err)
	}
}
