package live

import (
	"fmt"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/ioctl"
	"nvtrace/ptrace/proc"
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

// Maps lists the device memory that a running process maps.
func Maps(e *cli.Env, pid int, asJSON *cli.OptString) int {
	maps, err := proc.Maps(pid)
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	r := liveReportOf(pid, maps)
	e.Tracing = true
	if asJSON.Given {
		err = e.WriteJSON(e.Stdout, asJSON.Value, r)
	} else {
		err = r.write(e)
	}
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	return cli.ExitOK
}

// liveReportOf picks the mappings of device files.
func liveReportOf(pid int, maps []proc.Mapping) *liveReport {
	r := &liveReport{PID: pid, Maps: []liveMap{}, Note: liveNote}
	for i := range maps {
		m := &maps[i]
		node, ok := strings.CutPrefix(strings.TrimSuffix(m.Path, " (deleted)"), "/dev/")
		if !ok {
			continue
		}
		// The number that the mapping has is that of the file system with the node.
		dev := ioctl.DeviceOf(node, 0)
		if dev == ioctl.DeviceOther {
			continue
		}
		r.Bytes += m.End - m.Start
		r.Maps = append(r.Maps, liveMap{
			Addr: fmt.Sprintf("%#x", m.Start), Size: m.End - m.Start, Access: m.Access(), Offset: fmt.Sprintf("%#x", m.Offset),
			Node: node, What: liveKind(dev, m.Start, m.End, m.Offset),
		})
	}
	return r
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

func (r *liveReport) write(e *cli.Env) error {
	buf := cli.NewPage(e.Stdout)
	if len(r.Maps) == 0 {
		fmt.Fprintf(buf, "pid %d has no device memory mapped\n", r.PID)
	}
	var rows [][]string
	for _, m := range r.Maps {
		rows = append(rows, []string{m.Addr, cli.SizeText(m.Size), m.Access, m.Node, m.What})
	}
	title := fmt.Sprintf("pid %d: %d mappings, %s, now", r.PID, len(r.Maps), cli.SizeText(r.Bytes))
	if err := cli.RenderTable(buf, title, []string{"address", ">size", "access", "node", "what it can be"}, rows); err != nil {
		return err
	}
	if len(r.Maps) > 0 {
		fmt.Fprintln(buf, r.Note)
	}
	_, err := e.Stdout.Write(buf.Bytes())
	return err
}
