package rm

import "testing"

// TestValueNames: of several names of a number, the one that it ought to have.
func TestValueNames(t *testing.T) {
	for _, x := range []struct {
		version, record, member string
		v                       uint64
		want                    string
	}{
		{"580.142", "NV2080_CTRL_GPU_INFO", "index", 1, "ECID_LO32"},
		{"580.142", "NV2080_CTRL_GR_INFO", "index", 57, "LITTER_MAX_NUM_SMC_ENGINES_PER_DIELET"}, // not MAX
		{"580.142", "NV2080_CTRL_GR_INFO", "index", 51, "LITTER_NUM_GFXC_SMC_ENGINES"},           // not DUMMY
		{"580.142", "NV2080_CTRL_GR_INFO", "index", 1, "MIN_ATTRS_BUG_261894"},                   // NVIDIA's own name
		{"580.142", "NV_CHANNEL_ALLOC_PARAMS", "engineType", 19, "NVDEC0"},                       // not BSP
		{"580.142", "NV_CHANNEL_ALLOC_PARAMS", "engineType", 1, "GR0"},
		{"580.142", "NV_CHANNEL_ALLOC_PARAMS", "engineType", 64, "COMP_DECOMP_COPY0"}, // not COPY_SIZE
		{"580.142", "NV_MEMORY_ALLOCATION_PARAMS", "flags", 0x04000000, "SPARSE/USER_READ_ONLY"},
		{"580.142", "NV_MEMORY_ALLOCATION_PARAMS", "flags", 0x8000, "MAP_NOT_REQUIRED"},
		{"580.142", "NV_OS_DESC_MEMORY_ALLOCATION_PARAMS", "flags", 0x8000, "MAP_NOT_REQUIRED"},
		{"535.288.01", "NVOS32_PARAMETERS.data.AllocSize", "flags", 1, "IGNORE_BANK_PLACEMENT"},
		{"580.142", "NVOS32_PARAMETERS.data.AllocOsDesc", "type", 13, "NOTIFIER"},
	} {
		s := load(t, x.version).Struct(x.record)
		if s == nil {
			t.Errorf("%s: no %s", x.version, x.record)
			continue
		}
		f := s.Lookup(x.member)
		if f == nil || f.Domain == nil {
			t.Errorf("%s.%s: no names", x.record, x.member)
			continue
		}
		if got, _ := f.Domain.Name(x.v); got != x.want {
			t.Errorf("%s.%s = %#x: %q, want %q", x.record, x.member, x.v, got, x.want)
		}
	}
	a := load(t, "580.142")
	if f := a.Struct("nv_ioctl_card_info_t").Lookup("dev_name"); f.Role != RoleString {
		t.Errorf("dev_name: %v", f.Role)
	}
	if _, ok := a.Struct("NV_MEMORY_ALLOCATION_PARAMS").Lookup("flags").Domain.Name(0x26480400); ok {
		t.Error("VIRTUAL_ONLY is a combination of flags, not one")
	}
	if n := a.Struct("NVOS32_PARAMETERS.data.AllocSize").Lookup("attr").Domain.Ranges; len(n) < 5 {
		t.Errorf("attr: ranges %v", n)
	}
}

// TestAs: what NVB0B5_ALLOCATION_PARAMETERS.engineType counts depends on version.
func TestAs(t *testing.T) {
	s := load(t, "580.142").Struct("NVB0B5_ALLOCATION_PARAMETERS")
	f := s.Lookup("engineType")
	for _, x := range []struct {
		version byte
		want    string
	}{{0, "COPY1"}, {1, "GR0"}} {
		b := []byte{x.version, 0, 0, 0, 1, 0, 0, 0}
		if got, _ := s.As(f, b).Domain.Name(1); got != x.want {
			t.Errorf("version %d: %q, want %q", x.version, got, x.want)
		}
	}
	if v := s.Lookup("version"); s.As(v, nil) != v || s.As(f, nil) != f {
		t.Error("another member, or no bytes: must be left as they are")
	}
}

// TestReusedStatus: 139 has two names.
func TestReusedStatus(t *testing.T) {
	for version, want := range map[string]string{"590.48.01": "NV_ERR_DMA_XFER_FAILED", "595.45.04": "NV_ERR_OPERATION_ABORTED"} {
		if got := load(t, version).StatusName(139); got != want {
			t.Errorf("%s: %s, want %s", version, got, want)
		}
	}
}

func TestExportDMABuf(t *testing.T) {
	tree := NewTree(nil)
	at := At{Time: 1, PID: 1, File: 1}
	a := Newest()
	tree.Alloc(&AllocOp{At: at, Ref: Ref{1, 1}, ClassID: 0x41, Class: a.Class(0x41)})
	tree.Alloc(&AllocOp{At: at, Ref: Ref{1, 2}, Parent: 1, ClassID: 0x40, Class: a.Class(0x40)})
	tree.ExportDMABuf(&DMABufOp{At: at, Client: 1, Handles: []uint32{2, 3}, FD: 33})
	if o := tree.Object(Ref{1, 2}); len(o.DMABufs) != 1 || o.DMABufs[0] != 33 {
		t.Errorf("%v", o.DMABufs)
	}
	if o := tree.Object(Ref{1, 3}); o == nil || !o.Guessed {
		t.Error("an object that was not seen being made must be guessed")
	}
	for range 200 {
		tree.ExportDMABuf(&DMABufOp{At: at, Client: 1, Handles: []uint32{2}, FD: 33})
	}
	if n := len(tree.Object(Ref{1, 2}).DMABufs); n != maxDMABufs {
		t.Errorf("%d dma-bufs noted", n)
	}
}
