package built

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestMake(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "a.c", "a")
	write(t, "b.h", "b")
	runs := 0
	compile := func() error {
		runs++
		write(t, "made.h", "table") // a source that the generator writes
		write(t, "made.bin", "binary")
		return nil
	}
	patterns := []string{"*.c", "*.h"}
	expect := func(patterns []string, want int) {
		t.Helper()
		if err := Make("stamp.txt", patterns, []string{"made.bin"}, compile); err != nil {
			t.Fatal(err)
		}
		if runs != want {
			t.Fatalf("compiled %d times, want %d", runs, want)
		}
		if err := Check("stamp.txt"); err != nil {
			t.Error(err)
		}
	}
	changed := func(want string) {
		t.Helper()
		if err := Check("stamp.txt"); err == nil || !strings.Contains(err.Error(), ": "+want+" changed") {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := Check("stamp.txt"); err == nil {
		t.Error("nothing was made, and the check holds")
	}
	expect(patterns, 1)
	expect(patterns, 1)
	write(t, "a.c", "A")
	changed("a.c")
	expect(patterns, 2)
	write(t, "new.c", "")
	changed("new.c")
	expect(patterns, 3)
	if err := os.Remove("b.h"); err != nil {
		t.Fatal(err)
	}
	changed("b.h")
	expect(patterns, 4)
	expect([]string{"*.c"}, 5)

	write(t, "made.bin", "another")
	if err := Check("stamp.txt"); err == nil || !strings.Contains(err.Error(), "is of another made.bin") {
		t.Errorf("another output: %v", err)
	}
	expect([]string{"*.c"}, 6)
	if why, ok := Reproducible("stamp.txt"); !ok {
		t.Errorf("not reproducible where it was made: %s", why)
	}
	b, err := os.ReadFile("stamp.txt")
	if err != nil {
		t.Fatal(err)
	}
	write(t, "stamp.txt", strings.Replace(string(b), Tools(), "gcc 1.0", 1))
	if why, ok := Reproducible("stamp.txt"); ok || !strings.Contains(why, "made with gcc 1.0") {
		t.Errorf("another compiler: %v, %q", ok, why)
	}

	write(t, "a.c", "a")
	failed := errors.New("no compiler")
	if err := Make("stamp.txt", patterns, []string{"made.bin"}, func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	changed("a.c")
	for _, p := range []string{"*.none", "["} {
		if err := Make("stamp.txt", []string{p}, []string{"made.bin"}, compile); err == nil {
			t.Errorf("%s: no error", p)
		}
	}
}

func TestGzip(t *testing.T) {
	data := bytes.Repeat([]byte("file "), 1000)
	packed, err := Gzip(data)
	if err != nil || len(packed) > 200 {
		t.Fatalf("%d bytes, %v", len(packed), err)
	}
	zr, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(zr); err != nil || !bytes.Equal(got, data) {
		t.Errorf("unpacked %d bytes, %v", len(got), err)
	}
}
