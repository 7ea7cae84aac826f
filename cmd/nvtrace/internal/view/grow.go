package view

import (
	"errors"
	"io"
	"os"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/fleet"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/ioctl"
	"nvtrace/traces"
)

// errNotYet says that of a recording its beginning is not written yet.
var errNotYet = errors.New("its beginning is not written yet")

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
	end    bool
}

// Read implements io.Reader.
func (t *tail) Read(b []byte) (int, error) {
	for {
		n, err := t.File.Read(b)
		t.read += int64(n)
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
	d, err := rf.Decoder(&r.Header)
	if err != nil {
		return err
	}
	rank := fleet.NewRecorded(name, &r.Header)
	feed := observe.NewFeed(d, rank)
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

// look reads what has come, up to the end of the file, and returns it.
func (g *growing) look() (*fleet.Part, error) {
	if g.over {
		return nil, nil
	}
	var err error
	select {
	case <-g.tail.parked:
	case err = <-g.told:
		g.over = true
	}
	if g.rank == nil {
		return nil, errors.Join(errNotYet, err)
	}
	return g.rank.Part(g.over), err
}

// wake has the reader look for more before the next look.
func (g *growing) wake() {
	if !g.over {
		g.tail.more <- true
	}
}

// close ends the reader, which waits.
func (g *growing) close() {
	if !g.over {
		g.tail.more <- false
		for !g.over {
			select {
			case <-g.tail.parked: // cannot be: it has been told that there is no more
			case <-g.told:
				g.over = true
			}
		}
	}
	_ = g.tail.Close() // it was read
}

var _ = ioctl.Known
