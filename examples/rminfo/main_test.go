package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func TestPrint(t *testing.T) {
	m := machine{
		Driver: "580.159.04",
		GPUs: []gpu{{
			Minor: 3, Name: "NVIDIA H200", UUID: "GPU-1", PCI: "0000:18:00.0", VendorID: 0x10de, DeviceID: 0x2335, SubSystemID: 0x18be10de,
			GPUID: 0x1800, Architecture: 0x180, Revision: 0xa1, TotalRAM: 3 << 30, RAM: 2 << 30, Heap: 1 << 30, BusWidth: 6144,
		}},
		Skipped: []string{"open /dev/nvidia1: permission denied"},
	}
	var out bytes.Buffer
	printText(&out, &m)
	want := `driver 580.159.04
gpu 3: NVIDIA H200
  uuid    GPU-1
  pci     0000:18:00.0, id 10de:2335, subsystem 10de:18be
  arch    GH100 (architecture 0x180, implementation 0x0, revision 0xa1)
  memory  2048 MiB (of 3072 MiB; heap 1024 MiB), 6144 bits wide
not here: open /dev/nvidia1: permission denied
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
	out.Reset()
	if err := printJSON(&out, &m); err != nil {
		t.Fatal(err)
	}
	var back machine
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back.GPUs[0] != m.GPUs[0] {
		t.Errorf("JSON does not survive: %v\n%s", err, &out)
	}
	out.Reset()
	printText(&out, &machine{Driver: "1.2"})
	if got := out.String(); got != "driver 1.2\nno gpu\n" {
		t.Errorf("without a GPU: %q", got)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"--repeat", "0"}, {"--threads", "-1"}, {"--threads", "100000"}, {"what"}, {"--bogus"}} {
		var out, diag bytes.Buffer
		if err := run(args, &out, &diag); err == nil || out.Len() != 0 {
			t.Errorf("run(%v) = %v, printed %q", args, err, &out)
		}
	}
}

func TestNoDriver(t *testing.T) {
	if _, err := os.Stat("/dev/nvidiactl"); err == nil {
		t.Skip("this machine has a driver")
	}
	var out, diag bytes.Buffer
	err := run(nil, &out, &diag)
	if err == nil || !strings.Contains(err.Error(), "/dev/nvidiactl") {
		t.Errorf("without a driver: %v", err)
	}
}

func TestStatusName(t *testing.T) {
	if got := statusError(0x56).Error(); !strings.Contains(got, "NV_ERR_NOT_SUPPORTED") {
		t.Errorf("status 0x56 is %q", got)
	}
}
