package object

import (
	"errors"
	"strings"

	"nvtrace/nvattach/values"
)

// A Setting is what --map or --set asks for.
type Setting struct {
	Name  string // of the map or the variable
	Key   string // between the brackets; "" for a variable or a whole map
	Value string
	Text  string
}

// ErrSetting is in the chain of errors about a --map or --set that can't be done.
var ErrSetting = errors.New("malformed setting")

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
			return Setting{}, Markf(ErrSetting, "--map %s: write name[key]=value", s)
		}
		return Setting{Name: strings.TrimSpace(s[:at]), Key: strings.TrimSpace(s[at+1 : end]), Value: strings.TrimSpace(s[end+2:]), Text: "--map " + s}, nil
	}
	if !ok || name == "" || !strings.HasPrefix(value, "@") {
		return Setting{}, Markf(ErrSetting, "--map %s: write name[key]=value, or name=@FILE", s)
	}
	return Setting{Name: strings.TrimSpace(name), Value: value, Text: "--map " + s}, nil
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
		return Setting{}, Markf(ErrSetting, "--set %s: write variable=value", s)
	}
	return Setting{Name: name, Value: strings.TrimSpace(value), Text: "--set " + s}, nil
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
				return Markf(ErrSetting, "%s: %w", s.Text, err)
			}
			if uint64(v.Offset)+uint64(v.Size) > uint64(len(v.Map.Initial)) {
				return Markf(ErrSetting, "%s: the variable is outside its section", s.Text)
			}
			copy(v.Map.Initial[v.Offset:], b)
		}
	}
	if !found {
		return Markf(ErrSetting, "%s: there is no global variable %s%s", s.Text, s.Name, Known("; there are ", varNames(objs)))
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

// Known lists names for a message, or says nothing if there are none.
func Known(lead string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	if len(names) > 20 {
		names = append(names[:20:20], "…")
	}
	return lead + strings.Join(names, ", ")
}
