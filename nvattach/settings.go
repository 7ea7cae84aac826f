package nvattach

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"nvtrace/nvattach/values"
)

// A Setting is what --map or --set asks for.
type Setting struct {
	Name  string // of the map or the variable
	Key   string // between the brackets; "" for a variable or a whole map
	Value string
	text  string
}

// ErrSetting is in the chain of errors about a --map or --set that can't be done.
var ErrSetting = errors.New("bad setting")

// ParseMapSetting reads name[key]=value, name[first..last]=value (of an array), or
// name=@FILE, which fills an array with the contents of a file. Keys and values
// are numbers, text for arrays of char, {a, b} for structures and arrays, or
// hex:BYTES; gpu_clock is the number that is what %globaltimer of the GPU is ahead of
// CLOCK_MONOTONIC.
func ParseMapSetting(s string) (Setting, error) {
	name, value, ok := strings.Cut(s, "=")
	// An equals sign may also be in the key.
	if at := strings.IndexByte(s, '['); at >= 0 && at < len(name) {
		end := strings.Index(s, "]=")
		if end < 0 || end < at {
			return Setting{}, markf(ErrSetting, "--map %s: write name[key]=value", s)
		}
		return Setting{Name: strings.TrimSpace(s[:at]), Key: strings.TrimSpace(s[at+1 : end]), Value: strings.TrimSpace(s[end+2:]), text: "--map " + s}, nil
	}
	if !ok || name == "" || !strings.HasPrefix(value, "@") {
		return Setting{}, markf(ErrSetting, "--map %s: write name[key]=value, or name=@FILE", s)
	}
	return Setting{Name: strings.TrimSpace(name), Value: value, text: "--map " + s}, nil
}

// gpuClock is a value: %globaltimer less CLOCK_MONOTONIC, in nanoseconds.
const gpuClock = "gpu_clock"

// GPUClock reports whether the setting's value is the difference of the clocks of the GPU and
// the host, %globaltimer less CLOCK_MONOTONIC, which is known once a GPU runs.
func (s *Setting) GPUClock() bool { return s.Value == gpuClock }

// ParseVarSetting reads var=value.
func ParseVarSetting(s string) (Setting, error) {
	name, value, ok := strings.Cut(s, "=")
	if name = strings.TrimSpace(name); !ok || name == "" {
		return Setting{}, markf(ErrSetting, "--set %s: write variable=value", s)
	}
	return Setting{Name: name, Value: strings.TrimSpace(value), text: "--set " + s}, nil
}

// SetVar sets the initial value of a global variable in every object that has it.
// It comes before NewMaps and before programs are compiled, so that constants are
// known to the compiler.
func SetVar(objs []*Object, s Setting) error {
	found := false
	for _, o := range objs {
		for i := range o.Vars {
			v := &o.Vars[i]
			if v.Name != s.Name {
				continue
			}
			found = true
			b, err := values.Parse(s.Value, v.Type, int(v.Size))
			if err != nil {
				return markf(ErrSetting, "%s: %w", s.text, err)
			}
			if uint64(v.Offset)+uint64(v.Size) > uint64(len(v.Map.Initial)) {
				return markf(ErrSetting, "%s: the variable is outside its section", s.text)
			}
			copy(v.Map.Initial[v.Offset:], b)
		}
	}
	if !found {
		return markf(ErrSetting, "%s: there is no global variable %s%s", s.text, s.Name, known("; there are ", varNames(objs)))
	}
	return nil
}

func varNames(objs []*Object) []string {
	var names []string
	for _, o := range objs {
		for i := range o.Vars {
			names = append(names, o.Vars[i].Name)
		}
	}
	return names
}

// known lists names for a message, or says nothing if there are none.
func known(lead string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	if len(names) > 20 {
		names = append(names[:20:20], "…")
	}
	return lead + strings.Join(names, ", ")
}

// Apply writes what a --map asks for, before any kernel runs. readFile reads the
// file of @FILE; nil means from the disk, and no more than the map has room for.
func (m *Maps) Apply(mem Memory, s Setting, readFile func(string) ([]byte, error)) error {
	if s.GPUClock() {
		s.Value = "0" // for now
	}
	x := m.Find(s.Name)
	if x == nil && m.ofBlocks(s.Name) != nil {
		return markf(ErrSetting, "%s: each block has a map %s of its own, which begins with zeros", s.text, s.Name)
	}
	if x == nil {
		var names []string
		for _, y := range m.All {
			names = append(names, y.Name)
		}
		return markf(ErrSetting, "%s: there is no map %s%s", s.text, s.Name, known("; there are ", names))
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
		return fmt.Errorf("%s: %w", s.text, err)
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
	if x.kind != layoutArray {
		return markf(ErrSetting, "only an array can be filled from a file")
	}
	data, err := readFile(file)
	if err != nil {
		return err
	}
	size := int(x.Def.ValueSize)
	switch room := uint64(x.Def.MaxEntries) * uint64(size); {
	case uint64(len(data)) > room:
		return markf(ErrSetting, "%s has more than the %d bytes of %d values", file, room, x.Def.MaxEntries)
	case len(data)%size != 0:
		return markf(ErrSetting, "%s has %d bytes; up to %d values of %d bytes are wanted", file, len(data), x.Def.MaxEntries, size)
	}
	for i := 0; i*size < len(data); i++ {
		if err := m.update(mem, x, indexKey(uint64(i)), data[i*size:(i+1)*size]); err != nil {
			return err
		}
	}
	return nil
}

func (m *Maps) set(mem Memory, x *Map, s Setting) error {
	value, err := values.Parse(s.Value, x.Def.Value, int(x.Def.ValueSize))
	if err != nil {
		return markf(ErrSetting, "%w", err)
	}
	if from, to, ok := strings.Cut(s.Key, ".."); ok && x.kind != layoutHash {
		first, err1 := strconv.ParseUint(from, 0, 32)
		last, err2 := strconv.ParseUint(to, 0, 32)
		if err1 != nil || err2 != nil || last < first || last >= uint64(x.Def.MaxEntries) {
			return markf(ErrSetting, "no indices %s of %d", s.Key, x.Def.MaxEntries)
		}
		for i := first; i <= last; i++ {
			if err := m.update(mem, x, indexKey(i), value); err != nil {
				return err
			}
		}
		return nil
	}
	key, err := values.Parse(s.Key, x.Def.Key, int(x.Def.KeySize))
	if err != nil {
		return markf(ErrSetting, "%w", err)
	}
	return m.update(mem, x, key, value)
}
