package lookout

import (
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAsk: who asks is answered with the number of the look, 0 as long as there is no thread to look
// from, and where nobody listens that is said.
func TestAsk(t *testing.T) {
	const wait = 10 * time.Second
	pid := int32(os.Getpid())
	if number, ok := Ask(pid, wait); ok {
		t.Errorf("look %d, and nobody listens", number)
	}
	l, err := net.Listen("unix", socket(pid))
	if err != nil {
		t.Fatal(err)
	}
	h := New(nil, &Options{})
	ended := make(chan struct{})
	go func() { h.answer(l); close(ended) }()
	if number, ok := Ask(pid, wait); !ok || number != 0 {
		t.Errorf("look %d, %t", number, ok)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	<-ended
}

// TestEndsBy: signals by which programs are ended count, also where a program has a handler; others do
// where it has none.
func TestEndsBy(t *testing.T) {
	for sig, want := range map[unix.Signal]bool{unix.SIGTERM: true, unix.SIGINT: true, unix.SIGCHLD: false, unix.SIGSEGV: false} {
		if got := endsBy(os.Getpid(), sig); got != want { // Go has a handler for SIGSEGV
			t.Errorf("%v: %t, want %t", sig, got, want)
		}
	}
}
