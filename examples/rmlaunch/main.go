// Command rmlaunch adds two vectors on an NVIDIA GPU without libcuda or any other library of
// NVIDIA's: by ioctls on the kernel driver's nodes, two kinds of mmap, and writes to memory.
//
// It can be read as an explanation of what a launch is. In order:
//
//	driver.go   open the nodes, make a client, an object, a mapping: the calls
//	params.go   the structures of these calls, by the names in the driver's headers
//	device.go   the device, its doorbell, an address space, memory, a channel
//	launch.go   the kernel's code, its constants, the QMD, the methods; the doorbell; the end
//	system.go   the system calls
//
// What a launch needs, from the outside in:
//
//   - A client, a device, a subdevice: whom the driver talks to, and about which GPU.
//   - An address space: what the GPU's addresses mean. Memory is allocated first and then mapped
//     there, and, for writing by the processor, into this process.
//   - A channel: a ring of entries (GPFIFO) that the GPU fetches. Each entry is the address and
//     length of a piece of pushbuffer: commands that write to the registers (methods) of an engine. The
//     page USERD says how far the program has filled the ring.
//   - An engine for the channel: a compute object of the GPU's class.
//   - The doorbell: a page of the GPU's registers. Writing the channel's token there has the GPU
//     look at the channel's USERD. From here on no system call is needed.
//   - A QMD: the record that describes one launch. It names the code's address, grid, block,
//     registers, and the constant bank that the kernel finds its arguments in. Two methods hand its
//     address to the scheduler.
//   - A semaphore: a word in memory that the engine writes when all before it is done.
//
// Trace it, and hold the trace against libcuda's:
//
//	CGO_ENABLED=0 go build ./examples/rmlaunch
//	nvtrace --ioctl-log -- ./rmlaunch
//
// It has the code of vectorAdd for Turing (sm_75) to Blackwell (sm_120), and takes what differs
// between these from package rm/channel's tables. It needs x86-64 and a driver that package rm
// knows.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"
)

func main() {
	if runtime.GOARCH != "amd64" { // see fence
		fmt.Fprintln(os.Stderr, "rmlaunch: it knows how to order writes to a GPU on x86-64 only")
		os.Exit(1)
	}
	if err := run(linux{}, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintln(os.Stderr, "rmlaunch:", err)
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	verbose bool
	gpu     int
	n       int
	wait    time.Duration
	hold    time.Duration
}

const maxElements = 1 << 24

func run(sys system, args []string, stdout, stderr io.Writer) error {
	var o options
	fs := flag.NewFlagSet("rmlaunch", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.BoolVar(&o.verbose, "v", false, "say on stderr what is done: each call, each address, the methods")
	fs.IntVar(&o.gpu, "gpu", -1, "use the GPU of /dev/nvidia`N`; -1: the first that can be opened")
	fs.IntVar(&o.n, "n", 100_000, "add `N` elements")
	fs.DurationVar(&o.wait, "wait", 5*time.Second, "give up on the GPU after `TIME`")
	fs.DurationVar(&o.hold, "hold", 0, "keep the channel for `TIME` after the launch, for nvtrace pushbuffer to look at it")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 || o.n < 1 || o.n > maxElements {
		return fmt.Errorf("usage: rmlaunch [-v] [-gpu N] [-n N] [-wait TIME] [-hold TIME], N of -n from 1 to %d", maxElements)
	}
	log := io.Discard
	if o.verbose {
		log = stderr
	}
	text, err := launch(sys, log, &o)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, text)
	return err
}

// launch does all of it and returns what came of it.
func launch(sys system, log io.Writer, o *options) (text string, err error) {
	runtime.LockOSThread() // for traces: one thread makes all calls
	defer runtime.UnlockOSThread()
	d, err := connect(sys, log, o.gpu)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	g, err := d.newGPU()
	if err != nil {
		return "", err
	}
	c, err := g.newChannel(o.n)
	if err != nil {
		return "", err
	}
	took, err := c.vectorAdd(o.n, o.wait)
	if err != nil {
		return "", err
	}
	d.logf("from the doorbell to the semaphore: %v", took)
	time.Sleep(o.hold)
	return fmt.Sprintf("driver %v, %s, %s: %d elements are right", d.abi.Asked(), g.kernel.arch, title(g.compute), o.n), nil
}
