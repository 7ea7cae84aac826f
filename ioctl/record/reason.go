package record

import (
	"fmt"

	"nvtrace/ptrace"
	"nvtrace/traces"
)

// reason says why an ioctl on a device stopped, as it was before the stop was
// dealt with.
func (r *Recorder) reason(t *ptrace.Task, c *ptrace.Syscall) string {
	if c.Class != classIoctl {
		return ""
	}
	p := r.process(t.PID)
	switch {
	case p.agent == nil:
		return ": no agent yet"
	case !r.agent.Owns(c.IP):
		return ": call not rerouted"
	}
	return ": " + p.agent.Why(t, int32(uint32(c.Args[0])), uint32(c.Args[1]))
}

// request names an ioctl for the counts: with the command or class that the
// argument has.
func request(ev *traces.Event) string {
	s := fmt.Sprintf(", %s %#x", ev.Dev, ev.Request())
	if nr := ev.Request() & 0xff; ev.Request()>>8&0xff == 'F' && (nr == 0x2a || nr == 0x2b) && len(ev.Mem) > 0 && len(ev.Mem[0].In) >= 16 {
		in := ev.Mem[0].In
		at := 8 // NVOS54_PARAMETERS.cmd
		if nr == 0x2b {
			at = 12 // NVOS21_PARAMETERS.hClass, NVOS64_PARAMETERS.hClass
		}
		s += fmt.Sprintf(" of %#x", uint32(in[at])|uint32(in[at+1])<<8|uint32(in[at+2])<<16|uint32(in[at+3])<<24)
	}
	return s
}
