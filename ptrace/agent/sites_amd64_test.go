package agent

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/internal/need"
	"nvtrace/ptrace"
)

// libc is the file of the C library that gcc's programs have.
func libc(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("gcc", "-print-file-name=libc.so.6").Output()
	if err != nil {
		t.Skip("needs gcc")
	}
	return strings.TrimSpace(string(out))
}

// TestPatchSite: one call of a library that stops is enough for all of its sites.
func TestPatchSite(t *testing.T) {
	bin := compile(t, "testdata/sites.c")
	tr := newTracer(t)
	im, err := tr.a.FindImage(libc(t))
	if err != nil {
		t.Fatal(err)
	}
	have := map[uint64]bool{}
	for _, s := range im.sites {
		have[s.nr] = true
	}
	for _, nr := range []uint64{unix.SYS_IOCTL, unix.SYS_CLOSE, unix.SYS_MMAP, unix.SYS_DUP, sysDup2, unix.SYS_DUP3, unix.SYS_FCNTL} {
		if !have[nr] {
			t.Errorf("no site of system call %d", nr)
		}
	}
	tr.a.SetImages([]*Image{{sites: []imageSite{{ip: 0x1234, nr: unix.SYS_CLOSE, code: make([]byte, 31)}}}, im})
	tr.mark = func(*ptrace.Task, *ptrace.Syscall) {}
	stops := 0
	tr.ioctl = func(k *ptrace.Task, c *ptrace.Syscall) {
		p, err := tr.a.Process(k)
		if err != nil {
			t.Error(err)
			return
		}
		if stops++; stops == 1 {
			p.PatchSite(k, c.IP, c.Nr)
		}
		if n := tr.a.Stats().Sites; n != len(im.sites) {
			t.Errorf("%d sites of %d are rerouted", n, len(im.sites))
		}
	}
	if got := tr.run(bin); got != "ok\n" {
		t.Error(got)
	}
	if stops == 0 {
		t.Error("no ioctl stopped")
	}
}

// TestFindImageTracked: functions of a library for tracked indirect branches begin with
// an instruction that the decoder does not know.
func TestFindImageTracked(t *testing.T) {
	gcc := need.Tool(t, "gcc", "")
	src, lib := filepath.Join(t.TempDir(), "x.c"), filepath.Join(t.TempDir(), "x.so")
	const code = `long first(long x) { return x + 1; }
__attribute__((aligned(64))) long f(int fd) {
	long r;
	__asm__ volatile("mov $3, %%eax\n\tsyscall" : "=a"(r) : "D"(fd) : "rcx", "r11", "memory");
	return r;
}`
	if err := os.WriteFile(src, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(gcc, "-O2", "-shared", "-fPIC", "-nostdlib", "-fcf-protection=full", "-o", lib, src).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if b, err := os.ReadFile(lib); err != nil || !bytes.Contains(b, endbr64) {
		t.Fatalf("gcc made no such library: %v", err)
	}
	im, err := New(nil).FindImage(lib)
	if err != nil || len(im.sites) != 1 || im.sites[0].nr != unix.SYS_CLOSE {
		t.Errorf("%+v, %v; want the one close", im, err)
	}
}

// TestFindImageGarbage: files that are no libraries, or are damaged.
func TestFindImageGarbage(t *testing.T) {
	a := New(nil)
	good, err := os.ReadFile(libc(t))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x")
	random := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		b := bytes.Clone(good)
		for range 1 + random.IntN(40) { // where headers and tables are, mostly
			b[random.IntN([]int{64, 1024, len(b)}[random.IntN(3)])] ^= byte(1 << random.IntN(8))
		}
		if random.IntN(4) == 0 {
			b = b[:random.IntN(len(b))]
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		im, err := a.FindImage(path)
		if err == nil && len(im.sites) > maxSites {
			t.Errorf("%d sites", len(im.sites))
		}
	}
	for _, path := range []string{"/proc/self/maps", "/", path + "y", "/dev/null"} {
		if im, err := a.FindImage(path); err == nil {
			t.Errorf("%s: %d sites", path, len(im.sites))
		}
	}
}
