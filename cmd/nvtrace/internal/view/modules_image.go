package view

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/code"
	"nvtrace/fatbin"
	"nvtrace/nvattach/capture"
)

// inspect reads what is in the image.
func (m *moduleImage) inspect(r *modulesReport) {
	gpus := r.gpus
	if len(gpus) == 0 {
		gpus = gpuArchs()
	}
	err := m.read(r, func(data []byte) error {
		f := fatbin.NewFile(m.SHA256, data, nil)
		x := fatbin.NewInflater(&fatbin.Options{Budget: fatbin.NewBudget(fatbin.DefaultBudget(int64(len(data))))})
		defer x.Close()
		for c, err := range f.Containers() {
			if err != nil && m.Missing == "" {
				m.Missing = err.Error()
			}
			if c == nil {
				continue
			}
			m.Takes = append(m.Takes, choices(c, len(m.Entries), gpus)...)
			for i := range c.Entries {
				en := code.NewEntryReport(len(m.Entries)+1, &c.Entries[i])
				en.Inspect(x, &c.Entries[i])
				m.Entries = append(m.Entries, en)
			}
		}
		return nil
	})
	if m.readable = err == nil; err != nil {
		m.Missing = err.Error()
	}
}

// read gives the image's bytes to fn, when it is sure that they have the image's hash. They
// are valid during the call: an image takes no memory of its own. The recording and what is
// beside it may be a stranger's.
func (m *moduleImage) read(r *modulesReport, fn func(data []byte) error) error {
	if r.store != nil {
		f, err := r.store.Open(m.SHA256, m.Size)
		if err == nil {
			return m.readFile(f, 0, fn)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	missing := "not in the module store beside the recording"
	if r.store == nil {
		missing = "the recording has no module store beside it"
		if r.Captured != nil {
			missing += " (" + capture.StoreDir(filepath.Base(r.recording)) + ")"
		}
	}
	i := slices.IndexFunc(m.Loads, func(l *moduleLoad) bool { return l.File != "" })
	switch {
	case i < 0:
		return errors.New(missing)
	case !r.files:
		return fmt.Errorf("%s; it lay in %s, which --files reads", missing, m.Loads[i].File)
	}
	var last error
	for _, l := range m.Loads {
		if l.File == "" || l.Offset < 0 || l.Offset > math.MaxInt64-m.Size {
			continue
		}
		f, err := capture.OpenImage(l.File, l.Offset+m.Size, 0)
		if err == nil {
			err = m.readFile(f, l.Offset, fn)
		}
		if err == nil {
			return nil
		}
		last = err
	}
	return fmt.Errorf("%s, and %s does not hold it any more: %w", missing, m.Loads[i].File, last)
}

// readFile gives fn the image that lies in a file, which it closes.
func (m *moduleImage) readFile(f *os.File, off int64, fn func(data []byte) error) error {
	defer f.Close()
	var data []byte
	if m.Size > 0 {
		skip := off % int64(os.Getpagesize())
		mapped, err := unix.Mmap(int(f.Fd()), off-skip, int(m.Size+skip), unix.PROT_READ, unix.MAP_PRIVATE)
		if err != nil {
			return fmt.Errorf("%s: mmap: %w", f.Name(), err)
		}
		defer func() { _ = unix.Munmap(mapped) }()
		data = mapped[skip:]
	}
	return fatbin.NewFile(f.Name(), data, nil).Guard(func() error {
		if got := hashOf(data); got != m.SHA256 {
			return fmt.Errorf("%s was changed: its SHA-256 is %s", f.Name(), got)
		}
		return fn(data)
	})
}

func hashOf(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
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
