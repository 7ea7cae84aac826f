package session

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"nvtrace/nvattach"
)

// A Verification is what came of running one launch of a kernel with and without
// programs on the same memory.
type Verification struct {
	// Reason is why that was not done; "" if it was.
	Reason string
	// Final: it will not be possible at another launch either.
	Final bool

	Buffers int    // allocations that were compared
	Bytes   uint64 // in them
	// Unstable are the bytes of words that differ between two runs without programs.
	// They are not compared.
	Unstable uint64
	// Differ are bytes that differ between runs with and without.
	Differ uint64
	First  uint64 // the address of the first of them
	Buffer string // what it lies in
	Offset uint64 // where
	// Fails is what a run with programs failed with.
	Fails string

	// Times of one run, on memory as it was; 0 if they are not known.
	Probed, Unprobed time.Duration
	// ProbedInsns and UnprobedInsns are instructions of all threads, on a simulated
	// GPU, where times mean little.
	ProbedInsns, UnprobedInsns uint64
}

// A Verified sums up the verifications of a kernel.
type Verified struct {
	Launches uint64 // of the kernel that were seen
	Runs     int    // that were run both ways
	Last     Verification
	Worst    *Verification // the first that was not equal
	Reason   string        // why a launch was not, in which there is no other; "" if one was
	// Sums over those that have them.
	Probed, Unprobed           time.Duration
	ProbedInsns, UnprobedInsns uint64

	running, final bool
}

// Verify says whether launches are to be run both ways.
func (s *Session) Verify() bool { return s.opts.Verify > 0 }

// HasTwin says whether some image has a copy without programs of the kernel.
func (s *Session) HasTwin(kernel string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.probed[kernel]
	return k != nil && k.Twin
}

// Kernel returns what became of a kernel; ok is false if no program wants it, or no
// image had it.
func (s *Session) Kernel(name string) (k Kernel, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.probed[name]
	if p == nil {
		return k, false
	}
	k = *p
	k.Globals = slices.Clone(p.Globals)
	return k, true
}

// maxOriginals bounds the bytes of images that are kept to be loaded beside others.
const maxOriginals = 2 << 30

// noteOriginal keeps the image that has a kernel without programs; nil if the image with
// programs has it.
func (s *Session) noteOriginal(k *Kernel, o *nvattach.Original) {
	switch {
	case k.Images > 1 && (o == nil) != (k.Original == nil), o != nil && k.Original != nil && o.Sum != k.Original.Sum:
		// Which image a function is of can't be told.
		k.Twin, k.Original, k.NoTwin = false, nil, "several images have a kernel of this name"
		return
	case o == nil || k.Original != nil:
		return
	}
	if s.originals == nil {
		s.originals = make(map[[sha256.Size]byte]*nvattach.Original)
	}
	kept := s.originals[o.Sum]
	if kept == nil {
		if s.originalBytes += len(o.Image); s.originalBytes > maxOriginals {
			s.originalBytes -= len(o.Image)
			k.Twin, k.NoTwin = false, "the images without probes, which are loaded for that, take more than 2 GiB"
			return
		}
		o.Image = bytes.Clone(o.Image)
		s.originals[o.Sum], kept = o, o
	}
	k.Original = kept
}

// TooManyRegisters is why a launch is made without programs.
const TooManyRegisters = "with probes its threads take more registers than a block of so many threads can have"

// TooMuchShared is another reason.
const TooMuchShared = "with maps of its blocks it would take more shared memory than a block can have"

// Launched counts a launch of a kernel with programs, and says whether it is one
// that is to be verified: the first, and each so many of them as Options.Verify
// says.
func (s *Session) Launched(kernel string) (due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.verified(kernel)
	v.Launches++
	every := uint64(s.opts.Verify)
	switch {
	case every == 0, v.running, v.final:
		return false
	case v.Runs == 0: // the first that can be
		due = v.Launches <= maxAttempts || v.Launches&(v.Launches-1) == 0
	default:
		due = every == 1 || every != VerifyFirst && v.Launches%every == 1
	}
	v.running = due
	return due
}

// VerifyFirst in Options.Verify verifies the first launch of each kernel only.
const VerifyFirst = 1 << 62

// maxAttempts bounds how often in a row verification is tried where it was not
// possible.
const maxAttempts = 16

// Verified takes note of what came of a launch that Launched has named.
func (s *Session) Verified(kernel string, r *Verification) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.verified(kernel)
	v.running = false
	if r.Reason != "" {
		v.Reason, v.final = r.Reason, r.Final
		return
	}
	v.Runs++
	v.Last = *r
	if v.Worst == nil && (r.Differ > 0 || r.Fails != "") {
		worst := *r
		v.Worst = &worst
	}
	if r.Probed > 0 && r.Unprobed > 0 {
		v.Probed += r.Probed
		v.Unprobed += r.Unprobed
	}
	v.ProbedInsns += r.ProbedInsns
	v.UnprobedInsns += r.UnprobedInsns
}

func (s *Session) verified(kernel string) *Verified {
	v := s.checks[kernel]
	if v == nil {
		v = new(Verified)
		s.checks[kernel] = v
	}
	return v
}

// Compared returns how many launches of a kernel were run both ways.
func (s *Session) Compared(kernel string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.verified(kernel).Runs
}

// RanUnprobed takes note of a launch that the driver refused with programs, and
// that was made without.
func (s *Session) RanUnprobed(kernel, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kernel(kernel)
	k.Unprobed++
	k.UnprobedWhy = reason
}

// why says why no launch was run both ways; "" if that is not known.
func (v *Verified) why(k *Kernel) string {
	why := cmp.Or(v.Reason, k.NoTwin)
	if why == "" && v.Launches == 0 {
		why = "not launched, or in graphs only"
	}
	return why
}

// text says what came of it, a line each.
func (v *Verified) text(k *Kernel) []string {
	var lines []string
	switch r := &v.Last; {
	case v.Worst != nil && v.Worst.Fails != "":
		lines = append(lines, "DIFFERS: with probes it fails with "+v.Worst.Fails+", without it does not")
	case v.Worst != nil:
		w := v.Worst
		line := fmt.Sprintf("DIFFERS: %s of %s bytes, first at %#x, byte %s of %s", thousands(w.Differ), thousands(w.Bytes), w.First, thousands(w.Offset), w.Buffer)
		if w.Unstable > 0 {
			line += fmt.Sprintf("; %s more differ between two runs without probes, too", thousands(w.Unstable))
		}
		lines = append(lines, line)
	case v.Runs > 0:
		line := fmt.Sprintf("verified: %s, %s bytes equal", plural(r.Buffers, "buffer"), thousands(r.Bytes-r.Unstable))
		if r.Unstable > 0 {
			line += fmt.Sprintf("; %s bytes in words that differ between two runs without probes are left out", thousands(r.Unstable))
		}
		lines = append(lines, line)
	case v.Launches == 0 && v.Reason == "" && k.NoTwin == "":
		lines = append(lines, "not verified: "+v.why(k))
	default:
		if why := v.why(k); why != "" {
			lines = append(lines, "NOT verified: "+why)
		}
	}
	return append(lines, v.cost()...)
}

// cost compares the times of runs with and without programs.
func (v *Verified) cost() []string {
	of := fmt.Sprintf("%s of %s", plural(v.Runs, "launch"), strconv.FormatUint(v.Launches, 10))
	switch {
	case v.Probed > 0 && v.Unprobed > 0:
		n := time.Duration(v.Runs)
		return []string{fmt.Sprintf("probed %v, unprobed %v: %.2fx (%s)", short(v.Probed/n), short(v.Unprobed/n), float64(v.Probed)/float64(v.Unprobed), of)}
	case v.UnprobedInsns > 0:
		return []string{fmt.Sprintf("probed %s instructions, unprobed %s: %.2fx (%s)", thousands(v.ProbedInsns), thousands(v.UnprobedInsns),
			float64(v.ProbedInsns)/float64(v.UnprobedInsns), of)}
	}
	return nil
}

func short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%.1f µs", float64(d)/1e3)
	case d < time.Second:
		return fmt.Sprintf("%.2f ms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

func plural(n int, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case strings.HasSuffix(what, "ch"):
		what += "e"
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// thousands writes a number with commas.
func thousands(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// json is what a kernel's line has of it.
func (v *Verified) json(k *Kernel) map[string]any {
	o := map[string]any{"launches": v.Launches, "runs": v.Runs}
	switch r := &v.Last; {
	case v.Worst != nil:
		r = v.Worst
		o["equal"], o["differ"], o["first"], o["buffer"], o["offset"], o["fails"] = false, r.Differ, r.First, r.Buffer, r.Offset, r.Fails
	case v.Runs > 0:
		o["equal"], o["buffers"], o["bytes"], o["unstable"] = true, r.Buffers, r.Bytes-r.Unstable, r.Unstable
	default:
		o["reason"] = v.why(k)
	}
	if v.Probed > 0 {
		o["probed_ns"], o["unprobed_ns"] = v.Probed.Nanoseconds(), v.Unprobed.Nanoseconds()
	}
	if v.UnprobedInsns > 0 {
		o["probed_instructions"], o["unprobed_instructions"] = v.ProbedInsns, v.UnprobedInsns
	}
	return o
}

// A Comparison adds up what one launch's memory shows: once for each allocation
// that some run may have changed.
type Comparison struct{ Verification }

// Add compares what an allocation of n bytes at base holds after two runs without
// programs and after one with. What stands for a name is what it is to be called.
func (c *Comparison) Add(what string, base uint64, once, again, probed []byte) {
	c.Buffers++
	c.Bytes += uint64(len(once))
	if bytes.Equal(once, again) && bytes.Equal(once, probed) {
		return
	}
	for lo := 0; lo < len(once); lo += wordBytes {
		hi := min(lo+wordBytes, len(once))
		if !bytes.Equal(once[lo:hi], again[lo:hi]) {
			c.Unstable += uint64(hi - lo)
			continue
		}
		for i := lo; i < hi; i++ {
			if probed[i] == once[i] {
				continue
			}
			if c.Differ == 0 {
				c.First, c.Buffer, c.Offset = base+uint64(i), what, uint64(i)
			}
			c.Differ++
		}
	}
}

// wordBytes is the size of the words that are left out where two runs without programs
// differ: what differs at all may differ in other bytes the next time.
const wordBytes = 8

// RewriteOptions are those of an image: see [nvattach.RewriteOptions].
type RewriteOptions = nvattach.RewriteOptions
