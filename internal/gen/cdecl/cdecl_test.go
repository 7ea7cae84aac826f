package cdecl

import (
	"slices"
	"strings"
	"testing"

	"nvtrace/internal/gen/ctoken"
)

func parse(src string) *Unit     { return Parse(Tokens(src), nil) }
func parseWide(src string) *Unit { return Parse(Tokens(src), &Options{Wide: true}) }

// sample has what headers have, and what is hard to read in them.
const sample = `
# 1 "a.h"
typedef unsigned long size_t;
typedef struct Opq_st *Handle;
enum Color { RED, GREEN = 5, BLUE, MASK = (1 << 4) | GREEN, NEG = -3, CAST = (int)sizeof(size_t), COND = RED ? 1 : 2, CH = 'A' };
typedef enum result_enum { OK = 0, BAD = 0x80000000, LAST = 0x7FFFFFFF } Result;
typedef enum { ONE = 1, BIG = 0x100000000 } Wide;
struct dim { unsigned int x, y, z; };
typedef struct { char name[256]; int a : 3; unsigned b : 30; int : 0; short c; struct dim d[2][3]; double *p; } Props;
typedef union { char bytes[17]; long l; } U;
typedef struct __attribute__((packed)) { char c; int i; long long ll; } Packed;
typedef struct { char c; __attribute__((aligned(16))) int v; } Aligned;
typedef struct Map_st { _Alignas(64) unsigned long long opaque[3]; } Map;
typedef struct __attribute__((aligned(8))) half2 { unsigned short x, y; } half2;
struct node { struct node *next; union { int i; float f; }; int (*fn)(struct node *, const char *); Result r : 2; _Bool flag; };
typedef int (*Callback)(void *data, const struct dim *const *where[4]);
typedef long double LD; typedef _Bool B; typedef signed char SC; typedef unsigned long long ULL;
extern int table[], other;
static const int k = 3, m[2] = { 1, 2 };
_Static_assert(sizeof(int) == 4, "x"); int; ;
static inline int f(int a) { struct dim q = { 1, 2, 3 }; return a + (int)q.x; }
extern Result first(Handle *out, const char *name, unsigned int n, Callback cb, void **args) __attribute__((deprecated));
void none(void); int variadic(const char *, ...);
const char *text(Result r);
struct dim by_value(struct dim grid, float a, double const *, int array[4], int (*unnamed)(int));
int (*returns_function(int a))(double);
union lone { int i; } const *behind(void);
__extension__ typedef struct { long long int v[2]; } Div;
`

func TestDeclarations(t *testing.T) {
	u := parse(sample)
	for _, err := range u.Errors {
		t.Error(err)
	}
	var got []string
	for _, f := range u.Funcs {
		s := spell(f.Type.Elem) + " " + f.Name + "("
		for i, p := range f.Type.Params {
			if i > 0 {
				s += ", "
			}
			s += p.Name + ":" + spell(p.Type)
		}
		got = append(got, s+")")
	}
	want := []string{
		"int f(a:int)",
		"Result first(out:Handle*, name:char const*, n:unsigned int, cb:Callback, args:void**)",
		"void none()",
		"int variadic(:char const*)",
		"char const* text(r:Result)",
		"dim by_value(grid:dim, a:float, :double const*, array:int*, unnamed:func*)",
		"func* returns_function(a:int)",
		"lone const* behind()",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func spell(t *Type) string {
	switch t.Class {
	case Pointer:
		if t.Const {
			return spell(t.Elem) + " const*"
		}
		return spell(t.Elem) + "*"
	case Func:
		return "func"
	}
	return t.Name
}

// TestValues is about values that C gives another type than a flag wants.
func TestValues(t *testing.T) {
	u := parseWide("enum e { TOP = 1 << 31, ALL = ~0u, NEG = -1, SIZE = sizeof(char const *[3]), CHAR = (char)0xff, NEXT };")
	want := []Value{{"TOP", 1 << 31}, {"ALL", 1<<32 - 1}, {"NEG", -1}, {"SIZE", 24}, {"CHAR", -1}, {"NEXT", 0}}
	if e := u.Tags["e"]; e == nil || !slices.Equal(e.Values, want) || len(u.Errors) > 0 {
		t.Errorf("%+v, errors %v, want %v", e, u.Errors, want)
	}
}

// TestEval is about expressions with types and enumerators; the rest is ctoken's.
func TestEval(t *testing.T) {
	u := parse("typedef unsigned long u64; struct s { char c; u64 x; }; enum { E1 = 6, E2 }; enum neg { N = -1 };")
	for in, want := range map[string]uint64{
		"sizeof(struct s)":           16,
		"sizeof(u64) * 8":            64,
		"sizeof(struct s *)":         8,
		"sizeof(u64[3])":             24,
		"sizeof(int (*(*)(u64))[2])": 8,
		"sizeof(void)":               1,
		"_Alignof(struct s)":         8,
		"(unsigned char)0x1ff":       0xff,
		"(signed char)0xff":          0xffffffff,
		"(enum neg)0xffffffff < 0":   1,
		"(E2 + 1) * (const u64) 2":   16,
		"1 << 31 < 0":                1,
	} {
		if v, err := u.Eval(ctoken.Lex(in)); err != nil || v.Bits() != want {
			t.Errorf("%s = %#x (%v), want %#x", in, v.Bits(), err, want)
		}
	}
	for _, in := range []string{"sizeof(nothing)", "sizeof(u64 x)", "sizeof(u64[E9])", "E3", "(const) 1"} {
		if v, err := u.Eval(ctoken.Lex(in)); err == nil {
			t.Errorf("%s = %v", in, v)
		}
	}
}

// TestErrors holds that what can't be read is reported once, and what follows is read.
func TestErrors(t *testing.T) {
	for _, r := range []struct{ in, want string }{
		{"unknown_t f(int a);", "unknown type"},
		{"int f(missing x);", "unknown type"},
		{"struct a { nosuch x; };", "unknown type"},
		{"struct a { struct b c; };", "no layout yet"},
		{"struct a { struct b c[2]; };", "no layout yet"},
		{"typedef int x[N];", "array length"},
		{"struct { int a[1/0]; } x;", "array length"},
		{"enum { A = undefined };", "enum , A"},
		{"enum e { A = f(1) };", "enum e, A"},
		{"enum { S = 1 << 99 };", "enum , S"},
		{"struct s { int a : w; };", "width of a"},
		{"struct s { int a : 33; };", "width of a: 33 bits of int"},
		{"struct s { int a : -1; };", "width of a"},
		{"struct s { struct { } a : 1; };", "width of a"},
		{"_Alignas(w) int x;", "_Alignas"},
		{"int x __attribute__((aligned(w)));", "aligned"},
		{"int *;", "without a name"},
		{"int x y;", "is due"},
		{"float _Complex x;", "is due"},
		{"@;", "unknown type"},
		{"#pragma pack(push, w)\n;", "#pragma pack"},
		{"struct s { int a", "is due"},
		{"int g(int", "is due"},
		{"int x = {", "the text ends"},
		{"struct s { int a; int b[2]", "is due"},
	} {
		u := parse(r.in + "\nint good(void);")
		if len(u.Errors) != 1 || !strings.Contains(u.Errors[0].Error(), r.want) {
			t.Errorf("%s: %v, want one about %q", r.in, u.Errors, r.want)
		}
		if strings.HasSuffix(r.in, ";") && (len(u.Funcs) == 0 || u.Funcs[len(u.Funcs)-1].Name != "good") {
			t.Errorf("%s: what follows was not read: %v", r.in, u.Funcs)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(sample)
	f.Add(abi)
	f.Add("struct a { struct a b; } c; typedef struct x x; struct x { x *y; };")
	f.Add("struct s { int a : 99999999; char b[1<<62]; };")
	f.Add("/* \" ' \\")
	f.Fuzz(func(t *testing.T, src string) {
		if len(src) >= 10_000 {
			return
		}
		u := parse(src)
		for _, r := range u.Records {
			if !r.Done || r.Align() < 1 {
				t.Errorf("record %s: %+v", r.Name, r)
			}
		}
		parseWide(src)
	})
}
