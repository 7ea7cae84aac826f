package gpu

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// Lines of the maps file are read as scanf would.
func TestParseMapping(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b) + "7f0c5a000000-7f0c5a200000 r-xp 00028000 103:02 1234    /usr/lib/a b.so (deleted)\n" +
		"7f0c5a000000-7f0c5a200000 r-xp 00028000 08:01 7\n\nnonsense\n1-2 rw-p 0 0:0 x /f\n"
	files := 0
	for line := range strings.Lines(text) {
		var want mapping
		var perm, dev string
		var ino uint64
		n, _ := fmt.Sscanf(line, "%x-%x %s %x %s %d", &want.from, &want.to, &perm, &want.off, &dev, &ino)
		got, ok := parseMapping(line)
		if ok != (n == 6 && ino != 0) {
			t.Errorf("%q: %v", line, ok)
		}
		if !ok {
			continue
		}
		files++
		if i := strings.IndexByte(line, '/'); i >= 0 {
			want.path = strings.TrimSuffix(line[i:], "\n")
		}
		want.exec = perm[2] == 'x'
		if got != want {
			t.Errorf("%q: %+v, want %+v", line, got, want)
		}
	}
	if files < 3 {
		t.Errorf("%d files", files)
	}
}
