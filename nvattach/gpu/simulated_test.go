package gpu

import (
	"errors"
	"testing"

	"nvtrace/nvattach/mapmem"
)

// TestShowReadable: threads that read by the table are waited for, not for ever; any other error
// is one.
func TestShowReadable(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name  string
		errs  []error // of the calls; the last again and again
		calls int
		want  error
	}{
		{"at once", []error{nil}, 1, nil},
		{"after readers", []error{mapmem.ErrReaders, mapmem.ErrReaders, nil}, 3, nil},
		{"another error", []error{broken}, 1, broken},
		{"after readers another error", []error{mapmem.ErrReaders, broken}, 2, broken},
		{"readers for ever", []error{mapmem.ErrReaders}, readersTries, errReaders},
	} {
		calls := 0
		err := showReadable(func() error {
			calls++
			return c.errs[min(calls, len(c.errs))-1]
		})
		if calls != c.calls || !errors.Is(err, c.want) {
			t.Errorf("%s: %v after %d calls, want %v after %d", c.name, err, calls, c.want, c.calls)
		}
	}
}
