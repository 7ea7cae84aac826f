package cc

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"nvtrace/internal/gen/ctoken"
	"nvtrace/internal/need"
)

// parse reads a header of our own making.
func parse(t *testing.T, files map[string]string) (*Preprocessor, *Parser) {
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
	q := NewParser()
	q.Parse(p.Out)
	return p, q
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
		{"string keeps", "\"// no /* comment\" 'x'", `"// no /* comment" 'x'`},
	} {
		t.Run(r.name, func(t *testing.T) {
			p, _ := parse(t, map[string]string{"a.h": r.in})
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
	p, _ := parse(t, map[string]string{
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
	p, _ := parse(t, map[string]string{"a.h": b.String() + "m0(1)"})
	if len(p.Errors()) == 0 {
		t.Error("no error")
	}
}

func TestPreprocessErrors(t *testing.T) {
	for _, in := range []string{"#endif", "#if 1\nx", "#error no", "#include", "#include <x", "#include \"a.h\""} {
		if p, _ := parse(t, map[string]string{"a.h": in}); len(p.Errors()) == 0 {
			t.Errorf("%q: no error", in)
		}
	}
}

// TestEval is about expressions with types and enumerators; the rest is ctoken's.
func TestEval(t *testing.T) {
	_, q := parse(t, map[string]string{"a.h": "typedef unsigned long u64; struct s { char c; u64 x; }; enum { E1 = 6, E2 };"})
	for in, want := range map[string]uint64{
		"sizeof(struct s)":         16,
		"sizeof(u64) * 8":          64,
		"sizeof(struct s *)":       8,
		"_Alignof(struct s)":       8,
		"(unsigned char)0x1ff":     0xff,
		"(signed char)0xff":        0xffffffff,
		"(E2 + 1) * (const u64) 2": 16,
	} {
		if v, err := q.Eval(ctoken.Lex(in)); err != nil || v.Bits() != want {
			t.Errorf("%s = %#x (%v), want %#x", in, v.Bits(), err, want)
		}
	}
	for _, in := range []string{"sizeof(nothing)", "sizeof(u64[3])", "E3"} {
		if v, err := q.Eval(ctoken.Lex(in)); err == nil {
			t.Errorf("%s = %v", in, v)
		}
	}
}

// abi is one header with everything that layouts can meet.
const abi = `
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64;
typedef u64 u64a __attribute__((aligned(8)));
struct plain { u8 a; u32 b; u16 c; };
struct inner { u8 x[3]; struct { u16 y; u8 z; } in[2]; };
union both { u8 a; u64 b; u32 c[3]; };
struct bits { u32 a : 3; u32 b : 30; u8 c : 2; u32 : 0; u32 d : 1; u16 e; };
struct packed_ { u8 a; u32 b; u64 c; } __attribute__((packed));
#pragma pack(push, 1)
struct pragma1 { u8 a; u32 b; };
#pragma pack(push, 2)
struct pragma2 { u8 a; u32 b; u64 c; };
#pragma pack(pop)
struct pragma1b { u8 a; u64 b; };
#pragma pack(pop)
struct after { u8 a; u64 b; };
struct aligned_ { u8 a; u32 b __attribute__((aligned(16))); u8 c; } __attribute__((aligned(32)));
struct anon { u8 a; union { u32 b; struct { u16 c, d; }; }; u8 e; };
struct pointers { u8 a; void *p; int (*f)(int, char *); char *names[4]; int (*arr)[7]; };
struct flex { u32 n; u64 data[]; };
enum small { S1, S2 } __attribute__((packed));
enum wide { W1 = 0x100000000 };
enum minus { M1 = -1, M2 };
struct enums { enum small a; enum wide b; enum minus c; };
typedef struct later later_t;
struct user { later_t *p; };
struct later { u64 v; };
struct uses { later_t l; const volatile u8 q; long double ld; _Bool flag; };
struct matrix { u16 m[2][3][4]; u8 tail; };
union ubits { u32 a : 5; u8 b; };
struct zero { u8 a; struct { } none; u32 b; };
struct alignedmember { u8 a; u64a b; };
typedef struct { u32 q; } only_typedef, *only_pointer;
`

func TestLayout(t *testing.T) {
	_, q := parse(t, map[string]string{"a.h": abi})
	if len(q.Errors) > 0 {
		t.Fatal(q.Errors)
	}
	for name, want := range map[string][2]int64{
		"plain": {12, 4}, "inner": {12, 2}, "both": {16, 8}, "bits": {12, 4}, "packed_": {13, 1}, "pragma1": {5, 1}, "pragma2": {14, 2},
		"pragma1b": {9, 1}, "after": {16, 8}, "aligned_": {32, 32}, "anon": {12, 4}, "pointers": {64, 8}, "flex": {8, 8},
		"enums": {24, 8}, "uses": {48, 16}, "matrix": {50, 2}, "only_typedef": {4, 4},
	} {
		i := slices.IndexFunc(q.Records, func(r *Record) bool { return r.Name() == name })
		if i < 0 {
			t.Errorf("no record %s", name)
			continue
		}
		if r := q.Records[i]; r.Size != want[0] || r.Align != want[1] {
			t.Errorf("%s: size %d, align %d, want %v", name, r.Size, r.Align, want)
		}
	}
}

// assertions writes, for a compiler, what the parser says of each named record.
func assertions(q *Parser) (string, int) {
	var b strings.Builder
	n := 0
	say := func(format string, a ...any) {
		fmt.Fprintf(&b, format, a...)
		n++
	}
	for _, r := range q.Records {
		name := r.Typedef
		if name == "" {
			name = map[bool]string{false: "struct ", true: "union "}[r.Union] + r.Tag
			if r.Tag == "" {
				continue
			}
		}
		say("_Static_assert(sizeof(%s) == %d, \"size of %s\");\n", name, r.Size, name)
		say("_Static_assert(_Alignof(%s) == %d, \"alignment of %s\");\n", name, r.Align, name)
		for _, m := range r.Members {
			if m.Name != "" && m.Bits == 0 {
				say("_Static_assert(__builtin_offsetof(%s, %s) == %d, \"offset of %s in %s\");\n", name, m.Name, m.Offset, m.Name, name)
			}
		}
	}
	return b.String(), n
}

// TestLayoutAgainstCompiler lets a C compiler check every size, alignment and offset.
func TestLayoutAgainstCompiler(t *testing.T) {
	gcc := need.Tool(t, "gcc", "")
	_, q := parse(t, map[string]string{"a.h": abi})
	asserts, n := assertions(q)
	if n < 60 {
		t.Fatalf("only %d assertions", n)
	}
	compile := func(src string) ([]byte, error) {
		f := filepath.Join(t.TempDir(), "a.c")
		if err := os.WriteFile(f, []byte(src), 0o644); err != nil {
			t.Fatal(err)
		}
		return exec.Command(gcc, "-fsyntax-only", "-w", f).CombinedOutput()
	}
	if out, err := compile(abi + asserts); err != nil {
		t.Errorf("the compiler disagrees: %v\n%s", err, out)
	}
	if _, err := compile(abi + strings.Replace(asserts, "== 12", "== 13", 1)); err == nil {
		t.Error("the compiler does not notice a wrong size")
	}
}

func TestParseErrors(t *testing.T) {
	for _, r := range []struct{ in, want string }{
		{"struct a { nosuch x; }; typedef int after;", "unknown type"},
		{"struct a { struct b c; }; typedef int after;", "no layout yet"},
		{"typedef int x[N]; typedef int after;", "array length"},
		{"enum e { A = f(1) }; typedef int after;", "enum e, A"},
		{"struct s { int a : w; }; typedef int after;", "width of a"},
		{"_Alignas(8) int x; typedef int after;", "_Alignas"},
		{"struct s { int a", "is due"},
	} {
		_, q := parse(t, map[string]string{"a.h": r.in})
		if len(q.Errors) != 1 || !strings.Contains(q.Errors[0].Error(), r.want) {
			t.Errorf("%s: %v, want one about %q", r.in, q.Errors, r.want)
		}
		if strings.Contains(r.in, "after;") && q.Typedefs["after"] == nil {
			t.Errorf("%s: what follows was not read", r.in)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(abi)
	f.Add("#define f(x) f(x) f(x)\nf(f(f(1)))")
	f.Add("struct s { int a : 99999999; char b[1<<62]; };")
	f.Add("#if (((((\n#elif\n#endif\ntypedef")
	f.Fuzz(func(t *testing.T, src string) {
		if len(src) > 4<<10 {
			return
		}
		p, q := parse(t, map[string]string{"a.h": src})
		for _, r := range q.Records {
			if !r.Done || r.Align < 1 && len(p.Errors()) == 0 && len(q.Errors) == 0 && !strings.Contains(src, "-") {
				t.Errorf("record %s: %+v", r.Name(), r)
			}
		}
	})
}
