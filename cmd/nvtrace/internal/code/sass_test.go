package code

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/fatbin"
)

// TestSassMixed: entries are read in any order of stored and compressed ones. Files are mapped for
// reading only, and a stored entry lies in the file.
func TestSassMixed(t *testing.T) {
	cubin, err := os.ReadFile("../../../../fatbin/testdata/kernels.13.0.sm_90a.cubin")
	if err != nil {
		t.Fatal(err)
	}
	const stored, lz4, zstd = fatbin.Stored, fatbin.LZ4, fatbin.Zstd
	file := func(how ...fatbin.Compression) string {
		c := new(fatbin.Container)
		for _, h := range how {
			e, err := fatbin.NewEntry(fatbin.KindELF, fatbin.Arch{SM: 90, Suffix: 'a'}, cubin, &fatbin.EntryOptions{Compression: h})
			if err != nil {
				t.Fatal(err)
			}
			c.Entries = append(c.Entries, e)
		}
		name := filepath.Join(t.TempDir(), "mixed.fatbin")
		if err := os.WriteFile(name, c.Append(nil), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	one, five := file(stored), file(stored, lz4, stored, zstd, lz4)
	for _, verb := range []string{"dis", "sites", "check"} {
		run := func(name string) string {
			e, stdout, stderr := clitest.Quiet()
			if status := SassVerb(e, []string{verb, name}, nil); status != cli.ExitOK {
				t.Fatalf("%s: status %d, %s", verb, status, stderr)
			}
			return stdout.String()
		}
		want, got := run(one), run(five)
		for _, total := range []string{" sites of ", ": it ", " functions, "} { // the sums of sites and check
			want, got = withoutLine(want, total), withoutLine(got, total)
		}
		if verb == "dis" && want == "" || got != strings.Repeat(want, 5) {
			t.Errorf("%s: %q for one entry, for five of the same %q", verb, want, got)
		}
	}
	out := t.TempDir()
	e, _, stderr := clitest.Quiet()
	if status := fatbinExtract(e, []string{"--out", out, five}); status != cli.ExitOK {
		t.Fatal(stderr)
	}
	files, err := os.ReadDir(out)
	if err != nil || len(files) != 5 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, f := range files {
		if clitest.ReadText(t, filepath.Join(out, f.Name())) != string(cubin) {
			t.Errorf("%s is not what was stored", f.Name())
		}
	}
}

// withoutLine takes out the lines that hold a text.
func withoutLine(text, with string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.Contains(line, with) {
			b.WriteString(line)
		}
	}
	return b.String()
}
