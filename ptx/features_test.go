package ptx

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// featureLines reads testdata/features.txt: an instruction a line, behind it
// the PTX ISA version and the target that ptxas 12.9 says it needs; "-" where
// it says nothing because it accepts it in ISA 2.3 for sm_20. Only is "*" where
// ptxas says that only certain targets have it, without naming them.
func featureLines(t *testing.T) (instrs []string, needs []Need) {
	t.Helper()
	b, err := os.ReadFile("testdata/features.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		instr, cols, _ := strings.Cut(line, "|| ")
		var n Need
		if cols != "-" {
			var v, sm string
			if _, err := fmt.Sscan(cols, &v, &sm); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if sm == "*" {
				n.Only = "*"
			} else {
				target, err := strconv.Atoi(sm)
				if err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				n.SM = uint16(target)
			}
			major, minor, _ := strings.Cut(v, ".")
			a, _ := strconv.Atoi(major)
			c, _ := strconv.Atoi(minor)
			n.Version = Version{uint8(a), uint8(c)}
		}
		instrs, needs = append(instrs, strings.TrimSpace(instr)), append(needs, n)
	}
	return instrs, needs
}

// featureModule wraps instructions into a module, one a line from line first.
func featureModule(instrs []string, version, target string) (src string, first int) {
	head := ".version " + version + "\n.target " + target + `
.address_size 64
.entry k(.param .u32 a)
{
	.reg .b32 r; .reg .b64 d; .reg .b16 h; .reg .f32 f; .reg .f64 g; .reg .pred p;
L:
`
	return head + strings.Join(instrs, "\n") + "\n}\n", strings.Count(head, "\n") + 1
}

// floor is what the oldest file of the comparison has: ptxas can't be asked
// about anything older.
var floor = Need{Version: Version{2, 3}, SM: 20}

// TestFeatureTable compares the table with what ptxas said once.
func TestFeatureTable(t *testing.T) {
	instrs, needs := featureLines(t)
	src, first := featureModule(instrs, "2.3", "sm_20")
	f := mustParse(t, "features", src)
	got := make([]Need, len(instrs))
	for _, e := range f.CheckFeatures() {
		i := e.At.Line - first
		got[i] = got[i].and(e.Need)
	}
	for i, instr := range instrs {
		g, want := got[i], needs[i]
		if !floor.Version.Less(g.Version) {
			g.Version = Version{}
		}
		if g.SM <= floor.SM {
			g.SM = 0
		}
		if want.Only == "*" && (g.Only != "" || g.SM != 0) {
			g.SM, g.Only = 0, "*"
		}
		if g != want {
			t.Errorf("%s\n\ttable: %s\n\tptxas: %s", instr, g, want)
		}
	}
}

var (
	needsVersion = regexp.MustCompile(`requires PTX ISA .version (\d+)\.(\d+)`)
	needsTarget  = regexp.MustCompile(`requires .target sm_(\d+)`)
	errorLine    = regexp.MustCompile(`(?m)^ptxas \S+, line (\d+); error\s*: (.*)$`)
)

// checked are modules and what is said of them; the last line of each is what ptxas says,
// "" if it takes the module.
var checked = []struct{ name, head, params, code, want, ptxas string }{
	{"128 bits, system, 8.3", ".version 8.3\n.target sm_90", "", ".reg .b128 q; atom.sys.exch.b128 q, [d], q;", "atom.sys.b128 needs PTX ISA 8.4", "'.b128 with .sys' requires PTX ISA .version 8.4"},
	{"128 bits, system, 8.4", ".version 8.4\n.target sm_90", "", ".reg .b128 q; ld.acquire.sys.b128 q, [d];", "", ""},
	{"128 bits, GPU, 8.3", ".version 8.3\n.target sm_90", "", ".reg .b128 q; ld.relaxed.gpu.b128 q, [d];", "", ""},
	{"pointer to a texture, 4.2", ".version 4.2\n.target sm_30", ", .param .u64 .ptr .texref t", "", ".ptr needs PTX ISA 4.3", "'kernel parameter pointers to opaque types' requires PTX ISA .version 4.3"},
	{"pointer to a surface, 4.3", ".version 4.3\n.target sm_30", ", .param .u64 .ptr .surfref t", "", "", ""},
	{"pointer to memory, 4.2", ".version 4.2\n.target sm_30", ", .param .u64 .ptr .global .align 8 t", "", "", ""},
	{"bf16x2 with ftz", ".version 8.6\n.target sm_90", "", "fma.rn.ftz.bf16x2 r, r, r, r;", "there is no fma.rn.ftz.bf16x2", "Illegal modifier '.ftz'"},
	{"bf16x2 with sat", ".version 8.6\n.target sm_90", "", "fma.rn.sat.bf16x2 r, r, r, r;", "there is no fma.rn.sat.bf16x2", "Illegal modifier '.sat'"},
	{"f16x2 with ftz", ".version 8.6\n.target sm_90", "", "fma.rn.ftz.sat.f16x2 r, r, r, r;", "", ""},
	{"bf16x2", ".version 8.6\n.target sm_90", "", "fma.rn.relu.bf16x2 r, r, r, r;", "", ""},
	{"64 bytes", ".version 8.0\n.target sm_90", "", "applypriority.global.L2::evict_normal [d], 64;", "there is no applypriority of 64 bytes, only of 128", "unexpected value '64'"},
	{"128 bytes", ".version 8.0\n.target sm_90", "", "applypriority.global.L2::evict_normal [d], 128; discard.global.L2 [d], 128;", "", ""},
}

func checkedModule(head, params, code string) string {
	return head + "\n.address_size 64\n.visible .entry k(.param .u64 a" + params + ")\n{\n\t.reg .b32 r; .reg .b64 d;\n\tld.param.u64 d, [a];\n\t" + code + "\n\tret;\n}\n"
}

// TestChecked: what depends on more than one modifier, or on operands.
func TestChecked(t *testing.T) {
	for _, c := range checked {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, e := range mustParse(t, "m.ptx", checkedModule(c.head, c.params, c.code)).CheckFeatures() {
				got = append(got, e.Error())
			}
			if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestCheckedOracle asks ptxas the same.
func TestCheckedOracle(t *testing.T) {
	as := ptxas(t)
	for _, c := range checked {
		t.Run(c.name, func(t *testing.T) {
			out, ok := assemble(t, as, checkedModule(c.head, c.params, c.code), "sm_90a")
			if ok != (c.ptxas == "") || !strings.Contains(out, c.ptxas) {
				t.Errorf("ptxas: %v, %s", ok, out)
			}
		})
	}
}

// TestCheckPositions: what a module lacks has a line.
func TestCheckPositions(t *testing.T) {
	for _, c := range []struct{ src, want string }{
		{"\n\n.target sm_90\n", "m.ptx:3:1: no .version directive before this"},
		{"\n.version 8.0\n.func f() { ret; }\n", "m.ptx:2:1: no .target sm_NN directive here"},
		{".version 8.0\n .target gx_9\n", "m.ptx:2:2: unknown target gx_9"},
	} {
		if got := mustParse(t, "m.ptx", c.src).Check().Errors; len(got) != 1 || got[0] != c.want {
			t.Errorf("%q: %q, want %q", c.src, got, c.want)
		}
	}
}

// TestFeatureOracle asks ptxas again. It may know more than the file's ptxas,
// never less.
func TestFeatureOracle(t *testing.T) {
	as := ptxas(t)
	instrs, needs := featureLines(t)
	src, first := featureModule(instrs, "2.3", "sm_20")
	out, ok := assemble(t, as, src, "sm_90a")
	if ok {
		t.Fatal("ptxas takes all features in ISA 2.3 for sm_20")
	}
	if !strings.Contains(out, "requires PTX ISA") {
		t.Skipf("this ptxas does not take sm_20 any more: %.200s", out)
	}
	got := make([]Need, len(instrs))
	for _, m := range errorLine.FindAllStringSubmatch(out, -1) {
		line, _ := strconv.Atoi(m[1])
		i := line - first
		if i < 0 || i >= len(got) {
			continue
		}
		var n Need
		if v := needsVersion.FindStringSubmatch(m[2]); v != nil {
			a, _ := strconv.Atoi(v[1])
			b, _ := strconv.Atoi(v[2])
			n.Version = Version{uint8(a), uint8(b)}
		}
		if v := needsTarget.FindStringSubmatch(m[2]); v != nil {
			sm, _ := strconv.Atoi(v[1])
			n.SM = uint16(sm)
		}
		if strings.Contains(m[2], "not supported on .target") {
			n.Only = "*"
		}
		got[i] = got[i].and(n)
		if got[i].Only != "" {
			got[i].SM = 0
		}
	}
	for i, instr := range instrs {
		if got[i].Version.Less(needs[i].Version) || got[i].SM < needs[i].SM || got[i].Only != needs[i].Only {
			t.Errorf("%s: ptxas says %s, the file %s", instr, got[i], needs[i])
		}
	}
}

func TestFeatureError(t *testing.T) {
	src := `.version 7.8
.target sm_80
.address_size 64
.entry k() {
	cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [a], [b], 16, [c];
	wgmma.fence.sync.aligned;
	mov.u32 %r1, %clusterid.x;
	mov.u64 %rd1, %globaltimer;
	vote.all.pred %p1, %p2;
}
`
	var got []string
	for _, e := range mustParse(t, "a.ptx", src).CheckFeatures() {
		got = append(got, e.Error())
	}
	want := []string{
		"a.ptx:5:2: cp.async.bulk needs PTX ISA 8.0, sm_90; the file says 7.8, sm_80",
		"a.ptx:6:2: wgmma needs PTX ISA 8.0, sm_90a; the file says 7.8, sm_80",
		"a.ptx:7:15: %clusterid needs PTX ISA 7.8, sm_90; the file says 7.8, sm_80",
		"a.ptx:9:2: vote without .sync is gone from PTX ISA 6.4, sm_70 on; the file says 7.8, sm_80",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}

func TestTargets(t *testing.T) {
	for _, c := range []struct {
		only, target string
		want         bool
	}{
		{"", "sm_90", true},
		{"90a", "sm_90a", true},
		{"90a", "sm_90", false},
		{"90a", "sm_100a", false},
		{"100f", "sm_100f", true},
		{"100f", "sm_103a", true},
		{"100f", "sm_103f", true},
		{"100f", "sm_103", false},
		{"100f", "sm_110a", false},
		{"103f", "sm_100f", false},
		{"120f", "sm_121f", true},
	} {
		target, ok := ParseTarget(c.target)
		if !ok || target.String() != c.target {
			t.Errorf("ParseTarget(%q) = %v, %t", c.target, target, ok)
		}
		if got := (Need{Only: c.only}).Met(Version{9, 0}, target); got != c.want {
			t.Errorf("%q on %s: %t", c.only, c.target, got)
		}
	}
	for _, s := range []string{"", "sm_", "sm_a", "compute_90", "sm_99999999", "debug"} {
		if target, ok := ParseTarget(s); ok {
			t.Errorf("ParseTarget(%q) = %v", s, target)
		}
	}
	if n := Needs("red.relaxed.gpu.global.add.u64"); n.Version != (Version{6, 0}) || n.SM != 70 {
		t.Errorf("red.relaxed.gpu needs %v", n)
	}
	if n := Needs("frobnicate.x"); n != (Need{}) {
		t.Errorf("an unknown opcode needs %v", n)
	}
}
