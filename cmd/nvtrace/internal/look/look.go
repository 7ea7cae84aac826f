// Package look shows what processes' GPU channels are at: the tables and sentences of nvtrace ps, where
// and pushbuffer.
package look

import (
	"slices"
	"sync"
	"time"

	"nvtrace/ioctl/channels"
)

// Processes are processes that are looked at again and again: what was found in one is kept.
type Processes struct {
	Access channels.Access // which memory is read
	views  map[int]*channels.View
}

// LookFor looks at a process, and searches for names for a time at most; 0: it doesn't search.
func (p *Processes) LookFor(pid int, search time.Duration) channels.Report {
	v, err := p.view(pid)
	if err != nil {
		return unread(pid, err)
	}
	v.Names.Until = time.Now().Add(search)
	defer func() { v.Names.Until = time.Time{} }()
	return v.Look(search > 0)
}

// LookAll looks at processes, several at a time: each takes some 15 ms, most of it in reads of the GPU's memory.
func (p *Processes) LookAll(pids []int, names bool) []channels.Report {
	p.Keep(pids)
	reports := make([]channels.Report, len(pids))
	views := make([]*channels.View, len(pids))
	var wait sync.WaitGroup
	for i, pid := range pids {
		known := p.views[pid]
		wait.Go(func() {
			var err error
			if views[i], err = refreshed(known, pid, p.Access); err != nil {
				reports[i] = unread(pid, err)
				return
			}
			reports[i] = views[i].Look(names)
		})
	}
	wait.Wait()
	for i, pid := range pids {
		p.set(pid, views[i])
	}
	return reports
}

// unread is the report of a process that can't be read.
func unread(pid int, err error) channels.Report {
	return channels.Report{PID: pid, Channels: []channels.ChannelReport{}, Error: err.Error()}
}

// view returns a process's view, with the channels that it has now.
func (p *Processes) view(pid int) (*channels.View, error) {
	v, err := refreshed(p.views[pid], pid, p.Access)
	p.set(pid, v)
	return v, err
}

// refreshed returns a process's view with the channels that it has now: that which is known, or a new one.
func refreshed(known *channels.View, pid int, access channels.Access) (*channels.View, error) {
	if known != nil {
		if err := known.Refresh(); err == nil && known.Channels() > 0 {
			return known, nil // else it may have ended, or another program may run in it
		}
	}
	return channels.ViewOf(pid, access)
}

// set notes a process's view; nil: none.
func (p *Processes) set(pid int, v *channels.View) {
	if old := p.views[pid]; old != v {
		p.forget(pid)
	}
	if v != nil {
		if p.views == nil {
			p.views = map[int]*channels.View{}
		}
		p.views[pid] = v
	}
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
