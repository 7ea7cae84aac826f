package fatbin

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nvtrace/internal/need"
)

func output(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	b, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, b)
	}
	return string(b)
}

// extracted returns hashes of the cubins and PTX texts in a file.
func extracted(t *testing.T, name string) (hashes []string) {
	t.Helper()
	f, err := Open(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for c, err := range f.Containers() {
		if err != nil {
			t.Fatal(err)
		}
		for i := range c.Entries {
			e := &c.Entries[i]
			if e.Kind() != KindELF && e.Kind() != KindPTX {
				continue
			}
			data, err := e.Data(nil)
			if err != nil {
				t.Fatal(err)
			}
			hashes = append(hashes, fmt.Sprintf("%s %x", e.Kind(), sha256.Sum256(data)))
		}
	}
	return hashes
}

// cuobjdumped is the same by cuobjdump. It writes files of the same name over
// one another, so each is extracted for itself.
func cuobjdumped(t *testing.T, dump, name string) (hashes []string) {
	t.Helper()
	for _, kind := range []struct{ list, extract, kind string }{{"-lelf", "-xelf", "elf"}, {"-lptx", "-xptx", "ptx"}} {
		out := output(t, "", dump, "-all", kind.list, name)
		for _, m := range regexp.MustCompile(`(?m)^(?:ELF|PTX) file +\d+: (.+)$`).FindAllStringSubmatch(out, -1) {
			dir := t.TempDir()
			output(t, dir, dump, "-all", kind.extract, m[1], name)
			b, err := os.ReadFile(filepath.Join(dir, m[1]))
			if err != nil {
				t.Fatal(err)
			}
			hashes = append(hashes, fmt.Sprintf("%s %x", kind.kind, sha256.Sum256(b)))
		}
	}
	return hashes
}

func TestCuobjdumpExtract(t *testing.T) {
	dump := need.Tool(t, "cuobjdump", "NVTRACE_CUOBJDUMP")
	for _, pattern := range []string{"*.fatbin", "*.o", "*.a", "*.so"} {
		for _, name := range fixtures(t, pattern) {
			abs, err := filepath.Abs(name)
			if err != nil {
				t.Fatal(err)
			}
			want, got := cuobjdumped(t, dump, abs), extracted(t, name)
			slices.Sort(want)
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	}
}

// TestCuobjdumpReads: what we write, NVIDIA's own reader reads.
func TestCuobjdumpReads(t *testing.T) {
	dump := need.Tool(t, "cuobjdump", "NVTRACE_CUOBJDUMP")
	cubin := read(t, "testdata/kernels.13.0.sm_90a.cubin")
	text := []byte(".version 8.5\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{\n\tret;\n}\n")
	for _, how := range []Compression{Stored, LZ4, Zstd} {
		for _, ident := range []string{"", "mine.cu"} {
			var c Container
			for _, part := range []struct {
				kind Kind
				data []byte
			}{{KindELF, cubin}, {KindPTX, text}} {
				e, err := NewEntry(part.kind, Arch{90, 'a'}, part.data, &EntryOptions{Compression: how, Ident: ident, Options: strings.Repeat("-O3", 1-len(ident)/7)})
				if err != nil {
					t.Fatal(err)
				}
				c.Entries = append(c.Entries, e)
			}
			name := filepath.Join(t.TempDir(), "new.fatbin")
			if err := os.WriteFile(name, c.Append(nil), 0o666); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(cuobjdumped(t, dump, name), extracted(t, name)); diff != "" {
				t.Errorf("%s, %q: %s", how, ident, diff)
			}
			if got := extracted(t, name); len(got) != 2 || got[0] != fmt.Sprintf("elf %x", sha256.Sum256(cubin)) || got[1] != fmt.Sprintf("ptx %x", sha256.Sum256(text)) {
				t.Errorf("%s, %q: %q", how, ident, got)
			}
		}
	}
}

// TestCuobjdumpResources: kernels, registers and memory as cuobjdump prints them.
func TestCuobjdumpResources(t *testing.T) {
	dump := need.Tool(t, "cuobjdump", "NVTRACE_CUOBJDUMP")
	row := regexp.MustCompile(`(?m)^ Function (\S+):\s+REG:(\d+) STACK:(\S+) SHARED:(\d+) LOCAL:(\d+) CONSTANT\[0\]:(\d+)`)
	for _, name := range fixtures(t, "*.cubin") {
		c := mustCubin(t, read(t, name))
		var got, want []string
		for i := range c.Kernels {
			k := &c.Kernels[i]
			got = append(got, fmt.Sprintf("%s %d %d %d %d", k.Name, k.Registers, k.Frame, k.Shared, k.Constant))
		}
		out := output(t, "", dump, "-res-usage", name)
		for _, m := range row.FindAllStringSubmatch(out, -1) {
			frame, _ := strconv.Atoi(m[3])
			want = append(want, fmt.Sprintf("%s %s %d %s %s", m[1], m[2], frame, m[4], m[6]))
		}
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s\n%s", name, diff, out)
		}
	}
}

// TestNvcc: an executable with the CUDA runtime in it, as users have it.
func TestNvcc(t *testing.T) {
	nvcc := need.Tool(t, "nvcc", "NVTRACE_NVCC")
	exe := filepath.Join(t.TempDir(), "app")
	for _, static := range []bool{false, true} {
		args := []string{"-Wno-deprecated-gpu-targets", "-gencode", "arch=compute_80,code=[sm_80,compute_80]", "-DMAIN", "-o", exe, "testdata/src/kernels.cu"}
		if lib := filepath.Join(filepath.Dir(filepath.Dir(nvcc)), "lib"); static {
			args = append(args, "-L"+lib, "-Xcompiler", "-static")
		} else {
			args = append(args, "-L"+lib)
		}
		output(t, "", nvcc, args...)
		f, err := Open(exe, nil)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for c, err := range f.Containers() {
			if err != nil {
				t.Fatal(err)
			}
			for i := range c.Entries {
				if e := &c.Entries[i]; e.Kind() == KindPTX {
					data, err := e.Data(nil)
					if err != nil {
						t.Fatal(err)
					}
					names = append(names, ScanPTX(data).Entries...)
				}
			}
		}
		slices.Sort(names)
		want := []string{"_Z5stackPii", "_Z7nothingv", "_ZN6shapes6reduceIdLi32EEEvPT_PKS1_4Pair", "_ZN6shapes6reduceIfLi64EEEvPT_PKS1_4Pair", "add"}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("static %v: %s", static, diff)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}
