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

// abi is one header with everything that layouts can meet.
const abi = `
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64;
typedef u64 u64a __attribute__((aligned(8)));
struct plain { u8 a; u32 b; u16 c; };
struct inner { u8 x[3]; struct { u16 y; u8 z; } in[2]; };
union both { u8 a; u64 b; u32 c[3]; };
struct bits { u32 a : 3; u32 b : 30; u8 c : 2; u32 : 0; u32 d : 1; u16 e; };
struct packed_ { u8 a; u32 b; u64 c; } __attribute__((packed));
struct packedbits { u8 a : 3; u32 b : 30; u64 c : 33, d; } __attribute__((packed));
#pragma pack(push, 1)
struct pragma1 { u8 a; u32 b; };
struct pragma1bits { u8 a : 5; u32 b : 30; u64 c : 60; };
#pragma pack(push, 2)
struct pragma2 { u8 a; u32 b; u64 c; };
struct pragma2bits { u8 a : 5; u32 b : 30; u64 c : 60; u32 : 0; u8 d : 1; };
struct pragma2aligned { u8 a; u32 b __attribute__((aligned(8))); u64 c __attribute__((packed)); };
struct pragma2packedbits { u8 a : 5; u32 b : 30; u16 c; } __attribute__((packed));
struct pragma2alignedbits { u8 a; u32 b : 4 __attribute__((aligned(8))), c : 29; };
#pragma pack(pop)
struct pragma1b { u8 a; u64 b; };
#pragma pack(pop)
struct after { u8 a; u64 b; };
#pragma pack(4)
struct pragma4 { u8 a; u64 b; };
#pragma pack()
struct after2 { u8 a; u64 b; };
struct aligned_ { u8 a; u32 b __attribute__((aligned(16))); u8 c; } __attribute__((aligned(32)));
struct alignedpointer { u8 a; u8 *b __attribute__((aligned(32))); _Alignas(16) u8 c, d; };
struct alignedbits { u32 a : 3; u32 b : 4 __attribute__((aligned(8))); u8 c : 2 __attribute__((aligned(2))); u64 d : 35 __attribute__((aligned(2))); u8 *e; };
struct alignedbits2 { u8 a : 8; u32 b : 18 __attribute__((aligned(2))); u8 c; };
struct aligneduse { u8 a; struct plain p __attribute__((aligned(16))); struct plain q; };
struct packedmember { u8 a; u32 b __attribute__((packed)); u16 c; u32 d : 30 __attribute__((packed)), e : 5; };
struct anon { u8 a; union { u32 b; struct { u16 c, d; }; }; u8 e; };
struct tagonly { u8 a; struct tagged { u32 x; }; union tagless { u64 y; } z; enum { InStruct }; };
struct pointers { u8 a; void *p; int (*f)(int, char *); char *names[4]; int (*arr)[7]; };
struct flex { u32 n; u64 data[]; };
enum small { S1, S2 } __attribute__((packed));
enum packed2 { P1 = -1, P2 = 200 } __attribute__((packed));
enum packed4 { P3 = 65536 } __attribute__((packed));
enum wide { W1 = 0x100000000 };
enum wideminus { W2 = -1, W3 = 0x80000000 };
enum minus { M1 = -1, M2 };
struct enums { enum small a; enum wide b; enum minus c; };
typedef struct later later_t;
struct user { later_t *p; };
struct later { u64 v; };
struct uses { later_t l; const volatile u8 q; long double ld; _Bool flag; };
struct matrix { u16 m[2][3][4]; u8 tail; };
union ubits { u32 a : 5; u8 b; u16 : 0; };
union unamed { u8 a; u32 : 20; };
struct zero { u8 a; struct { } none; u32 b; };
struct zerolast { u8 a; u32 : 0; };
struct unnamed { u8 a; u32 : 3; u8 b; u64 : 40; };
struct alignedmember { u8 a; u64a b; };
typedef struct { u32 q; } only_typedef, *only_pointer;
`

// TestLayout holds without a compiler what TestCompilerAgrees finds with one.
func TestLayout(t *testing.T) {
	u := parse(abi)
	if len(u.Errors) > 0 {
		t.Fatal(u.Errors)
	}
	for name, want := range map[string][2]int64{
		"plain": {12, 4}, "inner": {12, 2}, "both": {16, 8}, "bits": {12, 4}, "packed_": {13, 1}, "pragma1": {5, 1}, "pragma2": {14, 2},
		"pragma1b": {9, 1}, "after": {16, 8}, "aligned_": {32, 32}, "anon": {12, 4}, "pointers": {64, 8}, "flex": {8, 8},
		"enums": {24, 8}, "uses": {48, 16}, "matrix": {50, 2}, "only_typedef": {4, 4},
	} {
		i := slices.IndexFunc(u.Records, func(r *Type) bool { return r.Name == name })
		if i < 0 {
			t.Errorf("no record %s", name)
			continue
		}
		if r := u.Records[i]; r.Size() != want[0] || r.Align() != want[1] {
			t.Errorf("%s: size %d, align %d, want %v", name, r.Size(), r.Align(), want)
		}
	}
}

// program writes a C program that compiles if sizes, alignments, offsets and
// values are what the parser says of src, and succeeds if bit-fields are where it
// says.
func program(src string, u *Unit) (text string, assertions int) {
	var b, run strings.Builder
	assert := func(format string, a ...any) {
		assertions++
		fmt.Fprintf(&b, "_Static_assert(%s, \"%d\");\n", fmt.Sprintf(format, a...), assertions)
	}
	check := func(name string, t *Type) {
		assert("sizeof(%s) == %d", name, t.Size())
		assert("_Alignof(%s) == %d", name, t.Align())
		for _, f := range t.Base().Fields {
			switch {
			case f.Name == "":
			case f.Bits == 0:
				assert("__builtin_offsetof(%s, %s) == %d", name, f.Name, f.Offset)
			default:
				assertions++
				fmt.Fprintf(&run, "{ union { %s v; unsigned char b[sizeof(%s)]; } u = { .b = { 0 } }; u.v.%s = -1; bits(\"%s.%s\", u.b, sizeof u, %d, %d); }\n",
					name, name, f.Name, name, f.Name, 8*f.Offset+f.Bit, f.Bits)
			}
		}
		for _, v := range t.Base().Values {
			assert("%s == (%d)", v.Name, v.Number)
		}
	}
	for name, t := range u.Typedefs {
		check(name, t)
	}
	words := map[Class]string{Struct: "struct", Union: "union", Enum: "enum"}
	for tag, t := range u.Tags {
		if t.Done {
			check(words[t.Class]+" "+tag, t)
		}
	}
	return "#include <stdio.h>\n" + src + b.String() + `
static int failures;
static void bits(const char *name, unsigned char *b, int size, int from, int n) {
	for (int i = 0; i < 8 * size; i++)
		if ((b[i / 8] >> i % 8 & 1) != (i >= from && i < from + n)) { printf("%s: bit %d\n", name, i); failures++; return; }
}
int main(void) {
` + run.String() + "return failures; }\n", assertions
}

// TestCompilerAgrees has gcc check every size, alignment, offset and value that
// the parser finds, and a program of its every bit-field.
func TestCompilerAgrees(t *testing.T) {
	gcc := need.Tool(t, "gcc", "")
	exe := filepath.Join(t.TempDir(), "a")
	compile := func(text string) error {
		if err := os.WriteFile(exe+".c", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(gcc, "-w", "-o", exe, exe+".c").CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		if out, err := exec.Command(exe).CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	}
	for src, u := range map[string]*Unit{sample: parse(sample), abi: parse(abi)} {
		text, n := program(src, u)
		if n < 80 {
			t.Fatalf("only %d assertions", n)
		}
		if err := compile(text); err != nil {
			t.Errorf("the compiler disagrees: %v", err)
		}
		for _, r := range u.Records { // what it must not agree with
			for i := range r.Fields {
				r.Fields[i].Bit ^= 1
			}
		}
		if text, _ := program(src, u); compile(text) == nil {
			t.Error("nobody notices bit-fields in other places")
		}
		if compile(strings.Replace(text, ") == ", ") == 1 + ", 1)) == nil {
			t.Error("the compiler does not notice a wrong size")
		}
	}
}
