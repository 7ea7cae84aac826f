package jump

import (
	"errors"
	"flag"
	"os"
	"testing"
	"time"
)

var survey = flag.String("survey", "", "a file of which to count the functions that a jump may begin, by reason")

// TestSurvey counts the functions of this machine's libraries whose first instructions may be replaced: the
// proof is of use where it holds for nearly all.
func TestSurvey(t *testing.T) {
	list := []string{*survey}
	if *survey == "" {
		list = libraries(t)
	}
	for _, path := range list {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		c, err := Read(f)
		if err != nil {
			t.Fatal(err)
		}
		read := time.Since(began)
		began = time.Now()
		if _, err := c.scanned(); err != nil {
			t.Fatal(err)
		}
		scanned := time.Since(began)
		size := 0
		for _, s := range c.targets.segments {
			size += int(s.end - s.start)
		}
		began = time.Now()
		all, good, why := 0, 0, make(map[error]int)
		for _, s := range c.ranges {
			n := 0
			code := c.Text(s.start, 64)
			for n < 5 {
				in, ok := decode(code[n:])
				if !ok {
					break
				}
				n += in.len
			}
			all++
			err := c.Replaceable(s.start, n)
			if err == nil {
				good++
			}
			for _, r := range Reasons() {
				if errors.Is(err, r) {
					why[r]++
				}
			}
		}
		t.Logf("%s: read in %v; %d bytes of code in %v, %.0f MB/s; %d of %d functions in %v; tables %d; %v", path, read, size, scanned,
			float64(size)/1e6/scanned.Seconds(), good, all, time.Since(began), len(c.targets.tables), why)
		if *survey == "" && good < all*9/10 {
			t.Errorf("%s: a jump may begin %d of %d functions", path, good, all)
		}
		f.Close()
	}
}
