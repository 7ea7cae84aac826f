package export

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"nvtrace/ioctl"
	"nvtrace/traces"
)

// busy makes the calls of a program with threads that call in CUDA's libraries, calls in
// calls, with ioctls among them, of lengths from 100 ns to 10 ms. It returns how often each
// function was called, and how many calls failed.
func busy(n int, f func(*traces.Event)) (calls map[string]int64, failed int) {
	rng := rand.New(rand.NewPCG(1, 2))
	calls = make(map[string]int64)
	ev := &traces.Event{PID: 7}
	now := [3]int64{}
	var call func(th, depth int)
	call = func(th, depth int) {
		runtime := []string{"cudaLaunchKernel", "cudaMalloc", "cudaMemcpyAsync"}[rng.IntN(3)]
		driver := map[string]string{"cudaLaunchKernel": "cuLaunchKernel", "cudaMalloc": "cuMemAlloc_v2", "cudaMemcpyAsync": "cuMemcpyHtoDAsync_v2"}[runtime]
		name, lib := runtime, "/lib/libcudart.so.13"
		if depth > 0 {
			name, lib = driver, "/lib/libcuda.so.1"
		}
		*ev = traces.Event{Kind: traces.KindCall, PID: 7, TID: int32(7 + th), Time: now[th], Name: name, Path: lib, FD: -1, Args: [6]uint64{uint64(rng.IntN(4))}}
		start := now[th]
		f(ev)
		calls[name]++
		now[th] += 50
		switch {
		case depth == 0 && rng.IntN(4) > 0:
			call(th, 1)
		case rng.IntN(50) == 0:
			*ev = traces.Event{Kind: traces.KindClose, PID: 7, TID: int32(7 + th), Time: now[th], Dur: 700, FD: 3, File: 1, Dev: "nvidiactl"}
			f(ev)
			calls["close"]++
			now[th] += 700
		}
		now[th] += int64(100 << rng.IntN(8))
		if rng.IntN(1000) == 0 {
			now[th] += 10e6
		}
		*ev = traces.Event{Kind: traces.KindReturn, PID: 7, TID: int32(7 + th), Time: start, Dur: now[th] - start, Name: name, FD: -1}
		if rng.IntN(500) == 0 {
			ev.Ret = 1
			failed++
		}
		f(ev)
		now[th] += 50
	}
	for range n {
		call(rng.IntN(3), 0)
	}
	return calls, failed
}

// TestDetail draws a long recording in less and less room: nothing is lost from the counts
// as long as there is any, the size is kept, and failed calls are always drawn.
func TestDetail(t *testing.T) {
	const n = 20_000
	survey := NewSurvey()
	want, failed := busy(n, following(ioctl.NewDecoder(nil), survey).Event)
	draw := func(limit int64, survey *Survey) (tl *Timeline, size int64, d *drawn) {
		t.Helper()
		var out bytes.Buffer
		dec := ioctl.NewDecoder(nil)
		tl = NewTimeline(&out, nil, dec)
		if limit > 0 {
			tl.Limit(limit, survey)
		}
		busy(n, following(dec, tl).Event)
		if err := tl.Close(); err != nil {
			t.Fatal(err)
		}
		f, err := parseTimeline(out.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if d, err = checkTimeline(f); err != nil {
			t.Fatal(err)
		}
		failures := 0
		for _, e := range f.Events {
			if len(e.Cats) == 1 && e.Cats[0] == "failed" {
				failures++
			}
		}
		if _, left := tl.Merged(); left == 0 && failures != failed {
			t.Errorf("%d bytes: %d failed calls, want %d", limit, failures, failed)
		}
		return tl, int64(out.Len()), d
	}
	counts := func(d *drawn) map[string]int64 {
		got := map[string]int64{}
		for name, n := range d.calls {
			got[name] += n
		}
		for name, f := range d.api {
			_, name, _ = strings.Cut(name, " ")
			got[name] += f.Calls
		}
		for name, n := range d.merged {
			if _, is := want[name]; is { // kernels have their runs too
				got[name] += n
			}
		}
		return got
	}
	_, whole, d := draw(0, nil)
	if got := counts(d); fmt.Sprint(got) != fmt.Sprint(want) || len(d.merged) != 0 {
		t.Fatalf("unlimited: %v, want %v; merged %v", got, want, d.merged)
	}
	for _, part := range []int64{2, 5, 20, 50} {
		limit := whole / part
		for _, s := range []*Survey{survey, nil} {
			tl, size, d := draw(limit, s)
			least, left := tl.Merged()
			if size > limit {
				t.Errorf("%d bytes of %d", size, limit)
			}
			if got := counts(d); left == 0 && fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("in %d bytes: %v, want %v", limit, got, want)
			}
			if least == 0 || len(d.merged) == 0 {
				t.Errorf("in %d bytes: nothing is merged", limit)
			}
			if s != nil && (left > 0 || size < limit/10) {
				t.Errorf("after a survey: %d of %d bytes, %d events left out", size, limit, left)
			}
		}
	}
	if _, size, d := draw(2*whole, survey); size != whole || len(d.merged) != 0 {
		t.Errorf("with room enough: %d bytes, without a limit %d, merged %v", size, whole, d.merged)
	}
	if tl, size, _ := draw(4000, nil); size > 4000 || tl.left == 0 {
		t.Errorf("in 4,000 bytes: %d, %d events left out", size, tl.left)
	}
}
