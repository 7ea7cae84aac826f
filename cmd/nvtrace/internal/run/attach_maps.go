package run

import (
	"errors"
	"fmt"
	"sync"

	"nvtrace/cmd/nvtrace/internal/cli"
)

// A mapsFile is where --maps writes to. It is opened when the program has begun, and takes
// its place when the session is over; meanwhile no other run may write it. A session writes from a
// goroutine of its own, before it is opened, too.
type mapsFile struct {
	mu    sync.Mutex
	lock  *cli.GrownFile
	whole *cli.WholeFile // nil: it is not open
}

// open opens it for a file of this name.
func (m *mapsFile) open(e *cli.Env, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	lock, err := cli.OpenGrown(name, e.Limit(cli.ModeFile))
	if err != nil {
		return err
	}
	whole, err := e.CreateWhole(name, cli.ModeFile)
	if err != nil {
		lock.Abandon()
		return err
	}
	m.lock, m.whole = lock, whole
	return nil
}

// Write implements io.Writer. Before the program has begun there are no maps to show.
func (m *mapsFile) Write(b []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.whole == nil {
		return len(b), nil
	}
	return m.whole.Write(b)
}

// abandon leaves things as they were before beginMaps. It may be nil.
func (m *mapsFile) abandon() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.whole == nil {
		return
	}
	_ = m.whole.Finish(errNotBegun) // which it returns
	m.whole = nil
	m.lock.Abandon()
}

// errNotBegun is why a file does not take its place.
var errNotBegun = errors.New("the program has not begun")

// close ends the file. It may be nil.
func (m *mapsFile) close() error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.whole == nil {
		return nil
	}
	err := errors.Join(m.whole.Finish(nil), m.lock.Close())
	m.whole = nil
	if err != nil {
		return fmt.Errorf("--maps: %w", err)
	}
	return nil
}
