package ioctl_test

import (
	"fmt"
	"log"

	"nvtrace/ioctl"
	"nvtrace/traces"
)

// A recording is decoded as it is read: here, the calls that make objects.
func Example() {
	r, err := traces.Open("../traces/corpus/rminfo.nvt")
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	d := ioctl.NewDecoder(&r.Header)
	var call ioctl.Call
	for ev, err := range r.All() {
		if err != nil {
			log.Fatal(err)
		}
		d.DecodeTo(&call, ev)
		if call.Class != nil && !call.Failed() {
			fmt.Printf("%s %s = %s\n", call.AppendName(nil), call.Class.Name, call.StatusName())
		}
	}
	// Output:
	// NV_ESC_RM_ALLOC NV01_ROOT_CLIENT = NV_OK
	// NV_ESC_RM_ALLOC NV01_DEVICE_0 = NV_OK
	// NV_ESC_RM_ALLOC NV20_SUBDEVICE_0 = NV_OK
}
