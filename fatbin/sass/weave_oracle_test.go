package sass

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"nvtrace/internal/need"
)

// liveCounts asks nvdisasm how many registers of each kind are live at each
// instruction, by kernel and offset.
func liveCounts(t *testing.T, tool string, image []byte) map[string]map[int]string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "x.cubin")
	if err := os.WriteFile(name, image, 0o666); err != nil {
		t.Fatal(err)
	}
	b, err := exec.Command(tool, "-c", "-plr", "-lrm", "count", name).CombinedOutput()
	if err != nil {
		t.Fatalf("nvdisasm: %v\n%s", err, b)
	}
	section := regexp.MustCompile(`^\s*\.section\s+\.text\.([^,]+),`)
	line := regexp.MustCompile(`^\s*/\*([0-9a-f]{4,})\*/.*//(( *\| *\d*)+)`)
	out := make(map[string]map[int]string)
	var kernel map[int]string
	for l := range strings.Lines(string(b)) {
		if m := section.FindStringSubmatch(l); m != nil {
			kernel = make(map[int]string)
			out[m[1]] = kernel
		}
		m := line.FindStringSubmatch(l)
		if m == nil {
			continue
		}
		off, err := strconv.ParseUint(m[1], 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		kernel[int(off)] = strings.Join(strings.FieldsFunc(m[2], func(r rune) bool { return r == ' ' || r == '\n' }), "")
	}
	return out
}

// NVIDIA's own tool sees the same registers live at every instruction of the kernel, so
// no probe overwrites one.
func TestWovenLifeRanges(t *testing.T) {
	tool := need.Tool(t, "nvdisasm", "NVTRACE_NVDISASM")
	image := readFile(t, "kernels.sm_90.cubin")
	for i := range weavings {
		how := &weavings[i]
		switch how.name {
		case "access", "all", "everywhere":
			// The body meets in a WARPSYNC.COLLECTIVE, behind which nvdisasm loses sight
			// of registers that are live.
			continue
		case "variables", "variables in memory", "totals":
			continue // these are live, or the stack pointer is
		}
		// Of calls.sm_90.cubin it takes what stands behind the function that is called
		// for a part of that, and refuses to follow the jumps between both.
		woven, sites := weave(t, image, how)
		before, after := liveCounts(t, tool, image), liveCounts(t, tool, woven)
		n := 0
		for kernel, ranges := range before {
			if kernel == "gather" || kernel == "reduce" {
				// Of registers that a guarded load writes, nvdisasm says other things
				// when the load begins a block.
				continue
			}
			for off, want := range ranges {
				if sites[kernel][off] {
					continue // a jump now, that reads nothing
				}
				n++
				if got := after[kernel][off]; got != want {
					t.Errorf("%s, %s+0x%x: %s live, before %s", how.name, kernel, off, got, want)
				}
			}
		}
		if n < 10 {
			t.Errorf("%s: %d instructions compared", how.name, n)
		}
	}
}

// What weaving emits is what nvdisasm says it is, on every architecture.
func TestWeaverWords(t *testing.T) {
	tool := need.Tool(t, "nvdisasm", "NVTRACE_NVDISASM")
	words := []struct {
		word Word
		want string
	}{
		{selZero(5, 1, 2, true), "SEL R5, RZ, 0x1, !P2"},
		{selZero(6, 1, 0, false), "SEL R6, RZ, 0x1, P0"},
		{setFalse(4), "ISETP.NE.AND P4, PT, RZ, RZ, PT"},
		{iadd3(4, 5, 6), "IADD3 R4, R5, R6, RZ"},
		{iadd3Imm(7, 8, 0xfffffff0), "IADD3 R7, R8, -0x10, RZ"},
		{andImm(9, 30, 0xffff), "LOP3.LUT R9, R30, 0xffff, RZ, 0xc0, !PT"},
		{andNot(9, 30, 15), "LOP3.LUT R9, R30, 0xf, RZ, 0xc, !PT"},
		{MOVImm(9, 0).Guarded(2, true), "@!P2 MOV R9, 0x0"},
		{imadWide(10, 10, 0xffffff00, 20), "IMAD.WIDE R10, R10, -0x100, R20"},
		{imadWide(24, 26, 0x7fffffff, 24).Guarded(3, true), "@!P3 IMAD.WIDE R24, R26, 0x7fffffff, R24"},
		{local(opSTL, 7, 0), "STL [R1+-0x4], R7"},
		{local(opLDL, 254, 9), "LDL R254, [R1+-0x28]"},
	}
	var code []byte
	for _, w := range words {
		code = w.word.Append(code)
	}
	name := filepath.Join(t.TempDir(), "words")
	if err := os.WriteFile(name, code, 0o666); err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^\s*/\*[0-9a-f]{4}\*/\s+(.*?)\s*;`)
	for _, arch := range []string{"SM75", "SM80", "SM86", "SM89", "SM90", "SM100", "SM103", "SM120"} {
		b, err := exec.Command(tool, "-b", arch, name).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", arch, err, b)
		}
		got := line.FindAllStringSubmatch(string(b), -1)
		if len(got) != len(words) {
			t.Fatalf("%s: %s", arch, b)
		}
		for i, w := range words {
			// From sm_100 on both carries of IADD3 are printed.
			if text := strings.Replace(got[i][1], "PT, PT, ", "", 1); text != w.want {
				t.Errorf("%s: %s is %s, want %s", arch, w.word, text, w.want)
			}
		}
	}
}
