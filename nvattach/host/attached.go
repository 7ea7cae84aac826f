package host

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"nvtrace/nvattach"
	"nvtrace/nvattach/control"
	"nvtrace/nvattach/hostrun"
)

// An attachment is a program of a run, with its number. What is not atomic is under the
// Tracer's lock.
type attachment struct {
	id     int
	q      *hostrun.Program
	state  atomic.Pointer[string] // of package control
	places []string
	uses   []use
}

// use is where programs in processes have it.
type use struct {
	probe uint64
	index int
}

// mostPlaces bounds those that are listed of a program.
const mostPlaces = 100

// attachments are those of a Tracer.
type attachments struct {
	mu   sync.Mutex
	list []*attachment
	of   map[*hostrun.Program]*attachment // not changed after newAttachments
}

func newAttachments(p *nvattach.Plan) *attachments {
	a := &attachments{of: make(map[*hostrun.Program]*attachment)}
	for i, q := range p.Host {
		x := &attachment{id: i + 1, q: q}
		x.set(control.On)
		a.list, a.of[q] = append(a.list, x), x
	}
	return a
}

func (x *attachment) set(state string) { x.state.Store(&state) }

// is reports whether an attachment has a state.
func (x *attachment) is(state string) bool { return *x.state.Load() == state }

// runs reports whether a program is to run.
func (a *attachments) runs(q *hostrun.Program) bool { return a.of[q].is(control.On) }

// over reports whether none of the programs will ever run again.
func (a *attachments) over(lists ...[]*hostrun.Program) bool {
	return !slices.ContainsFunc(slices.Concat(lists...), func(q *hostrun.Program) bool { return !a.of[q].is(control.Detached) })
}

// at notes that programs run at a place.
func (a *attachments) at(x *target) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, q := range slices.Concat(x.entries, x.returns, x.leaves) {
		if p := a.of[q]; len(p.places) < mostPlaces && !slices.Contains(p.places, x.name) {
			p.places = append(p.places, x.name)
		}
	}
}

// used notes which programs a probe in processes has, and switches those off that are.
func (a *attachments) used(f *fast, probe uint64, programs []*hostrun.Program) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, q := range programs {
		p := a.of[q]
		p.uses = append(p.uses, use{probe, i})
		if !p.is(control.On) {
			f.programs.Enable(probe, i, false)
		}
	}
}

// Attachments implements [control.Target].
func (t *Tracer) Attachments() []control.Attachment {
	t.attached.mu.Lock()
	defer t.attached.mu.Unlock()
	var list []control.Attachment
	for _, x := range t.attached.list {
		places := slices.Clone(x.places)
		if !x.q.Point.Function() {
			places = []string{x.q.Point.String()}
		}
		list = append(list, control.Attachment{ID: x.id, Program: x.q.Name, Section: x.q.Section, Places: places, State: *x.state.Load()})
	}
	return list
}

// Do implements [control.Target]. A program that is detached does not come back; the jumps to it
// stay, and cost a few nanoseconds each.
func (t *Tracer) Do(what string, id int) error {
	t.attached.mu.Lock()
	defer t.attached.mu.Unlock()
	if id < 1 || id > len(t.attached.list) {
		return fmt.Errorf("there is no attachment %d", id)
	}
	x := t.attached.list[id-1]
	if x.is(control.Detached) {
		return fmt.Errorf("attachment %d, program %s, has been detached", id, x.q.Name)
	}
	x.set(map[string]string{control.DoEnable: control.On, control.DoDisable: control.Off, control.DoDetach: control.Detached}[what])
	if t.fast != nil {
		for _, u := range x.uses {
			t.fast.programs.Enable(u.probe, u.index, what == control.DoEnable)
		}
	}
	return nil
}
