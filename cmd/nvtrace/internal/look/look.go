// Package look shows what processes' GPU channels are at: the tables and sentences of nvtrace ps, where
// and pushbuffer.
package look

import (
	"slices"
	"time"

	"nvtrace/ioctl/channels"
)

// Processes are processes that are looked at again and again: what was found in one is kept.
type Processes struct {
	views map[int]*channels.View
}

// Look looks at a process. What can't be looked at is said in the report.
func (p *Processes) Look(pid int, names bool) channels.Report {
	v, err := p.view(pid)
	if err != nil {
		return channels.Report{PID: pid, Channels: []channels.ChannelReport{}, Error: err.Error()}
	}
	return v.Look(names)
}

// LookFor looks at a process, and searches for names for a time at most; 0: it doesn't search.
func (p *Processes) LookFor(pid int, search time.Duration) channels.Report {
	v, err := p.view(pid)
	if err != nil {
		return channels.Report{PID: pid, Channels: []channels.ChannelReport{}, Error: err.Error()}
	}
	v.Names.Until = time.Now().Add(search)
	defer func() { v.Names.Until = time.Time{} }()
	return v.Look(search > 0)
}

// view returns a process's view, with the channels that it has now.
func (p *Processes) view(pid int) (*channels.View, error) {
	if v := p.views[pid]; v != nil {
		if err := v.Refresh(); err == nil && v.Channels() > 0 {
			return v, nil
		}
		p.forget(pid) // it may have ended, or another program may run in it
	}
	v, err := channels.ViewOf(pid)
	if err != nil {
		return nil, err
	}
	if p.views == nil {
		p.views = map[int]*channels.View{}
	}
	p.views[pid] = v
	return v, nil
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

// maxBehind is how many of the jobs that wait in a channel Busy keeps.
const maxBehind = 8

// Busy returns a report without the channels that are idle, and with the first of the jobs that wait.
func Busy(r *channels.Report) *channels.Report {
	busy := *r
	busy.Channels = []channels.ChannelReport{}
	for _, c := range r.Channels {
		if !c.Busy && c.Error == "" {
			continue
		}
		c.Waiting = c.Waiting[:min(len(c.Waiting), maxBehind)]
		busy.Channels = append(busy.Channels, c)
	}
	return &busy
}
