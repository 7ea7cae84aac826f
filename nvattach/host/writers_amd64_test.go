package host

import (
	"path/filepath"
	"testing"
)

// TestKilledWriters: processes that are killed while they change a hash leave it whole: no place is
// lost, and no lock is left that others wait for.
func TestKilledWriters(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "writers")
	compile(t, "-O1", "-o", bin, "testdata/writers.c")
	r := rigOf(t, "../testdata/obj/writers.bpf.o", true)
	if status := r.run(bin, "200"); status != 0 || r.stdout.String() != "done\n" {
		t.Fatalf("exit %d, %q", status, r.stdout.String())
	}
	table, err := r.maps.Read(r.mem, r.maps.Find("keys"))
	if err != nil {
		t.Fatal(err)
	}
	if failed := r.variable("failed"); len(table.Rows) != 64 || failed != 0 {
		t.Errorf("%d keys of 64, %d could not be put", len(table.Rows), failed)
	}
	if len(r.said) > 0 {
		t.Errorf("said %q", r.said)
	}
}
