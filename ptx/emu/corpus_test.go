package emu

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/ptx"
)

// corpusFiles are the PTX files that come with package ptx.
func corpusFiles(tb testing.TB) []string {
	var files []string
	err := filepath.WalkDir("../testdata/kernels", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".ptx") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return files
}

// allowedMissing are the instructions that the machine refuses on purpose:
// textures and surfaces, tensor maps, tensor cores of a warp group and of
// Blackwell, multicast memory, formats below 8 bits.
var allowedMissing = []string{
	" wgmma.", " tcgen05.", " tex.", " tld4.", " suld.", " sust.", " sured.", " txq.", " suq.", " istypep.",
	" tensormap.", ".tensor.", " multimem.", " clusterlaunchcontrol.", " st.bulk.",
	".e2m1x2", ".e2m3x2", ".e3m2x2", ".ue8m0x2", " cvt.rs.", " mma.sp", ".kind::",
}

// TestCorpusCompiles compiles every kernel of the corpus: nothing may be missing
// but what is refused on purpose.
func TestCorpusCompiles(t *testing.T) {
	for _, path := range corpusFiles(t) {
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := ptx.Parse(path, string(src), nil)
		if err != nil {
			t.Errorf("parse: %v", err)
			continue
		}
		mod, err := New(nil).Load(f)
		if err != nil {
			t.Errorf("load: %v", err)
			continue
		}
		for _, name := range mod.Kernels() {
			k, err := mod.Kernel(name)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			for _, err := range k.missing() {
				if !missingAllowed(err.Error()) {
					t.Error(err)
				}
			}
		}
		mod.Unload()
	}
}

func missingAllowed(s string) bool {
	for _, op := range allowedMissing {
		if strings.Contains(s, op) {
			return true
		}
	}
	return false
}
