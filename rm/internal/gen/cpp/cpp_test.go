package cpp

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"nvtrace/internal/gen/ctoken"
)

// preprocess reads a header of our own making, a.h.
func preprocess(t *testing.T, files map[string]string) *Preprocessor {
	t.Helper()
	fsys := fstest.MapFS{}
	for n, s := range files {
		fsys[n] = &fstest.MapFile{Data: []byte(s)}
	}
	p := NewPreprocessor(fsys, []string{"inc"}, map[string]string{"sys.h": "typedef unsigned int u32;\n"}, "#define __x86_64__ 1\n")
	p.limit = 100_000
	if err := p.Read("a.h"); err != nil {
		t.Fatal(err)
	}
	return p
}

func text(l []ctoken.Token) string {
	var b strings.Builder
	for i, t := range l {
		if i > 0 && t.Space {
			b.WriteByte(' ')
		}
		b.WriteString(t.Text)
	}
	return b.String()
}

func TestPreprocess(t *testing.T) {
	for _, r := range []struct{ name, in, want string }{
		{"object", "#define A 1 + 2\nA", "1 + 2"},
		{"comments", "a/* b\n c */d // e\nf", "a d f"},
		{"continued", "#define A 1 \\\n + 2\nA", "1 + 2"},
		{"function", "#define F(x, y) y x\nF(1, (2, 3))", "(2, 3) 1"},
		{"no call", "#define F(x) x\nF", "F"},
		{"paste", "#define C(a, b) a##b\nC(foo, 7) C(, x)", "foo7 x"},
		{"stringize", "#define S(a) #a\nS( x + \"y\" )", `"x + \"y\""`},
		{"itself", "#define x x + 1\nx", "x + 1"},
		{"mutual", "#define a b\n#define b a\na", "a"},
		{"rescan", "#define f(x) g(x)\n#define g(x) x x\nf(1)", "1 1"},
		{"argument first", "#define N 3\n#define J(a) a##1\n#define K(a) J(a)\nJ(N) K(N)", "N1 31"},
		{"variadic", "#define V(f, ...) f(__VA_ARGS__)\nV(g, 1, 2)", "g(1, 2)"},
		{"undef", "#define A 1\n#undef A\nA", "A"},
		{"if", "#if defined(A) || B > 1\n1\n#elif 2 > 1 && !defined B\n2\n#else\n3\n#endif", "2"},
		{"nested if", "#if 0\n#if 1\n1\n#else\n2\n#endif\n#else\n3\n#endif", "3"},
		{"ifdef", "#ifdef __x86_64__\ny\n#endif\n#ifndef __x86_64__\nn\n#endif", "y"},
		{"unknown in if", "#if HAS(x, y) == 0\n1\n#endif", "1"},
		{"pragma pack", "#define N 2\n#pragma pack(push, N)\n#pragma GCC other\nx", "__pragma( pack(push, 2)) x"},
		{"string keeps", "\"// no /* comment\" 'x'", `"// no /* comment" 'x'`},
	} {
		t.Run(r.name, func(t *testing.T) {
			p := preprocess(t, map[string]string{"a.h": r.in})
			if got := text(p.Out); got != r.want {
				t.Errorf("got %q, want %q", got, r.want)
			}
			if err := p.Errors(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestInclude(t *testing.T) {
	p := preprocess(t, map[string]string{
		"a.h":       "#include \"sub/b.h\"\n#include <c.h>\n#include <sys.h>\n#define H <c.h>\n#include H\n#include <none.h>\n",
		"sub/b.h":   "#include \"d.h\"\nint b;\n",
		"sub/d.h":   "#pragma once\nint d;\n#include \"d.h\"\n",
		"inc/c.h":   "#ifndef C\n#define C\nint c;\n#endif\n",
		"unrelated": "",
	})
	if got := text(p.Out); got != "int d; int b; int c; typedef unsigned int u32;" {
		t.Errorf("text: %s", got)
	}
	if !slices.Equal(p.Missing, []string{"none.h"}) {
		t.Errorf("missing: %v", p.Missing)
	}
}

func TestExpansionIsBounded(t *testing.T) {
	var b strings.Builder
	for i := range 40 {
		fmt.Fprintf(&b, "#define m%d(x) m%d(x) m%d(m%d(x))\n", i, i+1, i+1, i+1)
	}
	p := preprocess(t, map[string]string{"a.h": b.String() + "m0(1)"})
	if len(p.Errors()) == 0 {
		t.Error("no error")
	}
}

func TestPreprocessErrors(t *testing.T) {
	for _, in := range []string{"#endif", "#if 1\nx", "#error no", "#include", "#include <x", "#include \"a.h\""} {
		if p := preprocess(t, map[string]string{"a.h": in}); len(p.Errors()) == 0 {
			t.Errorf("%q: no error", in)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add("#define f(x) f(x) f(x)\nf(f(f(1)))")
	f.Add("#if (((((\n#elif\n#endif\ntypedef")
	f.Add("#define C(a, ...) #a##__VA_ARGS__ \\\n##x\nC(, C(1, 2))\n#pragma pack(push")
	f.Fuzz(func(t *testing.T, src string) {
		if len(src) > 4<<10 {
			return
		}
		p := preprocess(t, map[string]string{"a.h": src})
		for _, n := range p.Order {
			if m := p.All[n]; m == nil || m.Name != n || m.File != "a.h" && m.File != "<sys.h>" {
				t.Errorf("macro %s: %+v", n, m)
			}
		}
	})
}
