package harvest

import (
	"regexp"
	"strings"

	"nvtrace/rm/internal/gen/facts"
)

// roleRules tell by a member's name and element size what it stands for. They
// are hints for printing: nothing is ever followed because of them.
var roleRules = []struct {
	name *regexp.Regexp
	role string
	size int64 // 0: any
}{
	{regexp.MustCompile(`^(status|rmStatus|Status|nvStatus)$`), "status", 4},
	{regexp.MustCompile(`^(fd|ctl_fd|rmCtrlFd|uvmFd|memFd|unicastEventFd)$`), "fd", 4},
	{regexp.MustCompile(`^(cap|dev)Descriptor$`), "fd", 8},
	{regexp.MustCompile(`^(pid|processId|subPid|vmPid|accountingPid|pidTarget|pidTbl)$`), "pid", 4},
	{regexp.MustCompile(`^(hClass|classId|classNum|partnershipClassId)$`), "class", 4},
	{regexp.MustCompile(`^h[A-Z]\w*$`), "handle", 4},
	{regexp.MustCompile(`^(gpuId|gpu_id|gpuIds|attachedGpuIds|gpuInstance)$`), "gpu", 4},
	{regexp.MustCompile(`[uU]uid$`), "uuid", 16},
	{regexp.MustCompile(`^(length|size|limit|vaSize|regSize|fbSize|reg_size|fb_size|allocSize|heapSize|totalSize)$`), "bytes", 8},
	{regexp.MustCompile(`^(base|offset|dmaOffset|address|vaBase|requestedBase|rangeLo|rangeHi|pLinearAddress|gpuVA|gpuVa|virtAddress|physAddress|vaStartInternal|vaLimitInternal|reg_address|fb_address)$`), "address", 8},
}

// element is the size of one element of a member.
func element(m *facts.Field) int64 {
	size := m.Size
	for _, d := range m.Dims {
		if d > 0 {
			size /= d
		}
	}
	return size
}

func roleOf(m *facts.Field) string {
	switch {
	case m.Ptr:
		return "pointer"
	case m.Type == "NvHandle":
		return "handle"
	case m.Type == "NV_STATUS":
		return "status"
	case m.Type == "NvProcessorUuid" || m.Type == "NvUuid" || m.Type == "nv_uuid":
		return "uuid"
	case m.Type == "NvBool":
		return ""
	}
	for _, x := range roleRules {
		if (x.size == 0 || x.size == element(m)) && x.name.MatchString(m.Name) {
			return x.role
		}
	}
	return ""
}

// note sets m[record][member].
func note(m map[string]map[string]string, record, member, v string) {
	if m[record] == nil {
		m[record] = map[string]string{}
	}
	m[record][member] = v
}

func (h *harvest) roles() {
	h.f.Roles = map[string]map[string]string{}
	for name, t := range h.f.Types {
		for i := range t.Fields {
			if r := roleOf(&t.Fields[i]); r != "" {
				note(h.f.Roles, name, t.Fields[i].Name, r)
			}
		}
	}
}

var countName = regexp.MustCompile(`(?i)(count|^num|cnt$|listsize$|tblsize$|numentries|entries$|length$)`)

// stem takes off a name what says only that it is a list.
func stem(s string) string {
	s = strings.ToLower(s)
	for _, x := range []string{"list", "tbl", "table", "array", "infos", "info", "params", "entries", "entry", "data"} {
		if t := strings.TrimSuffix(s, x); len(t) >= 3 {
			s = t
		}
	}
	if len(s) > 3 {
		s = strings.TrimSuffix(s, "s")
	}
	return s
}

// counts finds, by the headers' spelling, the member that says how many elements
// of an array are in use.
func (h *harvest) counts() {
	h.f.Counts = map[string]map[string]string{}
	for name, t := range h.f.Types {
		if t.Union {
			continue
		}
		var arrays, counts []facts.Field
		for _, m := range t.Fields {
			sc, scalar := h.f.Scalars[m.Type]
			switch {
			case len(m.Dims) > 0 && m.Dims[0] >= 2:
				if !(scalar && sc.Size == 1 && strings.Contains(strings.ToLower(m.Name), "name")) {
					arrays = append(arrays, m)
				}
			case scalar && len(m.Dims) == 0 && m.Bits == 0 && (sc.Kind == "u" || sc.Kind == "s") && m.Type != "NvBool" &&
				countName.MatchString(strings.ReplaceAll(m.Name, "ounter", "")):
				counts = append(counts, m)
			}
		}
		for _, a := range arrays {
			if c := countOf(a.Name, counts); c != "" {
				note(h.f.Counts, name, a.Name, c)
			} else if len(arrays) == 1 && len(counts) == 1 {
				note(h.f.Counts, name, a.Name, counts[0].Name)
			}
		}
	}
}

func countOf(array string, counts []facts.Field) string {
	st := stem(array)
	for _, c := range counts {
		l := strings.ToLower(c.Name)
		bare := stem(strings.TrimPrefix(strings.TrimSuffix(strings.TrimSuffix(l, "count"), "size"), "num"))
		if strings.Contains(l, st) || strings.Contains(st, bare) && len(l) > 5 {
			return c.Name
		}
	}
	return ""
}
