package jump

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// blocks reads a file in blocks, of which it keeps some: tables are read by a few bytes at a time, and
// in order.
type blocks struct {
	r    io.ReaderAt
	list [numBlocks]block
}

type block struct {
	at   int64
	data []byte // nil: not read
}

const (
	blockSize = 64 << 10
	numBlocks = 8
)

func newBlocks(r io.ReaderAt) *blocks { return &blocks{r: r} }

// ReadAt implements [io.ReaderAt].
func (b *blocks) ReadAt(p []byte, off int64) (int, error) {
	at := off &^ (blockSize - 1)
	if len(p) > blockSize || off < 0 {
		return b.r.ReadAt(p, off)
	}
	n := 0
	for ; n < len(p); at += blockSize {
		x := &b.list[at/blockSize%numBlocks]
		if x.data == nil || x.at != at {
			if x.data == nil {
				x.data = make([]byte, blockSize)
			}
			k, err := b.r.ReadAt(x.data[:blockSize], at)
			x.at, x.data = at, x.data[:k]
			if k == 0 {
				x.data = nil
				return n, err
			}
		}
		if off+int64(n)-at >= int64(len(x.data)) {
			return n, io.EOF
		}
		n += copy(p[n:], x.data[off+int64(n)-at:])
		if n < len(p) && len(x.data) < blockSize {
			return n, io.EOF
		}
	}
	return n, nil
}

// duplicate returns a descriptor of a file that its owner does not close.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
