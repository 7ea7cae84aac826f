package capture

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nvtrace/traces"
)

// TestFeed: an image is kept once, a kernel is told of once with its image, and what could
// not be kept is a gap that is counted.
func TestFeed(t *testing.T) {
	store := NewStore(8)
	if err := store.Begin(filepath.Join(t.TempDir(), "run.nvt")); err != nil {
		t.Fatal(err)
	}
	var got []string
	f := NewFeed(&FeedOptions{Mode: traces.CaptureSimulator, Origin: "test", Store: store, Emit: func(ev *traces.Event) {
		line := fmt.Sprintf("%v %s%s", ev.Kind, ev.Name, ev.Text)
		if ev.Image != nil {
			line += fmt.Sprintf(" %.4s %s %s", ev.Image.SHA256, ev.Image.File, ev.Image.Origin)
		}
		if c := ev.Captured; c != nil {
			line = fmt.Sprintf("captured %d images, %d loads, %d bytes, %d kernels, %d gaps", c.Images, c.Loads, c.Bytes, c.Kernels, c.Gaps)
		}
		if ev.Time <= 0 {
			line += " at no time"
		}
		got = append(got, line)
	}})
	load := func(text, file string, err error) {
		b := []byte(text)
		f.Loaded(&Load{
			PID: 7, TID: 8, Function: "load", Image: traces.Image{SHA256: hashOf(b), Size: int64(len(b)), File: file},
			Data: func() ([]byte, error) { return b, err },
		})
	}
	load("one", "", nil)
	load("one", "", nil)
	load("in a file", "/lib/a.so", nil) // stays there
	load("too large for the store", "", nil)
	load("gone", "", errors.New("it is gone"))
	for range 2 {
		f.Launched(Launch{7, "k", hashOf([]byte("one"))}, 0)
	}
	f.Launched(Launch{7, "unknown", ""}, 9)
	f.Finish()
	want := []string{
		"image load 7692  test", "image load 7692  test", "image load 085d /lib/a.so test", "image load ac59  test", "image load 283b  test",
		"kernel k 7692  ", "kernel unknown",
		"gap image ac59* of process 7 could not be kept", "gap image 283b* of process 7 could not be kept: it is gone",
		"captured 4 images, 5 loads, 42 bytes, 2 kernels, 2 gaps",
	}
	if !slices.EqualFunc(got, want, func(g, w string) bool {
		a, b, cut := strings.Cut(w, "*")
		return g == w || cut && strings.HasPrefix(g, a) && strings.Contains(g, b)
	}) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if list, err := os.ReadDir(store.dir); err != nil || len(list) != 1 || list[0].Name() != hashOf([]byte("one")) {
		t.Errorf("stored: %v, %v", list, err)
	}
}

// TestFeedFile: an image that lies in a mapped file is said to be there.
func TestFeedFile(t *testing.T) {
	b := []byte("the image")
	var ev traces.Event
	f := NewFeed(&FeedOptions{Emit: func(e *traces.Event) { ev = *e }})
	addr, path := mapFile(t, append([]byte("before "), b...))
	l := &Load{
		PID: os.Getpid(), Addr: addr + 7, Image: traces.Image{SHA256: hashOf(b), Size: int64(len(b))},
		Data: func() ([]byte, error) { return b, nil },
	}
	f.Loaded(l)
	if ev.Image.File != path || ev.Image.Offset != 7 || ev.Path != path {
		t.Errorf("%q at %d, caller %q", ev.Image.File, ev.Image.Offset, ev.Path)
	}
	b[0]++ // the program has changed what the file shows
	f.Loaded(l)
	if ev.Image.File != "" {
		t.Errorf("other bytes than the file's are said to be in %q", ev.Image.File)
	}
}
