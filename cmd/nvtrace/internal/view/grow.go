package view

import (
	"bytes"
	"errors"
	"io"
	"os"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/fleet"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/traces"
)

// growing reads a recording as it grows: each time from where it was.
type growing struct {
	rank *fleet.Recorded // nil before the header was read
	tail *tail
	over bool // nothing more can come
	told chan error
}

// tail is a file whose end is not its end: there a reader waits until it is told to go on.
type tail struct {
	*os.File
	parked chan struct{}
	more   chan bool // false: no more will come
	read   int64
	head   []byte // what was read first
	end    bool
}

// headSize is how much of a file's beginning is compared: its header says when the run began.
const headSize = 512

// Read implements io.Reader.
func (t *tail) Read(b []byte) (int, error) {
	for {
		n, err := t.File.Read(b)
		t.read += int64(n)
		if room := headSize - len(t.head); room > 0 {
			t.head = append(t.head, b[:min(n, room)]...)
		}
		if n > 0 || err != nil && !errors.Is(err, io.EOF) || len(b) == 0 {
			return n, err
		}
		if t.end {
			return 0, io.EOF
		}
		t.parked <- struct{}{}
		t.end = !<-t.more
	}
}

// follow begins to read a recording.
func follow(e *cli.Env, rf *cli.ReadFlags, name string) (*growing, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	e.Reads(name)
	g := &growing{tail: &tail{File: f, parked: make(chan struct{}), more: make(chan bool)}, told: make(chan error, 1)}
	go func() { g.told <- g.events(rf, name) }()
	return g, nil
}

// events reads the events. They are the other goroutine's while this one waits at the end of the file.
func (g *growing) events(rf *cli.ReadFlags, name string) error {
	r, err := traces.NewReader(g.tail)
	if err != nil {
		return err
	}
	defer r.Close()
	rank := fleet.NewRecorded(name, &r.Header)
	feed := observe.NewFeed(rf.Decoder(&r.Header), rank)
	feed.Follow()
	g.rank = rank
	ev := new(traces.Event)
	for {
		if err := r.Next(ev); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		feed.Event(ev)
		if rank.Complete = r.Complete(); rank.Complete {
			return nil
		}
	}
}

// look waits until what has come is read, up to the end of the file, and returns it; nil: not even the header has. Of a
// damaged recording nothing more comes.
func (g *growing) look() *fleet.Part {
	select {
	case <-g.tail.parked:
	case <-g.told:
		g.over = true
	}
	if g.rank == nil {
		return nil
	}
	return g.rank.Part(g.over)
}

// wake has the reader go on, if the file has grown, and reports whether it has. The next look is to follow.
func (g *growing) wake(size int64) bool {
	if g.over || size == g.tail.read {
		return false
	}
	g.tail.more <- true
	return true
}

// replaced reports whether a file is another one than that which was read, or was written anew.
func (g *growing) replaced(now os.FileInfo) bool {
	st, err := g.tail.Stat()
	if err != nil || !os.SameFile(st, now) || now.Size() < g.tail.read {
		return true
	}
	begin := make([]byte, len(g.tail.head))
	_, err = g.tail.ReadAt(begin, 0)
	return err != nil || !bytes.Equal(begin, g.tail.head)
}

// close ends the reader, which waits.
func (g *growing) close() {
	if !g.over {
		g.tail.more <- false
		<-g.told
		g.over = true
	}
	_ = g.tail.Close() // it was only read
}
