package harvest

import (
	"regexp"
	"strings"
)

// The headers mark many members as going in or out, in several manners of
// comments. These patterns read the marks.
var (
	dirStruct = regexp.MustCompile(`^\s*typedef\s+(?:struct|union)\b`)
	dirEnd    = regexp.MustCompile(`^\s*\}\s*(\w+)\s*(?:__attribute__.*|NV_ALIGN\w*.*)?;`)
	dirField  = regexp.MustCompile(`^\s*(?:NV_DECLARE_ALIGNED\()?[A-Za-z_][\w\s]*?[\s\*](\w+)\s*(?:\[[^\]]*\]\s*)*(?:,\s*8\))?\s*(?:NV_ALIGN_BYTES\(\d+\)\s*)?(?::\s*\d+\s*)?;(.*)$`)
	dirMark   = regexp.MustCompile(`(?i)(?:^|[\s\(\[<!])\[?\(?(in\s*[/,]\s*out|inout|in|out)\)?\]?(?:$|[\s:,.\]\)-])`)
	dirBefore = regexp.MustCompile(`(?i)\[(in\s*[/,]\s*out|inout|in|out)\]\s*:?\s*(\w+)`)
	dirAfter  = regexp.MustCompile(`(?i)(\w+)(?:\[\])?\s*[\[\(](in\s*[/,]\s*out|inout|in|out)[\]\)]`)
	dirLead   = regexp.MustCompile(`(?i)^\[(in\s*[/,]\s*out|inout|in|out)\]`)
)

func direction(s string) string {
	switch s = strings.ToLower(strings.Join(strings.Fields(s), "")); s {
	case "in/out", "in,out":
		return "inout"
	}
	return s
}

// marks reads one header, line by line.
type marks struct {
	out     map[string]map[string]string // record -> member -> direction
	pending map[string]string            // by member, from the comment before the record
	next    string                       // from the comment before the member
	last    string                       // a member's name that stands on a comment line of its own
	record  map[string]string            // members of the record that is open, nil if none is
	fields  []string
	depth   int
}

func (m *marks) header(src string) {
	m.pending, m.record, m.next, m.last = map[string]string{}, nil, "", ""
	for line := range strings.SplitSeq(src, "\n") {
		t := strings.TrimSpace(line)
		remark := strings.HasPrefix(t, "*") || strings.HasPrefix(t, "/*") || strings.HasPrefix(t, "//")
		if m.record == nil {
			m.outside(line, t, remark)
		} else {
			m.inside(line, t, remark)
		}
	}
}

// outside reads a line before a record.
func (m *marks) outside(line, t string, remark bool) {
	if dirStruct.MatchString(line) && (strings.Contains(line, "{") || !strings.Contains(line, ";")) {
		m.record, m.fields, m.depth, m.last = map[string]string{}, nil, strings.Count(line, "{"), ""
		return
	}
	if !remark && t != "" {
		return
	}
	for _, x := range dirBefore.FindAllStringSubmatch(t, -1) {
		m.pending[x[2]] = direction(x[1])
	}
	for _, x := range dirAfter.FindAllStringSubmatch(t, -1) {
		m.pending[x[1]] = direction(x[2])
	}
	switch w := strings.Fields(strings.TrimLeft(t, "*/! ")); {
	case len(w) == 1: // "* name" on its own line, then "* [in] words"
		m.last = strings.Trim(w[0], ":[]")
	case len(w) > 1:
		if x := dirLead.FindStringSubmatch(strings.TrimLeft(t, "*/!- ")); x != nil && m.last != "" {
			m.pending[m.last] = direction(x[1])
		}
	}
}

// inside reads a line of a record.
func (m *marks) inside(line, t string, remark bool) {
	m.depth += strings.Count(line, "{") - strings.Count(line, "}")
	if x := dirEnd.FindStringSubmatch(line); x != nil && m.depth <= 0 {
		m.close(x[1])
		return
	}
	if m.depth <= 0 {
		if strings.ContainsAny(line, "{}") {
			m.record = nil
		}
		return
	}
	x := dirField.FindStringSubmatch(line)
	if x == nil {
		if remark {
			if y := dirLead.FindStringSubmatch(strings.TrimLeft(t, "*/!<- ")); y != nil {
				m.next = direction(y[1])
			}
		}
		return
	}
	m.fields = append(m.fields, x[1])
	c := strings.TrimLeft(x[2], " /*!<")
	c = c[:min(len(c), 24)]
	marked := strings.HasPrefix(c, "[") || strings.HasPrefix(c, "IN") || strings.HasPrefix(c, "OUT") || strings.HasPrefix(c, "(")
	if y := dirMark.FindStringSubmatch(" " + c); y != nil && marked {
		m.record[x[1]] = direction(y[1])
	} else if m.next != "" {
		m.record[x[1]] = m.next
	}
	m.next = ""
}

func (m *marks) close(name string) {
	for _, f := range m.fields {
		if m.record[f] == "" && m.pending[f] != "" {
			m.record[f] = m.pending[f]
		}
	}
	if len(m.record) > 0 {
		m.out[name] = m.record
	}
	m.record, m.pending, m.last, m.next = nil, map[string]string{}, "", ""
}

// directions reads the marks of all headers, those of classes last.
func (h *harvest) directions() {
	m := marks{out: map[string]map[string]string{}}
	for _, u := range []string{"rm", "uvm", "nvswitch", "nvlink", "kms", "drm"} {
		files := h.units[u].pre.Files
		seen := map[string]bool{}
		class := func(p string) bool { return strings.Contains(p, "/class/") }
		for _, p := range files {
			if !seen[p] && !class(p) || strings.Contains(p, "notification") {
				seen[p] = true
				m.header(h.read(p))
			}
		}
		for _, p := range files {
			if class(p) && !seen[p] {
				seen[p] = true
				m.header(h.read(p))
			}
		}
	}
	h.f.Dir = map[string]map[string]string{}
	for name, members := range m.out {
		key, _, _ := h.f.Resolve(name)
		for _, f := range h.f.Types[key].Fields {
			if d := members[f.Name]; d != "" {
				note(h.f.Dir, key, f.Name, d)
			}
		}
	}
}
