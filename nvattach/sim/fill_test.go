package sim

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// testProcess is this process as a program.
func testProcess(t *testing.T) *Process {
	t.Helper()
	s, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := newProcess(s, os.Getpid(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.arena.close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// TestFill holds what a memset writes, and that one which can't be right is
// refused before anything is done: it could go on for ever.
func TestFill(t *testing.T) {
	p := testProcess(t)
	addr, b, err := p.Alloc(24, "filled")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct {
		name string
		f    fill
		want string // of 24 bytes, . for what was not written; "" refused
	}{
		{"one row", fill{dst: addr + 1, value: 'x', size: 1, width: 3, height: 1}, ".xxx...................."},
		{"one row, no pitch", fill{dst: addr, value: 'x', size: 2, width: 2, height: 1}, "x\x00x\x00...................."},
		{"rows", fill{dst: addr, pitch: 5, value: 'y', size: 1, width: 2, height: 3}, "yy...yy...yy............"},
		{"slices", fill{dst: addr, pitch: 3, value: 'z', size: 1, width: 1, height: 2, slice: 9, more: 1}, "z..z.....z..z..........."},
		{"nothing", fill{dst: addr, value: 'z', size: 1, height: 1 << 40}, strings.Repeat(".", 24)},
		{"no rows", fill{dst: addr, value: 'z', size: 1, width: 9}, strings.Repeat(".", 24)},
		{"behind the end", fill{dst: addr + 20, value: 'z', size: 1, width: 5, height: 1}, ""},
		{"the last row behind the end", fill{dst: addr, pitch: 8, value: 'z', size: 1, width: 1, height: 4}, ""},
		{"the last slice behind the end", fill{dst: addr, pitch: 1, value: 'z', size: 1, width: 1, height: 1, slice: 12, more: 2}, ""},
		{"rows on each other", fill{dst: addr, pitch: 1, value: 'z', size: 1, width: 2, height: 3}, ""},
		{"all rows in one place", fill{dst: addr, value: 'z', size: 1, width: 1, height: 1 << 45}, ""},
		{"slices in one place", fill{dst: addr, pitch: 1, value: 'z', size: 1, width: 1, height: 1, more: 1 << 45}, ""},
		{"between elements", fill{dst: addr + 1, value: 'z', size: 2, width: 1, height: 1}, ""},
		{"elements of 3 bytes", fill{dst: addr, value: 'z', size: 3, width: 1, height: 1}, ""},
		{"elements of none", fill{dst: addr, value: 'z', width: 1, height: 1}, ""},
		{"beyond numbers", fill{dst: addr, pitch: 1 << 33, value: 'z', size: 1, width: 1, height: 1<<31 + 1}, ""},
	} {
		copy(b, slices.Repeat([]byte{'.'}, len(b)))
		ok := r.f.valid() && r.f.run(p) == success
		if ok != (r.want != "") {
			t.Errorf("%s: done %v", r.name, ok)
		} else if ok && string(b) != r.want {
			t.Errorf("%s: %q, want %q", r.name, b, r.want)
		} else if !ok && string(b) != strings.Repeat(".", len(b)) {
			t.Errorf("%s: refused, and wrote %q", r.name, b)
		}
	}
}

// TestCopyNumbers is about copies whose size can't be computed in 64 bits.
func TestCopyNumbers(t *testing.T) {
	p := testProcess(t)
	addr, _, err := p.Alloc(64, "copied")
	if err != nil {
		t.Fatal(err)
	}
	k := copy2{dst: addr, src: addr + 8, dstPitch: 4, srcPitch: 4, width: 4, height: 2, depth: 1}
	if r := k.check(p.arena); r != success {
		t.Errorf("a good copy: %d", r)
	}
	for _, f := range []func(k *copy2){
		func(k *copy2) { k.height, k.dstPitch = 1<<31+1, 1<<33 },
		func(k *copy2) { k.height, k.srcPitch = 1<<31+1, 1<<33 },
		func(k *copy2) { k.depth, k.dstSlice = 1<<31+1, 1<<33 },
		func(k *copy2) { k.depth, k.srcSlice = 1<<63+1, 2 },
		func(k *copy2) { k.height = 1 << 50 },
	} {
		bad := k
		if f(&bad); bad.check(p.arena) == success {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

// TestTooManyObjects: a program that has made all the objects it may can still
// use the device.
func TestTooManyObjects(t *testing.T) {
	p := testProcess(t)
	for p.add(nil) != 0 {
	}
	if len(p.objects) != maxObjects {
		t.Fatalf("%d objects", len(p.objects))
	}
	c := &call{p: p, th: p.thread(1), entry: &entry{runtime: true}}
	x, r := c.context()
	if r != success || x.handle == 0 {
		t.Fatalf("context %+v, result %d", x, r)
	}
	if got, r := lookup[*cudaContext](c, x.handle); got != x || r != success {
		t.Errorf("the handle is of %+v, result %d", got, r)
	}
	if _, r := lookup[*stream](c, x.handle); r != errInvalidHandle {
		t.Errorf("the context is a stream: %d", r)
	}
	if r := c.createStream(0, 0, 0); r != errOutOfMemory {
		t.Errorf("one more object: %d", r)
	}
	c.endPrimary(p.devices[0])
	if p.devices[0].primary != nil || len(p.objects) != maxObjects {
		t.Errorf("%d objects after the context's end", len(p.objects))
	}
}
