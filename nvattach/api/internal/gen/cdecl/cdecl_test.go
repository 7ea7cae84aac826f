package cdecl

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nvtrace/internal/need"
)

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
_Static_assert(sizeof(int) == 4, "x");
static inline int f(int a) { struct dim q = { 1, 2, 3 }; return a + (int)q.x; }
extern Result first(Handle *out, const char *name, unsigned int n, Callback cb, void **args) __attribute__((deprecated));
void none(void); int variadic(const char *, ...);
const char *text(Result r);
struct dim by_value(struct dim grid, float a, double const *, int array[4], int (*unnamed)(int));
int (*returns_function(int a))(double);
__extension__ typedef struct { long long int v[2]; } Div;
`

func TestDeclarations(t *testing.T) {
	u := Parse(sample)
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

// TestCompilerAgrees has gcc check the sizes, offsets and values that the parser
// finds.
func TestCompilerAgrees(t *testing.T) {
	need.Tool(t, "gcc", "")
	u := Parse(sample)
	var b strings.Builder
	b.WriteString(sample)
	n := 0
	assert := func(format string, a ...any) {
		n++
		fmt.Fprintf(&b, "_Static_assert(%s, \"%d\");\n", fmt.Sprintf(format, a...), n)
	}
	fields := func(name string, t *Type) {
		for _, f := range t.Fields {
			if f.Name != "" && f.Bits == 0 {
				assert("__builtin_offsetof(%s, %s) == %d", name, f.Name, f.Offset)
			}
		}
	}
	for name, td := range u.Typedefs {
		if name == "__builtin_va_list" {
			continue
		}
		assert("sizeof(%s) == %d", name, td.Size())
		assert("_Alignof(%s) == %d", name, td.Align())
		fields(name, td.Base())
	}
	for tag, ty := range u.Tags {
		if !ty.Done {
			continue
		}
		word := map[Class]string{Struct: "struct", Union: "union", Enum: "enum"}[ty.Class]
		assert("sizeof(%s %s) == %d", word, tag, ty.Size())
		fields(word+" "+tag, ty)
		for _, v := range ty.Values {
			assert("%s == (%d)", v.Name, v.Number)
		}
	}
	if n < 60 {
		t.Fatalf("only %d assertions", n)
	}
	file := filepath.Join(t.TempDir(), "a.c")
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-w", "-fsyntax-only", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestValues is about values that C gives another type than a flag wants.
func TestValues(t *testing.T) {
	u := Parse("enum e { TOP = 1 << 31, ALL = ~0u, NEG = -1, SIZE = sizeof(char const *[3]), CHAR = (char)0xff, NEXT };")
	want := []Value{{"TOP", 1 << 31}, {"ALL", 1<<32 - 1}, {"NEG", -1}, {"SIZE", 24}, {"CHAR", -1}, {"NEXT", 0}}
	if e := u.Tags["e"]; e == nil || !slices.Equal(e.Values, want) || len(u.Errors) > 0 {
		t.Errorf("%+v, errors %v, want %v", e, u.Errors, want)
	}
}

// TestErrors holds that what can't be read is reported, and what follows is read.
func TestErrors(t *testing.T) {
	for _, bad := range []string{
		"unknown_t f(int a);", "int f(missing x);", "enum { A = undefined };", "struct { int a[1/0]; } x;", "enum { S = 1 << 99 };", "int g(int", "@;",
	} {
		u := Parse(bad + "\nint good(void);")
		if len(u.Errors) == 0 {
			t.Errorf("%s: no error", bad)
		}
		if strings.HasSuffix(bad, ";") && (len(u.Funcs) == 0 || u.Funcs[len(u.Funcs)-1].Name != "good") {
			t.Errorf("%s: what follows was not read: %v", bad, u.Funcs)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(sample)
	f.Add("struct a { struct a b; } c; typedef struct x x; struct x { x *y; };")
	f.Add("/* \" ' \\")
	f.Fuzz(func(t *testing.T, src string) {
		if len(src) < 10_000 {
			Parse(src)
		}
	})
}
