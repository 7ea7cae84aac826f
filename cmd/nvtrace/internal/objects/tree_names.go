package objects

import (
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/ioctl"
	"nvtrace/rm"
	"nvtrace/traces"
)

// LineNames names the objects in the lines of a log: "chan2{c86f}" instead of a
// handle. Memory is bounded by the objects that live.
type LineNames struct {
	objs *ioctl.Objects
}

// NewLineNames returns names for the lines of events that d decodes.
func NewLineNames(d *ioctl.Decoder) *LineNames {
	return &LineNames{ioctl.NewObjects(d, &rm.TreeOptions{Forget: true})}
}

// Namer is for ioctl.LineOptions.Name.
func (n *LineNames) Namer() ioctl.Namer { return n.objs.Namer() }

// Around calls print, which prints the line of an event, at the moment when all objects that it names are known: after a call
// that makes some, before one that ends some. It must see every event, also
// those that are not printed.
func (n *LineNames) Around(e *observe.Event, print func()) {
	if endsObjects(e.Event, e.Call) {
		print()
		n.objs.Add(e.Event, e.Call)
		return
	}
	n.objs.Add(e.Event, e.Call)
	print()
}

// endsObjects reports whether an event can end objects: NV_ESC_RM_FREE,
// NVOS32_FUNCTION_FREE, and what closes files.
func endsObjects(ev *traces.Event, c *ioctl.Call) bool {
	const (
		escFree    = 0x29 // nv_escape.h
		escVidHeap = 0x4a
		heapFree   = 3 // nvos.h
	)
	switch ev.Kind {
	case traces.KindIoctl:
		return c.Escape != nil && (c.Nr == escFree || c.Nr == escVidHeap && c.SubNr == heapFree)
	case traces.KindClose, traces.KindExec, traces.KindExit:
		return true
	}
	return false
}
