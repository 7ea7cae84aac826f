package harvest

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"nvtrace/rm/internal/gen/facts"
)

var (
	classDefine = regexp.MustCompile(`(?m)^#define (\w+)\s+\(?(0x[0-9a-fA-F]+)\)?`)
	classRow    = regexp.MustCompile(`(?s)RS_ENTRY\(\s*/\*[^*]*\*/\s*(\w+),\s*/\*[^*]*\*/\s*(\w+),\s*/\*[^*]*\*/\s*(\w+),\s*/\*[^*]*\*/\s*(.*?),\s*/\*[^*]*\*/\s*(RS_\w+(?:\([^)]*\))?),`)
	parentID    = regexp.MustCompile(`classId\((\w+)\)`)
	ownMember   = regexp.MustCompile(`^NV[0-9A-F]{4}_[A-Z]`)
)

// classSet collects classes by name.
type classSet struct {
	h      *harvest
	byName map[string]*facts.Class
	order  []string
	listed map[string]bool // in g_allclasses.h
}

func (s *classSet) get(name string) *facts.Class {
	c := s.byName[name]
	if c == nil {
		c = &facts.Class{Name: name}
		s.byName[name] = c
		s.order = append(s.order, name)
	}
	return c
}

// classes reads numbers and names from the headers, and from the resource table
// what is needed to make an object.
func (h *harvest) classes() (rows int) {
	s := &classSet{h: h, byName: map[string]*facts.Class{}, listed: map[string]bool{}}
	for _, m := range classDefine.FindAllStringSubmatch(h.read("src/nvidia/generated/g_allclasses.h"), -1) {
		s.listed[m[1]] = true
		if !strings.HasPrefix(m[1], "SDK_") {
			s.get(m[1]).ID = number(m[2])
		}
	}
	s.fromHeaders()
	rows = s.fromTable()
	s.finish()
	return rows
}

// fromHeaders takes, from a header called clXXXX.h, the macros of value 0xXXXX.
func (s *classSet) fromHeaders() {
	u := s.h.units["rm"]
	for _, n := range u.pre.Order {
		m := u.pre.All[n]
		c := classHeader.FindStringSubmatch(m.File)
		if c == nil || m.Func || len(m.Body) == 0 || strings.Contains(n, "_CTRL_") || strings.HasSuffix(n, "_MESSAGE_ID") {
			continue
		}
		id, err := strconv.ParseUint(c[1], 16, 64)
		v, ok := u.value(n)
		if err != nil || !ok || v != id || id == 0 && n != "NV01_ROOT" {
			continue
		}
		if strings.HasPrefix(n, fmt.Sprintf("NV%04X_", id)) && s.byName[n] == nil {
			// It may be a method or field of the class, whose value happens to match.
			if !ownMember.MatchString(n) || len(m.Body) > 3 || s.hasID(id) {
				continue
			}
		}
		s.get(n).ID = id
	}
}

func (s *classSet) hasID(id uint64) bool {
	for _, c := range s.byName {
		if c.ID == id {
			return true
		}
	}
	return false
}

// fromTable reads the rows of the resource table; all of them must read.
func (s *classSet) fromTable() (rows int) {
	src := s.h.read("src/nvidia/src/kernel/rmapi/resource_list.h")
	for _, m := range classRow.FindAllStringSubmatch(src, -1) {
		rows++
		s.row(m)
	}
	if n := strings.Count(src, "\nRS_ENTRY("); n != rows || n == 0 {
		s.h.fail("resource_list.h: %d rows read of %d", rows, n)
	}
	return rows
}

func (s *classSet) row(m []string) {
	c := s.get(m[1])
	if c.ID == 0 && m[1] != "NV01_ROOT" {
		v, ok := s.h.value("rm", m[1])
		if !ok {
			s.h.fail("classes: no number of %s", m[1])
		}
		c.ID = v
	}
	c.Open, c.Internal, c.Multi = true, m[2], m[3] == "NV_TRUE"
	for _, x := range parentID.FindAllStringSubmatch(m[4], -1) {
		c.Parents = append(c.Parents, x[1])
	}
	if len(c.Parents) == 0 {
		c.Parents = []string{strings.TrimSpace(m[4])}
	}
	need, alloc, _ := strings.Cut(m[5], "(")
	switch need {
	case "RS_NONE":
		c.Need = "none"
	case "RS_OPTIONAL":
		c.Need = "optional"
	case "RS_REQUIRED":
		c.Need = "required"
	default:
		s.h.fail("classes: %s: unknown %s", c.Name, need)
	}
	if alloc = strings.TrimSpace(strings.TrimSuffix(alloc, ")")); alloc != "" {
		k, size, ok := s.h.f.Resolve(alloc)
		if !ok {
			s.h.fail("classes: %s: no layout of %s", c.Name, alloc)
		}
		c.Alloc, c.Size = k, size
	}
}

// rank orders the names of one number: what the driver's table calls it, what
// its list of classes does, what a header does.
func (s *classSet) rank(c *facts.Class) int {
	switch {
	case c.Open:
		return 2
	case s.listed[c.Name]:
		return 1
	}
	return 0
}

func (s *classSet) finish() {
	byID := map[uint64]*facts.Class{}
	for _, n := range s.order {
		c := s.byName[n]
		switch o := byID[c.ID]; {
		case o == nil:
			byID[c.ID] = c
		case s.rank(c) > s.rank(o):
			c.Aliases = append(append(c.Aliases, o.Aliases...), o.Name)
			o.Aliases = nil
			byID[c.ID] = c
		default:
			o.Aliases = append(o.Aliases, c.Name)
		}
	}
	for _, n := range s.order {
		c := s.byName[n]
		if byID[c.ID] != c {
			continue
		}
		if c.Alloc == "" && !c.Open {
			s.allocByName(c)
		}
		s.h.f.Classes = append(s.h.f.Classes, *c)
	}
	slices.SortStableFunc(s.h.f.Classes, func(a, b facts.Class) int { return cmp.Compare(a.ID, b.ID) })
}

// allocByName finds the struct of a class that the open table lacks.
func (s *classSet) allocByName(c *facts.Class) {
	for _, guess := range []string{
		c.Name + "_ALLOCATION_PARAMETERS", c.Name + "_ALLOC_PARAMETERS", c.Name + "_ALLOC_PARAMS",
		fmt.Sprintf("NV%04X_ALLOCATION_PARAMETERS", c.ID), fmt.Sprintf("NV%04X_ALLOC_PARAMETERS", c.ID),
	} {
		if k, size, ok := s.h.f.Resolve(guess); ok {
			c.Alloc, c.Size, c.Need = k, size, "by-name"
			return
		}
	}
}
