package nvattach

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/nvattach/object"
	"nvtrace/ptx"
)

// TestWeaveCorpus weaves every example into every kernel of the corpus: what comes
// out parses, keeps its header, needs no feature that its target lacks, and ptxas
// takes it where it takes the original.
func TestWeaveCorpus(t *testing.T) {
	if need.Race {
		t.Skip("one goroutine, and much text")
	}
	names := []string{"example_count", "example_memory", "example_blocks", "params", "bpftime", "example_duration", "example_trace", "blocks"}
	var objs []*object.Object
	for _, n := range names {
		objs = append(objs, testObject(t, n))
	}
	r := newRig(t, nil, objs...)
	files, woven, sites := 0, 0, 0
	root := filepath.Join("..", "ptx", "testdata", "kernels")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".ptx" {
			return err
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		f, err := ptx.Parse(path, string(src), nil)
		if err != nil {
			t.Errorf("%v", err)
			return nil
		}
		w, err := r.plan.Weave(f, r.maps, nil)
		if err != nil {
			old := f.AddressSize != 64 || f.Target().SM < 60
			if !old || !strings.Contains(err.Error(), "can't be probed") {
				t.Errorf("%v", err)
			}
			return nil
		}
		if len(w.Kernels) == 0 {
			return nil
		}
		woven++
		for i := range w.Kernels {
			sites += w.Kernels[i].Sites()
			for _, n := range w.Kernels[i].Notes {
				t.Logf("%s: %s: %s", path, w.Kernels[i].Name, n)
			}
		}
		g, err := ptx.Parse(path, w.Text, nil)
		if err != nil || g.Version != f.Version || strings.Join(g.Targets, ",") != strings.Join(f.Targets, ",") {
			t.Errorf("%s: header %v %v, %v", path, g.Version, g.Targets, err)
			return nil
		}
		if strings.Contains(w.Text, "call (") && !strings.Contains(string(src), "call (") {
			t.Errorf("%s: a call was put in", path)
		}
		corpusAssemble(t, path, string(src), w.Text, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 100 || woven < files*3/4 || sites < 10_000 {
		t.Errorf("%d files, %d woven, %d places", files, woven, sites)
	}
	t.Logf("%d files, %d woven, %d places", files, woven, sites)
}

// corpusAssemble tries some files with ptxas, which takes half an hour for all:
// $NVTRACE_PTXAS_CORPUS says which, by a part of their path.
func corpusAssemble(t *testing.T, path, src, woven string, f *ptx.File) {
	part := os.Getenv("NVTRACE_PTXAS_CORPUS")
	if part == "" {
		part = "vecadd.nvcc13.0"
	}
	if testing.Short() || len(woven) > 400<<10 || !strings.Contains(path, part) {
		return
	}
	arch := f.Target().String()
	if f.Target().SM < 75 {
		arch = "sm_75"
	}
	out, ok := tryAssemble(t, src, arch)
	if !ok {
		t.Logf("%s: ptxas does not take the original: %.100s", path, out)
		return
	}
	if out, ok := tryAssemble(t, woven, arch); !ok {
		t.Errorf("%s: ptxas does not take the woven text: %.1000s", path, out)
	}
}
