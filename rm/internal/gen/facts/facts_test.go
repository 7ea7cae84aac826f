package facts

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sample is the facts of a version of which one struct changes.
func sample(version string, size int64) *Facts {
	return &Facts{
		Version:  version,
		Escapes:  []Escape{{Nr: 42, Name: "NV_ESC_X", Params: []string{"S"}, Sizes: []int64{size}, Dev: "ctl"}},
		Controls: []Control{{Cmd: 0x20800101, Name: "C", Params: "T", Size: 8, Impl: true}},
		Types: map[string]Type{
			"S":      {Size: size, Align: 4, Fields: []Field{{Name: "a", Size: 4, Type: "NvU32"}, {Name: "b", Off: 4, Size: size - 4, Type: "NvU8", Dims: []int64{size - 4}}}},
			"T":      {Size: 8, Align: 8, Union: true, Fields: []Field{{Name: "", Size: 8, Type: "Inner"}, {Name: "f", Size: 4, Type: "NvU32", Bit: 3, Bits: 5}}},
			"Inner":  {Size: 8, Align: 8},
			"Unused": {Size: 1, Align: 1},
		},
		Scalars: map[string]Scalar{"NvU32": {Kind: "u", Size: 4}, "NvU8": {Kind: "u", Size: 1}},
		Status:  map[string]uint64{"NV_OK": 0},
		Roles:   map[string]map[string]string{"S": {"a": "handle"}, "Unused": {"x": "fd"}},
	}
}

func add(t *testing.T, s *Set, f *Facts) {
	t.Helper()
	if err := s.Add(f); err != nil {
		t.Fatal(err)
	}
}

func TestSetSpans(t *testing.T) {
	s := NewSet()
	for _, f := range []*Facts{sample("1.10", 8), sample("1.30", 12), sample("1.20", 8), sample("1.40", 8), sample("1.25.01", 12)} { // in any order
		add(t, s, f)
	}
	if want := []string{"1.10", "1.20", "1.25.01", "1.30", "1.40"}; !slices.Equal(s.Versions, want) {
		t.Fatalf("versions %v", s.Versions)
	}
	l := s.Tables[Types]["S"]
	if len(l) != 2 || !slices.Equal(l[0].Spans, [][2]int{{0, 1}, {4, 4}}) || !slices.Equal(l[1].Spans, [][2]int{{2, 3}}) {
		t.Errorf("spans of S: %+v %+v", l[0], l[1:])
	}
	if l := s.Tables[Types]["T"]; len(l) != 1 || !slices.Equal(l[0].Spans, [][2]int{{0, 4}}) {
		t.Errorf("spans of T: %+v", l)
	}
	if s.Tables[Types]["Unused"] != nil || s.Tables[Roles]["Unused"] != nil || s.Tables[Types]["Inner"] == nil {
		t.Error("what is kept is not what crosses")
	}
	add(t, s, sample("1.30", 8)) // a version again: replaced
	if l := s.Tables[Types]["S"]; !slices.Equal(l[0].Spans, [][2]int{{0, 1}, {3, 4}}) || !slices.Equal(l[1].Spans, [][2]int{{2, 2}}) {
		t.Errorf("spans of S: %+v %+v", l[0], l[1])
	}
}

func TestSetRoundTrip(t *testing.T) {
	s := NewSet()
	add(t, s, sample("1.10", 8))
	add(t, s, sample("1.20", 12))
	dir := t.TempDir()
	if err := s.Write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := dump(t, s), dump(t, got); a != b {
		t.Errorf("wrote\n%s\nread\n%s", a, b)
	}
	b, err := os.ReadFile(filepath.Join(dir, "types.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"k":"Inner","v":"1.10-","d":["s",8,8,[]]}
{"k":"S","v":"1.10-1.10","d":["s",8,4,[["a",0,4,"NvU32"],["b",4,4,"NvU8",[4]]]]}
{"k":"S","v":"1.20-","d":["s",12,4,[["a",0,4,"NvU32"],["b",4,8,"NvU8",[8]]]]}
{"k":"T","v":"1.10-","d":["u",8,8,[["",0,8,"Inner"],["f",0,4,"NvU32",[],3,5]]]}
`
	if string(b) != want {
		t.Errorf("types.jsonl:\n%s", b)
	}
}

func dump(t *testing.T, s *Set) string {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestCompare(t *testing.T) {
	s := NewSet()
	add(t, s, sample("1.10", 8))
	if d, err := s.Compare(sample("1.10", 8)); err != nil || len(d) != 0 {
		t.Errorf("with itself: %v %v", d, err)
	}
	f := sample("1.10", 12)
	f.Status["NV_ERR"] = 1
	delete(f.Status, "NV_OK")
	d, err := s.Compare(f)
	if err != nil || len(d) != 4 { // the struct, the escape's size, two statuses
		t.Errorf("%d differences: %v %v", len(d), d, err)
	}
	if _, err := s.Compare(sample("9.9", 8)); err == nil {
		t.Error("compared with a version that is not there")
	}
}

func TestAddRefusesTwoFacts(t *testing.T) {
	f := sample("1.10", 8)
	f.Escapes = append(f.Escapes, Escape{Nr: 42, Name: "NV_ESC_Y"})
	if err := NewSet().Add(f); err == nil || !strings.Contains(err.Error(), "two different facts") {
		t.Errorf("two names of one escape: %v", err)
	}
}

func TestReadErrors(t *testing.T) {
	for name, bad := range map[string]string{
		"types.jsonl":  `{"k":"S","v":"7.7-","d":[]}`,
		"uvm.jsonl":    `{"k":"S","v":"1.20-1.10","d":{}}`,
		"status.jsonl": `not json`,
		"versions.txt": "1.20\n1.10\n",
	} {
		s := NewSet()
		add(t, s, sample("1.10", 8))
		add(t, s, sample("1.20", 8))
		dir := t.TempDir()
		if err := s.Write(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(bad), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(dir); err == nil {
			t.Errorf("%s: %s was read", name, bad)
		}
	}
	if _, err := Read(t.TempDir()); err == nil {
		t.Error("an empty folder was read")
	}
}
