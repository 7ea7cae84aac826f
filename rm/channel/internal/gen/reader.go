package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// A reader turns the #defines of a class's headers into lines of facts.
//
// A header names a method, then the fields of its data, then the values of each field, each with
// the name before it as a prefix. So the kind of a definition follows from its value and prefix:
//
//	NVCBC0_LAUNCH_DMA                       0x01b0      a method at that offset
//	NVCBC0_LAUNCH_DMA_DST_MEMORY_LAYOUT        0:0      bits of the last method's data
//	NVCBC0_LAUNCH_DMA_DST_MEMORY_LAYOUT_PITCH  0x1      a value of the last field
//	NVCBC0_CALL_MME_MACRO(j)        (0x3800+(j)*8)      an array of methods
//	NVCBC0_QMDV04_00_GRID_WIDTH     MW(1055:1024)       bits of a QMD of version 4.0
//	NVCBC0_QMDV04_00_RELEASE_ENABLE(i)  MW((320+(i)*16):(320+(i)*16))  an array of fields
type reader struct {
	number string
	name   string // the class's name in NVIDIA's headers
	out    bytes.Buffer

	method, field string // whose fields, whose values come next; "" if none
	foreign       bool   // the field is of no method
	qmd           string // the version that fields are of, "4.0"; "" outside of QMDs
}

var (
	defineLine = regexp.MustCompile(`^#define\s+([A-Z][A-Za-z0-9_]*)(?:\([a-z](?:,[a-z])*\))?\s+(\S.*?)\s*(?://.*|/\*.*)?$`)
	qmdName    = regexp.MustCompile(`^QMDV(\d\d)_(\d\d)_(.+)$`)
	bitsValue  = regexp.MustCompile(`^(\d+):(\d+)$`)
	mwValue    = regexp.MustCompile(`^MW\((\d+):(\d+)\)$`)
	mwArray    = regexp.MustCompile(`^MW\(\((\d+)((?:\+\([ij]\)\*\d+)+)\):\((\d+)((?:\+\([ij]\)\*\d+)+)\)\)$`)
	stride     = regexp.MustCompile(`\([ij]\)\*`)
	array      = regexp.MustCompile(`^\(0x([0-9a-fA-F]+)\+\([a-z]\)\*(\d+)\)$`)
	offset     = regexp.MustCompile(`^(?:0x|\(0x0000)([0-9a-fA-F]{4})\)?$`) // values have eight digits and no parentheses
	number     = regexp.MustCompile(`^\(?(0[xX][0-9a-fA-F]+|\d+)\)?$`)
)

// read adds the definitions of one header.
func (r *reader) read(text string) error {
	prefix := "NV" + strings.ToUpper(r.number) + "_"
	for n, line := range strings.Split(text, "\n") {
		m := defineLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		name, value := m[1], m[2]
		if short, ok := strings.CutPrefix(name, prefix); ok {
			if err := r.define(short, value); err != nil {
				return fmt.Errorf("line %d: %w", n+1, err)
			}
		} else if v := number.FindStringSubmatch(value); v != nil && r.name == "" && strings.EqualFold(trimmed(v[1]), r.number) {
			r.name = name
		}
	}
	return nil
}

// trimmed returns a hexadecimal number's digits without 0x and zeros in front.
func trimmed(number string) string {
	return strings.TrimLeft(strings.TrimPrefix(strings.ToLower(number), "0x"), "0")
}

// define adds one definition; its name has lost the class's prefix.
func (r *reader) define(name, value string) error {
	if m := qmdName.FindStringSubmatch(name); m != nil {
		return r.defineQMD(m[1], m[2], m[3], value)
	}
	if strings.HasPrefix(name, "GP_ENTRY") || strings.HasPrefix(name, "DMA_") {
		return nil // how entries of a ring and headers of methods are made: package channel has that as code
	}
	switch {
	case bitsValue.MatchString(value):
		// Bits of something else than a method's data, such as a notifier, have no method in front.
		r.field, r.foreign = name, !under(name, r.method)
		if !r.foreign {
			m := bitsValue.FindStringSubmatch(value)
			fmt.Fprintf(&r.out, "f %s:%s %s\n", m[1], m[2], name[len(r.method)+1:])
		}
	case under(name, r.field):
		return r.value(name, value)
	case array.MatchString(value):
		m := array.FindStringSubmatch(value)
		return r.newMethod(name, m[1], "+"+m[2])
	case offset.MatchString(value):
		return r.newMethod(name, offset.FindStringSubmatch(value)[1], "")
	}
	return nil
}

// under reports whether a name is one of what its owner names.
func under(name, owner string) bool { return owner != "" && strings.HasPrefix(name, owner+"_") }

// maxMethod is the offset behind the last method: a header's 12 bits count words.
const maxMethod = 1 << 14

func (r *reader) newMethod(name, offset, stride string) error {
	n, err := strconv.ParseUint(offset, 16, 32)
	if err != nil || n >= maxMethod || n%4 != 0 {
		return fmt.Errorf("%s is at no method's offset: 0x%s", name, offset)
	}
	r.method, r.field, r.foreign = name, "", false
	fmt.Fprintf(&r.out, "m %04x%s %s\n", n, stride, name)
	return nil
}

func (r *reader) value(name, value string) error {
	m := number.FindStringSubmatch(value)
	if r.foreign {
		return nil
	}
	if m == nil {
		return fmt.Errorf("%s is neither bits nor a number: %s", name, value)
	}
	n, err := strconv.ParseUint(m[1], 0, 64)
	if err != nil {
		return err
	}
	fmt.Fprintf(&r.out, "v %x %s\n", n, name[len(r.field)+1:])
	return nil
}

// defineQMD adds a field of a QMD, or a value of the last field.
func (r *reader) defineQMD(major, minor, name, value string) error {
	if version := strings.TrimPrefix(major, "0") + "." + strings.TrimPrefix(minor, "0"); version != r.qmd {
		r.qmd, r.method, r.field, r.foreign = version, "", "", false
		fmt.Fprintf(&r.out, "q %s\n", version)
	}
	if m := mwValue.FindStringSubmatch(value); m != nil {
		r.field = name
		fmt.Fprintf(&r.out, "f %s:%s %s\n", m[1], m[2], name)
		return nil
	}
	if m := mwArray.FindStringSubmatch(value); m != nil && m[2] == m[4] {
		r.field = name
		fmt.Fprintf(&r.out, "f %s:%s%s %s\n", m[1], m[3], stride.ReplaceAllString(m[2], ""), name)
		return nil
	}
	if under(name, r.field) {
		return r.value(name, value)
	}
	return fmt.Errorf("%s is neither bits nor a value of %s: %s", name, r.field, value)
}
