package nvattach

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"nvtrace/fatbin"
	"nvtrace/fatbin/sass"
)

// memoryStore is a Store in memory.
type memoryStore map[string]struct {
	info string
	data []byte
}

// Kept implements Store.
func (s memoryStore) Kept(parts []string) (string, []byte, bool) {
	e, ok := s[strings.Join(parts, "\x00")]
	return e.info, bytes.Clone(e.data), ok
}

// Keep implements Store.
func (s memoryStore) Keep(parts []string, info string, data []byte) {
	e := s[strings.Join(parts, "\x00")]
	e.info, e.data = info, bytes.Clone(data)
	s[strings.Join(parts, "\x00")] = e
}

// Machine code with programs that was kept is what weaving makes anew in a run in which
// the memory of maps lies elsewhere.
func TestMachineCodeKept(t *testing.T) {
	image, err := os.ReadFile("../fatbin/testdata/kernels.13.0.sm_90a.cubin")
	if err != nil {
		t.Fatal(err)
	}
	compile := compileBody(t, "sm_90")
	options := func(base uint64) *RewriteOptions {
		half := func(h uint64) string { return fmt.Sprintf("%#x", h) }
		return &RewriteOptions{Arch: fatbin.Arch{SM: 90, Suffix: 'a'}, CompileBody: compile, High: uint16(base >> 32), Places: func(text string) (string, string, bool) {
			from := half(base >> 32)
			return strings.ReplaceAll(text, from, half(sass.PlaceA)), strings.ReplaceAll(text, from, half(sass.PlaceB)), true
		}}
	}
	const first, second = 0x7f1200000000, 0x6ea400000000
	kept := 0
	for _, o := range testObjects(t) {
		store := make(memoryStore)
		plan, maps := placedPlanAt(t, o, first)
		ro := options(first)
		ro.Store = store
		if _, err := plan.Rewrite(image, maps, ro); err != nil {
			t.Fatal(err)
		}
		kept += len(store)

		plan, maps = placedPlanAt(t, o, second)
		want, err := plan.Rewrite(image, maps, options(second))
		if err != nil {
			t.Fatal(err)
		}
		sites := plan.Sites()

		plan, maps = placedPlanAt(t, o, second)
		ro = options(second)
		ro.Store = store
		if len(store) > 0 {
			ro.CompileBody = func(string) ([]byte, error) { return nil, errors.New("nothing has to be compiled") }
		}
		got, err := plan.Rewrite(image, maps, ro)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Image, want.Image) || got.Changed != want.Changed {
			t.Errorf("%s: the image is another one, %d bytes and %d", o.Name, len(got.Image), len(want.Image))
		}
		if a, b := fmt.Sprintf("%+v %+v %+v", got.Kernels, got.Unprobed, plan.Sites()), fmt.Sprintf("%+v %+v %+v", want.Kernels, want.Unprobed, sites); a != b {
			t.Errorf("%s: reports\n%s\nwant\n%s", o.Name, a, b)
		}
	}
	if kept < 8 {
		t.Errorf("%d images were kept", kept)
	}
}
