package main

import (
	"errors"
	"fmt"
)

// A mapsFile is where --maps writes to. It takes its place when the session is over, if the
// program has begun.
type mapsFile struct {
	*wholeFile
	began bool
}

// createMaps prepares to write maps to a file, which none of the objects may be.
func (f *attachFlags) createMaps(e *env) error {
	for _, name := range f.objects {
		e.reads(name)
	}
	w, err := e.createWhole(f.mapsFile, modeFile)
	if err != nil {
		return fmt.Errorf("--maps: %w", err)
	}
	f.mapsTo = &mapsFile{wholeFile: w}
	return nil
}

// begin notes that the program has begun.
func (f *attachFlags) begin() {
	if f.mapsTo != nil {
		f.mapsTo.began = true
	}
}

// errNotBegun is why a file does not take its place.
var errNotBegun = errors.New("the program has not begun")

// close ends the file. It may be nil.
func (m *mapsFile) close() error {
	if m == nil {
		return nil
	}
	var err error
	if !m.began {
		err = errNotBegun
	}
	if err = m.finish(err); err != nil && !errors.Is(err, errNotBegun) {
		return fmt.Errorf("--maps: %w", err)
	}
	return nil
}
