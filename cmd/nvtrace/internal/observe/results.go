package observe

import "nvtrace/nvattach/api"

// results remembers the names of what functions return: finding one takes longer than all else
// that is done for a call.
type results struct {
	known  map[resultKey]string
	latest [16]struct { // by library
		key  resultKey
		name string
	}
}

// resultKey is what a function may return.
type resultKey struct {
	t    *api.Type
	code int32
}

// maxResults bounds the names that are remembered.
const maxResults = 1 << 12

// name is [api.Function.ResultName] with a memory.
func (r *results) name(f *api.Function, ret int64) string {
	k := resultKey{f.Result, int32(ret)}
	last := &r.latest[f.Library%16]
	if last.key != k || last.key.t == nil {
		last.key, last.name = k, r.search(f, ret, k)
	}
	return last.name
}

func (r *results) search(f *api.Function, ret int64, k resultKey) string {
	name, ok := r.known[k]
	if !ok {
		name = f.ResultName(ret)
		if r.known == nil || len(r.known) >= maxResults {
			r.known = make(map[resultKey]string)
		}
		r.known[k] = name
	}
	return name
}
