package capture

import "sync"

// recent is a set of hashes that forgets those which were neither added nor looked up for
// long. It may be used from any goroutine.
type recent struct {
	mu       sync.Mutex
	now, old map[string]bool // since there were recentHashes, and before
}

// recentHashes is how many that are newer have a hash forgotten: of programs that compile and
// link for as long as they run, an image that is loaded so long after it was made is not
// expected, while all that were ever made would not fit into memory some day.
const recentHashes = 1 << 14

func (r *recent) add(hash string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(hash)
}

func (r *recent) put(hash string) {
	if r.now == nil || len(r.now) >= recentHashes && !r.now[hash] {
		r.old, r.now = r.now, make(map[string]bool)
	}
	r.now[hash] = true
}

// has reports whether a hash is in the set, which keeps it for longer.
func (r *recent) has(hash string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.now[hash] && r.old[hash] {
		r.put(hash)
	}
	return r.now[hash]
}
