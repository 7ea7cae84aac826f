package fatbin

import "bytes"

// PTXInfo is what [ScanPTX] finds in PTX text.
type PTXInfo struct {
	Version string   // of the ISA, "9.0"; "" if there is no .version
	Target  string   // with options, "sm_90a, debug"; "" if there is no .target
	Entries []string // names of kernels that have a body, in the text's order
}

// ScanPTX reads the header and the names of the kernels from PTX. It doesn't
// parse the text (package ptx does): it only skips comments and strings.
func ScanPTX(text []byte) PTXInfo {
	var info PTXInfo
	s := ptxScanner{text: text}
	var pending []byte // an entry whose body or end is awaited
	depth := 0
	for {
		switch w := s.word(); string(w) {
		case "":
			return info
		case ".version":
			if info.Version == "" {
				info.Version = s.line()
			}
		case ".target":
			if info.Target == "" {
				info.Target = s.line()
			}
		case ".entry":
			if depth == 0 {
				pending = s.word()
			}
		case "{":
			if depth == 0 && len(pending) > 0 {
				info.Entries = append(info.Entries, string(pending))
				pending = nil
			}
			depth++
		case "}":
			depth = max(0, depth-1)
		case ";":
			if depth == 0 {
				pending = nil // a declaration
			}
		}
	}
}

// ptxScanner cuts text into words: names with their dots, and single signs.
type ptxScanner struct {
	text []byte
	pos  int
}

// word returns the next word; none at the end (a NUL counts as one).
func (s *ptxScanner) word() []byte {
	s.space()
	if s.pos >= len(s.text) || s.text[s.pos] == 0 {
		return nil
	}
	start := s.pos
	switch c := s.text[s.pos]; {
	case c == '"':
		s.pos++
		for s.pos < len(s.text) && s.text[s.pos] != '"' && s.text[s.pos] != '\n' {
			if s.text[s.pos] == '\\' {
				s.pos++
			}
			s.pos++
		}
		s.pos = min(s.pos+1, len(s.text))
		return s.text[start : start+1]
	case ptxNameByte(c):
		for s.pos < len(s.text) && ptxNameByte(s.text[s.pos]) {
			s.pos++
		}
		return s.text[start:s.pos]
	}
	s.pos++
	return s.text[start:s.pos]
}

// line returns the rest of the line without comments and blanks around it.
func (s *ptxScanner) line() string {
	rest := s.text[s.pos:]
	if n := bytes.IndexAny(rest, "\n\x00"); n >= 0 {
		rest = rest[:n]
	}
	s.pos += len(rest)
	for _, comment := range []string{"//", "/*"} {
		if n := bytes.Index(rest, []byte(comment)); n >= 0 {
			rest = rest[:n]
		}
	}
	return string(bytes.TrimSpace(rest))
}

// space skips blanks and comments.
func (s *ptxScanner) space() {
	for s.pos < len(s.text) {
		rest := s.text[s.pos:]
		switch {
		case rest[0] == ' ' || rest[0] >= '\t' && rest[0] <= '\r':
			s.pos++
		case bytes.HasPrefix(rest, []byte("//")):
			if n := bytes.IndexByte(rest, '\n'); n >= 0 {
				s.pos += n
			} else {
				s.pos = len(s.text)
			}
		case bytes.HasPrefix(rest, []byte("/*")):
			if n := bytes.Index(rest[2:], []byte("*/")); n >= 0 {
				s.pos += n + 4
			} else {
				s.pos = len(s.text)
			}
		default:
			return
		}
	}
}

func ptxNameByte(c byte) bool {
	return c == '_' || c == '$' || c == '%' || c == '.' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}
