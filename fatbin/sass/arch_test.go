package sass

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestNewArchitecture adds an architecture that does not exist, as CONTRIBUTING.md says, with
// the facts and the row of sm_120: its code is read, printed and checked as that of sm_120 is.
func TestNewArchitecture(t *testing.T) {
	const old, made = Arch(120), Arch(199)
	if _, ok := Decode(made, Word{}); ok || made.HasGPUs() || made.Ran() {
		t.Fatalf("%s is known", made)
	}
	dir := t.TempDir()
	facts := func(name string, add func(line string) string) string {
		b, err := os.ReadFile(filepath.Join("facts", name))
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		for line := range strings.Lines(string(b)) {
			out.WriteString(add(line))
		}
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	list := regexp.MustCompile(`^(sm [0-9,]*\b120)\b`)
	inList := func(line string) string { return list.ReplaceAllString(line, "$1,199") }
	registers, written := facts("registers.txt", inList), facts("syntax.txt", inList)
	scoreboards := facts("scoreboards.txt", func(line string) string {
		if f := strings.Fields(line); len(f) > 1 && f[1] == "120" {
			return line + strings.Replace(line, " 120 ", " 199 ", 1)
		}
		return line
	})
	gen := func(args ...string) []byte {
		out := filepath.Join(dir, "packed")
		if text, err := exec.Command("go", append(append([]string{"run", "./internal/gen"}, args...), out)...).CombinedOutput(); err != nil {
			t.Fatalf("gen %v: %v\n%s", args, err, text)
		}
		b, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	reset := func(table, syntax []byte, rows []trait) {
		packed, packedSyntax, traits = table, syntax, rows
		loadOnce, syntaxes = sync.Once{}, sync.OnceValue(loadSyntaxes)
	}
	t.Cleanup(func() func() {
		table, syntax, rows := packed, packedSyntax, traits
		return func() { reset(table, syntax, rows) }
	}())
	row := *old.trait()
	row.arch, row.as = made, LatencyArch(old)
	reset(gen("pack", registers, scoreboards), gen("squeeze", written), append(slices.Clone(traits), row))

	if got := Architectures(); got[len(got)-1] != made || !made.HasGPUs() || made.Ran() {
		t.Errorf("architectures %v", got)
	}
	arch, secs := readCubin(t, "testdata/kernels_sm_120.cubin")
	if arch != old {
		t.Fatal(arch)
	}
	for _, name := range slices.Sorted(maps.Keys(secs)) {
		var texts, stalls [2]string
		for i, a := range []Arch{old, made} {
			code, err := Analyze(&Func{Arch: a, Code: Words(secs[name])})
			if err != nil {
				t.Fatal(err)
			}
			var text []byte
			for j := range code.Insts {
				in := &code.Insts[j]
				if !in.Known() {
					t.Fatalf("%s+%#x of %s is not known", name, j*WordSize, a)
				}
				text = append(in.AppendText(text, j*WordSize), '\n')
				to, ok := in.target()
				text = append(text, byte(to), byte(to>>8), map[bool]byte{true: 1}[ok])
			}
			texts[i] = string(text)
			for _, f := range code.Check(1000) {
				stalls[i] += f.String() + "\n"
			}
		}
		if texts[0] != texts[1] || stalls[0] != stalls[1] {
			t.Errorf("%s differs between %s and %s", name, old, made)
		}
	}
}
