package script

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"nvtrace/nvattach"
	"nvtrace/nvattach/object"
)

// TestCompiled: what programs come to in a kernel is what the host's interpreter says of
// the same threads, which shares with the compiler the tree alone.
func TestCompiled(t *testing.T) {
	for _, text := range []string{
		`kernel:* { @ = count(); }`,
		`kernel:* { @[kernel] = count(); @[kernel] = count(); }`,
		`kernel:* { @[tid % 7, laneid / 8] = sum(tid - 40); }`,
		`kernel:* { @a = min(tid - 40); @b = max(tid - 40); @c = avg(tid - 40); @d = stats(tid); @e = hist(tid - 40); @f = lhist(tid - 40, -10, 50, 20); }`,
		`kernel:* { @a[tid % 3] = min(-tid); @b[tid % 3] = max(-tid); @c[tid % 3] = avg(tid); @d[tid % 3] = stats(tid); @e[tid % 3] = hist(tid); @f[tid % 3] = lhist(tid, 0, 100, 10); }`,
		`kernel:* /tid.x == 0 && ctaid.x != 1/ { @[ctaid] = count(); } kernret:* /!(tid < 5 || tid > 9)/ { @x[tid] = count(); }`,
		`mem:* { @[kind, space, size] = count(); @v[opcode] = sum(value); }`,
		`mem:* /kind == "store" && size == 4/ { @[addr & 0xff] = sum(value >> 1); }`,
		`mem:* { @[kind == "load" ? "reads" : "writes"] = sum(size); }`,
		`kernel:* { $i = 0; $s = 0; while ($i < 10) { $i++; if ($i == 3) { continue; } if ($i > tid) { break; } $s += $i; } @[$s] = count(); }`,
		`kernel:* { $n = 1; unroll(5) { $n *= 2; $n -= tid & 1; } @ = sum($n); }`,
		`kernel:* { @start[tid] = tid * 3; } kernret:* /@start[tid] > 30/ { @ = sum(@start[tid]); delete(@start[tid]); }`,
		`kernel:* { for ($i : tid % 3..5) { if ($i == 3) { continue; } @n[$i] = count(); } for ($j : 0..tid) { if ($j > 4) { break; } @s = sum($j); } }`,
		`kernel:* { for ($i : 5..-2) { @never = count(); } for ($i : 0..2) { for ($j : 0..2) { @[($i, $j), tid % 2] = count(); } } @i[$i] = count(); }`,
		`kernel:* { $x = tid * 77 - 999; @a = sum((uint8)$x); @b = sum((int8)$x); @c = sum((int16)($x * 1000) + (uint16)$x); @d = sum((int32)($x << 30)); @e = sum((uint32)-$x); @f = sum((uint64)$x + (int64)$x); }`,
		`kernel:* /tid == 3/ { print((tid, "a", kernel)); } END { print(1 + 1); print(("x", 2)); }`,
		`kernel:* { @x++; @y -= tid; @m |= 1 << (tid % 5); @k[tid % 2] += 5; @k[tid % 2]--; }`,
		`kernel:* { @x = @x + 2; @y = @y | tid; }`,
		`kernel:* { @ = sum(tid / (tid % 3) + tid % (tid % 2) - (-tid) / 7 + (-tid) % 5); }`,
		`kernel:* { @ = sum(~tid ^ 0xff00ff00ff00 | tid << 40 & 0x7fffffffffffff00 >> (tid % 70)); }`,
		`kernel:* { @ = sum((tid < 3) + (tid == 5) * 10 + !tid * 100 + (tid > 7 && tid < 10 || tid == 12) * 1000); }`,
		`kernel:* { @[arg0 == 0, arg1, arg2, ntid, nctaid, pid] = count(); }`,
		`BEGIN { @limit = 7; } kernel:* /tid < @limit/ { @ = count(); }`,
		`BEGIN { @x = 7; @k["a"] = 3; } kernel:* { @x += 1; @k["a"]++; @k["b"]++; }`,
		`kernel:* /tid == 3/ { printf("%s %d %5d|%-4x|%s\n", kernel, tid, -tid, tid + 20, "str"); }`,
		`kernel:* { @[tid % 2] = count(); @h = hist(tid); } END { printf("%d of %d\n", @[0], @[0] + @[1]); print(@, 1); clear(@); zero(@h); }`,
		`kernel:* { @[tid % 20] = sum(tid); } END { print(@, 3, 10); clear(@); $i = 0; while ($i < 3) { printf("%d ", $i); $i++; } }`,
		`kernel:*, kernret:* { @ = count(); if (tid > 100) { return; } else if (tid > 50) { @middle = count(); } else { @low = count(); } }`,
		`config = { max_map_keys = 1000 } kernel:addOn? { @[tid] = count(); } END { print(@, 2); clear(@); }`,
		`kernel:* { @last = kernel; @word = tid < 1000 ? "few" : "many"; }`,
		`kernel:nosuch* { @ = count(); @k[tid] = count(); @h = hist(tid); }`,
		`block:* { @ = hist(insns); } END { clear(@); }`,
		`kernel:* { $a = arg0 + 4 * tid; @ = sum(read32($a)); @b[tid] = sum(read8($a + 1) * 256 + read8($a)); @h[read16($a + 2)] = count(); @none = sum(read64(tid)); }`,
		`kernel:* /read32(arg0 + tid * 4) > 50/ { @[read32(0 - 8), read64(arg0 + 4000)] = count(); }`,
		`insn:ld.global* { @x[opcode] = count(); } END { clear(@x); }`,
	} {
		t.Run("", func(t *testing.T) {
			p, err := Compile("-e", text)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := nvattach.NewPlan([]*object.Object{p.Object}, &nvattach.PlanOptions{Strict: true}); err != nil && !strings.Contains(text, "while") && !strings.Contains(text, "for (") {
				t.Errorf("--strict: %v", err)
			}
			w := launch(t, p, nil)
			tables, lines := w.tables(t, p)
			got := strings.Join(lines, "") + shownOf(p.Show(tables, true))
			if _, want := p.interpret(w.buf.Base); got != want {
				t.Errorf("%s\nin the kernel:\n%s\non the host:\n%s", text, got, want)
			}
		})
	}
}

// TestWarnings: of a value that is read and written back, people are told in the words of
// the language; an addition needs no warning.
func TestWarnings(t *testing.T) {
	for text, want := range map[string]string{
		`kernel:* { @x = @x * 2; }`:         "-e: program probe1, -e:1 (@x = @x * 2): other threads' changes of @x between its read and its write are lost; write +=, -=, |=, or an aggregation such as sum(), min() or max(), unless each thread has a key of its own",
		`kernel:* { @x = @x + 2; @y = 1; }`: "",
	} {
		p, err := Compile("-e", text)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := nvattach.NewPlan([]*object.Object{p.Object}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(plan.Programs[0].Warnings(), "\n"); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", text, got, want)
		}
	}
}

// A writer makes random programs.
type writer struct {
	*rand.Rand
	vars  int
	depth int
}

func (w *writer) one(list ...string) string { return list[w.IntN(len(list))] }

func (w *writer) expr() string {
	if w.depth++; w.depth > 6 {
		w.depth--
		return w.one("tid", "1", "laneid")
	}
	defer func() { w.depth-- }()
	switch w.IntN(9) {
	case 0:
		return w.one("0", "1", "2", "-1", "7", "63", "255", "1000000", "0x7fffffffffffffff", "0x8000000000000000", "-2147483648", "4294967296")
	case 1, 2:
		return w.one("tid", "laneid", "ctaid", "tid.x", "ntid", "arg1", "nctaid.x")
	case 3:
		if w.vars > 0 {
			return fmt.Sprintf("$v%d", w.IntN(w.vars))
		}
		return "tid"
	case 4:
		return w.one("-", "~", "!") + "(" + w.expr() + ")"
	case 5:
		return "(" + w.expr() + " ? " + w.expr() + " : " + w.expr() + ")"
	}
	op := w.one("+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "==", "!=", "<", "<=", ">", ">=", "&&", "||")
	return "(" + w.expr() + " " + op + " " + w.expr() + ")"
}

func (w *writer) stmts(n int) string {
	var b strings.Builder
	for range n {
		switch w.IntN(7) {
		case 0:
			x := w.expr()
			fmt.Fprintf(&b, "$v%d = %s; ", w.vars, x)
			w.vars++
		case 1:
			fmt.Fprintf(&b, "@c[%s, %s] = count(); ", w.expr(), w.expr())
		case 2:
			f := w.one("sum", "min", "max", "avg", "stats", "hist")
			fmt.Fprintf(&b, "@%s = %s(%s); ", f, f, w.expr())
		case 3:
			fmt.Fprintf(&b, "@k[%s %% 5] += %s; ", w.expr(), w.expr())
		case 4:
			if w.depth < 3 {
				w.depth++
				vars := w.vars
				fmt.Fprintf(&b, "if (%s) { %s} else { %s} ", w.expr(), w.stmts(2), w.stmts(1))
				w.vars = vars
				w.depth--
			}
		case 5:
			fmt.Fprintf(&b, "@l = lhist(%s, -100, 100, 25); ", w.expr())
		case 6:
			fmt.Fprintf(&b, "@t[tid] = %s; @u = sum(@t[tid]); ", w.expr())
		}
	}
	return b.String()
}

// TestRandom is TestCompiled with programs that nobody wrote.
func TestRandom(t *testing.T) {
	for seed := range uint64(60) {
		w := &writer{Rand: rand.New(rand.NewPCG(seed, 1))}
		text := "kernel:* /" + w.expr() + "/ { " + w.stmts(4) + "@ = count(); }"
		p, err := Compile("-e", text)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		world := launch(t, p, nil)
		tables, _ := world.tables(t, p)
		_, want := p.interpret(world.buf.Base)
		if got := shownOf(p.Show(tables, true)); got != want {
			t.Errorf("seed %d: %s\nin the kernel:\n%s\non the host:\n%s", seed, text, got, want)
		}
	}
}

// TestCopies: what is only counted or added up has a copy on each multiprocessor, also
// where several probes and keys do it, and costs no more than in a probe that was written
// with care; what else is done with a map takes that away.
func TestCopies(t *testing.T) {
	for _, tt := range []struct {
		text string
		want bool
	}{
		{`kernel:* { @ = count(); }`, true},
		{`kernel:* { @[kernel, smid] = count(); } kernret:* { @[kernel, smid] = count(); }`, true},
		{`kernel:* { @ = avg(tid); }`, true},
		{`mem:* { @[kind] = stats(size); @[kind] = stats(addr); }`, true},
		{`kernel:* { @ = hist(tid); }`, true},
		{`kernel:* { @[laneid] = lhist(tid, 0, 10, 1); }`, true},
		{`kernel:* { @ += tid; @++; } END { print(@); }`, true},
		{`kernel:* { @[tid] -= 3; }`, true},
		{`kernel:* /@ < 10/ { @++; }`, false},
		{`kernel:* { @ = max(tid); }`, false},
		{`kernel:* { @[laneid] = tid; }`, false},
	} {
		p, err := Compile("-e", tt.text)
		if err != nil {
			t.Fatal(err)
		}
		if got := launch(t, p, nil).maps.Find("@").Striped(); got != tt.want {
			t.Errorf("%s: copies %v, want %v", tt.text, got, tt.want)
		}
	}
}
