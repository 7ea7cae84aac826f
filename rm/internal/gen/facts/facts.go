// Package facts is the generator's model of what a driver version declares:
// names, numbers, sizes and layouts ([Facts]), merged over many versions
// ([Set]), and the text form in which they are committed.
package facts

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Facts is what one driver version declares.
type Facts struct {
	Version  string
	Escapes  []Escape
	UVM      []Ioctl
	UVMTest  []Ioctl
	KMS      []Ioctl
	NVSwitch []Ioctl
	NVSwCtl  []Ioctl
	NVLink   []Ioctl
	DRM      []Ioctl
	Controls []Control
	Classes  []Class
	Status   map[string]uint64
	Flags    map[string]uint64            // RMCTRL_FLAGS_*
	Category map[string]map[string]string // class, 4 hex digits -> bits 15:8 of a command, 2 hex digits -> name
	Embedded map[string][]Embedded        // by the constant in the driver's case label
	Scalars  map[string]Scalar
	Enums    map[string]map[string]int64
	Types    map[string]Type
	Alias    map[string]string            // typedef -> record it renames
	Domains  map[string]map[string]Domain // record -> member -> value names
	Roles    map[string]map[string]string // record -> member -> what its number is
	Counts   map[string]map[string]string // record -> array -> member that counts it
	Dir      map[string]map[string]string // record -> member -> in, out, inout

	Consts map[string]uint64   // not written out: names of numbers
	Ranges map[string][2]int64 // not written out: names of bit ranges, hi and lo
}

// Field is one member of a record.
type Field struct {
	Name string
	Off  int64
	Size int64
	Type string
	Dims []int64
	Bit  int64 // bit offset in the storage unit at Off
	Bits int64 // width of a bit-field, else 0
	Ptr  bool  // NvP64 or a C pointer; not written out
}

// Type is a record's layout. Its text form is [kind, size, align, fields], a
// field's is [name, offset, size, type, [dims], bit, bits] with the last three
// left out where they are empty.
type Type struct {
	Union  bool
	Size   int64
	Align  int64
	Fields []Field
}

// MarshalJSON writes the short form.
func (t Type) MarshalJSON() ([]byte, error) {
	kind := "s"
	if t.Union {
		kind = "u"
	}
	fields := make([]any, 0, len(t.Fields))
	for _, f := range t.Fields {
		x := []any{f.Name, f.Off, f.Size, f.Type}
		if len(f.Dims) > 0 || f.Bits > 0 {
			x = append(x, append([]int64{}, f.Dims...))
		}
		if f.Bits > 0 {
			x = append(x, f.Bit, f.Bits)
		}
		fields = append(fields, x)
	}
	return json.Marshal([]any{kind, t.Size, t.Align, fields})
}

// UnmarshalJSON reads the short form.
func (t *Type) UnmarshalJSON(b []byte) error {
	var kind string
	var fields [][]json.RawMessage
	if err := unpack(b, &kind, &t.Size, &t.Align, &fields); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	t.Union = kind == "u"
	t.Fields = make([]Field, len(fields))
	for i, raw := range fields {
		f := &t.Fields[i]
		dst := []any{&f.Name, &f.Off, &f.Size, &f.Type, &f.Dims, &f.Bit, &f.Bits}
		if len(raw) < 4 || len(raw) > len(dst) {
			return fmt.Errorf("record: member %d has %d parts", i, len(raw))
		}
		for j, r := range raw {
			if err := json.Unmarshal(r, dst[j]); err != nil {
				return fmt.Errorf("record: member %d: %w", i, err)
			}
		}
		if len(f.Dims) == 0 {
			f.Dims = nil
		}
	}
	return nil
}

func unpack(b []byte, dst ...any) error {
	var raw []json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	if len(raw) != len(dst) {
		return fmt.Errorf("%d parts, want %d", len(raw), len(dst))
	}
	for i, r := range raw {
		if err := json.Unmarshal(r, dst[i]); err != nil {
			return err
		}
	}
	return nil
}

// Scalar is a type that is no record.
type Scalar struct {
	Kind string `json:"k"` // u s f p e
	Size int64  `json:"s"`
	Enum string `json:"e,omitempty"`
}

// Escape is a request on nvidiactl or nvidiaN.
type Escape struct {
	Nr     uint64   `json:"-"` // the key
	Name   string   `json:"name"`
	Params []string `json:"params,omitempty"` // X[] is an array of X
	Sizes  []int64  `json:"sizes,omitempty"`
	Dev    string   `json:"dev,omitempty"`   // ctl, gpu, "" both
	Where  string   `json:"where,omitempty"` // driver file that handles it
}

// Ioctl is a request of another node.
type Ioctl struct {
	Name   string `json:"-"` // the key
	Nr     uint64 `json:"nr"`
	Params string `json:"params,omitempty"`
	Size   int64  `json:"size,omitempty"`
	Impl   bool   `json:"impl,omitempty"` // dispatched by the driver
}

// Control is a control command.
type Control struct {
	Cmd    uint64 `json:"-"` // the key
	Name   string `json:"name"`
	Iface  string `json:"iface,omitempty"`
	Params string `json:"params,omitempty"`
	Size   int64  `json:"size,omitempty"`
	Fn     string `json:"fn,omitempty"`
	Flags  uint64 `json:"flags,omitempty"`
	Access uint64 `json:"access,omitempty"`
	Owner  string `json:"owner,omitempty"`
	Impl   bool   `json:"impl,omitempty"` // in the export tables
	// Other is what else the headers define under this number.
	Other *Control `json:"other,omitempty"`
}

// Class is an object class.
type Class struct {
	ID       uint64   `json:"-"` // the key
	Name     string   `json:"name"`
	Internal string   `json:"internal,omitempty"`
	Alloc    string   `json:"alloc,omitempty"`
	Size     int64    `json:"size,omitempty"`
	Need     string   `json:"need,omitempty"` // none, optional, required; by-name: not in the table, found by spelling
	Parents  []string `json:"parents,omitempty"`
	Multi    bool     `json:"multi,omitempty"`
	Open     bool     `json:"open,omitempty"` // in the resource server's table
	Aliases  []string `json:"aliases,omitempty"`
}

// Embedded is a pointer in control parameters that the driver follows.
type Embedded struct {
	Params string `json:"params,omitempty"`
	Field  string `json:"field"`
	Count  string `json:"count"` // a member, or a number
	Elem   string `json:"elem"`  // a member, a number, or sizeof(type)
	Dir    string `json:"dir"`   // in, out, inout, by-flag
}

// Domain names a member's values.
type Domain struct {
	Prefix string            `json:"prefix"`
	Via    string            `json:"via"` // bound, enum; name: found by spelling
	Vals   map[string]uint64 `json:"vals,omitempty"`
	Ranges []Range           `json:"ranges,omitempty"`
	// Sub names what the member beside this one may hold, for a value of this one.
	Sub map[string]map[string]uint64 `json:"sub,omitempty"`
}

// Range is a named range of bits.
type Range struct {
	Name string            `json:"n"`
	Hi   int64             `json:"hi"`
	Lo   int64             `json:"lo"`
	Vals map[string]uint64 `json:"vals,omitempty"`
}

// Resolve follows typedefs to a record or scalar and returns its size.
func (f *Facts) Resolve(n string) (key string, size int64, ok bool) {
	for range 8 {
		if t, ok := f.Types[n]; ok {
			return n, t.Size, true
		}
		a, ok := f.Alias[n]
		if !ok {
			break
		}
		n = a
	}
	if s, ok := f.Scalars[n]; ok {
		return n, s.Size, true
	}
	return n, 0, false
}

// Record resolves a name to a record's key; arrays resolve to their element.
func (f *Facts) Record(n string) (string, bool) {
	k, _, _ := f.Resolve(strings.TrimSuffix(n, "[]"))
	_, ok := f.Types[k]
	return k, ok
}
