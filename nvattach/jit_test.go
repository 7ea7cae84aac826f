package nvattach

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"nvtrace/fatbin"
)

// taken returns what a driver takes of a container under an environment, nil where it refuses.
func taken(t *testing.T, image []byte, gpu fatbin.Arch, j JIT) []byte {
	t.Helper()
	c, _, err := fatbin.ParseContainer(image)
	if err != nil {
		t.Fatal(err)
	}
	at := -1
	if j.Forced == "" {
		at = Prefers(c.Entries, fatbin.KindELF, gpu)
	}
	if at < 0 && j.Forbidden == "" {
		at = Prefers(c.Entries, fatbin.KindPTX, gpu)
	}
	if at < 0 {
		return nil
	}
	data, err := c.Entries[at].Data(nil)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestForcedJIT: whatever the environment makes the driver take of an image, that has the programs or
// the reason is told; and what it refuses without programs it refuses with them.
func TestForcedJIT(t *testing.T) {
	files, err := filepath.Glob("../fatbin/testdata/*.fatbin")
	if err != nil || len(files) == 0 {
		t.Fatal("no containers", err)
	}
	cubin, err := os.ReadFile("../fatbin/testdata/kernels.13.0.sm_90a.cubin")
	if err != nil {
		t.Fatal(err)
	}
	compilers := map[string]func(string) ([]byte, error){
		"none": nil, "works": func(string) ([]byte, error) { return cubin, nil }, "unusable": func(string) ([]byte, error) { return nil, nil },
	}
	for _, j := range []JIT{{}, {Forced: "CUDA_FORCE_PTX_JIT"}, {Forbidden: "CUDA_DISABLE_PTX_JIT"}, {Forced: "CUDA_FORCE_JIT", Forbidden: "CUDA_DISABLE_JIT"}} {
		probed, told := 0, 0
		for _, name := range files {
			image, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			r := newRig(t, nil, testObject(t, "example_count"))
			for _, gpu := range []fatbin.Arch{arch(t, "sm_80"), arch(t, "sm_90"), arch(t, "sm_103")} {
				for how, compile := range compilers {
					out, err := r.plan.Rewrite(image, r.maps, &RewriteOptions{Arch: gpu, Compile: compile, JIT: j})
					if errors.Is(err, ErrNotWoven) {
						continue
					}
					if err != nil {
						t.Fatal(err)
					}
					was, is := taken(t, image, gpu, j), taken(t, out.Image, gpu, j)
					switch {
					case (was == nil) != (is == nil):
						t.Errorf("%+v, %s for %v, compiler %s: taken before: %v, and now: %v", j, name, gpu, how, was != nil, is != nil)
					case was == nil:
					case !bytes.Equal(was, is):
						probed++
						if len(out.Kernels) == 0 {
							t.Errorf("%+v, %s for %v: something else is taken, without programs", j, name, gpu)
						}
					case len(out.Unprobed) == 0 || len(out.Kernels) > 0:
						t.Errorf("%+v, %s for %v, compiler %s: what is taken has no programs, and no reason: %v", j, name, gpu, how, out.Kernels)
					default:
						told++
					}
				}
			}
		}
		t.Logf("%+v: %d with programs, %d without", j, probed, told)
		if probed == 0 && (j.Forced == "" || j.Forbidden == "") {
			t.Errorf("%+v: nothing got programs", j)
		}
	}
}

// TestForcedJITOfBareImages: of PTX that is compiled by the program's own driver only the text is of use.
func TestForcedJITOfBareImages(t *testing.T) {
	r := newRig(t, nil, testObject(t, "example_count"))
	image := append([]byte(vectorAdd), 0)
	compile := func(string) ([]byte, error) { t.Error("compiled for nothing"); return []byte("\x7fELF"), nil }
	out, err := r.plan.Rewrite(image, r.maps, &RewriteOptions{Arch: arch(t, "sm_90"), Compile: compile, JIT: JIT{Forced: "CUDA_FORCE_JIT"}})
	if err != nil || !out.Changed || fatbin.Sniff(out.Image) != fatbin.FormatPTX {
		t.Errorf("%v, %v", out.Changed, err)
	}
	out, err = r.plan.Rewrite(image, r.maps, &RewriteOptions{Arch: arch(t, "sm_90"), Compile: compile, JIT: JIT{Forbidden: "CUDA_DISABLE_JIT"}})
	if err != nil || out.Changed || len(out.Unprobed) == 0 {
		t.Errorf("%v, %v, %v", out.Changed, out.Unprobed, err)
	}
}
