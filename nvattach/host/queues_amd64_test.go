package host

import (
	"encoding/binary"
	"path/filepath"
	"slices"
	"testing"
)

// keyless is what maps without keys, and a trie, do.
type keyless struct {
	queue, stack []int64
	bloom        map[int64]bool
	trie         map[[2]uint64]int64 // by bits and length
}

const (
	errNoEntry = -2
	errTooBig  = -7
	errInvalid = -22
)

// push is the result of a push to a list of 5.
func push(list *[]int64, a, flags int64) int64 {
	switch {
	case flags != 0 && flags != 2:
		return errInvalid
	case len(*list) == 5 && flags == 0:
		return errTooBig
	case len(*list) == 5:
		*list = (*list)[1:]
	}
	*list = append(*list, a)
	return 0
}

func (k *keyless) step(what, a, b int64) int64 {
	bits := func(length int64) [2]uint64 {
		return [2]uint64{uint64(uint32(a)) &^ (1<<(32-length) - 1), uint64(length)}
	}
	last := len(k.stack) - 1
	switch what {
	case 0:
		return push(&k.queue, a, b&3)
	case 3:
		return push(&k.stack, a, b&3)
	case 1, 2:
		if len(k.queue) == 0 {
			return errNoEntry
		}
		v := k.queue[0]
		if what == 1 {
			k.queue = k.queue[1:]
		}
		return v
	case 4, 5:
		if last < 0 {
			return errNoEntry
		}
		v := k.stack[last]
		if what == 4 {
			k.stack = k.stack[:last]
		}
		return v
	case 6:
		k.bloom[a] = true
		return 0
	case 9, 11:
		_, have := k.trie[bits(min(b, 32))]
		switch {
		case b > 32:
			return errInvalid
		case what == 11 && !have:
			return errNoEntry
		case what == 11:
			delete(k.trie, bits(b))
		case !have && len(k.trie) == 40:
			return errTooBig
		default:
			k.trie[bits(b)] = a
		}
		return 0
	case 10:
		for n := b; n >= 0 && b <= 32; n-- {
			if v, ok := k.trie[bits(n)]; ok {
				return v
			}
		}
		return -1
	}
	return 0
}

// TestKeyless: queues, stacks, bloom filters and tries do what a model does, and queues lose nothing
// that threads push and pop at once.
func TestKeyless(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "queues")
	compile(t, "-O1", "-o", bin, "testdata/queues.c", "-lpthread")
	both(t, func(t *testing.T, inside bool) {
		programs := []string{"on_step"}
		if inside {
			programs = append(programs, "on_both") // each stop takes long
		}
		r := rigOf(t, "../testdata/obj/queues.bpf.o", inside, programs...)
		if status := r.run(bin); status != 0 || r.stdout.String() != "ok\n" {
			t.Fatalf("exit %d, %q", status, r.stdout.String())
		}
		model := keyless{bloom: map[int64]bool{}, trie: map[[2]uint64]int64{}}
		state := uint64(88172645463325252)
		next := func() int64 {
			state ^= state << 13
			state ^= state >> 7
			state ^= state << 17
			return int64(state >> 20)
		}
		wrong := 0 // bloom filters may say that a value is there that is not
		for i := range uint32(4000) {
			what, a, b := next()%12, next()%64, next()%40
			if what >= 9 {
				a = a<<26 | next()%4
			}
			v, err := r.maps.Lookup(r.mem, r.maps.Find("results"), binary.LittleEndian.AppendUint32(nil, i))
			if err != nil {
				t.Fatal(err)
			}
			got, want := int64(binary.LittleEndian.Uint64(v)), model.step(what, a, b)
			switch {
			case (what == 7 || what == 8) && got == 0 && !model.bloom[a]:
				wrong++
			case what == 7 && (got == 0) == model.bloom[a] && (got == 0 || got == errNoEntry):
			case what == 8 && (got == 0) == model.bloom[a]:
			case what == 7 || what == 8 || got != want:
				t.Fatalf("step %d: %d(%d, %d) is %d, want %d", i, what, a, b, got, want)
			}
		}
		if wrong > 20 {
			t.Errorf("the bloom filter was wrong %d times", wrong)
		}
		for name, want := range map[string][]int64{"queue": model.queue, "stack": model.stack} {
			table, err := r.maps.Read(r.mem, r.maps.Find(name))
			if err != nil {
				t.Fatal(err)
			}
			var got []int64
			for _, row := range table.Rows {
				got = append(got, int64(binary.LittleEndian.Uint64(row.Value)))
			}
			if want = slices.Clone(want); name == "stack" {
				slices.Reverse(want)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s has %d, want %d", name, got, want)
			}
		}
		if inside {
			in, out := r.variable("pushed"), r.variable("popped")
			left, err := r.maps.Read(r.mem, r.maps.Find("together"))
			if err != nil {
				t.Fatal(err)
			}
			rest := int64(0)
			for _, row := range left.Rows {
				rest += int64(binary.LittleEndian.Uint64(row.Value))
			}
			if in-out != int64(len(left.Rows)) || in < 1000 || r.variable("sum_in")-r.variable("sum_out") != rest {
				t.Errorf("%d pushed, %d popped, %d left; sums %d, %d, %d", in, out, len(left.Rows), r.variable("sum_in"), r.variable("sum_out"), rest)
			}
			if r.agent.Stats().Probes < 2 {
				t.Error(r.tracer.Slow())
			}
		}
		for _, err := range r.runner.Losses() {
			if err.Error() != "map trie: 0 insertions found no room" && len(model.trie) < 40 {
				t.Error(err)
			}
		}
	})
}
