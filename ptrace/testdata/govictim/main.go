// Command govictim makes 200 calls in each of 8 goroutines, with garbage
// collections and preemption signals in between.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

func main() {
	f, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		panic(err)
	}
	var wg sync.WaitGroup
	var n, bad, sum atomic.Int64
	for range 8 {
		wg.Go(func() {
			for i := range 200 {
				p := [4]uint64{uint64(i), 2, 3, 4}
				_, _, e := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), 0xc020462a, uintptr(unsafe.Pointer(&p)))
				n.Add(1)
				if e != syscall.ENOTTY || p != [4]uint64{uint64(i), 2, 3, 4} {
					bad.Add(1)
				}
				d, err := syscall.Dup(int(f.Fd()))
				if err != nil || syscall.Close(d) != nil {
					bad.Add(1)
				}
				var x int64
				for k := range 20000 { // long enough to be preempted
					x += int64(k)
				}
				sum.Add(x)
				if i%50 == 0 {
					runtime.GC()
				}
			}
		})
	}
	wg.Wait()
	fmt.Println("calls", n.Load(), "bad", bad.Load(), "sum", sum.Load())
}
