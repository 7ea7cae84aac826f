package session

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// TestComparison: words that differ between two runs without programs are left out,
// whatever the run with programs left there.
func TestComparison(t *testing.T) {
	once := bytes.Repeat([]byte{1}, 8*4+3)
	change := func(at ...int) []byte {
		b := bytes.Clone(once)
		for _, i := range at {
			b[i] = 2
		}
		return b
	}
	for _, tt := range []struct {
		again, probed            []int
		unstable, differ, offset uint64
	}{
		{},
		{again: []int{9}, unstable: 8},
		{again: []int{9}, probed: []int{8, 15}, unstable: 8},
		{again: []int{9}, probed: []int{7, 16, 31}, unstable: 8, differ: 3, offset: 7},
		{probed: []int{34}, differ: 1, offset: 34},
		{again: []int{33}, probed: []int{34}, unstable: 3},
	} {
		var c Comparison
		c.Add("before", 0, once, once, once)
		c.Add("it", 0x1000, once, change(tt.again...), change(tt.probed...))
		want := Verification{Buffers: 2, Bytes: 70, Unstable: tt.unstable, Differ: tt.differ, Offset: tt.offset}
		if tt.differ > 0 {
			want.First, want.Buffer = 0x1000+tt.offset, "it"
		}
		if c.Verification != want {
			t.Errorf("%v, %v: %+v, want %+v", tt.again, tt.probed, c.Verification, want)
		}
	}
}

// TestDue: which launches are run both ways.
func TestDue(t *testing.T) {
	for _, tt := range []struct {
		every  int
		reason string // of each
		want   string // of 20 launches
	}{
		{every: 0, want: "...................."},
		{every: VerifyFirst, want: "X..................."},
		{every: 1, want: "XXXXXXXXXXXXXXXXXXXX"},
		{every: 5, want: "X....X....X....X...."},
		{every: 1, reason: "captured", want: "XXXXXXXXXXXXXXXX...."},
	} {
		s := &Session{opts: Options{Verify: tt.every}, checks: make(map[string]*Verified)}
		var got strings.Builder
		for range 20 {
			if !s.Launched("k") {
				got.WriteByte('.')
				continue
			}
			got.WriteByte('X')
			if s.Launched("k") { // by another thread meanwhile
				t.Error("two at a time")
			}
			s.checks["k"].Launches--
			s.Verified("k", &Verification{Reason: tt.reason})
		}
		if got.String() != tt.want {
			t.Errorf("each %d, %q: %s, want %s", tt.every, tt.reason, &got, tt.want)
		}
	}
	s := &Session{opts: Options{Verify: 1}, checks: make(map[string]*Verified)}
	s.Launched("k")
	s.Verified("k", &Verification{Reason: "never", Final: true})
	if s.Launched("k") {
		t.Error("after it was said to be impossible")
	}
}

// TestVerifiedText: what is said about a kernel.
func TestVerifiedText(t *testing.T) {
	for _, tt := range []struct {
		kernel Kernel
		runs   []Verification
		want   string
	}{
		{want: "not verified: not launched, or in graphs only"},
		{kernel: Kernel{NoTwin: "no copy"}, want: "NOT verified: no copy"},
		{runs: []Verification{{Reason: "it prints"}}, want: "NOT verified: it prints"},
		{
			runs: []Verification{{Reason: "captured"}, {Buffers: 3, Bytes: 12_582_912, Probed: 12_300 * time.Nanosecond, Unprobed: 11_900 * time.Nanosecond}},
			want: "verified: 3 buffers, 12,582,912 bytes equal\nprobed 12.3 µs, unprobed 11.9 µs: 1.03x (1 launch of 2)",
		},
		{
			runs: []Verification{{Buffers: 1, Bytes: 1000, Unstable: 8, ProbedInsns: 1500, UnprobedInsns: 1000}},
			want: "verified: 1 buffer, 992 bytes equal; 8 bytes in words that differ between two runs without probes are left out\n" +
				"probed 1,500 instructions, unprobed 1,000: 1.50x (1 launch of 1)",
		},
		{
			runs: []Verification{{Buffers: 2, Bytes: 1000, Differ: 17, First: 0x7010, Buffer: "allocation", Offset: 16}, {Buffers: 2, Bytes: 1000}},
			want: "DIFFERS: 17 of 1,000 bytes, first at 0x7010, byte 16 of allocation",
		},
		{runs: []Verification{{Fails: "CUDA_ERROR_ILLEGAL_ADDRESS"}}, want: "DIFFERS: with probes it fails with CUDA_ERROR_ILLEGAL_ADDRESS, without it does not"},
		{
			runs: []Verification{{Buffers: 1, Bytes: 8, Probed: 3 * time.Millisecond, Unprobed: 2 * time.Millisecond}, {Buffers: 1, Bytes: 8, Probed: 1500 * time.Millisecond, Unprobed: 500 * time.Millisecond}},
			want: "verified: 1 buffer, 8 bytes equal\nprobed 751.50 ms, unprobed 251.00 ms: 2.99x (2 launches of 2)",
		},
	} {
		s := &Session{opts: Options{Verify: 1}, checks: make(map[string]*Verified)}
		for _, r := range tt.runs {
			s.Launched("k")
			s.Verified("k", &r)
		}
		if got := strings.Join(s.verified("k").text(&tt.kernel), "\n"); got != tt.want {
			t.Errorf("got\n%s\nwant\n%s", got, tt.want)
		}
		// Those who read JSON learn the same reason.
		if head, want, ok := strings.Cut(tt.want, " verified: "); ok && strings.EqualFold(head, "not") {
			if got := s.verified("k").json(&tt.kernel)["reason"]; got != want {
				t.Errorf("reason %q, want %q", got, want)
			}
		}
	}
}
