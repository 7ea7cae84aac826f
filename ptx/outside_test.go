package ptx

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOutside runs over PTX from elsewhere, in the folder named by
// NVTRACE_PTX_CORPUS: what ptxas takes must parse, what parses must be lossless
// and still parse with probes everywhere, and ptxas must take it with probes
// exactly when it took it without.
func TestOutside(t *testing.T) {
	root := os.Getenv("NVTRACE_PTX_CORPUS")
	if root == "" {
		t.Skip("NVTRACE_PTX_CORPUS names no folder")
	}
	var files, parsed, unknown, assembled, bytes int
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".ptx") {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		bytes += len(b)
		name, _ := filepath.Rel(root, path)
		t.Run(name, func(t *testing.T) {
			f := outsideFile(t, name, string(b), &assembled)
			if f != nil {
				parsed++
				unknown += len(f.Check().Warnings)
			}
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d files of %d bytes: %d parse, %d unknown words, %d assemble with probes", files, bytes, parsed, unknown, assembled)
	if files == 0 {
		t.Error("no .ptx files in " + root)
	}
}

func outsideFile(t *testing.T, name, src string, assembled *int) *File {
	as := os.Getenv("NVTRACE_PTXAS")
	f, perr := Parse(name, src, nil)
	arch := "sm_90a"
	if perr == nil {
		if target := f.Target(); target.Suffix != 0 || target.SM > 90 {
			arch = target.String()
		}
	}
	takes := false
	if as != "" {
		_, takes = assemble(t, as, src, arch, "-c")
	}
	if perr != nil {
		if takes {
			t.Errorf("ptxas takes it, but: %v", perr)
		}
		t.Logf("does not parse: %v", perr)
		return nil
	}
	checkLossless(t, name, src)
	woven := weaveEverywhere(t, f)
	if _, err := Parse(name, woven, nil); err != nil {
		t.Errorf("woven: %v", err)
	}
	if takes {
		if out, ok := assemble(t, as, woven, arch, "-c"); !ok {
			t.Errorf("woven: ptxas: %.600s", out)
		} else {
			*assembled++
		}
		if out, ok := assemble(t, as, format(t, f), arch, "-c"); !ok {
			t.Errorf("formatted: ptxas: %.600s", out)
		}
	}
	return f
}
