// Package export writes views of a recording for other programs: a timeline
// for Perfetto ([Timeline]), a profile for pprof ([Profile]), tables in Parquet files
// ([Tables]), and a page of HTML ([Page]).
//
// All are observers ([observe.Observer]) and know nothing of where events come
// from: a recording that is read, or a program that still runs. What a call
// means is package ioctl's business, what the driver's objects are package
// rm's; this package knows the formats, and which figures belong into them.
package export

import (
	"path"
	"strings"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/rm"
	"nvtrace/traces"
)

// scene is what all views follow while they are fed.
type scene struct {
	dec     *ioctl.Decoder
	objects *ioctl.Objects
	namer   ioctl.Namer
	ledger  ledger
	tracker *api.Tracker       // of the latest event; nil before the first
	in      *api.Frame         // the library call that the latest event is, or happened during
	names   map[int32]string   // of processes
	called  map[taskKey]string // names of threads, where they have one of their own
	ended   map[int32]struct{} // processes with a name that have ended
}

func (s *scene) init(h *traces.Header, d *ioctl.Decoder) {
	s.dec = d
	s.ledger.init()
	s.objects = ioctl.NewObjects(d, &rm.TreeOptions{Forget: true, Notify: s.ledger.notify})
	s.namer = s.objects.Namer()
	s.names, s.ended = make(map[int32]string), make(map[int32]struct{})
	s.called = make(map[taskKey]string)
	if h != nil && h.PID != 0 && len(h.Argv) > 0 {
		s.names[h.PID] = programName(h.Argv[0])
	}
}

// take takes in what an event changes.
func (s *scene) take(e *observe.Event) {
	ev, c := e.Event, e.Call
	s.ledger.made = 0
	s.in, s.tracker = e.Frame, e.Tracker
	s.objects.Add(ev, c)
	s.ledger.add(ev, c)
	switch ev.Kind {
	case traces.KindFork:
		if ev.Flags&(traces.FlagThread|traces.FlagAttached) == 0 && ev.Child != ev.PID {
			s.rename(ev.Child, s.names[ev.PID])
		}
	case traces.KindExec:
		s.rename(ev.PID, programName(ev.Path))
	case traces.KindThread:
		if len(s.called) >= maxTasks {
			clear(s.called)
		}
		s.called[taskKey{ev.PID, ev.TID}] = clip(ev.Text, maxName)
	case traces.KindExit:
		delete(s.called, taskKey{ev.PID, ev.TID})
		if _, named := s.names[ev.PID]; named && ev.TID == ev.PID {
			s.ended[ev.PID] = struct{}{}
		}
	}
}

// rename notes what program a process runs. Names of ended processes are kept
// as long as there is room: the process's last remarks may follow its end.
func (s *scene) rename(pid int32, name string) {
	delete(s.ended, pid)
	if _, known := s.names[pid]; !known && len(s.names) >= maxTasks {
		for old := range s.ended {
			delete(s.names, old)
		}
		clear(s.ended)
		if len(s.names) >= maxTasks {
			return
		}
	}
	s.names[pid] = name
}

// programName returns what a program is called, from its path.
func programName(file string) string {
	if file == "" {
		return ""
	}
	return clip(path.Base(file), maxName)
}

// untimed are the flags of calls whose exit, and so whose duration and result,
// is not known.
const untimed = traces.FlagNoExit | traces.FlagUnfinished

// failed reports whether a call counts as failed, as ioctl.Summary counts it.
func failed(ev *traces.Event, c *ioctl.Call) bool {
	return ev.Flags&(untimed|traces.FlagRestarted) == 0 && c.Failed()
}

// result names how a call ended: a resource manager's status, an errno, or both.
func result(c *ioctl.Call) string {
	switch {
	case c.Errno == 0 && c.HasStatus:
		return c.Status.String()
	case c.Errno == 0:
		return "OK"
	case c.HasStatus && c.Status != rm.OK:
		return ioctl.ErrnoName(c.Errno) + " " + c.Status.String()
	}
	return ioctl.ErrnoName(c.Errno)
}

// inferred reports whether an event tells of a call that the program did not
// make: a descriptor that exec closed, say.
func inferred(ev *traces.Event) bool {
	return ev.Flags&traces.FlagImplicit != 0 && ev.Kind != traces.KindIoctl
}

// isCall reports whether an event is a system call on a device.
func isCall(k traces.Kind) bool {
	switch k {
	case traces.KindOpen, traces.KindClose, traces.KindDup, traces.KindMmap, traces.KindMunmap, traces.KindMremap, traces.KindIoctl:
		return true
	default:
		return false
	}
}

// appendCallName appends what a call is called in both views: an ioctl's name
// and what it is about, as in the tables of a summary; other calls' own name.
func (s *scene) appendCallName(dst []byte, ev *traces.Event, c *ioctl.Call) []byte {
	if ev.Kind != traces.KindIoctl {
		return append(dst, ev.Kind.String()...)
	}
	dst = c.AppendName(dst)
	if c.HasSub || c.Sub != "" {
		dst = append(dst, ' ')
		dst = c.AppendSub(dst, s.dec.ABI(ev.PID))
	}
	return dst
}

// mapped says what an mmap shows: "doorbell", "vidmem", "managed memory".
func mapped(c *ioctl.Call) string {
	switch l := c.Link; {
	case l == nil:
		return "object"
	case l.Managed:
		return "managed memory"
	default:
		return ioctl.MapName(l.Kind)
	}
}

// node returns the name of the device node that a call is on.
func node(ev *traces.Event) string {
	if ev.Dev != "" {
		return clip(ev.Dev, maxName)
	}
	return clip(strings.TrimPrefix(ev.Path, "/dev/"), maxName)
}
