// Command rminfo prints what NVIDIA's kernel driver says about the machine's
// GPUs. It is a complete client of the driver in a few hundred lines, without
// libcuda or any other library of NVIDIA's: it opens the device nodes, makes a
// root client, a device and a subdevice, asks a handful of controls and frees
// everything again.
//
// It is meant to be traced, recorded and replayed:
//
//	CGO_ENABLED=0 go build ./examples/rminfo
//	nvtrace --ioctl-log -- ./rminfo
//
// Its output depends on the machine only, never on addresses, handles, process
// ids or time, so that two runs can be compared byte by byte.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"strconv"
	"sync"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintln(os.Stderr, "rminfo:", err)
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	json    bool
	repeat  int
	threads int
	fork    bool
	timing  bool
}

// run is the whole program behind its exit status.
func run(args []string, stdout, stderr io.Writer) error {
	var o options
	fs := flag.NewFlagSet("rminfo", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.BoolVar(&o.json, "json", false, "print JSON")
	fs.IntVar(&o.repeat, "repeat", 1, "do the whole sequence `N` times (printed once)")
	fs.IntVar(&o.threads, "threads", 1, "do it in `N` threads at a time, each with a client of its own")
	fs.BoolVar(&o.fork, "fork", false, "a child process does it too, and must learn the same")
	fs.BoolVar(&o.timing, "time", false, "print on stderr how long a sequence took")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 || o.repeat < 1 || o.threads < 1 || o.threads > 1000 {
		return errors.New("usage: rminfo [--json] [--repeat N] [--threads N] [--fork] [--time]")
	}

	start := time.Now()
	m, err := inspectAll(&o)
	if err != nil {
		return err
	}
	if o.timing {
		d := time.Since(start)
		fmt.Fprintf(stderr, "rminfo: %d sequences in %v, %v each\n", o.repeat*o.threads, d, d/time.Duration(o.repeat*o.threads))
	}
	var out bytes.Buffer
	if o.json {
		if err := printJSON(&out, &m); err != nil {
			return err
		}
	} else {
		printText(&out, &m)
	}
	if o.fork {
		if err := inChild(&o, out.Bytes(), stderr); err != nil {
			return err
		}
	}
	_, err = stdout.Write(out.Bytes())
	return err
}

// inspectAll runs the sequence as often and in as many threads as asked for;
// all must learn the same.
func inspectAll(o *options) (machine, error) {
	results := make([]machine, o.threads)
	errs := make([]error, o.threads)
	var wg sync.WaitGroup
	for t := range o.threads {
		wg.Go(func() {
			runtime.LockOSThread() // a thread of the kernel's, not just a goroutine
			defer runtime.UnlockOSThread()
			results[t], errs[t] = inspectRepeatedly(o.repeat)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return machine{}, err
	}
	for t, m := range results {
		if !reflect.DeepEqual(m, results[0]) {
			return machine{}, fmt.Errorf("thread %d learned %+v, thread 0 %+v", t, m, results[0])
		}
	}
	return results[0], nil
}

// inspectRepeatedly runs the sequence n times; each must learn the same.
func inspectRepeatedly(n int) (machine, error) {
	var first machine
	for i := range n {
		m, err := inspect()
		if err != nil {
			return machine{}, err
		}
		if i == 0 {
			first = m
		} else if !reflect.DeepEqual(m, first) {
			return machine{}, fmt.Errorf("sequence %d learned %+v, the first %+v", i, m, first)
		}
	}
	return first, nil
}

// inChild runs rminfo as a child process, which must print what we are about
// to print.
func inChild(o *options, want []byte, stderr io.Writer) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find our own executable: %w", err)
	}
	cmd := exec.Command(exe,
		"--json="+strconv.FormatBool(o.json), "--repeat", strconv.Itoa(o.repeat), "--threads", strconv.Itoa(o.threads))
	cmd.Stderr = stderr
	got, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("child: %w", err)
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("child learned %q, parent %q", got, want)
	}
	return nil
}

// printText prints m for people.
func printText(w io.Writer, m *machine) {
	fmt.Fprintf(w, "driver %s\n", m.Driver)
	for i := range m.GPUs {
		g := &m.GPUs[i]
		arch := architectures[g.Architecture]
		if arch == "" {
			arch = "unknown"
		}
		fmt.Fprintf(w, "gpu %d: %s\n", g.Minor, g.Name)
		fmt.Fprintf(w, "  uuid    %s\n", g.UUID)
		fmt.Fprintf(w, "  pci     %s, id %04x:%04x, subsystem %04x:%04x\n", g.PCI, g.VendorID, g.DeviceID, g.SubSystemID&0xffff, g.SubSystemID>>16)
		fmt.Fprintf(w, "  arch    %s (architecture %#x, implementation %#x, revision %#x)\n", arch, g.Architecture, g.Implementation, g.Revision)
		fmt.Fprintf(w, "  memory  %d MiB (of %d MiB; heap %d MiB), %d bits wide\n", g.RAM>>20, g.TotalRAM>>20, g.Heap>>20, g.BusWidth)
	}
	for _, s := range m.Skipped {
		fmt.Fprintf(w, "not here: %s\n", s)
	}
	if len(m.GPUs) == 0 {
		fmt.Fprintln(w, "no gpu")
	}
}

// printJSON prints m for programs.
func printJSON(w io.Writer, m *machine) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(m)
}
