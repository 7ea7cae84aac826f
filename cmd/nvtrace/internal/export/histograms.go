package export

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
)

// histogramRow is how many of what happened took about so long, in table histograms.
type histogramRow struct {
	t, time    int64
	pid        int32
	until      int64
	what, name string
	low, high  int64
	count, sum int64
}

// histogramRowColumns are the columns of a histogramRow.
var histogramRowColumns = []column[histogramRow]{
	int64s("t", func(r *histogramRow) int64 { return r.t }),
	int64s("time", func(r *histogramRow) int64 { return r.time }),
	int32s("pid", func(r *histogramRow) int32 { return r.pid }),
	int64s("until", func(r *histogramRow) int64 { return r.until }),
	texts("what", func(r *histogramRow) string { return r.what }),
	texts("name", func(r *histogramRow) string { return r.name }),
	int64s("low", func(r *histogramRow) int64 { return r.low }),
	int64s("high", func(r *histogramRow) int64 { return r.high }),
	int64s("count", func(r *histogramRow) int64 { return r.count }),
	int64s("sum", func(r *histogramRow) int64 { return r.sum }),
}

// subBuckets is how many buckets there are between a power of two and the next: each is 1/8 wide at most.
const subBuckets = 8

// bucketOf returns the number of the bucket that a time is in.
func bucketOf(ns int64) int {
	v := uint64(max(ns, 0))
	if v < subBuckets {
		return int(v)
	}
	shift := bits.Len64(v) - 4
	return (shift+1)*subBuckets + int(v>>shift) - subBuckets
}

// bounds returns what times are in a bucket: from low on, below high.
func bounds(bucket int) (low, high int64) {
	if bucket < subBuckets {
		return int64(bucket), int64(bucket) + 1
	}
	shift := bucket/subBuckets - 1
	from := int64(bucket%subBuckets+subBuckets) << shift
	return from, from + 1<<shift
}

// distributions are the times of what happened in a part, by what it was.
type distributions map[distributed]map[int]*counted

type distributed struct{ what, name string }

type counted struct{ n, sum int64 }

// manyMore is the name of what found no name of its own.
const manyMore = "(others)"

func (d distributions) add(what, name string, ns int64) {
	key := distributed{what, name}
	m := d[key]
	if m == nil {
		if len(d) >= maxFrames {
			key.name = manyMore
			m = d[key]
		}
		if m == nil {
			m = make(map[int]*counted)
			d[key] = m
		}
	}
	b := bucketOf(ns)
	c := m[b]
	if c == nil {
		c = new(counted)
		m[b] = c
	}
	c.n++
	c.sum += ns
}

// put gives out the rows, and forgets them.
func (d distributions) put(add func(*histogramRow)) {
	keys := slices.SortedFunc(maps.Keys(d), func(a, b distributed) int { return cmp.Or(cmp.Compare(a.what, b.what), cmp.Compare(a.name, b.name)) })
	for _, key := range keys {
		for _, b := range slices.Sorted(maps.Keys(d[key])) {
			low, high := bounds(b)
			c := d[key][b]
			add(&histogramRow{what: key.what, name: key.name, low: low, high: high, count: c.n, sum: c.sum})
		}
	}
	clear(d)
}
