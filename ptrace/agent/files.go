package agent

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"nvtrace/ptrace"
)

// A CodeFile says by what helpers follow stacks through code that is mapped.
type CodeFile struct {
	Start, End uint64 // of the code
	// Index is where Count pairs of numbers of 4 bytes are, relative to Base and ascending: where a
	// function begins, and where it is described (.eh_frame).
	Base, Index, Count uint64
}

// Index adds a table for CodeFile.Index that a file lacks, and returns its address in all processes.
func (g *Programs) Index(b []byte) (uint64, error) { return g.put(b) }

// AddFiles tells helpers in t's process of code that has been mapped, in place of what was there. What
// they have no room for they follow by frame pointers. t must be stopped as [ptrace.Task.Syscall] wants.
// Other threads may be following a stack: the sequence number is odd while the list changes, and a
// helper for which it is odd, or has changed meanwhile, knows nothing of the code.
func (p *Process) AddFiles(t *ptrace.Task, list []CodeFile) error {
	if err := p.Runs(t); err != nil {
		return err
	}
	le := binary.LittleEndian
	b := make([]byte, filesList+mostFiles*fileSize)
	if n, err := p.mem.ReadAt(b, filesAddr); n < len(b) {
		return fmt.Errorf("files of process %d: %w", p.PID, err)
	}
	seq, n := le.Uint64(b), min(le.Uint64(b[8:]), mostFiles)
	all := slices.Clone(list)
	for i := range n {
		var w [fileSize / 8]uint64
		for k := range w {
			w[k] = le.Uint64(b[filesList+i*fileSize+uint64(k)*8:])
		}
		f := CodeFile{w[0], w[1], w[2], w[3], w[4]}
		if !slices.ContainsFunc(list, func(x CodeFile) bool { return x.Start < f.End && f.Start < x.End }) {
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b CodeFile) int { return cmp.Compare(a.Start, b.Start) })
	all = all[:min(len(all), mostFiles)]
	seq |= 1
	if err := p.write64(filesAddr, seq); err != nil {
		return err
	}
	out := le.AppendUint64(nil, uint64(len(all)))
	out = append(out, make([]byte, filesList-16)...)
	for _, f := range all {
		for _, w := range []uint64{f.Start, f.End, f.Base, f.Index, f.Count} {
			out = le.AppendUint64(out, w)
		}
	}
	if err := p.write(filesAddr+8, out); err != nil {
		return err
	}
	return p.write64(filesAddr, seq+1)
}
