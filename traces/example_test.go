package traces_test

import (
	"fmt"
	"log"

	"nvtrace/traces"
)

// A recording is read event by event. What its bytes mean says package ioctl.
func Example() {
	r, err := traces.Open("corpus/rminfo.nvt")
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	fmt.Println("driver", r.Header.Driver)
	kinds := make(map[traces.Kind]int)
	for ev, err := range r.All() {
		if err != nil {
			log.Fatal(err)
		}
		kinds[ev.Kind]++
	}
	fmt.Println(kinds[traces.KindOpen], "opens,", kinds[traces.KindIoctl], "ioctls, complete:", r.Complete())
	// Output:
	// driver 580.159.04
	// 2 opens, 18 ioctls, complete: true
}
