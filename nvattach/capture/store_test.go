package capture

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
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
	if b, err := r.Read(sum); err != nil || !bytes.Equal(b, image) {
		t.Errorf("read %d bytes: %v", len(b), err)
	}
	if _, err := r.Read(full); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read what was refused: %v", err)
	}
	for _, bad := range []string{"", "..", "../../etc/passwd", strings.Repeat("A", 64), strings.Repeat("a", 63)} {
		if _, err := r.Read(bad); err == nil || errors.Is(err, fs.ErrNotExist) {
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
	s, err = CreateStore(run, 0)
	if err != nil {
		t.Fatal(err)
	}
	if list, err := s.Images(); err != nil || len(list) == 0 {
		t.Errorf("no old images %v before it is known that they are not wanted: %v", list, err)
	}
	if err := s.Clear(); err != nil {
		t.Fatal(err)
	}
	if list, err := s.Images(); err != nil || len(list) != 0 {
		t.Errorf("old images %v: %v", list, err)
	}
	if _, err := os.Stat(keep); err != nil {
		t.Error(err)
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
