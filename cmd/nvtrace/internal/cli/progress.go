package cli

import (
	"fmt"
	"path/filepath"
	"time"
)

// Progress shows how far a long run is, where someone is watching.
type Progress struct {
	e     *Env
	name  string
	total int64
	unit  string
	next  time.Time
	shown bool
	off   bool
}

// NewProgress makes one of a file; total is its size in units of that name.
func NewProgress(e *Env, name string, total int64, unit string) *Progress {
	return &Progress{e: e, name: name, total: total, unit: unit, next: time.Now().Add(time.Second), off: !IsTerminal(e.Stderr) || IsTerminal(e.Stdout)}
}

// At says how far the work is.
func (p *Progress) At(done int64) {
	if p.off || p.total <= 0 {
		return
	}
	if now := time.Now(); now.After(p.next) {
		p.next = now.Add(200 * time.Millisecond)
		p.shown = true
		fmt.Fprintf(Beneath(p.e.Stderr), "\r%s: %d %% of %d %s ", Printable(filepath.Base(p.name)), 100*done/p.total, p.total, p.unit)
	}
}

// Clear wipes the line.
func (p *Progress) Clear() {
	if p.shown {
		fmt.Fprint(Beneath(p.e.Stderr), "\r\x1b[K")
		p.shown = false
	}
}
