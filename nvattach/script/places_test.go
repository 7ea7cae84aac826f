package script

import (
	"strings"
	"testing"

	"nvtrace/nvattach/object"
	"nvtrace/ptx/bpf"
)

// TestPlacedKeys: keys that are known where a program is put have places of their own, and programs that say the same
// for all threads of a block or the grid run once for them. What is shown is the same as with a hash, which one of few keys is, and
// what the host's interpreter says of all threads.
func TestPlacedKeys(t *testing.T) {
	for _, tt := range []struct {
		text   string
		placed int // keys that have places, in the first program
		once   bpf.Extent
	}{
		{`kernel:* { @[kernel] = count(); }`, 1, bpf.OfGrid},
		{`kernel:* { @[kernel, ctaid] = count(); }`, 0, bpf.OfBlock},
		{`kernel:* { @[ntid] = sum(7); }`, 0, bpf.OfGrid},
		{`kernel:* { @ = count(); @b += 2; @c = sum(ctaid); }`, 0, bpf.OfBlock},
		{`kernel:* /ctaid == 1/ { @[arg1] = count(); }`, 0, bpf.OfBlock},
		{`kernel:* { if (nctaid > 2) { @[kernel] = count(); } else { @x = count(); } }`, 1, bpf.OfGrid},
		{`kernel:* { @[tid % 2] = count(); @b = count(); }`, 0, bpf.OfThread},
		{`kernel:* { @[laneid] = count(); }`, 1, bpf.OfThread},
		{`kernel:* { @[laneid, kernel] = sum(tid); @b[3, laneid] = count(); }`, 1, bpf.OfThread},
		{`kernel:* { @[laneid, tid & 1] = count(); @b[laneid / 4] = count(); @c[kernel, laneid >> 2] = count(); }`, 1, bpf.OfThread},
		{`kernel:* { @[tid & 3] = count(); @b[tid & 5] = count(); @c[tid & 511] = count(); @d[ctaid & 255] = sum(5); }`, 2, bpf.OfThread},
		{`mem:* { @[laneid, kind] = count(); @b[kind, addr & 7] = sum(size); @c[laneid] = avg(tid); }`, 2, bpf.OfThread},
		{`mem:* { @[kind, (addr >> 2) & 31] = count(); @b["x", value & 1, kernel] = count(); }`, 2, bpf.OfThread},
		{`kernel:* { @[kernel] = max(ctaid); @b[kernel] = avg(ctaid); }`, 1, bpf.OfBlock},
		{`kernel:* { @[kernel] |= 1; @b[3] -= 2; }`, 1, bpf.OfGrid},
		{`kernel:* { @[kernel] = sum(tid); @b[kernel] = avg(tid); }`, 1, bpf.OfThread},
		{`kernel:* { @x = 3; @ = count(); }`, 0, bpf.OfThread},
		{`kernret:* { @[kernel] = count(); }`, 1, bpf.OfGrid},
		{`mem:* { @[kind] = count(); }`, 1, bpf.OfGrid},
		{`mem:* { @[kind, size, space] = count(); @b[kernel] = count(); }`, 2, bpf.OfGrid},
		{`mem:* /size == 4/ { @["all", kind] = count(); }`, 1, bpf.OfGrid},
		{`mem:* /size == 8/ { @[kind] = count(); }`, 1, bpf.OfGrid},
		{`mem:* { @[kind, tid % 2] = count(); @s[kind] = sum(size); }`, 0, bpf.OfThread},
		{`mem:* { @[kind] = hist(addr); @b[kind] = count(); }`, 1, bpf.OfThread},
		{`mem:* { if (value > 50) { @["high", kind] = count(); } else { @[kind == "load" ? "a" : "b", kind] = count(); } }`, 1, bpf.OfThread},
		{`insn:ld.* { @[opcode] = count(); @b[site] = count(); }`, 2, bpf.OfGrid},
		{`BEGIN { @[3] = 5; } block:* { @[3] += 1; @c[insns, block] = count(); }`, 2, bpf.OfGrid},
		{`kernel:* { @[kernel] = count(); } END { printf("%d ", len(@)); print(@, 1); clear(@); }`, 1, bpf.OfGrid},
	} {
		for _, config := range []string{"", "config = { max_map_keys = 1000 } "} {
			p, err := Compile("-e", config+tt.text)
			if err != nil {
				t.Fatalf("%s: %v", tt.text, err)
			}
			w := launch(t, p, nil)
			tables, lines := w.tables(t, p)
			got := strings.Join(lines, "") + shownOf(p.Show(tables, true))
			if _, want := p.interpret(w.buf.Base); got != want {
				t.Errorf("%s%s\nin the kernel:\n%s\non the host:\n%s", config, tt.text, got, want)
			}
			q := w.plan.Programs[0]
			if n := len(q.Placed()); config == "" && n != tt.placed || config != "" && n != 0 {
				t.Errorf("%s%s: %d keys have places, want %d", config, tt.text, n, tt.placed)
			}
			if once := q.Report.Once; q.Point.Kind == object.KindEntry && once != tt.once {
				t.Errorf("%s: once for %d, want %d", tt.text, once, tt.once)
			}
		}
	}
}

// TestOnceAtExits: where nothing can keep threads of a kernel from leaving, at one place if the program asks for it, one
// counts for all; elsewhere each does. What is shown is the same.
func TestOnceAtExits(t *testing.T) {
	for _, tt := range []struct {
		name, old, new string
		once           bool
	}{
		{"one way out", "", "", true},
		{"fences", "done:", "done:\n\tmembar.gl;", true},
		{"a loop", "ld.global.u32", "back: ld.global.u32", false},
		{"a barrier", "done:", "done:\n\tbar.sync 0;", false},
		{"two ways out", "@%p bra done;", "@%p exit;", true},
		{"a trap", "st.global.u32 [%rd1], %r6;", "st.global.u32 [%rd1], %r6;\n\tsetp.eq.u32 %p, %r6, 0;\n\t@%p trap;", false},
	} {
		source := strings.Replace(addOne, tt.old, tt.new, 1)
		if tt.name == "a loop" {
			source = strings.Replace(source, "done:", "setp.eq.u32 %p, %r6, 0;\n\t@%p bra back;\ndone:", 1)
		}
		for _, text := range []string{
			`kernret:* { @[kernel] = count(); @b = sum(3); }`,
			`kernret:* { @[ctaid] = count(); @b[kernel] = count(); }`,
			`kernret:* { @[site] = count(); }`,
			`kernret:* { @ = count(); @b[ctaid] = sum(3); }`,
		} {
			p, err := Compile("-e", text)
			if err != nil {
				t.Fatal(err)
			}
			w := launchIn(t, source, p, nil)
			tables, lines := w.tables(t, p)
			got := strings.Join(lines, "") + shownOf(p.Show(tables, true))
			// The interpreter has one place.
			if _, want := p.interpret(w.buf.Base); got != want && !strings.Contains(text, "site") {
				t.Errorf("%s, %s\nin the kernel:\n%s\non the host:\n%s", tt.name, text, got, want)
			}
			once := strings.Contains(w.text, "%ntid.z") // they are counted
			// A kernel's name is known by the place.
			if want := tt.once && !(tt.name == "two ways out" && (strings.Contains(text, "site") || strings.Contains(text, "kernel]"))); once != want {
				t.Errorf("%s, %s: one thread for all: %v, want %v", tt.name, text, once, want)
			}
		}
	}
}

// TestPlacedNumbers: the same of numbers that the host's interpreter does not have, against hashes.
func TestPlacedNumbers(t *testing.T) {
	for _, text := range []string{
		`kernel:* { @[smid] = count(); @b[kernel, smid] = count(); }`,
		`kernel:* { @[warpid] = count(); @b[3, warpid >> 1] = avg(tid); }`,
		`mem:* { @[kind, smid] = count(); @b[smid & 1, kernel] = count(); }`,
	} {
		var shown [2]string
		for i, config := range []string{"", "config = { max_map_keys = 1000 } "} {
			p, err := Compile("-e", config+text)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			w := launch(t, p, nil)
			tables, _ := w.tables(t, p)
			shown[i] = shownOf(p.Show(tables, true))
			if n := len(w.plan.Programs[0].Placed()); (n == 2) != (i == 0) {
				t.Errorf("%s: %d keys have places", text, n)
			}
		}
		if shown[0] != shown[1] || shown[0] == "" {
			t.Errorf("%s\nby places:\n%s\nby a hash:\n%s", text, shown[0], shown[1])
		}
	}
}
