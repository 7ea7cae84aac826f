package gpu

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"math"

	"nvtrace/nvattach/api/cuda"
	"nvtrace/nvattach/session"
)

// comparePTX is compare.ptx.
//
//go:embed compare.ptx
var comparePTX string

// load loads the kernels that compare, wait and clear into the context, once.
func (t *trial) load() error {
	t.p.known.Lock()
	t.tools = t.p.comparers[t.c.handle]
	t.p.known.Unlock()
	if t.compare != 0 {
		return nil
	}
	list, err := t.loadKernels(t.c, comparePTX, "nvtrace_compare", "nvtrace_wait", "nvtrace_clear")
	if err != nil {
		return err
	}
	t.tools = tools{list[0], list[1], list[2]}
	t.p.known.Lock()
	t.p.comparers[t.c.handle] = t.tools
	t.p.known.Unlock()
	return nil
}

// loadKernels loads kernels of ours into the context, which is current, and returns their
// handles.
func (v *visit) loadKernels(c *context, text string, names ...string) ([]uint64, error) {
	image := append([]byte(text), 0)
	if compile := v.p.tr.compileFor(v.p.driver, c.arch, 0); compile != nil {
		cubin, err := compile(text)
		if err != nil {
			return nil, err
		}
		if cubin != nil {
			image = cubin
		}
	}
	if len(image) > stageBytes-256 {
		return nil, fmt.Errorf("%d bytes", len(image))
	}
	at := v.stage() + 256
	if err := v.poke(at, image); err != nil {
		return nil, err
	}
	module, err := v.ask("cuModuleLoadData", at)
	if err != nil {
		return nil, err
	}
	var list []uint64
	for _, name := range names {
		f, err := v.named("cuModuleGetFunction", name, module)
		if err != nil {
			return nil, err
		}
		list = append(list, f)
	}
	return list, nil
}

// result is what one says.
type result struct{ differ, unstable, first uint64 }

// diff compares regions with what a and b say are copies of them.
func (t *trial) diff(a, b func(r *region) uint64) ([]result, error) {
	blank := make([]byte, 0, resultBytes*len(t.regions))
	for range t.regions {
		for _, w := range []uint64{0, 0, math.MaxUint64} {
			blank = binary.LittleEndian.AppendUint64(blank, w)
		}
	}
	stream := t.c.mem.stream
	for off := 0; off < len(blank); off += stageBytes {
		part := blank[off:min(off+stageBytes, len(blank))]
		if err := t.exchange(part, t.stage(), []step{
			call("cuMemcpyHtoDAsync_v2", t.out+uint64(off), t.stage(), uint64(len(part)), stream), call("cuStreamSynchronize", stream),
		}, 0, nil); err != nil {
			return nil, err
		}
	}
	for i := range t.regions {
		r := &t.regions[i]
		words, grouped := r.size/8, uint64(1)
		if (r.base|a(r)|b(r))%8 != 0 {
			words, grouped = 0, 0
		}
		const threads = 256
		blocks := min(max(r.size/(16*threads), 1), 1024)
		if err := t.launchOwn(t.compare, grid{blocks: blocks, threads: threads}, stream, r.base, a(r), b(r), r.size, words, grouped, t.out+uint64(resultBytes*i)); err != nil {
			return nil, err
		}
	}
	got := make([]byte, len(blank))
	for off := 0; off < len(got); off += stageBytes {
		part := got[off:min(off+stageBytes, len(got))]
		if err := t.exchange(nil, 0, []step{
			call("cuMemcpyDtoHAsync_v2", t.stage(), t.out+uint64(off), uint64(len(part)), stream), call("cuStreamSynchronize", stream),
		}, t.stage(), part); err != nil {
			return nil, err
		}
	}
	list := make([]result, len(t.regions))
	for i := range list {
		w := func(k int) uint64 { return binary.LittleEndian.Uint64(got[resultBytes*i+8*k:]) }
		list[i] = result{w(0), w(1), w(2)}
	}
	return list, nil
}

// launchOwn launches a kernel of ours; all its parameters are words.
func (t *trial) launchOwn(f uint64, s grid, stream uint64, params ...uint64) error {
	var b []byte
	at := t.stage()
	for i := range params {
		b = binary.LittleEndian.AppendUint64(b, at+uint64(8*len(params)+8*i))
	}
	for _, p := range params {
		b = binary.LittleEndian.AppendUint64(b, p)
	}
	return t.exchange(b, at, []step{call("cuLaunchKernel", f, s.blocks, 1, 1, s.threads, 1, 1, s.shared, stream, at, 0)}, 0, nil)
}

// planClearing prepares what sets the shared memory of all multiprocessors to 0 before each run, if the kernel
// has some: what a block finds there is what others before it left, and a kernel that stores more of it than
// it has written would seem to be changed by probes.
func (t *trial) planClearing() error {
	static, err := t.ask("cuFuncGetAttribute", funcShared, t.k.twin)
	if err != nil || uint32(static) == 0 && t.dynamic == 0 {
		return err
	}
	device := uint64(t.c.device)
	size, err := t.ask("cuDeviceGetAttribute", attrMaxShared, device)
	if err != nil {
		return err
	}
	processors, err := t.ask("cuDeviceGetAttribute", attrMultiprocessors, device)
	if err != nil {
		return err
	}
	// A block takes all shared memory of a multiprocessor, so that each of those gets one.
	t.clearing = grid{blocks: uint64(uint32(processors)), threads: 256, shared: uint64(uint32(size)) &^ 15}
	return t.visit.run(call("cuFuncSetAttribute", t.clear, funcMaxDynamic, t.clearing.shared))
}

const attrMultiprocessors = cuda.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT

// keep copies the regions that a run has changed. Others are equal to what they were before the launch,
// and need no copy: most kernels change little of what a program has.
func (t *trial) keep(set func(r *region, at uint64), to func(r *region) uint64) error {
	diffs, err := t.diff(before, before)
	if err != nil {
		return err
	}
	var list []*region
	for i := range t.regions {
		r := &t.regions[i]
		if diffs[i].differ > 0 {
			r.changed = true
		}
		if r.changed {
			list = append(list, r)
		}
	}
	if err := t.room(list, set); err != nil {
		return err
	}
	return t.copies(list, to, base)
}

// keepAgain does that for the second run. What only that has changed was, after the
// first, what it was before.
func (t *trial) keepAgain() error {
	if err := t.keep(func(r *region, at uint64) { r.again = at }, again); err != nil {
		return err
	}
	for i := range t.regions {
		if r := &t.regions[i]; r.changed && r.once == 0 {
			r.once = r.before
		}
	}
	return nil
}

// judge compares what the run with programs left. A byte is wrong if both runs without programs
// left the same there, and this one something else. Words in which those two differ are unstable.
func (t *trial) judge(out *session.Verification) error {
	pick := func(at func(r *region) uint64) func(r *region) uint64 {
		return func(r *region) uint64 {
			if !r.changed {
				return r.before
			}
			return at(r)
		}
	}
	diffs, err := t.diff(pick(once), pick(again))
	if err != nil {
		return err
	}
	for i, d := range diffs {
		r := &t.regions[i]
		out.Buffers++
		out.Bytes += r.size
		out.Unstable += d.unstable
		if d.differ > 0 && out.Differ == 0 {
			out.First, out.Buffer, out.Offset = r.base+d.first, r.what, d.first
		}
		out.Differ += d.differ
	}
	return nil
}
