package harvest

import (
	"cmp"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"nvtrace/rm/internal/gen/facts"
)

var (
	// A command's define, with the comment that tells interface and params struct.
	finnCommand = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+\(?(0x[0-9a-fA-F]+)[uU]?\)?[ \t]*/\* finn: Evaluated from "\(FINN_(\w+)_INTERFACE_ID << 8\)? \| (\w+)\)?"`)
	// A row of an export table.
	exportRow  = regexp.MustCompile(`/\*flags=\*/\s*(0x[0-9a-fA-F]+)u?,\s*/\*accessRight=\*/\s*(0x[0-9a-fA-F]+)u?,\s*/\*methodId=\*/\s*(0x[0-9a-fA-F]+)u?,\s*/\*paramSize=\*/\s*(sizeof\((\w+)\)|\w+)\s*(?:/\*[^*]*\*/)?\s*,\s*/\*pClassInfo=\*/\s*&\(__nvoc_class_def_(\w+)\.classInfo\),(?:\s*#if NV_PRINTF_STRINGS_ALLOWED)?\s*/\*func=\*/\s*"(\w+)"`)
	flagDefine = regexp.MustCompile(`(?m)^#define (RMCTRL_FLAGS_\w+)\s+(0x[0-9a-fA-F]+)`)
	catMacro   = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*define[ \t]+(NV\w+?_CTRL)_CMD\(cat,\s*idx\).*?\(\s*0x([0-9a-fA-F]{4})`)
)

// export is a row of the export tables.
type export struct {
	flags, access       uint64
	params, owner, name string
}

// controlSet collects control commands by number.
type controlSet struct {
	h     *harvest
	table map[uint64]export
	seen  map[string]bool
	at    map[uint64]int // index in f.Controls
}

// controls reads the commands: names from the headers, what is exported, with
// exactly which struct, from the generated tables.
func (h *harvest) controls() (rows, distinct int) {
	table, rows := h.exports()
	s := &controlSet{h: h, table: table, seen: map[string]bool{}, at: map[uint64]int{}}
	for _, name := range headersIn(h.fsys, sdk+"/ctrl") {
		src := h.read(name)
		h.categories(src)
		for _, m := range finnCommand.FindAllStringSubmatch(src, -1) {
			c := facts.Control{Name: m[1], Cmd: number(m[2]), Iface: m[3]}
			if st, ok := strings.CutSuffix(m[4], "_MESSAGE_ID"); ok {
				if k, size, ok := h.f.Resolve(st); ok {
					c.Params, c.Size = k, size
				}
			}
			if c.Params == "" {
				c.Params, c.Size = h.paramsByName(c.Name)
			}
			s.add(c)
		}
	}
	s.unnamed()
	slices.SortStableFunc(h.f.Controls, func(a, b facts.Control) int { return cmp.Compare(a.Cmd, b.Cmd) })
	for _, m := range flagDefine.FindAllStringSubmatch(h.read("src/nvidia/inc/kernel/rmapi/control.h"), -1) {
		h.f.Flags[m[1]] = number(m[2])
	}
	if len(h.f.Flags) == 0 {
		h.fail("control.h: no RMCTRL_FLAGS_* found")
	}
	return rows, len(table)
}

// exports reads the generated export tables. Every row that says methodId must
// have been read.
func (h *harvest) exports() (table map[uint64]export, rows int) {
	files, err := fs.Glob(h.fsys, "src/nvidia/generated/g_*_nvoc.c")
	if err != nil || len(files) == 0 {
		h.fail("no generated export tables: src/nvidia/generated/g_*_nvoc.c (%v)", err)
	}
	table = map[uint64]export{}
	read := 0
	for _, name := range files {
		src := h.read(name)
		rows += strings.Count(src, "/*methodId=*/")
		for _, m := range exportRow.FindAllStringSubmatch(src, -1) {
			read++
			table[number(m[3])] = export{number(m[1]), number(m[2]), m[5], m[6], m[7]}
		}
	}
	if rows != read || rows == 0 {
		h.fail("export tables: %d rows read of %d", read, rows)
	}
	return table, rows
}

// add enters a command, with what the export tables say of it. Where the headers
// use a number twice, the second command hangs on the first.
func (s *controlSet) add(c facts.Control) {
	if s.seen[c.Name] {
		return
	}
	s.seen[c.Name] = true
	if e, ok := s.table[c.Cmd]; ok {
		c.Impl, c.Fn, c.Flags, c.Access, c.Owner = true, e.name, e.flags, e.access, e.owner
		c.Params, c.Size = "", 0
		if e.params != "" {
			k, size, ok := s.h.f.Resolve(e.params)
			if !ok {
				s.h.fail("controls: %s: no layout of %s", c.Name, e.params)
			}
			c.Params, c.Size = k, size
		}
	}
	if i, dup := s.at[c.Cmd]; dup {
		old := &s.h.f.Controls[i]
		for old.Other != nil {
			old = old.Other
		}
		old.Other = &c
		return
	}
	s.at[c.Cmd] = len(s.h.f.Controls)
	s.h.f.Controls = append(s.h.f.Controls, c)
}

// unnamed enters the exported commands that no header defines in the usual way:
// by another constant of that value, else by the function's name.
func (s *controlSet) unnamed() {
	byValue := map[uint64][]string{}
	for _, n := range s.h.units["rm"].pre.Order {
		if strings.HasPrefix(n, "NV") && strings.Contains(n, "_CTRL_") && !strings.HasSuffix(n, "_MESSAGE_ID") {
			if v, ok := s.h.f.Consts[n]; ok && v > 0xff {
				byValue[v] = append(byValue[v], n)
			}
		}
	}
	var rest []uint64
	for id := range s.table {
		if _, ok := s.at[id]; !ok {
			rest = append(rest, id)
		}
	}
	slices.Sort(rest)
	for _, id := range rest {
		name := ""
		for _, n := range byValue[id] {
			if strings.Contains(n, "_CTRL_CMD_") || name == "" {
				name = n
			}
		}
		s.add(facts.Control{Name: cmp.Or(name, s.table[id].name), Cmd: id})
	}
}

// paramsByName guesses a command's struct by the headers' spelling.
func (h *harvest) paramsByName(name string) (string, int64) {
	base := strings.TrimSuffix(name, "_FINN")
	a := strings.Replace(base, "_CTRL_CMD_", "_CTRL_", 1)
	for _, guess := range []string{a + "_PARAMS", base + "_PARAMS", a + "_PARAM", a, a + "_INFO"} {
		if t, ok := h.units["rm"].par.Typedefs[guess]; ok && t.Base().IsRecord() {
			if k, size, ok := h.f.Resolve(guess); ok {
				return k, size
			}
		}
	}
	return "", 0
}

// categories reads the names that a header gives to bits 15:8 of its commands.
func (h *harvest) categories(src string) {
	m := catMacro.FindStringSubmatchIndex(src)
	if m == nil {
		return
	}
	prefix, class := src[m[2]:m[3]], strings.ToLower(src[m[4]:m[5]])
	rest := src[m[1]:]
	if i := strings.Index(rest, prefix+"_CMD_"); i >= 0 {
		rest = rest[:i]
	}
	define := regexp.MustCompile(`(?m)^[ \t]*#[ \t]*define[ \t]+` + regexp.QuoteMeta(prefix) + `_(\w+)[ \t]+\(?0x([0-9a-fA-F]{1,2})U?\)?`)
	for _, x := range define.FindAllStringSubmatch(rest, -1) {
		if h.f.Category[class] == nil {
			h.f.Category[class] = map[string]string{}
		}
		h.f.Category[class][twoDigits(x[2])] = x[1]
	}
}

func twoDigits(hex string) string {
	hex = strings.ToLower(hex)
	if len(hex) == 1 {
		return "0" + hex
	}
	return hex
}
