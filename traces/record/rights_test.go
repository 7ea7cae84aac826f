package record

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRights: what a file gives, by its mode and to whom.
func TestRights(t *testing.T) {
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(file, &fs); err != nil || fs.Flags&unix.ST_NOSUID != 0 {
		t.Skipf("files in %s give no rights: %v", filepath.Dir(file), err)
	}
	uid, gid := os.Geteuid(), os.Getegid()
	for _, c := range []struct {
		mode     os.FileMode
		uid, gid int
		want     string
	}{
		{0o755, uid + 1, gid + 1, ""},
		{0o755 | os.ModeSetuid, uid, gid, ""},
		{0o755 | os.ModeSetuid, uid + 1, gid, "setuid"},
		{0o755 | os.ModeSetgid, uid, gid, ""},
		{0o755 | os.ModeSetgid, uid, gid + 1, "setgid"},
		{0o745 | os.ModeSetgid, uid, gid + 1, ""}, // mandatory locking, once
		{0o755 | os.ModeSetuid | os.ModeSetgid, uid + 1, gid + 1, "setuid"},
	} {
		if err := os.Chmod(file, c.mode); err != nil {
			t.Fatal(err)
		}
		if got := rights(file, c.uid, c.gid); got != c.want {
			t.Errorf("mode %v of %d:%d for %d:%d: %q, want %q", c.mode, uid, gid, c.uid, c.gid, got, c.want)
		}
	}
	if got := rights(file+"x", uid, gid); got != "" {
		t.Errorf("a missing file: %q", got)
	}
}
