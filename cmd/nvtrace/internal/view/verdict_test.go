package view

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"nvtrace/ioctl"
	"nvtrace/traces"
)

// TestBusy compares the time that spans cover with a count of each moment, for spans in
// about the order of their ends.
func TestBusy(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		const moments = 2000
		var b busy
		var covered [moments]bool
		for end := 10; end < moments; end += random.IntN(20) {
			to := max(1, min(end+random.IntN(7)-3, moments-1))
			from := max(0, to-random.IntN(1+random.IntN(200)))
			b.add(int64(from), int64(to))
			for i := from; i < to; i++ {
				covered[i] = true
			}
		}
		want := int64(0)
		for _, c := range covered {
			if c {
				want++
			}
		}
		if got := b.Time(); got != want {
			t.Fatalf("round %d: %d moments, want %d", round, got, want)
		}
	}
	var b busy
	for i := range int64(10 * maxSpans) { // more than are kept
		b.add(10*i, 10*i+3)
	}
	if got := b.Time(); got != 3*10*maxSpans || len(b.spans) > maxSpans {
		t.Errorf("%d ns in %d spans", got, len(b.spans))
	}
	// One that was there all the time ends after all of them; some come again.
	b.add(-5, 100*maxSpans)
	b.add(10, 13)
	if got := b.Time(); got != 100*maxSpans+5 {
		t.Errorf("%d ns with one over all, want %d", got, 100*maxSpans+5)
	}
}

// TestVerdict: what a summary begins with.
func TestVerdict(t *testing.T) {
	h := &traces.Header{Driver: "580.142", Argv: []string{"/opt/app", "x"}, PID: 7}
	s := NewSink(ioctl.NewDecoder(h), nil)
	s.Notice = func(n string) { t.Error(n) }
	s.Summarise(h)
	call := func(tid int32, name string, at, dur, ret int64) {
		s.Event(&traces.Event{Kind: traces.KindCall, PID: 7, TID: tid, Time: at, FD: -1, Name: name, Path: "libcuda.so.1"})
		s.Event(&traces.Event{Kind: traces.KindReturn, PID: 7, TID: tid, Time: at, Dur: dur, FD: -1, Name: name, Ret: ret})
	}
	s.Event(&traces.Event{Kind: traces.KindExec, PID: 7, TID: 7, FD: -1, Path: "/opt/app"})
	call(7, "cuInit", 0, 1000, 0)
	call(8, "cuCtxSynchronize", 600, 1400, 700) // CUDA_ERROR_ILLEGAL_ADDRESS; a part of cuInit's time is the same
	call(7, "cuStreamQuery", 2500, 100, 600)    // "not ready" is no failure
	for _, tid := range []int32{7, 8} {
		s.Event(&traces.Event{Kind: traces.KindIoctl, PID: 7, TID: tid, Time: 3000, Dur: 1000, FD: 3, Dev: "nvidiactl", Args: [6]uint64{3, 0xc020462a, 5}})
	}
	s.Event(&traces.Event{Kind: traces.KindImage, PID: 7, TID: 7, Time: 5000, FD: -1, Image: &traces.Image{SHA256: "aa"}})
	s.Event(&traces.Event{Kind: traces.KindImage, PID: 7, TID: 7, Time: 5000, FD: -1, Image: &traces.Image{SHA256: "aa"}})
	s.Event(&traces.Event{Kind: traces.KindKernel, PID: 7, TID: 7, Time: 6000, FD: -1, Name: "k"})
	s.Event(&traces.Event{Kind: traces.KindGap, PID: 7, TID: 7, Time: 6000, FD: -1, Text: "lost\x1b[2J"})
	s.Event(&traces.Event{Kind: traces.KindFault, PID: 7, TID: 7, Time: 6000, FD: -1, Name: "k", Text: "CUDA_ERROR_ILLEGAL_ADDRESS: kernel k: k.ptx:3:1"})
	for _, p := range []traces.Probe{
		{Images: 1, Sites: 2, Launched: true, Launches: 1470}, {Images: 2, Sites: 1, Launched: true, Unprobed: 3, Launches: 5}, {Reason: "no PTX"}, {Launched: true, Reason: "no PTX"},
	} {
		s.Event(&traces.Event{Kind: traces.KindProbe, Time: 6000, FD: -1, Name: "k", Probe: &p})
	}
	s.Event(&traces.Event{Kind: traces.KindExit, PID: 7, TID: 7, Time: 10000, FD: -1, Ret: 3 << 8})
	s.Event(&traces.Event{Kind: traces.KindEnd, Time: 99999, FD: -1})
	var got strings.Builder
	v := s.Totals.verdict(s.Totals.Summary.Report())
	if err := v.write(&got); err != nil {
		t.Fatal(err)
	}
	const want = `app (process 7, 2 threads) ran 10.0 µs, exit 3
  in the driver        1.00 µs (10.0 %), 2 ioctls; summed over threads 2.00 µs
  in CUDA's libraries  2.10 µs (21.0 %), 3 calls; summed over threads 2.50 µs
    waiting for GPU    1.40 µs (14.0 %), 1 call, most in cuCtxSynchronize
    starting           1.00 µs (10.0 %), 1 call, most in cuInit
  failed calls         1, the first at 0.000001 s in process 7: cuCtxSynchronize() = CUDA_ERROR_ILLEGAL_ADDRESS
  GPU code             INCOMPLETE: 1 image, 1 kernel launched; 1 gap: lost\x1b[2J
  kernel failed        CUDA_ERROR_ILLEGAL_ADDRESS: kernel k: k.ptx:3:1
  probes               in 2 of 3 launched kernels, 99.8% of 1,475 launches, at 3 places; NOT in 1 kernel: no PTX; 3 launches without them; not launched: 1 kernel
`
	if got.String() != want {
		t.Errorf("%s\nwant\n%s", &got, want)
	}
}

// TestVerdictCaptured: that nothing escaped is said only where it is known.
func TestVerdictCaptured(t *testing.T) {
	old := "captured: by the interposer alone, without a supervisor: images that went past it are not here"
	for _, tt := range []struct {
		r    *ioctl.Report
		want string
	}{
		{&ioctl.Report{Captured: &traces.Captured{Mode: traces.CaptureBreakpoints}}, "0 images, 0 kernels launched, nothing escaped\n"},
		{&ioctl.Report{Captured: &traces.Captured{Mode: traces.CaptureInterposer}}, "INCOMPLETE: 0 images, 0 kernels launched; images: 0, loads: 0, bytes: 0; seen by the interposer alone"},
		{&ioctl.Report{Notes: []string{old}}, "INCOMPLETE"},
		{&ioctl.Report{Notes: []string{"captured: images: 1, loads: 1, bytes: 9; drivers watched: 1, kernels launched: 1, gaps: 0"}}, "nothing escaped\n"},
	} {
		v := &verdict{captured: captured(tt.r), images: true}
		var b bytes.Buffer
		if err := v.write(&b); err != nil || !strings.Contains(b.String(), tt.want) {
			t.Errorf("%+v: %v\n%s", tt.r, err, &b)
		}
	}
	v := &verdict{images: true}
	var b bytes.Buffer
	if err := v.write(&b); err != nil || !strings.Contains(b.String(), "capturing did not come to its end") {
		t.Errorf("cut off: %v\n%s", err, &b)
	}
}
