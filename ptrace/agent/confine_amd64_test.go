package agent

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOwnCalls: the agent's code makes no system calls but those that are known beforehand: sys_own those of the list,
// and sys_in and sys_out the program's.
func TestOwnCalls(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(blobSource, "*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var source strings.Builder
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(b)
	}
	text := source.String()
	numbers := map[string]uint64{}
	for _, m := range regexp.MustCompile(`(?m)^#define (NR_\w+) (\d+)u$`).FindAllStringSubmatch(text, -1) {
		numbers[m[1]], _ = strconv.ParseUint(m[2], 10, 64)
	}
	found := map[uint64]bool{unix.SYS_CLOCK_GETTIME: true} // the vdso's
	for _, m := range regexp.MustCompile(`\bsys_own\(&\w+, (\w+)\)`).FindAllStringSubmatch(text, -1) {
		nr, known := numbers[m[1]]
		if !known || !slices.ContainsFunc(ownCalls, func(c ownCall) bool { return c.nr == nr }) {
			t.Errorf("sys_own makes %s, which is not in ownCalls", m[1])
		}
		found[nr] = true
	}
	for _, c := range ownCalls {
		if !found[c.nr] {
			t.Errorf("call %d is in ownCalls, and is never made", c.nr)
		}
	}
	if n := strings.Count(text, "sys_own(&"); n < len(ownCalls)-1 {
		t.Errorf("%d calls of sys_own found", n)
	}
	for _, m := range regexp.MustCompile(`\bsys_(?:in|out)\((\S+), `).FindAllStringSubmatch(text, -1) {
		if !slices.Contains([]string{"g", "r", "const"}, m[1]) { // the registers of the program's call; or the declaration
			t.Errorf("%s: that is not the program's call", m[0])
		}
	}
}

// TestManners: what the agent does where a filter forbids something of it.
func TestManners(t *testing.T) {
	only := func(nrs ...uint64) allows {
		return func(nr uint64, args ...uint64) bool { return slices.Contains(nrs, nr) }
	}
	var all []uint64
	for _, c := range ownCalls {
		all = append(all, c.nr)
	}
	if !only(all...).own() {
		t.Error("all are allowed")
	}
	for i := range all {
		if only(slices.Delete(slices.Clone(all), i, i+1)...).own() {
			t.Errorf("call %d is not allowed", all[i])
		}
	}
	for _, nr := range bells {
		if only(all...).bell(nr) != slices.Contains(all, nr) {
			t.Errorf("bell %d", nr)
		}
	}
}
