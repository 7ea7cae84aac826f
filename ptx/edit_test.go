package ptx

import (
	"strings"
	"sync"
	"testing"
)

func TestEdits(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(e *Edits)
		want string // "" means an error
	}{
		{"nothing", func(*Edits) {}, "abcdef"},
		{"before, in order", func(e *Edits) { e.InsertBefore(2, "1"); e.InsertBefore(2, "2") }, "ab12cdef"},
		{"after, in reverse", func(e *Edits) { e.InsertAfter(2, "1"); e.InsertAfter(2, "2") }, "ab21cdef"},
		{"after comes before before", func(e *Edits) { e.InsertBefore(2, "B"); e.InsertAfter(2, "A") }, "abABcdef"},
		{"replacement is last", func(e *Edits) { e.Replace(Span{2, 4}, "X"); e.InsertBefore(2, "B"); e.InsertAfter(2, "A") }, "abABXef"},
		{"at both ends", func(e *Edits) { e.InsertAfter(6, ">"); e.InsertBefore(0, "<") }, "<abcdef>"},
		{"deletes", func(e *Edits) { e.Replace(Span{0, 6}, "") }, " "},
		{"neighbours", func(e *Edits) { e.Replace(Span{3, 4}, "Y"); e.Replace(Span{2, 3}, "X") }, "abXYef"},
		{"overlap", func(e *Edits) { e.Replace(Span{1, 3}, "X"); e.Replace(Span{2, 4}, "Y") }, ""},
		{"inside", func(e *Edits) { e.Replace(Span{1, 3}, "X"); e.InsertBefore(2, "Y") }, ""},
		{"beyond", func(e *Edits) { e.InsertBefore(7, "Y") }, ""},
		{"backwards", func(e *Edits) { e.Replace(Span{3, 2}, "Y") }, ""},
	} {
		e := NewEdits("abcdef")
		c.do(e)
		for range 2 { // applying changes nothing in the edits
			got, err := e.Apply()
			if (err != nil) != (c.want == "") || err == nil && got != strings.TrimSpace(c.want) {
				t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
			}
		}
	}
}

// TestConcurrentUse: a File may be asked from several goroutines at once.
func TestConcurrentUse(t *testing.T) {
	var src string
	for _, s := range corpus(t) {
		if len(s) > len(src) {
			src = s
		}
	}
	f := mustParse(t, "shared", src)
	want := sitesText(t, f, nil)
	fresh := mustParse(t, "shared", src)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var b strings.Builder
			if err := WriteSites(&b, fresh, nil); err != nil || b.String() != want {
				t.Error("sites differ", err)
			}
		})
	}
	wg.Wait()
}

func TestFreshPrefix(t *testing.T) {
	for src, want := range map[string]string{
		"":                      "nvt",
		"add %r1":               "nvt",
		"%nvt<5>":               "nvt1_",
		"nvtnvt1_nvt2":          "nvt3_",
		"$nvt1_skip1 nvt01 nvt": "nvt2_",
	} {
		got := freshPrefix(src, "nvt")
		if got != want || strings.Contains(src, got) {
			t.Errorf("%q: %q, want %q", src, got, want)
		}
	}
	w := NewWeaver(mustParse(t, "x", ".entry k() { }"))
	if a, b := w.Fresh('%', "r"), w.Fresh('%', "r"); a == b || a != "%nvtr1" {
		t.Errorf("%s and %s", a, b)
	}
}

// TestLocs: a statement's source line is that of the .loc before it.
func TestLocs(t *testing.T) {
	f := mustParse(t, "x.ptx", ".entry k() {\n\ta;\n.loc 1 7 2\n\tb; c;\n.loc 2 9 4, function_name $L+8, inlined_at 1 8 3\n\td;\n}\n.entry j() { e; }")
	k, j := f.Sites(f.Lookup("k")), f.Sites(f.Lookup("j"))
	for i := range f.Stmts {
		s := &f.Stmts[i]
		if s.Kind != StmtInstr {
			continue
		}
		st := k
		if uint32(i) > k.Func.Close {
			st = j
		}
		want := map[string]Loc{
			"b": {File: 1, Line: 7, Col: 2}, "c": {File: 1, Line: 7, Col: 2},
			"d": {File: 2, Line: 9, Col: 4, Function: "$L", InlinedFile: 1, InlinedLine: 8, InlinedCol: 3},
		}
		got, ok := st.Loc(f, uint32(i))
		w, has := want[f.Opcode(s)]
		if got != w || ok != has {
			t.Errorf("%s: %+v, %t", f.Opcode(s), got, ok)
		}
	}
}

func TestWeaveRefuses(t *testing.T) {
	f := mustParse(t, "x.ptx", ".version 7.0\n.target sm_70\n.func f();\n.entry k() {\n\tret;\n}\n")
	w := NewWeaver(f)
	err := w.Entry(f.Sites(f.Lookup("f")), "")
	if err == nil || err.Error() != "x.ptx:3:1: no probe here: the function has no body in this file" {
		t.Errorf("entry of a declaration: %v", err)
	}
	st := f.Sites(f.Lookup("k"))
	if err := w.After(st, st.Exits[0].Stmt, "x;"); err == nil || !strings.HasSuffix(err.Error(), "nothing runs after it") {
		t.Errorf("after ret: %v", err)
	}
	if w.Edits().Len() != 0 {
		t.Error("a refused probe leaves edits")
	}
	if f.Lookup("nobody") != nil {
		t.Error("found a function that is not there")
	}
	if err := WriteSites(new(strings.Builder), f, &ReportOptions{Func: "f"}); err == nil {
		t.Error("sites of a function without body")
	}
}

// TestManyTargets: indirect branches over one long list do not take quadratic
// space.
func TestManyTargets(t *testing.T) {
	const n = 4000
	src := ".entry k() {\nt: .branchtargets l" + strings.Repeat(",l", n) + ";\nl:\n" + strings.Repeat("@p brx.idx r, t;\n", n) + "}"
	f := mustParse(t, "many", src)
	total := 0
	blocks := f.blocks(f.Lookup("k"))
	for i := range blocks {
		total += len(blocks[i].Succs)
		if !blocks[i].Reachable {
			t.Fatalf("block %d is not reachable", i)
		}
	}
	if len(blocks) < n || total > 64*len(f.Stmts) {
		t.Errorf("%d blocks, %d edges", len(blocks), total)
	}
}

// TestMemory: a tree needs at most a small multiple of its source, whatever
// the source is made of.
func TestMemory(t *testing.T) {
	const n = 1 << 16
	for what, src := range map[string]string{
		"instructions": ".entry k() {" + strings.Repeat("a;", n) + "}",
		"operands":     ".entry k() { a " + strings.Repeat("b,", n) + "b; }",
		"labels":       ".entry k() {" + strings.Repeat("a:", n) + "}",
		"scopes":       ".entry k() {" + strings.Repeat("{}", n) + "}",
		"declarations": strings.Repeat(".reg .b8 a;", n),
		"tables":       ".global .b8 a[1] = {" + strings.Repeat("1,", n) + "1};",
		"sections":     ".section .debug_str {" + strings.Repeat(".b8 1\n", n) + "}",
	} {
		f := mustParse(t, what, src)
		size := cap(f.Stmts)*44 + cap(f.args)*40 + cap(f.decls)*56 + cap(f.names)*48 + cap(f.attrs)*44
		if size > 64*len(src)+4096 {
			t.Errorf("%s: %d bytes of source need %d bytes", what, len(src), size)
		}
	}
}
