package allow

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Document is the JSON form.
type Document struct {
	Format  int             `json:"format"`
	Runs    []Run           `json:"runs"`
	Entries []DocumentEntry `json:"entries"`
}

// DocumentEntry is an entry in it.
type DocumentEntry struct {
	Kind    Kind     `json:"kind"`
	Node    string   `json:"node,omitempty"`
	Device  string   `json:"device,omitempty"`
	Maps    string   `json:"maps,omitempty"`
	Nr      string   `json:"nr,omitempty"`
	Name    string   `json:"name,omitempty"`
	Sizes   []uint32 `json:"sizes,omitempty"`
	Drivers []string `json:"drivers,omitempty"`
	OK      uint64   `json:"ok"`
	Failed  uint64   `json:"failed,omitempty"`
	Unseen  uint64   `json:"unseen,omitempty"`
	Status  string   `json:"first_failure,omitempty"`
}

// AppendJSON appends the list as JSON.
func (l *List) AppendJSON(dst []byte, runs []Run) ([]byte, error) {
	out := Document{Format: 1, Runs: runs, Entries: []DocumentEntry{}}
	for _, e := range l.Entries {
		j := DocumentEntry{
			Kind: e.Kind, Device: e.Device, Name: e.Name, Sizes: e.Sizes, Drivers: e.Drivers, OK: e.OK, Failed: e.Failed,
			Unseen: e.Unseen, Status: e.Status,
		}
		switch e.Kind {
		case KindNode:
			j.Node = e.Text
		case KindMmap:
			j.Maps = e.Text
		default:
			j.Nr = fmt.Sprintf("%#x", e.Nr)
		}
		out.Entries = append(out.Entries, j)
	}
	return appendJSON(dst, out)
}

func appendJSON(dst []byte, v any) ([]byte, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return dst, err
	}
	return append(append(dst, b...), '\n'), nil
}

// seccompRule is a rule of an OCI runtime's or Docker's seccomp profile. Docker
// reads the comment, other runtimes pass over it.
type seccompRule struct {
	Names   []string     `json:"names"`
	Action  string       `json:"action"`
	Args    []seccompArg `json:"args,omitempty"`
	Comment string       `json:"comment,omitempty"`
}

type seccompArg struct {
	Index uint   `json:"index"`
	Value uint64 `json:"value"`
	Op    string `json:"op"`
}

// AppendSeccomp appends a fragment for the "syscalls" of an OCI or Docker
// seccomp profile: ioctl with exactly the requests of the list, and the calls
// around it, which seccomp cannot narrow down to devices.
func (l *List) AppendSeccomp(dst []byte) ([]byte, error) {
	names := make(map[uint64][]string)
	var nodes, maps []string
	for _, e := range l.Entries {
		switch e.Kind {
		case KindNode:
			nodes = append(nodes, "/dev/"+e.Text)
		case KindMmap:
			if !slices.Contains(maps, e.Device) {
				maps = append(maps, e.Device)
			}
		case KindIoctl:
			what := strings.TrimSpace(e.Device + " " + e.Name)
			for _, v := range append([]uint64{uint64(e.Nr)}, e.Raw...) {
				names[v] = append(names[v], what)
			}
		}
	}
	rules := []seccompRule{{
		Names: []string{"close", "mmap", "munmap", "open", "openat", "openat2"}, Action: "SCMP_ACT_ALLOW",
		Comment: "seccomp sees neither paths nor what a descriptor is: limit the nodes by the devices that the container has (" +
			strings.Join(nodes, ", ") + "); mapped: " + cmp.Or(strings.Join(maps, ", "), "none"),
	}}
	values := make([]uint64, 0, len(names))
	for v := range names {
		values = append(values, v)
	}
	slices.Sort(values)
	for i, v := range values {
		r := seccompRule{
			Names: []string{"ioctl"}, Action: "SCMP_ACT_ALLOW", Args: []seccompArg{{1, v, "SCMP_CMP_EQ"}},
			Comment: strings.Join(names[v], "; "),
		}
		if i == 0 {
			r.Comment += " (these rules take the place of one that allows every ioctl; requests on other files, terminals say, need rules of their own)"
		}
		rules = append(rules, r)
	}
	return appendJSON(dst, struct {
		Syscalls []seccompRule `json:"syscalls"`
	}{rules})
}

// AppendNVProxy appends the list as Go maps under the words that gVisor's
// nvproxy uses: the numbers that its tables must have for the runs to work, the
// parameter sizes as values, names as comments.
func (l *List) AppendNVProxy(dst []byte) []byte {
	dst = append(dst, "// What the recorded programs use, for comparison with nvproxy's tables.\n"+
		"// Keys are numbers, values parameter sizes in bytes (nil: any).\n"...)
	for _, s := range []struct {
		kind Kind
		name string
	}{
		{KindEscape, "frontendIoctl"},
		{KindUVM, "uvmIoctl"},
		{KindControl, "controlCmd"},
		{KindClass, "allocationClass"},
	} {
		dst = fmt.Appendf(dst, "\nvar %s = map[uint32][]uint32{\n", s.name)
		for _, e := range l.Entries {
			if e.Kind == s.kind {
				dst = e.appendGo(dst)
			}
		}
		dst = append(dst, "}\n"...)
	}
	return dst
}

func (e *Entry) appendGo(dst []byte) []byte {
	switch e.Kind {
	case KindControl:
		dst = fmt.Appendf(dst, "\t0x%08x: ", e.Nr)
	case KindClass:
		dst = fmt.Appendf(dst, "\t0x%04x: ", e.Nr)
	default:
		dst = fmt.Appendf(dst, "\t%#x: ", e.Nr)
	}
	if e.Sizes == nil {
		dst = append(dst, "nil,"...)
	} else {
		dst = append(dst, '{')
		for i, n := range e.Sizes {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = fmt.Appendf(dst, "%d", n)
		}
		dst = append(dst, "},"...)
	}
	dst = append(dst, " // "...)
	dst = e.appendRemark(dst)
	return append(dst, '\n')
}

// LackText describes a lack in a line: "control 0x20800102 NAME, size 40 (the
// list has 32)".
func (l *Lack) LackText() string {
	var s string
	switch l.Kind {
	case KindNode:
		s = "node " + word(l.Text)
	case KindMmap:
		s = "mmap " + l.Device + " " + word(l.Text)
	case KindIoctl:
		s = fmt.Sprintf("ioctl %s %#x", l.Device, l.Nr)
	default:
		s = fmt.Sprintf("%s %#x", l.Kind, l.Nr)
	}
	if l.Name != "" {
		s += " " + l.Name
	}
	if l.Sized {
		s += fmt.Sprintf(", parameters of %d bytes (the list has %s)", l.Size, strings.Trim(strings.ReplaceAll(fmt.Sprint(l.Allow), " ", ","), "[]"))
	}
	return s
}
