// Package look shows what processes' GPU channels are at: the tables and sentences of nvtrace ps, where
// and pushbuffer.
package look

import (
	"slices"

	"nvtrace/ioctl/channels"
)

// Processes are processes that are looked at again and again: what was found in one is kept.
type Processes struct {
	views map[int]*channels.View
}

// Look looks at a process. What can't be looked at is said in the report.
func (p *Processes) Look(pid int, names bool) channels.Report {
	v := p.views[pid]
	if v == nil || v.Channels() == 0 {
		p.forget(pid)
		var err error
		if v, err = channels.ViewOf(pid); err != nil {
			return channels.Report{PID: pid, Channels: []channels.ChannelReport{}, Error: err.Error()}
		}
		if p.views == nil {
			p.views = map[int]*channels.View{}
		}
		p.views[pid] = v
	}
	return v.Look(names)
}

// Keep forgets all processes but these.
func (p *Processes) Keep(pids []int) {
	for pid := range p.views {
		if !slices.Contains(pids, pid) {
			p.forget(pid)
		}
	}
}

// Close forgets all processes.
func (p *Processes) Close() { p.Keep(nil) }

func (p *Processes) forget(pid int) {
	if v := p.views[pid]; v != nil {
		_ = v.Close() // which was only read
		delete(p.views, pid)
	}
}
