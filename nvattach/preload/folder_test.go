package preload

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/internal/testprog"

	"golang.org/x/sys/unix"
)

// inOther makes a folder in another process, which lives until end is called.
func inOther(t *testing.T, dir string) (path string, end func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestFolder$")
	cmd.Env = append(os.Environ(), "NVTRACE_TEST_FOLDER="+dir)
	in, out := testprog.Start(t, cmd)
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line), func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = in.Close()
	}
}

// TestFolder: what a killed process left is removed by the next one, and nothing that
// a living process holds, that a program has mapped, or that is not ours.
func TestFolder(t *testing.T) {
	if dir := os.Getenv("NVTRACE_TEST_FOLDER"); dir != "" {
		f, err := NewFolder(dir, "nvtrace-")
		if err == nil {
			err = os.WriteFile(filepath.Join(f.Path, "lib.so"), make([]byte, 4096), 0o600)
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(f.Path)
		_, _ = os.Stdin.Read(make([]byte, 1)) // until it is killed
		return
	}
	dir := t.TempDir()
	there := func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	}
	next := func() *Folder {
		t.Helper()
		f, err := NewFolder(dir, "nvtrace-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Remove() })
		return f
	}
	theirs := []string{"nvtrace-thesis", "nvtrace-sim-123", "nvtrace-"}
	for _, name := range theirs {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(t.TempDir(), "file")
	if err := errors.Join(os.WriteFile(outside, nil, 0o600), os.Symlink(filepath.Dir(outside), filepath.Join(dir, "nvtrace-1234"))); err != nil {
		t.Fatal(err)
	}

	alive, endAlive := inOther(t, dir)
	defer endAlive()
	killed, kill := inOther(t, dir)
	used, kill2 := inOther(t, dir)
	f, err := os.Open(filepath.Join(used, "lib.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	kill()
	kill2()
	mine := next()
	if there(killed) || !there(used) || !there(alive) || !there(mine.Path) {
		t.Errorf("of a killed process: %v, in use: %v, of a living one: %v, new: %v", there(killed), there(used), there(alive), there(mine.Path))
	}
	for _, name := range theirs {
		if !there(filepath.Join(dir, name)) {
			t.Errorf("%s is gone", name)
		}
	}
	if !there(outside) {
		t.Error("what a link leads to is gone")
	}
	if err := unix.Munmap(m); err != nil {
		t.Fatal(err)
	}
	next()
	if there(used) || !there(alive) || !there(mine.Path) {
		t.Errorf("not in use any more: %v, of a living process: %v, mine: %v", there(used), there(alive), there(mine.Path))
	}
	if err := mine.Leave(); err != nil || !there(mine.Path) {
		t.Errorf("left: %v", err)
	}
	if os.Geteuid() != 0 {
		return
	}
	foreign := filepath.Join(dir, "nvtrace-77")
	if err := errors.Join(os.Mkdir(foreign, 0o700), os.Chown(foreign, 12345, 12345)); err != nil {
		t.Fatal(err)
	}
	if next(); !there(foreign) {
		t.Error("another user's folder is gone")
	}
}
