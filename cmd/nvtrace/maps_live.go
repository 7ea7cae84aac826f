package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"nvtrace/ioctl"
)

// liveMap is a mapping of a device file in a running process.
type liveMap struct {
	Addr   string `json:"addr"`
	Size   uint64 `json:"size"`
	Access string `json:"access"`
	Offset string `json:"offset"`
	Node   string `json:"node"`
	What   string `json:"what"` // as far as the node tells
}

// liveReport is the mappings of a running process.
type liveReport struct {
	PID   int       `json:"pid"`
	Bytes uint64    `json:"bytes"`
	Maps  []liveMap `json:"maps"`
	Note  string    `json:"note"`
}

// liveNote says what the kernel does not tell.
const liveNote = "Which object a mapping shows is not in /proc: the driver ties it to the open file when the program maps it. " +
	"Record the program from its start (nvtrace -o run.nvt -- command), then nvtrace maps run.nvt names objects."

func (e *env) liveMaps(pid int, asJSON *optString) int {
	name := fmt.Sprintf("/proc/%d/maps", pid)
	f, err := os.Open(name)
	if err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	r, err := parseLive(pid, f)
	if err = errors.Join(err, f.Close()); err != nil {
		return e.fail(exitFailed, "%s: %v", name, err)
	}
	if asJSON.set {
		err = writeJSON(e.stdout, asJSON.value, r)
	} else {
		err = r.write(e)
	}
	if err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	return exitOK
}

// parseLive reads /proc/PID/maps (proc_pid_maps(5)).
func parseLive(pid int, in io.Reader) (*liveReport, error) {
	r := &liveReport{PID: pid, Maps: []liveMap{}, Note: liveNote}
	sc := bufio.NewScanner(in)
	for sc.Scan() {
		fields := strings.SplitN(sc.Text(), " ", 6)
		if len(fields) < 6 {
			continue
		}
		path := strings.TrimSuffix(strings.TrimLeft(fields[5], " "), " (deleted)")
		node, ok := strings.CutPrefix(path, "/dev/")
		if !ok {
			continue
		}
		// The number that the line has is that of the file system with the node.
		dev := ioctl.DeviceOf(node, 0)
		if dev == ioctl.DeviceOther {
			continue
		}
		lo, hi, ok := addressRange(fields[0])
		if !ok {
			return nil, fmt.Errorf("%q: no range of addresses", fields[0])
		}
		off, err := strconv.ParseUint(fields[2], 16, 64)
		if err != nil {
			return nil, fmt.Errorf("%q: no offset", fields[2])
		}
		r.Bytes += hi - lo
		r.Maps = append(r.Maps, liveMap{
			Addr: fmt.Sprintf("%#x", lo), Size: hi - lo, Access: fields[1][:min(3, len(fields[1]))], Offset: fmt.Sprintf("%#x", off),
			Node: node, What: liveKind(dev, lo, hi, off),
		})
	}
	return r, sc.Err()
}

func addressRange(s string) (lo, hi uint64, ok bool) {
	a, b, _ := strings.Cut(s, "-")
	lo, errLo := strconv.ParseUint(a, 16, 64)
	hi, errHi := strconv.ParseUint(b, 16, 64)
	return lo, hi, errLo == nil && errHi == nil && lo < hi
}

// liveKind says what a mapping of a node can be (nv-mmap.c, uvm.c).
func liveKind(dev ioctl.Device, lo, hi, off uint64) string {
	switch dev {
	case ioctl.DeviceUVM:
		if lo == off {
			return "unified memory: managed, or a semaphore pool"
		}
		return "unified memory" // moved by mremap, or in a child
	case ioctl.DeviceUVMTools:
		return "event queue of a profiler"
	case ioctl.DeviceCtl:
		if hi-lo == 4096 {
			return "system memory: a notifier or the statistics page"
		}
		return "system memory"
	case ioctl.DeviceGPU:
		if hi-lo == 64<<10 {
			return "on the GPU: the doorbell page, or vidmem by BAR1"
		}
		return "on the GPU: vidmem by BAR1, USERD or registers"
	}
	return ""
}

func (r *liveReport) write(e *env) error {
	var buf bytes.Buffer
	if len(r.Maps) == 0 {
		fmt.Fprintf(&buf, "pid %d has no device memory mapped\n", r.PID)
	}
	var rows [][]string
	for _, m := range r.Maps {
		rows = append(rows, []string{m.Addr, sizeText(m.Size), m.Access, m.Node, m.What})
	}
	title := fmt.Sprintf("pid %d: %d mappings, %s, now", r.PID, len(r.Maps), sizeText(r.Bytes))
	if err := renderTable(&buf, title, []string{"address", ">size", "access", "node", "what it can be"}, rows); err != nil {
		return err
	}
	if len(r.Maps) > 0 {
		fmt.Fprintln(&buf, r.Note)
	}
	_, err := e.stdout.Write(buf.Bytes())
	return err
}
