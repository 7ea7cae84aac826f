package rm

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Version is a driver version such as 580.159.04. It is comparable; the zero
// Version stands for an unknown one.
type Version struct {
	Major, Minor, Patch uint16
	short               bool // spelled without a patch level: 535.98
}

// ParseVersion reads a version as the driver spells it: two or three decimal
// numbers separated by dots.
func ParseVersion(s string) (Version, error) {
	bad := func(why string) (Version, error) {
		return Version{}, fmt.Errorf("driver version %q: %s, want one like 580.159.04", s, why)
	}
	parts := strings.Split(s, ".")
	if len(parts) < 2 || len(parts) > 3 {
		return bad(fmt.Sprintf("%d numbers", len(parts)))
	}
	var n [3]uint16
	for i, p := range parts {
		u, err := strconv.ParseUint(p, 10, 16)
		if err != nil || p[0] == '+' {
			return bad(fmt.Sprintf("part %d is no number below 65536", i+1))
		}
		n[i] = uint16(u)
	}
	if n[0] == 0 {
		return bad("major number 0")
	}
	return Version{n[0], n[1], n[2], len(parts) == 2}, nil
}

// String spells the version the way the driver does, "" if it is zero.
func (v Version) String() string {
	switch {
	case v.IsZero():
		return ""
	case v.short:
		return fmt.Sprintf("%d.%02d", v.Major, v.Minor)
	}
	return fmt.Sprintf("%d.%02d.%02d", v.Major, v.Minor, v.Patch)
}

// IsZero reports whether v is unknown.
func (v Version) IsZero() bool { return v == Version{} }

// Compare orders versions by their numbers: negative if v is older than w. A
// version without a patch level comes before those of the same line with one.
func (v Version) Compare(w Version) int {
	c := cmp.Or(cmp.Compare(v.Major, w.Major), cmp.Compare(v.Minor, w.Minor), cmp.Compare(v.Patch, w.Patch))
	if c == 0 && v.short != w.short {
		if v.short {
			return -1
		}
		return 1
	}
	return c
}
