package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// A mapsFile is where --maps writes to: a file beside the one that is wanted until the
// session is over, so that a run that never begins leaves what was there.
type mapsFile struct {
	name  string
	file  *os.File
	began bool // the program did
}

// createMaps prepares to write a file.
func createMaps(name string) (*mapsFile, error) {
	if st, err := os.Stat(name); err == nil && !st.Mode().IsRegular() {
		f, err := os.OpenFile(name, os.O_WRONLY, 0) // a pipe or a terminal
		if err != nil {
			return nil, fmt.Errorf("--maps: %w", err)
		}
		return &mapsFile{file: f}, nil
	}
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return nil, fmt.Errorf("--maps %s: %w", name, err)
	}
	return &mapsFile{name: name, file: f}, nil
}

// close ends the file, and gives it its name if the program began. It may be nil.
func (m *mapsFile) close() error {
	if m == nil {
		return nil
	}
	err := m.file.Close()
	switch {
	case m.name == "":
	case err == nil && m.began:
		err = os.Rename(m.file.Name(), m.name)
	default:
		err = errors.Join(err, os.Remove(m.file.Name()))
	}
	if err != nil {
		return fmt.Errorf("--maps: %w", err)
	}
	return nil
}

// begin notes that the program has begun.
func (f *attachFlags) begin() {
	if f.mapsTo != nil {
		f.mapsTo.began = true
	}
}
