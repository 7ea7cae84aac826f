package export

import (
	"slices"
	"testing"
)

// TestGPU shows what a GPU did: slices on the tracks of streams, in the order of their beginnings
// although they are told of in another, with arrows from the calls; and rows of a table.
func TestGPU(t *testing.T) {
	h, events := recording(t, "testdata/gpu.jsonl")
	x := export(t, h, slices.Values(events))
	golden(t, "testdata/gpu.perfetto.txt", []byte(x.file.dump()))
	rows := exportTables(t, h, slices.Values(events))["gpu"]
	if len(rows) != 4 {
		t.Fatalf("%d rows", len(rows))
	}
	for i, want := range []map[string]any{
		{"t": int64(-1), "symbol": "_Z4kernv"}, // damage is shown as it is
		{"t": int64(3000), "dur": int64(2048), "call": int64(2000), "stream": int64(0x77), "context": int64(0xc0), "symbol": "_Z4kernv", "by": "cuLaunchKernel", "bytes": int64(0), "margin": int64(700)},
		{"t": int64(5000), "dur": int64(3000), "call": int64(3000), "symbol": "_Z4kernv"},
		{"t": int64(12000), "dur": int64(8000), "call": int64(4000), "stream": int64(0), "by": "cuMemcpyHtoD_v2", "bytes": int64(4096)},
	} {
		for k, v := range want {
			if rows[i][k] != v {
				t.Errorf("row %d: %s is %v, want %v", i, k, rows[i][k], v)
			}
		}
	}
	if rows[3]["kernel"] != nil {
		t.Errorf("a copy has a kernel: %v", rows[3])
	}
}
