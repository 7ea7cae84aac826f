package fatbin

import (
	"bytes"
	"iter"
	"strconv"
	"strings"
)

// member is a file in an archive.
type member struct {
	name   string
	data   []byte
	offset int64
}

const arHeader = 60 // ar(5): name 16, date 12, user 6, group 6, mode 8, size 10, "`\n"

// archiveMembers walks a static library in System V's or BSD's form. An error
// ends the walk.
func archiveMembers(b []byte) iter.Seq2[member, error] {
	return func(yield func(member, error) bool) {
		var longNames []byte
		for p := uint64(len(archiveMagic)); p < uint64(len(b)); {
			h, ok := cut(b, p, arHeader)
			if !ok || h[58] != '`' || h[59] != '\n' {
				yield(member{}, formatError("archive", p, "no member's header"))
				return
			}
			size, err := strconv.ParseUint(strings.TrimSpace(string(h[48:58])), 10, 63)
			data, ok := cut(b, p+arHeader, size)
			if err != nil || !ok {
				yield(member{}, formatError("archive", p+48, "a member of %q bytes, and %d are left", h[48:58], uint64(len(b))-p-arHeader))
				return
			}
			m := member{data: data, offset: int64(p + arHeader)}
			name := strings.TrimRight(string(h[:16]), " ")
			p += arHeader + size + size&1
			switch {
			case name == "//":
				longNames = data
				continue
			case name == "/" || name == "/SYM64/":
				continue // the table of symbols
			}
			m.resolve(name, longNames)
			if !yield(m, nil) {
				return
			}
		}
	}
}

// resolve finds a member's name: in the header, in the table of long names
// ("/123"), or before the data ("#1/20").
func (m *member) resolve(name string, longNames []byte) {
	m.name = strings.TrimSuffix(name, "/")
	if n, err := strconv.ParseUint(strings.TrimPrefix(name, "/"), 10, 32); err == nil && name[0] == '/' && n < uint64(len(longNames)) {
		long, _, _ := bytes.Cut(longNames[n:], []byte("\n"))
		m.name = strings.TrimSuffix(string(long[:min(len(long), 4096)]), "/")
	}
	if num, ok := strings.CutPrefix(name, "#1/"); ok {
		if n, err := strconv.ParseUint(num, 10, 16); err == nil && n <= uint64(len(m.data)) {
			m.name = string(bytes.TrimRight(m.data[:n], "\x00"))
			m.data, m.offset = m.data[n:], m.offset+int64(n)
		}
	}
}
