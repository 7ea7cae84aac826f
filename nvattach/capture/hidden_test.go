package capture

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestSlotCacheOwn: a cache of places that another user can have written is not
// believed, and nothing waits for it or is written where another chose.
func TestSlotCacheOwn(t *testing.T) {
	id, at := slotID{"TABLE", 1}, slotPlace{}
	fresh := func() (file string) {
		t.Helper()
		file = filepath.Join(t.TempDir(), "nvtrace", "slots.json")
		if err := newSlotCache(file).put("build", id, at); err != nil {
			t.Fatal(err)
		}
		if _, ok := newSlotCache(file).get("build", id); !ok {
			t.Fatal("not kept")
		}
		return file
	}
	refused := func(what, file string, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := newSlotCache(file).get("build", id); ok {
			t.Errorf("%s: believed", what)
		}
	}
	file := fresh()
	refused("open to others", file, os.Chmod(file, 0o666))
	file = fresh()
	refused("FIFO", file, errors.Join(os.Remove(file), syscall.Mkfifo(file, 0o600)))
	file = fresh()
	moved := file + ".moved"
	refused("link", file, errors.Join(os.Rename(file, moved), os.Symlink(moved, file)))

	file = fresh()
	elsewhere := t.TempDir()
	dir := filepath.Dir(file)
	if err := errors.Join(os.RemoveAll(dir), os.Symlink(elsewhere, dir)); err != nil {
		t.Fatal(err)
	}
	if err := newSlotCache(file).put("build", id, at); err == nil {
		t.Error("written where a link leads")
	}
	if left, err := os.ReadDir(elsewhere); err != nil || len(left) != 0 {
		t.Errorf("%v is there, %v", left, err)
	}
	if os.Geteuid() != 0 {
		return
	}
	file = fresh()
	refused("another user's", file, os.Chown(file, 12345, 12345))
	file = fresh()
	if err := os.Chown(filepath.Dir(file), 12345, 12345); err != nil {
		t.Fatal(err)
	}
	if err := newSlotCache(file).put("build", id, at); err == nil {
		t.Error("written into another user's folder")
	}
}
