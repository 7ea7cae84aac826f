package channel

import (
	"bufio"
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A Class is what an engine behind a channel understands: its methods, and for compute engines the
// layouts of queue meta data.
type Class struct {
	Number uint16
	Name   string // in NVIDIA's headers: HOPPER_COMPUTE_A
	Kind   Kind

	methods []Method // in order of offsets, arrays by their first element
	qmds    []*QMDLayout
	roles   [methodOffsets]role
}

// A Kind says which engine a class is of.
type Kind uint8

// The engines behind a channel.
const (
	Host    Kind = iota // the channel's own methods (GPFIFO), offsets below 0x100
	Compute             // kernels
	Copy                // copy engines
)

// A Method is one method of a class, or an array of methods.
type Method struct {
	Name   string
	Offset uint16 // in bytes, as headers name it; of an array the first one
	Stride uint16 // between the elements of an array; 0: none
	Fields []Field
}

// A Field is a range of bits: in a method's data, or in a QMD.
type Field struct {
	Name      string
	High, Low uint16  // both inclusive
	Stride    uint16  // between the elements of an array, in bits; 0: none
	Values    []Value // names of single values; none for a plain number
}

// A Value is a number with a name.
type Value struct {
	Number uint64
	Name   string
}

// ValueName returns the name of one of the field's values, or "".
func (f *Field) ValueName(number uint64) string {
	for _, v := range f.Values {
		if v.Number == number {
			return v.Name
		}
	}
	return ""
}

//go:embed facts/*.txt
var facts embed.FS

// Classes returns the numbers of all classes that are known, in rising order.
var Classes = sync.OnceValue(func() []uint16 {
	names, err := fs.Glob(facts, "facts/*.txt")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	var numbers []uint16
	for _, name := range names {
		n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(name, "facts/"), ".txt"), 16, 16)
		if err != nil {
			panic(fmt.Sprintf("channel: embedded file %s is not named after a class", name))
		}
		numbers = append(numbers, uint16(n))
	}
	slices.Sort(numbers)
	return numbers
})

var (
	classMu sync.Mutex
	classes = map[uint16]*Class{}
)

// ClassOf returns a class by its number, or nil if nothing is known of it.
func ClassOf(number uint16) *Class {
	classMu.Lock()
	defer classMu.Unlock()
	c, ok := classes[number]
	if !ok {
		if _, known := slices.BinarySearch(Classes(), number); known {
			c = load(number)
		}
		classes[number] = c
	}
	return c
}

// hostBefore is the class that a host class of the kernel modules' headers leaves out methods of.
// Methods of the host that are not in those headers have kept their meaning since Ampere.
var hostBefore = map[uint16]uint16{0xc86f: 0xc76f, 0xc96f: 0xc86f, 0xca6f: 0xc96f}

// load reads a class's facts. They are ours, and a test reads them all: a mistake in them panics.
func load(number uint16) *Class {
	text, err := facts.ReadFile(fmt.Sprintf("facts/%04x.txt", number))
	if err != nil {
		panic(err)
	}
	p := factsParser{class: &Class{Number: number, Kind: kindOf(number)}}
	for lines := bufio.NewScanner(strings.NewReader(string(text))); lines.Scan(); {
		if err := p.line(lines.Text()); err != nil {
			panic(fmt.Sprintf("channel: facts of class %04x: %v", number, err))
		}
	}
	c := p.class
	if before, ok := hostBefore[number]; ok {
		for _, m := range load(before).methods {
			if !slices.ContainsFunc(c.methods, func(own Method) bool { return own.Offset == m.Offset }) {
				c.methods = append(c.methods, m)
			}
		}
	}
	slices.SortStableFunc(c.methods, func(a, b Method) int { return int(a.Offset) - int(b.Offset) })
	c.setRoles()
	for _, l := range c.qmds {
		l.launch = launchFieldsOf(l)
	}
	return c
}

// kindOf tells the engine by the last two digits of a class's number.
func kindOf(number uint16) Kind {
	switch number & 0xff {
	case 0xc0:
		return Compute
	case 0xb5:
		return Copy
	}
	return Host
}

// A factsParser reads the lines of a facts file; facts/README.md describes them.
type factsParser struct {
	class  *Class
	fields *[]Field // those that the next field is added to
}

func (p *factsParser) line(line string) error {
	kind, rest, _ := strings.Cut(line, " ")
	first, name, _ := strings.Cut(rest, " ")
	switch kind {
	case "#":
		return nil
	case "class":
		p.class.Name = rest
		return nil
	case "m":
		at, stride, isArray := strings.Cut(first, "+")
		offset, err := strconv.ParseUint(at, 16, 16)
		if err != nil {
			return err
		}
		m := Method{Name: name, Offset: uint16(offset)}
		if isArray {
			n, err := strconv.ParseUint(stride, 10, 16)
			if err != nil {
				return err
			}
			m.Stride = uint16(n)
		}
		p.class.methods = append(p.class.methods, m)
		p.fields = &p.class.methods[len(p.class.methods)-1].Fields
		return nil
	case "q":
		n, err := decimals(first, ".")
		if err != nil || len(n) != 2 {
			return fmt.Errorf("bad version of a QMD: %q", line)
		}
		l := &QMDLayout{Major: uint8(n[0]), Minor: uint8(n[1])}
		p.class.qmds = append(p.class.qmds, l)
		p.fields = &l.Fields
		return nil
	case "f":
		return p.field(first, name)
	case "v":
		n, err := strconv.ParseUint(first, 16, 64)
		if err != nil || p.fields == nil || len(*p.fields) == 0 {
			return fmt.Errorf("value without a field: %q", line)
		}
		f := &(*p.fields)[len(*p.fields)-1]
		f.Values = append(f.Values, Value{n, name})
		return nil
	}
	return fmt.Errorf("unknown line: %q", line)
}

// field adds a field. Of an array of two dimensions, which sub-tasks of QMDs have, it keeps the first stride.
func (p *factsParser) field(bits, name string) error {
	n, err := decimals(strings.Replace(bits, ":", "+", 1), "+")
	if err != nil || len(n) < 2 || p.fields == nil {
		return fmt.Errorf("bad field %s %s", bits, name)
	}
	f := Field{Name: name, High: uint16(n[0]), Low: uint16(n[1])}
	if len(n) > 2 {
		f.Stride = uint16(n[2])
	}
	*p.fields = append(*p.fields, f)
	return nil
}

// decimals splits text at a separator and parses what lies between.
func decimals(text, separator string) ([]uint64, error) {
	var list []uint64
	for part := range strings.SplitSeq(text, separator) {
		n, err := strconv.ParseUint(part, 10, 16)
		if err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	return list, nil
}

// Method returns the method at a byte offset and, for an element of an array, its index. It
// returns nil for an offset that the headers don't name. The headers don't say how long an array
// is: one is taken to reach up to the next method.
func (c *Class) Method(offset uint16) (m *Method, index int) {
	i, found := slices.BinarySearchFunc(c.methods, offset, func(m Method, o uint16) int { return int(m.Offset) - int(o) })
	if found {
		return &c.methods[i], 0
	}
	// Arrays may be interleaved (CALL_MME_MACRO and CALL_MME_DATA): look a little further back.
	for j := i - 1; j >= 0 && j >= i-4; j-- {
		m := &c.methods[j]
		if m.Stride == 0 {
			continue
		}
		if d := offset - m.Offset; d%m.Stride == 0 {
			return m, int(d / m.Stride)
		}
	}
	return nil, 0
}
