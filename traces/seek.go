package traces

import (
	"bufio"
	"io"
	"os"
)

// SkipTo leaves out blocks whose events all end before a time. A compressed file in which
// every block is followed by its index entry is not even read there. Events before the time
// may still come, and of text all do; what they would have told is not known.
func (r *Reader) SkipTo(t int64) error {
	r.skipTo = t
	f, ok := r.closer.(*os.File)
	if !ok || r.dec == nil {
		return nil
	}
	at, ok := findBlock(f, t)
	if !ok || at <= r.src.n { // the rest is in memory already, at least in part
		return nil
	}
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return nil // a pipe: blocks are left out as they come
	}
	raw := bufio.NewReaderSize(r.src, rawBuffer)
	if err := r.dec.Reset(raw); err != nil {
		return r.damage(err)
	}
	r.in.Reset(r.dec)
	r.found = at
	return nil
}

// findBlock returns where the first block begins that has an event that ends at or after
// a time. false: there is none, or the file has no whole index.
func findBlock(f *os.File, t int64) (at int64, ok bool) {
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return 0, false
	}
	end := st.Size()
	var b [indexFrame]byte
	for end > indexFrame {
		if _, err := f.ReadAt(b[:], end-indexFrame); err != nil {
			return at, ok
		}
		x, is := parseIndex(b[:])
		start := end - indexFrame - int64(x.size)
		if !is || start <= 0 { // the header, which has no entry
			return at, ok
		}
		if x.most >= t { // not the first, perhaps
			at, ok = start, true
		}
		end = start
	}
	return at, ok
}
