package gpu

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/fatbin"
)

// TestImages: kernels are found in files that a process maps, also later; of different ones of
// a name none is taken.
func TestImages(t *testing.T) {
	var im images
	defer im.close()
	arch := fatbin.Arch{SM: 90, Suffix: 'a'}
	mapped := func(name, text string) {
		t.Helper()
		e, err := fatbin.NewEntry(fatbin.KindPTX, fatbin.Arch{SM: 75}, []byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, (&fatbin.Container{Entries: []fatbin.Entry{e}}).Append(nil), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		b, err := unix.Mmap(int(f.Fd()), 0, 64, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Munmap(b) })
	}
	const text = ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry testImages()\n{\n\tret;\n}\n"
	find := func() error {
		image, err := im.find(os.Getpid(), "testImages", arch, new(shape))
		if (image == nil) != (err != nil) {
			t.Errorf("%d bytes, %v", len(image), err)
		}
		return err
	}
	if err := find(); !errors.Is(err, errNoImage) {
		t.Error(err)
	}
	mapped("one", text)
	mapped("same", text)
	if err := find(); err != nil {
		t.Error(err)
	}
	mapped("other", strings.Replace(text, "ret;", "exit;", 1))
	if err := find(); err == nil || !strings.Contains(err.Error(), "2 images") {
		t.Error(err)
	}
}

// Who detaches while a program's files are read waits for that, and nothing of them is used
// afterwards.
func TestImagesClosed(t *testing.T) {
	f, err := os.Open("../../fatbin/testdata/libtwo.13.0.so")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// As the loader does.
	mapped, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mapped) }()
	const kernel = "use"
	arch := fatbin.Arch{SM: 80}
	im := new(images)
	if image, err := im.find(os.Getpid(), kernel, arch, &shape{}); err != nil || len(image) == 0 {
		t.Errorf("%d bytes, %v", len(image), err)
	}
	im.close()
	if _, err := im.find(os.Getpid(), kernel, arch, &shape{}); !errors.Is(err, errClosed) {
		t.Errorf("closed: %v", err)
	}
	for range 50 {
		im := new(images)
		var work sync.WaitGroup
		work.Go(func() {
			if image, err := im.find(os.Getpid(), kernel, arch, &shape{}); len(image) == 0 && !errors.Is(err, errClosed) {
				t.Errorf("no image: %v", err)
			}
		})
		im.close()
		work.Wait()
	}
}
