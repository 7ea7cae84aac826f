package rm_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/rm"
	"nvtrace/rm/internal/gen/facts"
	"nvtrace/rm/internal/gen/harvest"
	"nvtrace/rm/internal/gen/pack"
)

func readFacts(t *testing.T) *facts.Set {
	t.Helper()
	s, err := facts.Read("facts")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTablesAreCurrent fails when ztables.bin was not made of the facts that
// are here, or the facts are not in their canonical form.
func TestTablesAreCurrent(t *testing.T) {
	need.OneThread(t)
	s := readFacts(t)
	want, err := pack.Encode(s)
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile("ztables.bin")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Error("ztables.bin is stale: run go generate ./rm")
	}
	dir := t.TempDir()
	if err := s.Write(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range append(facts.Names(), "versions.txt") {
		if !strings.Contains(name, ".") {
			name += ".jsonl"
		}
		a, err1 := os.ReadFile("facts/" + name)
		b, err2 := os.ReadFile(dir + "/" + name)
		if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
			t.Errorf("facts/%s is not as the generator writes it (%v, %v)", name, err1, err2)
		}
	}
}

func decode[T any](t *testing.T, raw json.RawMessage) *T {
	t.Helper()
	x := new(T)
	if err := json.Unmarshal(raw, x); err != nil {
		t.Fatal(err)
	}
	return x
}

// TestTablesAreTheFacts compares what the package answers with the facts, for a
// version of each line.
func TestTablesAreTheFacts(t *testing.T) {
	need.OneThread(t)
	s := readFacts(t)
	for i, name := range s.Versions {
		if i%16 != 0 && i != len(s.Versions)-1 {
			continue
		}
		v, err := rm.ParseVersion(name)
		if err != nil {
			t.Fatal(err)
		}
		a := rm.Load(v)
		compareControls(t, s, i, a)
		compareStructs(t, s, i, a)
		compareClasses(t, s, i, a)
		for key := range s.Tables[facts.Statuses] {
			if raw := s.Tables[facts.Statuses].At(key, i); raw != nil {
				n := *decode[uint32](t, raw)
				if got := a.StatusName(rm.Status(n)); got != key && *decode[uint32](t, s.Tables[facts.Statuses].At(got, i)) != n {
					t.Errorf("%s: status %#x is %s, want %s", name, n, got, key)
				}
			}
		}
	}
}

func compareControls(t *testing.T, s *facts.Set, i int, a *rm.ABI) {
	t.Helper()
	n := 0
	for key := range s.Tables[facts.Controls] {
		cmd, err := strconv.ParseUint(key, 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		raw, c := s.Tables[facts.Controls].At(key, i), a.Control(uint32(cmd))
		if raw == nil {
			continue
		}
		n++
		f := decode[facts.Control](t, raw)
		if c == nil || c.Name != f.Name || c.Cmd != uint32(cmd) || c.Exported != f.Impl || c.Size != int(f.Size) || (c.Params == nil) != (f.Params == "") ||
			c.Func != f.Fn || c.Owner != f.Owner || uint64(c.Flags) != f.Flags || uint64(c.Access) != f.Access || c.Interface != f.Iface {
			t.Errorf("%s: %s is %+v, want %+v", a.Version(), key, c, f)
		}
	}
	if n < 1000 {
		t.Errorf("%s: %d controls compared", a.Version(), n)
	}
}

func compareStructs(t *testing.T, s *facts.Set, i int, a *rm.ABI) {
	t.Helper()
	for key := range s.Tables[facts.Types] {
		raw, st := s.Tables[facts.Types].At(key, i), a.Struct(key)
		if raw == nil && s.Tables[facts.Aliases].At(key, i) != nil { // a typedef in this version
			continue
		}
		if (raw == nil) != (st == nil) {
			t.Errorf("%s: struct %s: facts %v, tables %v", a.Version(), key, raw != nil, st != nil)
			continue
		}
		if raw == nil {
			continue
		}
		f := decode[facts.Type](t, raw)
		if st.Name != key || st.Size != int(f.Size) || st.Align != int(f.Align) || st.Union != f.Union || len(st.Fields) != len(f.Fields) {
			t.Errorf("%s: %s is %+v, want %+v", a.Version(), key, st, f)
			continue
		}
		for j, m := range f.Fields {
			x := st.Fields[j]
			dims := make([]int, len(m.Dims))
			for k, d := range m.Dims {
				dims[k] = int(max(d, 0))
			}
			if x.Name != m.Name || x.Offset != int(m.Off) || x.Size != int(m.Size) || x.Type != m.Type || x.BitOff != int(m.Bit) || x.Bits != int(m.Bits) || !slices.Equal(x.Dims, dims) {
				t.Errorf("%s: %s.%s is %+v, want %+v", a.Version(), key, m.Name, x, m)
			}
		}
	}
}

func compareClasses(t *testing.T, s *facts.Set, i int, a *rm.ABI) {
	t.Helper()
	for key := range s.Tables[facts.Classes] {
		id, err := strconv.ParseUint(key, 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		raw, c := s.Tables[facts.Classes].At(key, i), a.Class(uint32(id))
		if raw == nil {
			continue
		}
		f := decode[facts.Class](t, raw)
		if c == nil || c.Name != f.Name || c.Internal != f.Internal || c.Listed != f.Open || c.Multi != f.Multi || !slices.Equal(c.Parents, f.Parents) ||
			(c.Alloc == nil) != (f.Alloc == "") || c.Alloc != nil && c.Alloc.Size != int(f.Size) {
			t.Errorf("%s: class %s is %+v, want %+v", a.Version(), key, c, f)
		}
	}
}

// exportRow is read here on its own, so that the test does not repeat what the
// generator does: a row's number, flags and struct, in the order of the source.
var (
	methodID  = regexp.MustCompile(`/\*methodId=\*/\s*(0x[0-9a-fA-F]+)`)
	paramSize = regexp.MustCompile(`/\*paramSize=\*/\s*(?:sizeof\((\w+)\)|(\w+))`)
	flagsOf   = regexp.MustCompile(`/\*flags=\*/\s*(0x[0-9a-fA-F]+)`)
)

// TestParity compares the tables with the driver's own export tables. It needs
// its source: NVTRACE_OGKM names a source tree of the open kernel modules, or,
// with NVTRACE_OGKM_TAGS (a list of tags separated by commas, or "all"), a git
// repository.
func TestParity(t *testing.T) {
	dir := os.Getenv("NVTRACE_OGKM")
	if dir == "" {
		need.Missing(t, "ogkm", "NVTRACE_OGKM is not set: no driver source to compare with")
	}
	tags := os.Getenv("NVTRACE_OGKM_TAGS")
	if tags == "" {
		parity(t, os.DirFS(dir))
		return
	}
	if tags == "all" {
		tags = strings.Join(readFacts(t).Versions, ",")
	}
	for tag := range strings.SplitSeq(tags, ",") {
		tree, err := harvest.Tag(dir, tag)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(tag, func(t *testing.T) { parity(t, tree) })
	}
}

func parity(t *testing.T, tree fs.FS) {
	name, err := harvest.Version(tree)
	if err != nil {
		t.Fatal(err)
	}
	v, err := rm.ParseVersion(name)
	if err != nil {
		t.Fatal(err)
	}
	a := rm.Load(v)
	if !a.Exact() {
		t.Errorf("the tables lack %s", name)
	}
	files, err := fs.Glob(tree, "src/nvidia/generated/g_*_nvoc.c")
	if err != nil || len(files) == 0 {
		t.Fatalf("no export tables in the source (%v)", err)
	}
	rows, differ := 0, 0
	for _, f := range files {
		b, err := fs.ReadFile(tree, f)
		if err != nil {
			t.Fatal(err)
		}
		id, size, flags := methodID.FindAllSubmatch(b, -1), paramSize.FindAllSubmatch(b, -1), flagsOf.FindAllSubmatch(b, -1)
		if len(id) != len(size) || len(id) != len(flags) {
			t.Fatalf("%s: %d numbers, %d sizes, %d flags", f, len(id), len(size), len(flags))
		}
		for i := range id {
			rows++
			if msg := parityRow(a, string(id[i][1]), string(size[i][1]), string(flags[i][1])); msg != "" {
				differ++
				t.Errorf("%s: %s", f, msg)
			}
		}
	}
	if rows < 800 {
		t.Errorf("only %d rows found", rows)
	}
	t.Logf("%s: %d rows compared, %d differ", name, rows, differ)
}

func parityRow(a *rm.ABI, id, params, flags string) string {
	cmd, _ := strconv.ParseUint(id, 0, 32)
	bits, _ := strconv.ParseUint(flags, 0, 32)
	c := a.Control(uint32(cmd))
	switch {
	case c == nil || !c.Exported:
		return fmt.Sprintf("command %s is missing", id)
	case params == "" && c.Params != nil:
		return fmt.Sprintf("%s has parameters %s, and takes none", c.Name, c.Params.Name)
	case params != "" && (c.Params == nil || a.Struct(params) == nil || c.Size != a.Struct(params).Size):
		return fmt.Sprintf("%s has parameters %v, and takes %s", c.Name, c.Params, params)
	case c.Flags != uint32(bits):
		return fmt.Sprintf("%s has flags %#x, not %s", c.Name, c.Flags, flags)
	}
	return ""
}
