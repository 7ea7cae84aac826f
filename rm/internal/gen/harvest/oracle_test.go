package harvest

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/internal/gen/cdecl"
	"nvtrace/rm/internal/gen/cpp"
)

// source gives the driver trees to check: see TestParity of package rm for the
// environment.
func source(t *testing.T) map[string]fs.FS {
	t.Helper()
	dir := os.Getenv("NVTRACE_OGKM")
	if dir == "" {
		t.Skip("NVTRACE_OGKM is not set: no driver source to check with")
	}
	tags := os.Getenv("NVTRACE_OGKM_TAGS")
	if tags == "" {
		return map[string]fs.FS{"tree": os.DirFS(dir)}
	}
	out := map[string]fs.FS{}
	for tag := range strings.SplitSeq(tags, ",") {
		tree, err := Tag(dir, tag)
		if err != nil {
			t.Fatal(err)
		}
		out[tag] = tree
	}
	return out
}

// TestCompilerAgrees lets gcc check the size, alignment and member offsets of
// every record that the driver's headers name, and so all layouts in the facts.
func TestCompilerAgrees(t *testing.T) {
	trees := source(t)
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc: ", err)
	}
	for tag, tree := range trees {
		dir := t.TempDir()
		if err := os.CopyFS(dir, tree); err != nil {
			t.Fatal(err)
		}
		h := &harvest{fsys: tree, units: map[string]*unit{}}
		total := 0
		for _, u := range unitsOf(tree) {
			u.pre = cpp.NewPreprocessor(tree, u.dirs, stubs, predefined+u.defines)
			for _, name := range u.headers {
				if err := u.pre.Read(name); err != nil {
					t.Fatal(err)
				}
			}
			u.par = cdecl.Parse(u.pre.Out, nil)
			src, n := oracle(&u)
			total += n
			if out, err := compile(t, gcc, dir, &u, src); err != nil {
				t.Errorf("%s, %s: the compiler disagrees: %v\n%.4000s", tag, u.name, err, out)
			}
			if _, err := compile(t, gcc, dir, &u, src+"_Static_assert(sizeof(int) == 5, \"\");\n"); err == nil {
				t.Errorf("%s, %s: the compiler does not look at assertions", tag, u.name)
			}
		}
		if len(h.errs) > 0 || total < 10_000 {
			t.Errorf("%s: %d assertions, %v", tag, total, h.errs)
		}
		t.Logf("%s: %d sizes, alignments and offsets checked", tag, total)
	}
}

// oracle writes what the parser says of a unit's records as assertions.
func oracle(u *unit) (string, int) {
	var b strings.Builder
	n := 0
	for _, r := range u.par.Records {
		name := r.Typedef
		if name == "" && r.Name != "" {
			name = map[cdecl.Class]string{cdecl.Struct: "struct ", cdecl.Union: "union "}[r.Class] + r.Name
		}
		if name == "" || r.Typedef == "" && u.par.Tags[r.Name] != r { // a tag of two
			continue
		}
		fmt.Fprintf(&b, "_Static_assert(sizeof(%s) == %d && _Alignof(%s) == %d, \"%s\");\n", name, r.Size(), name, r.Align(), name)
		n += 2
		for _, m := range r.Fields {
			if m.Name != "" && m.Bits == 0 {
				if u.pre.All[m.Name] != nil { // a macro that keeps others from naming the member
					fmt.Fprintf(&b, "#undef %s\n", m.Name)
				}
				fmt.Fprintf(&b, "_Static_assert(__builtin_offsetof(%s, %s) == %d, \"%s.%s\");\n", name, m.Name, m.Offset, name, m.Name)
				n++
			}
		}
	}
	return b.String(), n
}

func compile(t *testing.T, gcc, dir string, u *unit, asserts string) ([]byte, error) {
	t.Helper()
	var b strings.Builder
	b.WriteString("#include <stdint.h>\n#include <stddef.h>\n#include <sys/ioctl.h>\n#include <linux/types.h>\n")
	for _, h := range u.headers {
		fmt.Fprintf(&b, "#include %q\n", filepath.Join(dir, h))
	}
	b.WriteString(asserts)
	src := filepath.Join(dir, u.name+".c")
	drm := filepath.Join(dir, "stubs", "drm")
	if err := os.MkdirAll(drm, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{src: b.String(), filepath.Join(drm, "drm.h"): drmHeader} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"-fsyntax-only", "-w", "-DNV_UNIX", "-DNV_LINUX"}
	for _, d := range u.dirs {
		args = append(args, "-I", filepath.Join(dir, d))
	}
	return exec.Command(gcc, append(args, "-I", filepath.Join(dir, "stubs"), src)...).CombinedOutput()
}
