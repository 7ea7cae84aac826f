package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nvtrace/nvattach/object"
)

// innerMaps is a model of the maps of testdata/obj/inner.bpf.c.
type innerMaps struct {
	hashes map[uint32]map[uint32]int64
	arrays [2][4]int64
	rings  [2][]uint32
}

// step is what p_step's program does at step at.
func (k *innerMaps) step(at, which, key, how uint32) int64 {
	switch how {
	case 0, 1:
		h, ok := k.hashes[which]
		_, there := h[key]
		switch {
		case !ok:
			return 2000
		case how == 1 && !there:
			return errNoEntry
		case how == 1:
			delete(h, key)
			return 0
		}
		if h[key]++; there {
			return h[key]
		}
		return 0
	case 2:
		switch {
		case which >= 2:
			return 2000
		case key >= 4:
			return 3000
		}
		k.arrays[which][key] += 10
		return k.arrays[which][key]
	case 3:
		if which >= 2 {
			return 2000
		}
		k.rings[which] = append(k.rings[which], at)
		return 0
	}
	return 2000
}

// TestInner: maps that are values of maps are used as a model says, in the process and in this one.
func TestInner(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "inner")
	compile(t, "-O1", "-o", bin, "testdata/inner.c")
	both(t, func(t *testing.T, inside bool) {
		r := rigWith(t, "../testdata/obj/inner.bpf.o", inside, func(objs []*object.Object) error {
			s, err := object.ParseMapSetting("hashes[7]=first") // a map may be several values
			if err == nil {
				_, err = object.SetNamed(objs, s)
			}
			return err
		})
		if status := r.run(bin); status != 0 || r.stdout.String() != "ok\n" || len(r.said) > 0 || r.tracer.Slow() != "" {
			t.Fatalf("exit %d, %q; said %q; %s", status, r.stdout.String(), r.said, r.tracer.Slow())
		}
		first, second := map[uint32]int64{}, map[uint32]int64{}
		model := innerMaps{hashes: map[uint32]map[uint32]int64{1: first, 4: second, 7: first}}
		state := uint64(88172645463325252)
		next := func(n uint64) uint32 {
			state ^= state << 13
			state ^= state >> 7
			state ^= state << 17
			return uint32((state >> 20) % n)
		}
		for i := range uint32(400) {
			which, key, how := next(9), next(6), next(5)
			v, err := r.maps.Lookup(r.mem, r.maps.Find("results"), binary.LittleEndian.AppendUint32(nil, i))
			if err != nil {
				t.Fatal(err)
			}
			if got, want := int64(binary.LittleEndian.Uint64(v)), model.step(i, which, key, how); got != want {
				t.Fatalf("step %d: %d of %d, key %d: %d, want %d", i, how, which, key, got, want)
			}
		}
		for name, want := range map[string]map[uint32]int64{"first": first, "second": second} {
			table, err := r.maps.Read(r.mem, r.maps.Find(name))
			if err != nil {
				t.Fatal(err)
			}
			got := map[uint32]int64{}
			for _, row := range table.Rows {
				got[binary.LittleEndian.Uint32(row.Key)] = int64(binary.LittleEndian.Uint64(row.Value))
			}
			if !maps.Equal(got, want) || len(got) == 0 {
				t.Errorf("%s has %v, want %v", name, got, want)
			}
		}
		var want []string
		for i, name := range []string{"even ", "odd "} {
			for _, at := range model.rings[i] {
				want = append(want, name+string(binary.LittleEndian.AppendUint32(nil, at)))
			}
		}
		slices.Sort(want)
		slices.Sort(r.records)
		if !slices.Equal(r.records, want) || len(want) < 10 {
			t.Errorf("%d records, want %d", len(r.records), len(want))
		}
		table, err := r.maps.Read(r.mem, r.maps.Find("hashes"))
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		if err := table.Print(&text, nil); err != nil || text.String() != "hashes (array_of_maps)\n  [1] = \"first\"\n  [4] = \"second\"\n  [7] = \"first\"\n" {
			t.Errorf("%v, %s", err, text.String())
		}
		if r.maps.Find("unused") != nil || r.maps.Find("wide") != nil {
			t.Error("maps have a place that no program reaches")
		}
	})
}

// TestInnerSettings: values of maps of maps that can't be are refused.
func TestInnerSettings(t *testing.T) {
	for text, want := range map[string]string{
		"hashes[8]=first": "an index below 8", "hashes[0]=left": "maps in hashes have type hash, 64 entries", "hashes[0]=none": "there is no map none", "hashes[x]=first": "an index",
		"nothing[0]=hashes": "maps in nothing have type array, 4 entries",
	} {
		obj, err := object.Open("../testdata/obj/inner.bpf.o")
		if err != nil {
			t.Fatal(err)
		}
		s, err := object.ParseMapSetting(text)
		if err != nil {
			t.Fatal(err)
		}
		done, err := object.SetNamed([]*object.Object{obj}, s)
		if !done || err == nil || !errors.Is(err, object.ErrSetting) || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
