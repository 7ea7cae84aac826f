package sim

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/ptrace/proc"

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
	defer unix.Close(newHostile(t, s, 1, nil).fd) // it serves

	sockets := new([]int) // later there are no descriptors for them
	for range 20 {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		*sockets = append(*sockets, fd)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	low := limit
	low.Cur = 8
	for _, fd := range proc.FDs(os.Getpid()) { // one that is closed is free only below the limit
		low.Cur = max(low.Cur, uint64(fd)+8)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	restore := func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
	}
	defer restore()
	hints := func() string { return strings.Join(s.Report().Hints, "\n") }
	for ctx := need.Limit(t); !strings.Contains(hints(), "ulimit -n"); {
		if ctx.Err() != nil {
			t.Fatalf("every program was served; hints: %q", hints())
		}
		// Something of this process may close a descriptor meanwhile: a program that is served
		// then is turned away for what it sends. Or it takes the one that the service has kept.
		var files []*os.File
		for {
			f, err := os.Open(os.DevNull)
			if err != nil {
				break
			}
			files = append(files, f)
		}
		err := turnedAway(t, s, sockets, func() {
			if len(files) > 0 {
				files[0].Close()
				files = files[1:]
			}
		})
		for _, f := range files {
			f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			t.Fatalf("the service ended: %v", err)
		default:
		}
	}
	restore()
	defer unix.Close(newHostile(t, s, 2, nil).fd) // it serves again
}

// turnedAway connects to the service with the first of some sockets, and returns when it has been closed.
// As long as nothing happens, it calls help.
func turnedAway(t *testing.T, s *Sim, sockets *[]int, help func()) error {
	if len(*sockets) == 0 {
		return errors.New("no sockets are left")
	}
	fd := (*sockets)[0]
	*sockets = (*sockets)[1:]
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: s.dir + "/s"}); err != nil {
		return err
	}
	_ = unix.Sendto(fd, []byte("no request"), unix.MSG_NOSIGNAL, nil) // it may have been closed already
	for ctx := need.Limit(t); ctx.Err() == nil; {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, _ := unix.Poll(poll, 100); n == 0 {
			help()
			continue
		}
		if n, err := unix.Read(fd, make([]byte, 100)); n <= 0 && !errors.Is(err, unix.EINTR) {
			return nil
		}
	}
	return errors.New("the service does nothing")
}
