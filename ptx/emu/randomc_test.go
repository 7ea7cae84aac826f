package emu

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/ptx"
)

var (
	randomCUnits = flag.Int("random-c", 4, "how many units of random C TestRandomC compiles")
	randomCSeed  = flag.Uint64("random-c-seed", 1, "the seed of the first unit")
)

const (
	randomCFuncs   = 40 // of a unit
	randomCThreads = 64
	randomCInputs  = 6 // 64-bit words for each thread
)

// TestRandomC: random C on integers of all widths computes the same compiled by gcc for
// the host as compiled by nvcc to PTX and executed by the machine. Each unit is another
// architecture and level of optimisation.
func TestRandomC(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles")
	}
	nvcc, gcc := need.Tool(t, "nvcc", "NVTRACE_NVCC"), need.Tool(t, "gcc", "")
	for i := range uint64(*randomCUnits) {
		seed := *randomCSeed + i
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			testRandomC(t, nvcc, gcc, seed)
		})
	}
}

func testRandomC(t *testing.T, nvcc, gcc string, seed uint64) {
	g := &cgen{rnd: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))}
	funcs := g.unit(randomCFuncs)
	dir := t.TempDir()
	source, program, out := filepath.Join(dir, "unit.c"), filepath.Join(dir, "unit"), filepath.Join(dir, "unit.ptx")
	if err := os.WriteFile(source, []byte(cPrelude+strings.Join(funcs, "\n")+cEpilogue(len(funcs))), 0o600); err != nil {
		t.Fatal(err)
	}
	runTool(t, gcc, "-O1", "-w", "-fwrapv", "-o", program, source)
	flags := [][]string{
		{"-arch=compute_75"}, {"-arch=compute_90"}, {"-arch=compute_90", "-G"}, {"-arch=compute_80", "-Xcicc", "-O1"},
	}[seed%4]
	runTool(t, nvcc, append(flags, "-x", "cu", "-w", "-ptx", "-o", out, source)...)

	in := make([]byte, 0, randomCThreads*randomCInputs*8)
	for range randomCThreads * randomCInputs {
		in = binary.LittleEndian.AppendUint64(in, g.input())
	}
	cmd := exec.Command(program)
	cmd.Stdin = bytes.NewReader(in)
	want, err := cmd.Output()
	if err != nil || len(want) != len(funcs)*randomCThreads*8 {
		t.Fatalf("%v, %d bytes", err, len(want))
	}

	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	f, err := ptx.Parse("unit.ptx", string(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	if missing := Missing(f); len(missing) > 0 {
		t.Fatalf("the machine lacks %q", missing)
	}
	mod, err := New(nil).Load(f)
	if err != nil {
		t.Fatal(err)
	}
	a, b := mustAlloc(t, mod.machine, in), mustAlloc(t, mod.machine, make([]byte, len(want)))
	mustLaunch(t, mod, "k", &LaunchConfig{Grid: Dim3{X: 2}, Block: Dim3{X: randomCThreads / 2}, Params: params(a.Base, b.Base), Budget: 1e9})
	wrong := 0
	for k := range funcs {
		for i := range randomCThreads {
			at := (k*randomCThreads + i) * 8
			if got, want := b.Data[at:at+8], want[at:at+8]; !bytes.Equal(got, want) {
				t.Errorf("seed %d, f%d, thread %d: %#x, gcc %#x; inputs %#x\n%s", seed, k, i, binary.LittleEndian.Uint64(got), binary.LittleEndian.Uint64(want),
					u64s(in[i*randomCInputs*8:][:randomCInputs*8]), funcs[k])
				wrong++
				break
			}
		}
		if wrong == 3 {
			t.Fatal("…")
		}
	}
}

func u64s(b []byte) []uint64 {
	out := make([]uint64, len(b)/8)
	for i := range out {
		out[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return out
}

func runTool(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

// ctypes are the integer types by the binary logarithm of their bytes, signed ones
// behind.
var ctypes = [2][5]string{{"u8", "u16", "u32", "u64", "u128"}, {"s8", "s16", "s32", "s64", "s128"}}

// cPrelude has the types, and what would be undefined with bare operators: division by
// zero and of the smallest number by -1. Additions, products and shifts are written on
// unsigned types of at least 32 bits.
const cPrelude = `typedef unsigned char u8; typedef signed char s8; typedef unsigned short u16; typedef short s16;
typedef unsigned int u32; typedef int s32; typedef unsigned long long u64; typedef long long s64;
typedef unsigned __int128 u128; typedef __int128 s128;
#ifdef __CUDACC__
#define FN static __device__ __noinline__
#define SMALL static __device__
#else
#include <unistd.h>
#define FN static __attribute__((noinline))
#define SMALL static
#endif
#define DIVISION(u, s) \
	SMALL u div_##u(u a, u b) { return b == 0 ? a : (u)(a / b); } \
	SMALL u rem_##u(u a, u b) { return b == 0 ? b : (u)(a % b); } \
	SMALL s div_##s(s a, s b) { return b == 0 ? a : b == -1 ? (s)(0 - (u)a) : (s)(a / b); } \
	SMALL s rem_##s(s a, s b) { return b == 0 ? b : b == -1 ? 0 : (s)(a % b); }
DIVISION(u8, s8) DIVISION(u16, s16) DIVISION(u32, s32) DIVISION(u64, s64) DIVISION(u128, s128)
`

func cEpilogue(n int) string {
	var b strings.Builder
	b.WriteString("\n#ifdef __CUDACC__\nextern \"C\" __global__ void k(const u64 *in, u64 *out) {\n\tu32 i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;\n")
	for k := range n {
		fmt.Fprintf(&b, "\tout[%d * n + i] = f%d(in + i * %d);\n", k, k, randomCInputs)
	}
	fmt.Fprintf(&b, "}\n#else\nstatic u64 in[%d], out[%d];\nint main(void) {\n\tu32 i, n = %d;\n\tif (read(0, in, sizeof in) != sizeof in) return 1;\n\tfor (i = 0; i < n; i++) {\n",
		randomCThreads*randomCInputs, n*randomCThreads, randomCThreads)
	for k := range n {
		fmt.Fprintf(&b, "\t\tout[%d * n + i] = f%d(in + i * %d);\n", k, k, randomCInputs)
	}
	b.WriteString("\t}\n\treturn write(1, out, sizeof out) != sizeof out;\n}\n#endif\n")
	return b.String()
}

// A ctype is one of ctypes.
type ctype struct {
	size   int // 0 to 4: 1 to 16 bytes
	signed bool
}

func (c ctype) String() string { return ctypes[map[bool]int{true: 1}[c.signed]][c.size] }

// wide is the unsigned type in which c is computed: not narrower than int, to which C
// would convert it.
func (c ctype) wide() ctype { return ctype{max(c.size, 2), false} }

func (c ctype) unsigned() ctype { return ctype{c.size, false} }

func (c ctype) bits() int { return 8 << c.size }

// cgen generates functions that have no undefined behaviour.
type cgen struct {
	rnd   *rand.Rand
	b     strings.Builder
	vars  []cvar // in scope
	index int    // of the function
	next  int    // name
	loops int    // around this place
	work  int    // iterations of these, multiplied
}

type cvar struct {
	name  string
	t     ctype
	fixed bool // a loop's counter
}

// unit returns n functions f0, f1 … of which each may call those before it.
func (g *cgen) unit(n int) []string {
	var list []string
	for g.index = range n {
		g.b.Reset()
		g.vars, g.next, g.loops, g.work = nil, 0, 0, 1
		fmt.Fprintf(&g.b, "FN u64 f%d(const u64 *in) {\n", g.index)
		for i := range 3 + g.rnd.IntN(4) {
			t := g.ctype()
			init := fmt.Sprintf("(%s)in[%d]", t, i%randomCInputs)
			if t.size == 4 {
				init = fmt.Sprintf("(%s)((u128)in[%d] << 64 | in[%d])", t, g.rnd.IntN(randomCInputs), i%randomCInputs)
			}
			g.declare(t, init)
		}
		for range 4 + g.rnd.IntN(5) {
			g.statement(2)
		}
		g.b.WriteString("\tu64 result = 0;\n")
		for _, v := range g.vars {
			if v.t.size == 4 {
				fmt.Fprintf(&g.b, "\tresult = result * 31 + (u64)((u128)%s >> 64);\n", v.name)
			}
			fmt.Fprintf(&g.b, "\tresult = result * 31 + (u64)%s;\n", v.name)
		}
		g.b.WriteString("\treturn result;\n}\n")
		list = append(list, g.b.String())
	}
	return list
}

// input is a word with many zeros or ones, near a power of two, or any.
func (g *cgen) input() uint64 {
	v := g.rnd.Uint64()
	switch g.rnd.IntN(6) {
	case 0:
		v = uint64(g.rnd.IntN(4)) - 2
	case 1:
		v = 1<<g.rnd.IntN(64) + uint64(g.rnd.IntN(3)) - 1
	case 2:
		v >>= g.rnd.IntN(64)
	case 3:
		v = uint64(int64(v) >> g.rnd.IntN(64))
	}
	return v
}

func (g *cgen) ctype() ctype { return ctype{g.rnd.IntN(5), g.rnd.IntN(2) == 0} }

func (g *cgen) line(format string, args ...any) {
	fmt.Fprintf(&g.b, "\t"+format+"\n", args...)
}

func (g *cgen) name() string {
	g.next++
	return fmt.Sprintf("v%d", g.next)
}

func (g *cgen) declare(t ctype, init string) {
	v := g.name()
	g.line("%s %s = %s;", t, v, init)
	g.vars = append(g.vars, cvar{v, t, false})
}

// maxWork bounds how often a statement is executed.
const maxWork = 200

func (g *cgen) statement(depth int) {
	scope := len(g.vars)
	block := func() {
		for range 1 + g.rnd.IntN(3) {
			g.statement(depth - 1)
		}
		g.vars = g.vars[:scope]
	}
	pick := g.rnd.IntN(10)
	if depth == 0 {
		pick = g.rnd.IntN(5)
	}
	switch {
	case pick < 2:
		t := g.ctype()
		g.declare(t, g.expr(t, 3))
	case pick < 5:
		if v, ok := g.variable(); ok {
			g.line("%s = %s;", v.name, g.expr(v.t, 3))
		}
	case pick < 7:
		g.line("if (%s) {", g.condition(2))
		block()
		if g.rnd.IntN(2) == 0 {
			g.line("} else {")
			block()
		}
		g.line("}")
	case pick == 7:
		g.array(depth)
	case pick == 8:
		g.choose(block)
	default:
		g.loop(block)
	}
}

// variable is one that can be assigned to.
func (g *cgen) variable() (cvar, bool) {
	for range 4 {
		if v := g.vars[g.rnd.IntN(len(g.vars))]; !v.fixed {
			return v, true
		}
	}
	return cvar{}, false
}

// loop has a constant number of rounds, or one that depends on the inputs.
func (g *cgen) loop(block func()) {
	n := 2 + g.rnd.IntN(14)
	if g.work*n > maxWork {
		return
	}
	v, t := g.name(), ctype{2, g.rnd.IntN(2) == 0}
	limit := fmt.Sprint(n)
	if g.rnd.IntN(2) == 0 {
		limit = fmt.Sprintf("(%s)(1 + (%s) %% %d)", t, g.expr(ctype{2 + g.rnd.IntN(2), false}, 1), n)
	}
	end := g.name()
	g.line("%s %s = %s, %s;", t, end, limit, v)
	if g.rnd.IntN(3) == 0 {
		g.line("for (%s = %s; %s != 0; %s--) {", v, end, v, v)
	} else {
		g.line("for (%s = 0; %s < %s; %s++) {", v, v, end, v)
	}
	mark := len(g.vars)
	g.vars = append(g.vars, cvar{v, t, true})
	g.work *= n
	block()
	if g.rnd.IntN(4) == 0 {
		g.line("if (%s) break;", g.condition(1))
	}
	g.work /= n
	g.vars = g.vars[:mark]
	g.line("}")
}

func (g *cgen) choose(block func()) {
	g.line("switch ((u32)(%s) %% 5) {", g.expr(ctype{2, false}, 2))
	for i := range 2 + g.rnd.IntN(3) {
		g.line("case %d: {", i)
		block()
		g.line("}")
		if g.rnd.IntN(4) != 0 {
			g.line("break;")
		}
	}
	g.line("default:;")
	g.line("}")
}

// array fills an array in a loop and takes elements of it out by computed index.
func (g *cgen) array(depth int) {
	if g.work*4 > maxWork {
		return
	}
	t, a, i := g.ctype(), g.name(), g.name()
	g.line("%s %s[4]; u32 %s;", t, a, i)
	mark := len(g.vars)
	g.vars = append(g.vars, cvar{i, ctype{2, false}, true})
	g.line("for (%s = 0; %s < 4; %s++) %s[%s] = %s;", i, i, i, a, i, g.expr(t, depth))
	g.vars = g.vars[:mark]
	g.declare(t, fmt.Sprintf("%s[(%s) & 3]", a, g.expr(ctype{2, false}, 2)))
}

// condition is an expression that is 0 or 1.
func (g *cgen) condition(depth int) string {
	t := g.ctype()
	switch g.rnd.IntN(8) {
	case 0:
		return fmt.Sprintf("(%s && %s)", g.compare(t, depth), g.compare(g.ctype(), depth))
	case 1:
		return fmt.Sprintf("(%s || %s)", g.compare(t, depth), g.compare(g.ctype(), depth))
	case 2:
		return fmt.Sprintf("!(%s)", g.expr(t, depth))
	}
	return g.compare(t, depth)
}

func (g *cgen) compare(t ctype, depth int) string {
	op := []string{"<", "<=", ">", ">=", "==", "!="}[g.rnd.IntN(6)]
	return fmt.Sprintf("((%s)(%s) %s (%s)(%s))", t, g.expr(t, depth), op, t, g.expr(t, depth))
}

// leaf is a variable or a constant.
func (g *cgen) leaf(t ctype) string {
	if g.rnd.IntN(4) != 0 {
		return fmt.Sprintf("(%s)%s", t, g.vars[g.rnd.IntN(len(g.vars))].name)
	}
	v := fmt.Sprintf("%#xULL", g.input())
	if t.size == 4 && g.rnd.IntN(2) == 0 {
		v = fmt.Sprintf("((u128)%s << 64 | %#xULL)", v, g.input())
	}
	return fmt.Sprintf("(%s)%s", t, v)
}

// expr is an expression whose value is of type t.
func (g *cgen) expr(t ctype, depth int) string {
	if depth == 0 {
		return g.leaf(t)
	}
	w := t.wide()
	sub := func() string { return g.expr(t, depth-1) }
	arith := func(op string) string { return fmt.Sprintf("(%s)((%s)(%s) %s (%s)(%s))", t, w, sub(), op, w, sub()) }
	switch g.rnd.IntN(18) {
	case 0, 1:
		return arith("+")
	case 2, 3:
		return arith("-")
	case 4:
		return arith("*")
	case 5:
		return arith([]string{"&", "|", "^"}[g.rnd.IntN(3)])
	case 6:
		return fmt.Sprintf("div_%s(%s, %s)", t, sub(), sub())
	case 7:
		return fmt.Sprintf("rem_%s(%s, %s)", t, sub(), sub())
	case 8:
		return fmt.Sprintf("(%s)((%s)(%s) << ((u32)(%s) %% %d))", t, w, sub(), g.expr(ctype{2, false}, depth-1), t.bits())
	case 9:
		n := t.bits()
		if t.size == 4 && t.signed {
			// nvcc 13.0 takes (s128 >> n) & 1 << 64 for a logical shift of the upper half,
			// which PTX makes zero where n is more than 63.
			n = 64
		}
		return fmt.Sprintf("(%s)((%s)(%s) >> ((u32)(%s) %% %d))", t, t, sub(), g.expr(ctype{2, false}, depth-1), n)
	case 10: // constant shifts and divisors have code of their own
		n := g.rnd.IntN(t.bits())
		op := []string{"<<", ">>"}[g.rnd.IntN(2)]
		in := w
		if op == ">>" {
			in = t
		}
		return fmt.Sprintf("(%s)((%s)(%s) %s %d)", t, in, sub(), op, n)
	case 11:
		d := []string{"3", "7", "10", "100", "16", "-5", "127", "64"}[g.rnd.IntN(8)]
		return fmt.Sprintf("(%s)((%s)(%s) %s (%s)%s)", t, t, sub(), []string{"/", "%"}[g.rnd.IntN(2)], t, d)
	case 12: // a rotation
		u, n := t.unsigned(), 1+g.rnd.IntN(t.bits()-1)
		v := g.leaf(u)
		return fmt.Sprintf("(%s)((%s)(%s) << %d | (%s)(%s) >> %d)", t, w, v, n, u, v, t.bits()-n)
	case 13:
		return fmt.Sprintf("(%s)%s(%s)(%s)", t, []string{"~", "-"}[g.rnd.IntN(2)], w, sub())
	case 14:
		return fmt.Sprintf("(%s ? %s : %s)", g.condition(depth-1), sub(), sub())
	case 15:
		return fmt.Sprintf("(%s)%s", t, g.condition(depth-1))
	case 16:
		if g.index > 0 && g.work <= 4 && depth > 1 {
			return fmt.Sprintf("(%s)f%d(in)", t, g.rnd.IntN(g.index))
		}
	}
	from := g.ctype() // a conversion
	return fmt.Sprintf("(%s)(%s)", t, g.expr(from, depth-1))
}
