package agent

import (
	"strings"
	"testing"
)

// TestEncode: what does not fit into the agent's tables is refused.
func TestEncode(t *testing.T) {
	long := strings.Repeat("x", MaxPathPart)
	for _, c := range []struct {
		list []Path
		ok   bool
	}{
		{make([]Path, MaxPaths), true},
		{make([]Path, MaxPaths+1), false},
		{[]Path{{Prefix: long, Part: long}}, true},
		{[]Path{{Prefix: long + "x"}}, false},
		{[]Path{{Part: long + "x"}}, false},
		{[]Path{{Part: "a\x00b"}}, false},
	} {
		if b := encodePaths(c.list); (len(b) == pathSize*len(c.list)) != c.ok || !c.ok && b != nil {
			t.Errorf("%+v: %d bytes", c.list, len(b))
		}
	}
	for _, c := range []struct {
		n  Nested
		ok bool
	}{
		{Nested{Size: 24, Pointers: []Pointer{{8, 0, 4}, {16, 20, 1 << 30}}}, true},
		{Nested{Size: MaxNested, Pointers: make([]Pointer, MaxPointers)}, true},
		{Nested{Size: MaxNested + 1}, false},
		{Nested{Size: 24, Pointers: make([]Pointer, MaxPointers+1)}, false},
		{Nested{Size: 24, Pointers: []Pointer{{17, 0, 4}}}, false},
		{Nested{Size: 24, Pointers: []Pointer{{1<<32 - 4, 0, 4}}}, false},
		{Nested{Size: 24, Pointers: []Pointer{{0, 21, 4}}}, false},
	} {
		if _, err := (&Plan{Nested: []Nested{c.n}}).encode(); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.n, err)
		}
	}
	if _, err := (&Plan{Nested: make([]Nested, numNested+1)}).encode(); err == nil {
		t.Error("too many are taken")
	}
}

// TestPathMatch: the parts of a path that are looked at.
func TestPathMatch(t *testing.T) {
	for _, c := range []struct {
		p    Path
		path string
		want bool
	}{
		{Path{}, "", true},
		{Path{Prefix: "/dev/"}, "/dev/x", true},
		{Path{Prefix: "/dev/"}, "/dev", false},
		{Path{Part: "nv"}, "/a/xnv/b", true},
		{Path{Prefix: "/nv", Part: "nv"}, "/nv", true},
		{Path{Part: "nv", Base: true}, "/a/nv0", true},
		{Path{Part: "nv", Base: true}, "nv0", true},
		{Path{Part: "nv", Base: true}, "/nv/b", false},
		{Path{Part: "nv", Base: true}, "/a/xnv", false},
		{Path{Part: "nv", Base: true}, "/nv/", false},
		{Path{Base: true}, "/nv/", true},
	} {
		if got := c.p.Match([]byte(c.path)); got != c.want {
			t.Errorf("%+v and %q: %v", c.p, c.path, got)
		}
	}
}
