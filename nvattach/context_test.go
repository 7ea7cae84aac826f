package nvattach

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx/bpf"
)

// flatten returns the numbers in a structure with their names and places.
func flatten(tb testing.TB, t btf.Type, prefix string, off int) []bpf.Field {
	tb.Helper()
	s, ok := btf.UnderlyingType(t).(*btf.Struct)
	if !ok {
		size, err := btf.Sizeof(t)
		if err != nil {
			tb.Fatal(err)
		}
		return []bpf.Field{{Name: prefix, Offset: off, Size: size}}
	}
	var all []bpf.Field
	for _, m := range s.Members {
		name := m.Name
		switch {
		case prefix == "" && m.Name == "t":
			name = "" // the thread's members have no prefix
		case prefix != "":
			name = prefix + "." + m.Name
		}
		all = append(all, flatten(tb, m.Type, name, off+int(m.Offset/8))...)
	}
	return all
}

// TestHeaderMatches: the structures of include/nvtrace_gpu.bpf.h, as compiled into
// the objects, are what programs find.
func TestHeaderMatches(t *testing.T) {
	for _, tt := range []struct {
		kind             object.Kind
		testObject, name string
	}{
		{object.KindEntry, "example_count", "nvtrace_entry"},
		{object.KindExit, "example_count", "nvtrace_exit"},
		{object.KindMem, "example_memory", "nvtrace_mem"},
		{object.KindInsn, "example_blocks", "nvtrace_insn"},
		{object.KindBlock, "example_blocks", "nvtrace_block"},
	} {
		spec, err := ebpf.LoadCollectionSpec("testdata/obj/" + tt.testObject + ".bpf.o")
		if err != nil {
			t.Fatal(err)
		}
		var s *btf.Struct
		if err := spec.Types.TypeByName(tt.name, &s); err != nil {
			t.Fatal(err)
		}
		ctx, ids := proof.ContextOf(tt.kind, 0)
		n := slices.IndexFunc(ids, func(id int) bool { return id >= proof.FieldPair })
		if diff := cmp.Diff(ctx.Fields[:n], flatten(t, s, "", 0), cmpopts.IgnoreFields(bpf.Field{}, "Uniform", "Clock", "Placed", "Alike", "Below")); diff != "" {
			t.Errorf("struct %s (- nvattach, + header):\n%s", tt.name, diff)
		}
	}
}
