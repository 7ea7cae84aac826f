package host

import (
	"encoding/binary"
	"path/filepath"
	"testing"

	"nvtrace/nvattach/object"
)

// expanded is what on_step of expand.bpf.c writes down.
func expanded(cookie uint64, what, a, b uint64) uint64 {
	adds := func() uint64 { return a + b }
	counts := func() uint64 {
		if what == 9 {
			return 1<<64 - 22
		}
		sum, n := uint64(0), uint64(0)
		for i := range b {
			sum, n = sum+uint64(uint32(i)*uint32(i)+1), n+1
			if i == a {
				break
			}
		}
		return sum*1000 + n
	}
	picks := func() uint64 {
		if a&1 != 0 {
			return counts()
		}
		return b*(b-1)*1000 + b
	}
	if what == 8 {
		return cookie
	}
	switch what & 7 {
	case 0, 4:
		return adds()
	case 1:
		return counts()
	case 2:
		return []func() uint64{adds, counts}[b&1]()
	case 3:
		return picks()
	case 5:
		return []func() uint64{adds, counts}[(a^b)&1]()
	}
	return cookie + what
}

// TestExpanded: tail calls, loops with callbacks and cookies do what they do in the kernel.
func TestExpanded(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "queues")
	compile(t, "-O1", "-o", bin, "testdata/queues.c", "-lpthread")
	both(t, func(t *testing.T, inside bool) {
		const cookie = 0x123456789abcdef0
		r := rigWith(t, "../testdata/obj/expand.bpf.o", inside, func(objs []*object.Object) error {
			return object.PlaceProgram(objs, "on_step=queues:step,cookie=0x123456789abcdef0")
		}, "on_step")
		r.run(bin)
		got := r.values("results")
		state := uint64(88172645463325252)
		next := func() uint64 {
			state ^= state << 13
			state ^= state >> 7
			state ^= state << 17
			return state >> 20
		}
		for i := range 4000 {
			what, a, b := next()%12, next()%64, next()%40
			if what >= 9 {
				a = a<<26 | next()%4
			}
			if want := expanded(cookie, what, a, b); got[i] != want {
				t.Fatalf("step(%d, %d, %d), the %d-th: %d, want %d", what, a, b, i, got[i], want)
			}
		}
	})
}

// values are those of an array of words.
func (r *rig) values(name string) []uint64 {
	r.t.Helper()
	table, err := r.maps.Read(r.mem, r.maps.Find(name))
	if err != nil {
		r.t.Fatal(err)
	}
	var list []uint64
	for _, row := range table.Rows {
		list = append(list, binary.LittleEndian.Uint64(row.Value))
	}
	return list
}
