package capture

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/nvattach/owned"
	"nvtrace/traces"
)

func TestStore(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run.nvt")
	if _, err := OpenStore(run); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open what is not there: %v", err)
	}
	s, err := CreateStore(run, 100)
	if err != nil {
		t.Fatal(err)
	}
	image := bytes.Repeat([]byte("x"), 60)
	sum, err := s.Put(image)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.Put(image); err != nil || again != sum {
		t.Errorf("the same again: %s, %v", again, err)
	}
	other := bytes.Repeat([]byte("y"), 60)
	full, err := s.Put(other)
	if !errors.Is(err, ErrStoreFull) || full == "" {
		t.Errorf("beyond the limit: %q, %v", full, err)
	}
	if small, err := s.Put([]byte("z")); err != nil || small == "" {
		t.Errorf("what still fits: %v", err)
	}

	r, err := OpenStore(run)
	if err != nil {
		t.Fatal(err)
	}
	f, err := r.Open(sum, int64(len(image)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, err := io.ReadAll(f); err != nil || !bytes.Equal(b, image) {
		t.Errorf("read %d bytes: %v", len(b), err)
	}
	if st, err := f.Stat(); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("others may read the image: %v, %v", st.Mode(), err)
	}
	if _, err := r.Open(full, int64(len(other))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open what was refused: %v", err)
	}
	for _, bad := range []string{"", "..", "../../etc/passwd", strings.Repeat("A", 64), strings.Repeat("a", 63)} {
		if _, err := r.Open(bad, 1); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("read %q: %v", bad, err)
		}
	}
	list, err := r.Images()
	if err != nil || len(list) != 2 || !slices.Contains(list, sum) {
		t.Errorf("images %v: %v", list, err)
	}
	files, err := os.ReadDir(r.dir)
	if err != nil || len(files) != 2 {
		t.Errorf("%d files are in the store, half-written ones among them: %v", len(files), err)
	}

	// A new recording of that name has none of the old images; what is not ours stays.
	keep := filepath.Join(r.dir, "README")
	if err := os.WriteFile(keep, []byte("mine"), 0o666); err != nil {
		t.Fatal(err)
	}
	s = NewStore(0)
	if _, err := s.Put(image); err == nil {
		t.Error("an image was put before the recording began")
	}
	if list, err := r.Images(); err != nil || len(list) == 0 {
		t.Errorf("no old images %v before it is known that they are not wanted: %v", list, err)
	}
	if err := s.Begin(run); err != nil {
		t.Fatal(err)
	}
	if list, err := s.Images(); err != nil || len(list) != 0 {
		t.Errorf("old images %v: %v", list, err)
	}
	if _, err := os.Stat(keep); err != nil {
		t.Error(err)
	}
}

// TestForeignStore: a store that others have laid beside a recording is not used.
func TestForeignStore(t *testing.T) {
	elsewhere := t.TempDir()
	for what, lay := range map[string]func(store string) error{
		"link": func(store string) error { return os.Symlink(elsewhere, store) },
		"link to images": func(store string) error {
			return errors.Join(os.Mkdir(store, 0o700), os.Symlink(elsewhere, filepath.Join(store, storeImages)))
		},
		"open to others": func(store string) error { return errors.Join(os.Mkdir(store, 0o700), os.Chmod(store, 0o777)) },
	} {
		run := filepath.Join(t.TempDir(), "run.nvt")
		if err := CheckStore(run); err != nil {
			t.Errorf("no store: %v", err)
		}
		if err := lay(StoreDir(run)); err != nil {
			t.Fatal(err)
		}
		if err := CheckStore(run); !errors.Is(err, owned.ErrForeign) {
			t.Errorf("%s: %v before a recording", what, err)
		}
		if err := NewStore(0).Begin(run); !errors.Is(err, owned.ErrForeign) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// The name may change while images are put: they stay in the folder.
	run := filepath.Join(t.TempDir(), "run.nvt")
	s, err := CreateStore(run, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(StoreDir(run), run+".moved"), os.Symlink(elsewhere, StoreDir(run))); err != nil {
		t.Fatal(err)
	}
	sum, err := s.Put([]byte("image"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(run+".moved", storeImages, sum)); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(elsewhere); err != nil || len(left) != 0 {
		t.Errorf("%v is where the links lead: %v", left, err)
	}
}

// TestOpenStranger: what a stranger has laid into a store neither blocks nor leads
// elsewhere, and is no longer than the recording says.
func TestOpenStranger(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run.nvt")
	s, err := CreateStore(run, 0)
	if err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("12345678"), 0o600); err != nil {
		t.Fatal(err)
	}
	lay := map[string]func(name string) error{
		"a named pipe": func(name string) error { return unix.Mkfifo(name, 0o600) },
		"a link":       func(name string) error { return os.Symlink(secret, name) },
		"/dev/zero":    func(name string) error { return os.Symlink("/dev/zero", name) },
		"a folder":     func(name string) error { return os.Mkdir(name, 0o700) },
		"a sparse file": func(name string) error {
			return errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, 6<<30))
		},
		"a short file": func(name string) error { return os.WriteFile(name, []byte("1234"), 0o600) },
	}
	n := 0
	for what, f := range lay {
		n++
		sum := fmt.Sprintf("%064x", n)
		name, err := s.Path(sum)
		if err == nil {
			err = f(name)
		}
		if err != nil {
			t.Fatal(err)
		}
		if f, err := s.Open(sum, 8); err == nil {
			f.Close()
			t.Errorf("%s was opened as an image", what)
		} else if errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Nor is a size believed that no image has.
	huge, err := s.Path(strings.Repeat("f", 64))
	if err == nil {
		err = errors.Join(os.WriteFile(huge, nil, 0o600), os.Truncate(huge, 1<<40))
	}
	if err != nil {
		t.Fatal(err)
	}
	if f, err := s.Open(strings.Repeat("f", 64), 1<<40); err == nil {
		f.Close()
		t.Error("an image of 1 TiB was opened")
	}
}

func TestOldNote(t *testing.T) {
	for text, want := range map[string]*traces.Captured{
		"captured: images: 1, loads: 2, bytes: 384; drivers watched: 3, kernels launched: 4, gaps: 5":        {Mode: traces.CaptureBreakpoints, Images: 1, Loads: 2, Bytes: 384, Drivers: 3, Kernels: 4, Gaps: 5},
		"captured: images: 1, loads: 1, bytes: 676; kernels launched: 1; told by the simulated GPU, gaps: 0": {Mode: traces.CaptureSimulator, Images: 1, Loads: 1, Bytes: 676, Kernels: 1},
		"captured: by the interposer alone, without a supervisor: images that went past it are not here":     {Mode: traces.CaptureInterposer},
		"captured: 3 images": nil,
		"a note":             nil,
	} {
		if got := OldNote(text); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

// TestStoreGone: a store that can't be written hashes all the same.
func TestStoreGone(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run.nvt")
	s, err := CreateStore(run, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(StoreDir(run)); err != nil {
		t.Fatal(err)
	}
	image := []byte("an image")
	sum, kept, stored, err := copyImage(s, bytes.NewReader(image), int64(len(image)), false, nil)
	if err != nil || stored == nil || kept != int64(len(image)) {
		t.Errorf("kept %d, stored %v, err %v", kept, stored, err)
	}
	want, _, _, err := copyImage(nil, bytes.NewReader(image), int64(len(image)), false, nil)
	if err != nil || sum != want {
		t.Errorf("hash %s, want %s: %v", sum, want, err)
	}
}

func TestCopyImage(t *testing.T) {
	text := append(bytes.Repeat([]byte("p"), copyBuffer), 0) // the NUL is alone in its piece
	var pieces []byte
	sum, kept, _, err := copyImage(nil, bytes.NewReader(text), int64(len(text)), true, func(off int64, b []byte) error {
		if off != int64(len(pieces)) {
			t.Errorf("piece at %d after %d bytes", off, len(pieces))
		}
		pieces = append(pieces, b...)
		return nil
	})
	if err != nil || kept != copyBuffer || !bytes.Equal(pieces, text) {
		t.Errorf("kept %d of %d bytes: %v", kept, len(pieces), err)
	}
	bare, _, _, _ := copyImage(nil, bytes.NewReader(text[:copyBuffer]), copyBuffer, true, nil)
	if sum != bare {
		t.Error("the NUL is a part of the hash")
	}
	if _, _, _, err := copyImage(nil, bytes.NewReader(text), int64(len(text))+1, false, nil); err == nil {
		t.Error("more than there is was copied")
	}
}
