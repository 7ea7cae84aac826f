package owned

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// foreign makes things that are not this user's alone, at a path that is not there yet.
func foreign(t *testing.T, own func(path string) error) map[string]func(path string) error {
	list := map[string]func(path string) error{
		"link": func(path string) error {
			other := path + ".target"
			return errors.Join(own(other), os.Symlink(other, path))
		},
		"relative link":   func(path string) error { return os.Symlink(".", path) },
		"FIFO":            func(path string) error { return unix.Mkfifo(path, 0o600) },
		"open to a group": func(path string) error { return errors.Join(own(path), os.Chmod(path, 0o770)) },
		"open to others":  func(path string) error { return errors.Join(own(path), os.Chmod(path, 0o707)) },
	}
	if os.Geteuid() == 0 {
		list["another user's"] = func(path string) error { return errors.Join(own(path), os.Chown(path, 12345, 12345)) }
	}
	return list
}

func TestFolder(t *testing.T) {
	folder := func(path string) error { return os.Mkdir(path, 0o700) }
	kinds := foreign(t, folder)
	kinds["file"] = func(path string) error { return os.WriteFile(path, nil, 0o600) }
	for what, lay := range kinds {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			if err := lay(filepath.Join(dir, "x")); err != nil {
				t.Fatal(err)
			}
			if r, err := Open(filepath.Join(dir, "x")); !errors.Is(err, ErrForeign) {
				t.Errorf("opened: %v, %v", r, err)
			}
			if r, err := Make(dir, "x"); !errors.Is(err, ErrForeign) {
				t.Errorf("taken for a new one: %v, %v", r, err)
			}
			if r, err := Make(dir, "x", "below"); !errors.Is(err, ErrForeign) {
				t.Errorf("gone through: %v, %v", r, err)
			}
		})
	}
	dir := t.TempDir()
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is not there: %v", err)
	}
	for range 2 {
		r, err := Make(dir, "a", "b")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(WriteFile(r, "f", []byte("text")), r.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "a/b"} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
	}
	r, err := Open(filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := OpenBelow(r, "b")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if got, err := ReadFile(b, "f", 4); err != nil || string(got) != "text" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := ReadFile(b, "f", 3); err == nil {
		t.Error("a file beyond the limit was read")
	}
}

func TestFile(t *testing.T) {
	file := func(path string) error { return os.WriteFile(path, []byte("kept"), 0o600) }
	kinds := foreign(t, file)
	kinds["folder"] = func(path string) error { return os.Mkdir(path, 0o700) }
	for what, lay := range kinds {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			if err := lay(filepath.Join(dir, "x")); err != nil {
				t.Fatal(err)
			}
			r, err := Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if _, err := ReadFile(r, "x", 100); !errors.Is(err, ErrForeign) {
				t.Errorf("read: %v", err)
			}
			if err := WriteFile(r, "x", []byte("lost")); err == nil {
				t.Error("written")
			}
			for _, name := range []string{"x", "x.target"} {
				if st, err := os.Stat(filepath.Join(dir, name)); err == nil && st.Mode().IsRegular() && st.Size() != 4 {
					t.Errorf("%s has %d bytes", name, st.Size())
				}
			}
		})
	}
}
