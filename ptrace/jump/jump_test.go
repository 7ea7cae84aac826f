package jump

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"nvtrace/internal/need"
)

// places links testdata/places.s, and returns what is known of it, and where its functions are.
func places(t testing.TB, args ...string) (*Code, map[string]uint64) {
	t.Helper()
	need.Tool(t, "gcc", "")
	bin := filepath.Join(t.TempDir(), "places")
	if b, err := exec.Command("gcc", append([]string{"-nostdlib", "-o", bin, "testdata/places.s"}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, b)
	}
	f, err := os.Open(bin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	c, err := Read(f)
	if err != nil {
		t.Fatal(err)
	}
	symbols, err := c.File().Symbols()
	if err != nil {
		t.Fatal(err)
	}
	at := make(map[string]uint64)
	for i := range symbols {
		at[symbols[i].Name] = symbols[i].Addr
	}
	return c, at
}

// TestReplaceable: each reason for which instructions must stay is found, in libraries, in programs
// and in those that have fixed addresses.
func TestReplaceable(t *testing.T) {
	for _, args := range [][]string{{"-shared", "-Wl,-Bsymbolic"}, {"-pie", "-Wl,-e,free"}, {"-no-pie", "-Wl,-e,free"}, {"-shared", "-Wl,-Bsymbolic,-z,pack-relative-relocs"}} {
		c, at := places(t, args...)
		for name, want := range map[string]error{
			"free": nil, "short": nil, "pad": errJumped, "beside": errBegins, "far": errJumped, "loop": errShort, "taken": errJumped,
			"stored": errJumped, "cased": errJumped, "computed": errIndirect, "pointer": nil, "switch": nil, "jumper": nil,
		} {
			if err := c.Replaceable(at[name], 5); !errors.Is(err, want) {
				t.Errorf("%v: %s at %#x: %v, want %v", args, name, at[name], err, want)
			}
		}
		if !c.Branches(at["loop"]+2) || c.Branches(at["loop"]) || c.Branches(at["far"]+2) {
			t.Errorf("%v: branches of functions to their own code", args)
		}
	}
}

// TestInstruction: where instructions begin is told, and where they do not.
func TestInstruction(t *testing.T) {
	c, at := places(t, "-shared", "-Wl,-Bsymbolic")
	for off, want := range map[uint64]error{0: nil, 1: nil, 4: nil, 9: nil, 10: nil, 2: ErrInside, 3: ErrInside, 5: ErrInside, 8: ErrInside} {
		if err := c.Instruction(at["free"] + off); !errors.Is(err, want) {
			t.Errorf("+%d: %v, want %v", off, err, want)
		}
	}
	if err := c.Instruction(1 << 40); err == nil || errors.Is(err, ErrInside) {
		t.Errorf("where there is no code: %v", err)
	}
}

// TestTwiceNames: functions that return twice by each of their names, and others that are called nearly so.
func TestTwiceNames(t *testing.T) {
	for _, name := range []string{"setjmp", "_setjmp", "__sigsetjmp", "sigsetjmp", "vfork", "__vfork", "__libc_vfork", "getcontext", "__getcontext", "swapcontext", "vfork@@GLIBC_2.2.5"} {
		if !returnsTwice(name) {
			t.Errorf("%s returns once", name)
		}
	}
	for _, name := range []string{"longjmp", "fork", "setcontext", "png_setjmp_error", "vforked", ""} {
		if returnsTwice(name) {
			t.Errorf("%s returns twice", name)
		}
	}
}

// TestCallerNames: functions that look at their caller by each of their names, and others that are called nearly so.
func TestCallerNames(t *testing.T) {
	for _, name := range []string{"dlopen", "dlmopen", "dlsym", "__dlsym", "dlvsym@@GLIBC_2.34", "dl_iterate_phdr", "mcount", "_mcount", "__fentry__"} {
		if !looksAtCaller(name) {
			t.Errorf("%s does not look at its caller", name)
		}
	}
	for _, name := range []string{"dlclose", "dlerror", "dlopen_doit", "my_dlsym", "count", ""} {
		if looksAtCaller(name) {
			t.Errorf("%s looks at its caller", name)
		}
	}
}

// TestWalked: returns of what V8 has compiled can't be seen, those of others can.
func TestWalked(t *testing.T) {
	need.Tool(t, "gcc", "")
	dir := t.TempDir()
	src, lib := filepath.Join(dir, "lib.c"), filepath.Join(dir, "lib.so")
	if err := os.WriteFile(src, []byte("long Builtins_Add(long a) { return a + 1; }\nlong add(long a) { return a + 2; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := exec.Command("gcc", "-O1", "-shared", "-fPIC", "-o", lib, src).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, b)
	}
	f, err := os.Open(lib)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, err := Read(f)
	if err != nil {
		t.Fatal(err)
	}
	at, err := c.File().Lookup("Builtins_Add", "add")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Returns(at["Builtins_Add"].Addr); !errors.Is(err, ErrWalked) {
		t.Errorf("a builtin: %v", err)
	}
	if err := c.Returns(at["add"].Addr); err != nil {
		t.Errorf("another function: %v", err)
	}
}

// TestPadding: what compilers put between functions, and what looks like it.
func TestPadding(t *testing.T) {
	for _, c := range []struct {
		code []byte
		is   bool
	}{
		{[]byte{0x90, 0x90, 0x90, 0x90, 0x90}, true},
		{[]byte{0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0}, true},
		{[]byte{0xcc, 0xcc, 0x0f, 0x1f, 0}, true},
		{[]byte{0xf3, 0x0f, 0x1e, 0xfa, 0x90}, false},
		{[]byte{0x90, 0xf3, 0x0f, 0x1e, 0xfa}, false},
		{[]byte{0x90, 0xf3, 0x90, 0x90, 0x90}, false}, // pause
		{[]byte{0x41, 0x90, 0x90, 0x90, 0x90}, false}, // xchg
		{[]byte{0x90, 0x90, 0xc3, 0x90, 0x90}, false},
		{[]byte{0x90, 0x90}, false},
	} {
		if is := Padding(c.code, 5); is != c.is {
			t.Errorf("% x: %v", c.code, is)
		}
	}
}

// FuzzRead: whatever a file is, it can be read, and answers.
func FuzzRead(f *testing.F) {
	if b, err := os.ReadFile("/bin/true"); err == nil {
		f.Add(b[:min(len(b), 64<<10)])
	}
	f.Add([]byte("\x7fELF\x02\x01"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		c, err := Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		for _, at := range append(c.starts[:min(len(c.starts), 8):min(len(c.starts), 8)], 0, 1<<40) {
			_ = c.Replaceable(at, 5)
			_ = c.Instruction(at + 3)
			_ = c.Returns(at)
			c.Begins(at)
		}
	})
}
