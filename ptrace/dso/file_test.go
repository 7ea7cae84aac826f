package dso

import (
	"bytes"
	"debug/elf"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nvtrace/ptrace/proc"
)

// source is a library with functions of all kinds.
func source() string {
	var b strings.Builder
	b.WriteString(`
int data = 7;
static int hidden(int v) { return v + data; }
__attribute__((visibility("hidden"))) int internal(int v) { return hidden(v) + 1; }
static int (*resolve(void))(int) { return hidden; }
int chosen(int v) __attribute__((ifunc("resolve")));
extern int elsewhere(int);
`)
	for i := range 40 {
		fmt.Fprintf(&b, "int exported_%d(int v) { return internal(v) * %d + elsewhere(v); }\n", i, i+3)
	}
	b.WriteString("int same(int) __attribute__((alias(\"exported_7\")));\n")
	return b.String()
}

// build compiles a library of it.
func build(tb testing.TB, flags ...string) string {
	tb.Helper()
	return compile(tb, source(), append([]string{"-shared", "-fPIC"}, flags...)...)
}

func compile(tb testing.TB, text string, flags ...string) string {
	tb.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		tb.Skip("no gcc")
	}
	dir := tb.TempDir()
	src, out := filepath.Join(dir, "a.c"), filepath.Join(dir, "lib.so")
	if err := os.WriteFile(src, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	if b, err := exec.Command("gcc", append([]string{"-w", "-O1", "-o", out, src}, flags...)...).CombinedOutput(); err != nil {
		tb.Fatalf("gcc: %v\n%s", err, b)
	}
	return out
}

func readFile(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// TestLookup compares the reading of exports with debug/elf, for each kind of hash
// table, and without section headers.
func TestLookup(t *testing.T) {
	for name, flags := range map[string][]string{
		"gnu": {"-Wl,--hash-style=gnu"}, "sysv": {"-Wl,--hash-style=sysv"}, "both": {"-Wl,--hash-style=both", "-Wl,--build-id=sha1"},
		"stripped": {"-s"}, "few": {"-Wl,-z,separate-code"},
	} {
		t.Run(name, func(t *testing.T) {
			b := readFile(t, build(t, flags...))
			ref, err := elf.NewFile(bytes.NewReader(b))
			if err != nil {
				t.Fatal(err)
			}
			syms, err := ref.DynamicSymbols()
			if err != nil {
				t.Fatal(err)
			}
			want := make(map[string]uint64)
			names := []string{"nothing", "hidden", "data", "elsewhere"}
			for _, s := range syms {
				if typ := elf.ST_TYPE(s.Info); s.Section != elf.SHN_UNDEF && (typ == elf.STT_FUNC || typ == elf.STT_GNU_IFUNC) {
					want[s.Name] = s.Value
					names = append(names, s.Name)
				}
			}
			if len(want) < 42 {
				t.Fatalf("the library exports %d functions only", len(want))
			}
			clear(b[40:48]) // no section headers
			clear(b[60:64])
			f, err := Read(bytes.NewReader(b))
			if err != nil {
				t.Fatal(err)
			}
			check := func(how string) {
				got, err := f.Lookup(names...)
				if err != nil {
					t.Errorf("%s: %v", how, err)
				}
				if len(got) != len(want) {
					t.Errorf("%s: found %d functions, want %d", how, len(got), len(want))
				}
				for n, v := range want {
					s := got[n]
					if s.Addr != v || s.Name != n || s.Indirect() != (n == "chosen") || s.Function() == s.Indirect() {
						t.Errorf("%s: %s is %+v, want %#x", how, n, s, v)
					}
				}
			}
			check("hash table")
			f.gnuHash, f.sysHash = 0, 0
			check("no hash table")
			if name == "both" && len(f.BuildID()) != 40 {
				t.Errorf("build id %q", f.BuildID())
			}
			if !f.HasExports() || len(f.Sections()) != 0 {
				t.Errorf("exports: %t, %d sections", f.HasExports(), len(f.Sections()))
			}
		})
	}
	if _, err := Read(strings.NewReader("#!/bin/sh\n")); err == nil {
		t.Error("a script is an ELF file")
	}
}

// TestTables compares sections, symbols and strings with debug/elf, in files of this machine, too.
func TestTables(t *testing.T) {
	files := []string{build(t), build(t, "-s"), compile(t, "int main(void) { return 0; }", "-static")}
	if own, err := os.Executable(); err == nil {
		files = append(files, own) // Go's, statically linked
	}
	for _, name := range files {
		b := readFile(t, name)
		ref, err := elf.NewFile(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		f, err := Read(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range f.Sections() {
			want := ref.Sections[i].SectionHeader
			if want.Flags&elf.SHF_COMPRESSED != 0 {
				want.Size = want.FileSize // debug/elf has the size after decompression
			}
			if s != want {
				t.Errorf("%s: section %+v, want %+v", name, s, want)
			}
		}
		for i, p := range f.Progs {
			if want := ref.Progs[i].ProgHeader; p != want {
				t.Errorf("%s: program header %+v, want %+v", name, p, want)
			}
		}
		same := func(what string, got []Symbol, err error, want []elf.Symbol) {
			if err != nil || len(got) != len(want) || len(f.Sections()) != len(ref.Sections) {
				t.Errorf("%s: %d %s, want %d: %v", name, len(got), what, len(want), err)
				return
			}
			for i, s := range want {
				w := Symbol{Name: s.Name, Addr: s.Value, Size: s.Size, Type: elf.ST_TYPE(s.Info), Defined: s.Section != elf.SHN_UNDEF}
				if got[i] != w {
					t.Errorf("%s: symbol %+v, want %+v", name, got[i], w)
				}
			}
		}
		named := func(what string, all []Symbol, find func(...string) ([]Symbol, error)) {
			for _, names := range [][]string{{"main", "exported_3"}, {"same"}, {"no such name"}, {"memcpy", "elsewhere", "hidden"}} {
				var want []Symbol
				for _, s := range all {
					if slices.Contains(names, s.Name) {
						want = append(want, s)
					}
				}
				if got, err := find(names...); err != nil || !slices.Equal(got, want) {
					t.Errorf("%s: %s named %q: %v, %v, want %v", name, what, names, got, err, want)
				}
			}
		}
		got, err := f.DynamicSymbols()
		want, _ := ref.DynamicSymbols() // an error says that there are none
		same("dynamic symbols", got, err, want)
		named("dynamic symbols", got, f.DynamicSymbolsNamed)
		got, err = f.Symbols()
		want, _ = ref.Symbols()
		same("symbols", got, err, want)
		named("symbols", got, f.SymbolsNamed)
		libs, _ := ref.ImportedLibraries()
		if got := f.Strings(elf.DT_NEEDED); !slices.Equal(got, libs) {
			t.Errorf("%s: linked with %q, want %q", name, got, libs)
		}
	}
	static, err := Read(bytes.NewReader(readFile(t, files[2])))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := static.Lookup("main"); len(got) > 0 || err != nil || static.HasExports() || static.HasInterpreter() {
		t.Errorf("a static executable exports %v, %v", got, err)
	}
}

// TestContains: a text is found wherever in a section it is, and nowhere else.
func TestContains(t *testing.T) {
	const text, at, size = "libcuda.so.1", 64, 600 << 10
	b := make([]byte, at+size+100)
	copy(b, "\x7fELF\x02\x01")
	f, err := Read(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	s := &elf.SectionHeader{Type: elf.SHT_PROGBITS, Offset: at, Size: size}
	has := func(most uint64) bool {
		got, err := f.Contains(s, text, most)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if has(size) {
		t.Error("found in nothing")
	}
	for _, off := range []int{0, 256<<10 - 13, 256<<10 - 12, 256<<10 - 5, 256<<10 - 1, 256 << 10, 512<<10 - 6, size - len(text)} {
		copy(b[at+off:], text)
		if !has(size) || has(uint64(off+len(text)-1)) {
			t.Errorf("at +%#x: found %v, and in less %v", off, has(size), has(uint64(off+len(text)-1)))
		}
		clear(b[at+off:][:len(text)])
	}
	if copy(b[at+size-1:], text); has(1 << 40) {
		t.Error("found behind the section")
	}
	s.Size = 1 << 40
	if _, err := f.Contains(s, "another", 1<<40); err == nil {
		t.Error("a section longer than the file has an end")
	}
}

// TestStarts: the table for unwinding stacks has each function that has a symbol, and the
// addresses lead to their code.
func TestStarts(t *testing.T) {
	b := readFile(t, build(t))
	f, err := Read(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	starts, err := f.Starts()
	if err != nil {
		t.Fatal(err)
	}
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for i := range symbols {
		s := &symbols[i]
		if !s.Function() || !strings.HasPrefix(s.Name, "exported_") {
			continue
		}
		n++
		if _, found := slices.BinarySearch(starts, s.Addr); !found {
			t.Errorf("%s, at %#x, is not in the table", s.Name, s.Addr)
		}
		code := make([]byte, s.Size)
		if err := f.ReadAt(code, s.Addr); err != nil {
			t.Fatal(err)
		}
		if off, ok := f.Offset(s.Addr); !ok || !bytes.Equal(b[off:off+s.Size], code) {
			t.Errorf("%s is not at +%#x", s.Name, off)
		}
	}
	if n != 40 {
		t.Errorf("%d functions", n)
	}
	if _, ok := f.Offset(symbols[len(symbols)-1].Addr | 1<<60); ok {
		t.Error("code beyond the file")
	}
}

// TestDamaged: whatever is wrong with a file, reading it ends, and finds code in executable
// segments only.
func TestDamaged(t *testing.T) {
	b := readFile(t, build(t, "-Wl,--hash-style=both"))
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		d := bytes.Clone(b)
		for range 1 + random.IntN(8) {
			at := random.IntN(len(d))
			if random.IntN(2) == 0 {
				at = random.IntN(0x400) // headers
			}
			if random.IntN(3) == 0 {
				at = len(d) - 1 - random.IntN(0x800) // section headers
			}
			d[at] = byte(random.Uint32())
		}
		use(t, d[:len(d)-random.IntN(2)*random.IntN(len(d))])
	}
}

// use calls everything.
func use(t *testing.T, b []byte) {
	for _, open := range []func() (*File, error){
		func() (*File, error) { return Read(bytes.NewReader(b)) },
		func() (*File, error) { return ReadMemory(bytes.NewReader(b), 0x10000) },
	} {
		f, err := open()
		if err != nil {
			continue
		}
		got, _ := f.Lookup("exported_3", "chosen", "elsewhere")
		for name, s := range got {
			if !f.executable(s.Addr) {
				t.Errorf("%s is at %#x, which can't be executed", name, s.Addr)
			}
		}
		_, _ = f.DynamicSymbols()
		_, _ = f.Symbols()
		_, _ = f.SymbolsNamed("exported_3")
		_, _ = f.Starts()
		_, _ = f.Bias(&proc.Mapping{Start: 0x1000, Exec: true})
		_, _, _ = f.BuildID(), f.Strings(elf.DT_NEEDED), f.HasInterpreter()
		for i := range f.Sections() {
			_, _ = f.Data(&f.Sections()[i], 1<<20)
			_, _ = f.Contains(&f.Sections()[i], "text", 1<<20)
		}
	}
}

// FuzzFile: no file makes the reader fail, hang or take memory beyond its bounds.
func FuzzFile(f *testing.F) {
	for _, style := range []string{"gnu", "sysv"} {
		b := readFile(f, build(f, "-Wl,--hash-style="+style))
		f.Add(b[:min(len(b), 4<<10)])
		f.Add(b)
	}
	f.Fuzz(use)
}
