package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"slices"

	"nvtrace/fatbin"
	"nvtrace/nvattach/capture"
)

// inspect reads the image's bytes and what is in them.
func (m *moduleImage) inspect(store *capture.Store) {
	if m.data = m.read(store); m.data == nil {
		return
	}
	f := fatbin.NewFile(m.SHA256, m.data, nil)
	x := fatbin.NewInflater(nil)
	defer x.Close()
	var buf []byte
	for c, err := range f.Containers() {
		if err != nil && m.Missing == "" {
			m.Missing = err.Error()
		}
		if c == nil {
			continue
		}
		for i := range c.Entries {
			en := newEntryReport(len(m.Entries)+1, &c.Entries[i])
			buf = en.inspect(x, &c.Entries[i], buf)
			m.Entries = append(m.Entries, en)
		}
	}
}

// read returns the bytes: from the store, or from the file where they lay; nil,
// and Missing, if they are not to be had.
func (m *moduleImage) read(store *capture.Store) []byte {
	if store != nil {
		b, err := store.Read(m.SHA256)
		if err == nil {
			return b
		}
		if !os.IsNotExist(unwrapAll(err)) {
			m.Missing = err.Error()
			return nil
		}
	}
	for _, l := range m.Loads {
		if l.File == "" {
			continue
		}
		if b, err := readRange(l.File, l.Offset, m.Size); err == nil && hashOf(b) == m.SHA256 {
			return b
		}
	}
	m.Missing = "not in the module store beside the recording"
	if store == nil {
		m.Missing = "the recording has no module store beside it"
	}
	if i := slices.IndexFunc(m.Loads, func(l *moduleLoad) bool { return l.File != "" }); i >= 0 {
		m.Missing += fmt.Sprintf(", and %s does not hold it any more", m.Loads[i].File)
	}
	return nil
}

// unwrapAll returns the innermost error.
func unwrapAll(err error) error {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok || u.Unwrap() == nil {
			return err
		}
		err = u.Unwrap()
	}
}

func hashOf(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// readRange reads a part of a regular file.
func readRange(name string, off, size int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || off < 0 || size < 0 || off > st.Size() || size > st.Size()-off {
		return nil, fmt.Errorf("%s: +%#x: %d bytes: %w", name, off, size, io.ErrUnexpectedEOF)
	}
	b := make([]byte, size)
	_, err = f.ReadAt(b, off)
	return b, err
}

// imageCode sums up what an image is for.
type imageCode struct {
	ptx, sass, lto []string // architectures
	kernels        []string // distinct names
}

func (m *moduleImage) code() imageCode {
	var c imageCode
	seen := make(map[string]bool)
	add := func(list *[]string, arch string) {
		if !slices.Contains(*list, arch) {
			*list = append(*list, arch)
		}
	}
	for i := range m.Entries {
		en := &m.Entries[i]
		switch en.Kind {
		case fatbin.KindPTX.String():
			add(&c.ptx, en.Arch)
		case fatbin.KindELF.String():
			add(&c.sass, en.Arch)
		default:
			add(&c.lto, en.Arch)
		}
		for _, k := range en.Kernels {
			if !seen[k.Name] {
				seen[k.Name] = true
				c.kernels = append(c.kernels, k.Name)
			}
		}
	}
	return c
}
