package main

import (
	"errors"
	"fmt"
)

// A mapsFile is where --maps writes to. It is opened when the program has begun, and takes
// its place when the session is over; meanwhile no other run may write it.
type mapsFile struct {
	lock  *grownFile
	whole *wholeFile
}

// Write implements io.Writer. Before the program has begun there are no maps to show.
func (m *mapsFile) Write(b []byte) (int, error) {
	if m.whole == nil {
		return len(b), nil
	}
	return m.whole.Write(b)
}

// beginMaps opens the file that maps are written to, "" for none.
func (f *attachFlags) beginMaps(e *env, name string) (err error) {
	m := f.mapsTo
	if m == nil || name == "" {
		return nil
	}
	if err = e.refuseInput(name); err == nil {
		m.lock, err = openGrown(name, e.limit(modeFile))
	}
	if err == nil {
		if m.whole, err = e.createWhole(name, modeFile); err != nil {
			m.lock.abandon()
		}
	}
	if err != nil {
		return fmt.Errorf("--maps: %w", err)
	}
	return nil
}

// abandon leaves things as they were before beginMaps. It may be nil.
func (m *mapsFile) abandon() {
	if m == nil || m.whole == nil {
		return
	}
	_ = m.whole.finish(errNotBegun) // which it returns
	m.whole = nil
	m.lock.abandon()
}

// errNotBegun is why a file does not take its place.
var errNotBegun = errors.New("the program has not begun")

// close ends the file. It may be nil.
func (m *mapsFile) close() error {
	if m == nil || m.whole == nil {
		return nil
	}
	err := errors.Join(m.whole.finish(nil), m.lock.Close())
	m.whole = nil
	if err != nil {
		return fmt.Errorf("--maps: %w", err)
	}
	return nil
}
