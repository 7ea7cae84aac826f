package session

import (
	"bytes"
	"slices"

	"nvtrace/nvattach/mapmem"
)

// Result is what a session's probes came to, for a recording.
type Result struct {
	Maps    []MapResult
	Kernels []Kernel
	Notices []string // what was said beside
}

// MapResult is a map as it was at the end.
type MapResult struct {
	PID, Device int
	Name        string
	Text        string // as it is printed
	JSON        string // as an object
}

// maxNotices bounds what is kept of what a session says.
const maxNotices = 256

// Result returns what the probes came to. End must have been called.
func (s *Session) Result() (*Result, error) {
	r := &Result{Kernels: s.Kernels()}
	var all []*mapmem.Table
	for _, c := range s.all() {
		c.mu.Lock()
		tables := c.final
		c.mu.Unlock()
		all = append(all, tables...)
		for _, t := range tables {
			if s.out.owned(t.Map) {
				continue
			}
			var text bytes.Buffer
			if err := t.Print(&text, s.out.print); err != nil {
				return nil, err
			}
			r.Maps = append(r.Maps, MapResult{c.PID, c.Device, t.Map.Name, text.String(), string(t.AppendJSON(nil, s.out.print))})
		}
	}
	if s.opts.Script != nil {
		for _, x := range s.opts.Script.Show(all, true) {
			r.Maps = append(r.Maps, MapResult{Name: x.Name, Text: x.Text, JSON: x.JSON})
		}
	}
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	r.Notices = slices.Clone(s.out.notices)
	return r, nil
}
