package mapmem

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"nvtrace/nvattach/object"
	"nvtrace/nvattach/values"
)

// Apply writes what a --map asks for, before any kernel runs. readFile reads the
// file of @FILE; nil means from the disk, and no more than the map has room for.
func (m *Maps) Apply(mem Memory, s object.Setting, readFile func(string) ([]byte, error)) error {
	if s.GPUClock() {
		s.Value = "0" // for now
	}
	x := m.Find(s.Name)
	if x == nil && m.ofBlocks(s.Name) != nil {
		return object.Markf(object.ErrSetting, "%s: each block has a map %s of its own, which begins with zeros", s.Text, s.Name)
	}
	if x == nil {
		var names []string
		for _, y := range m.All {
			names = append(names, y.Name)
		}
		return object.Markf(object.ErrSetting, "%s: there is no map %s%s", s.Text, s.Name, object.Known("; there are ", names))
	}
	if readFile == nil {
		readFile = func(name string) ([]byte, error) {
			return readUpTo(name, uint64(x.Def.MaxEntries)*uint64(x.Def.ValueSize))
		}
	}
	var err error
	if s.Key == "" {
		err = m.fill(mem, x, s.Value[1:], readFile)
	} else {
		err = m.set(mem, x, s)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.Text, err)
	}
	return nil
}

// readUpTo reads a file; one that is longer than limit, endless perhaps, is cut behind
// the byte that is too much.
func readUpTo(name string, limit uint64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, int64(limit)+1))
}

// fill writes a file's bytes over an array's values.
func (m *Maps) fill(mem Memory, x *Map, file string, readFile func(string) ([]byte, error)) error {
	if x.Kind != object.LayoutArray {
		return object.Markf(object.ErrSetting, "only an array can be filled from a file")
	}
	data, err := readFile(file)
	if err != nil {
		return err
	}
	size := int(x.Def.ValueSize)
	switch room := uint64(x.Def.MaxEntries) * uint64(size); {
	case uint64(len(data)) > room:
		return object.Markf(object.ErrSetting, "%s has more than the %d bytes of %d values", file, room, x.Def.MaxEntries)
	case len(data)%size != 0:
		return object.Markf(object.ErrSetting, "%s has %d bytes; up to %d values of %d bytes are wanted", file, len(data), x.Def.MaxEntries, size)
	}
	for i := 0; i*size < len(data); i++ {
		if err := m.update(mem, x, IndexKey(uint64(i)), data[i*size:(i+1)*size]); err != nil {
			return err
		}
	}
	return nil
}

func (m *Maps) set(mem Memory, x *Map, s object.Setting) error {
	value, err := values.Parse(s.Value, x.Def.Value, int(x.Def.ValueSize))
	if err != nil {
		return object.Markf(object.ErrSetting, "%w", err)
	}
	if from, to, ok := strings.Cut(s.Key, ".."); ok && x.Kind != object.LayoutHash {
		first, err1 := strconv.ParseUint(from, 0, 32)
		last, err2 := strconv.ParseUint(to, 0, 32)
		if err1 != nil || err2 != nil || last < first || last >= uint64(x.Def.MaxEntries) {
			return object.Markf(object.ErrSetting, "no indices %s of %d", s.Key, x.Def.MaxEntries)
		}
		for i := first; i <= last; i++ {
			if err := m.update(mem, x, IndexKey(i), value); err != nil {
				return err
			}
		}
		return nil
	}
	key, err := values.Parse(s.Key, x.Def.Key, int(x.Def.KeySize))
	if err != nil {
		return object.Markf(object.ErrSetting, "%w", err)
	}
	return m.update(mem, x, key, value)
}
