package sim

import (
	"context"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNoDescriptors: a program that can't be served is told so, and those after it are
// served again.
func TestNoDescriptors(t *testing.T) {
	s, err := New(&Options{MemoryLimit: 1 << 24, Memory: func(int) ProcessMemory { return &fakeMemory{make([]byte, 1<<14)} }})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(context.Background()) }()
	defer s.Close()
	newHostile(t, s, 1, nil) // it serves

	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	low := limit
	low.Cur = 64
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	restore := func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
	}
	defer restore()
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		defer f.Close()
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: s.dir + "/s"}); err != nil {
		t.Fatal(err)
	}
	answer := make(chan int, 1)
	go func() {
		n, _ := unix.Read(fd, make([]byte, 100))
		answer <- n
	}()
	select {
	case n := <-answer:
		if n > 0 {
			t.Errorf("%d bytes came", n)
		}
	case err := <-ended:
		t.Fatalf("the service ended, and the program waits: %v", err)
	}
	restore()
	newHostile(t, s, 2, nil) // it serves again
	hints := strings.Join(s.Report().Hints, "\n")
	if !strings.Contains(hints, "ulimit -n") {
		t.Errorf("hints: %q", hints)
	}
}
