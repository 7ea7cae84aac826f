package script

import (
	"slices"

	"nvtrace/nvattach/object"
	"nvtrace/traces/glob"
)

// A Runner runs a program's probes on the host.
type Runner struct {
	p    *Program
	in   *interp
	next map[*probe]int64 // when intervals run
	ran  bool             // a probe at an event
	last int64            // when the latest event was, or interval
}

// Wants returns the patterns of a kind of probes on the host.
func (p *Program) Wants(kind string) (globs []string) {
	for _, b := range p.probes {
		for i := range b.points {
			if pt := &b.points[i]; pt.event != nil && pt.event.Name == kind {
				globs = append(globs, pt.glob)
			}
		}
	}
	return globs
}

// OfMemory reports whether there are probes where memory is allocated or freed.
func (p *Program) OfMemory() bool { return len(p.Wants("alloc"))+len(p.Wants("free")) > 0 }

// Error returns an error about the place.
func (u *ArgUse) Error(reason string) error { return u.l.errorAt(u.at, "%s", reason) }

// ArgUses returns the parameters of functions that the program names.
func (p *Program) ArgUses() []ArgUse { return p.argUses }

// StacksAt returns the patterns of functions whose calls the program asks for stacks of, with "alloc:" or "free:"
// before them where these count of those functions only.
func (p *Program) StacksAt() []string {
	list := slices.Clone(p.stacksAt)
	slices.Sort(list)
	return slices.Compact(list)
}

// StacksAtIoctls reports whether the program asks for stacks of ioctls.
func (p *Program) StacksAtIoctls() bool { return p.atIoctls }

// Ranges reports whether the program asks for NVTX ranges.
func (p *Program) Ranges() bool { return p.ranges }

// NativeStacks reports whether these stacks are to have functions of machine code, too.
func (p *Program) NativeStacks() bool { return p.native }

// OnHost reports whether the program has probes on the host.
func (p *Program) OnHost() bool {
	return slices.ContainsFunc(p.probes, func(b *probe) bool { return b.side == sideEvents })
}

// NewRunner returns a Runner, and what BEGIN printed, if that is not the kernels'.
func (p *Program) NewRunner() (*Runner, []Shown) {
	r := &Runner{p: p, in: &interp{s: newStore(p)}}
	r.in.name = r.time
	if p.Object != nil {
		return r, nil
	}
	return r, r.in.all(p, "BEGIN")
}

// Every returns the shortest interval of the program, 0 where there is none.
func (p *Program) Every() (every int64) {
	for _, b := range p.probes {
		if e := b.points[0].every; e > 0 && (every == 0 || e < every) {
			every = e
		}
	}
	return every
}

// Tick runs the intervals that have come to their ends until now, in nanoseconds since the
// start, each once, and returns what they print. What nsecs is in END is the latest time it was told.
func (r *Runner) Tick(now int64) []Shown {
	r.last = max(r.last, now)
	if r.p.Object != nil {
		return nil // they are the session's
	}
	var list []Shown
	for _, b := range r.p.probes {
		every := b.points[0].every
		if every == 0 {
			continue
		}
		if r.next == nil {
			r.next = make(map[*probe]int64)
		}
		if r.next[b] == 0 {
			r.next[b] = every
		}
		if now < r.next[b] {
			continue
		}
		r.next[b] = now - now%every + every
		r.in.out.Reset()
		r.in.steps, r.in.name = 0, r.time
		if why := r.in.run(b); why != "" {
			r.in.out.WriteString("nvtrace: " + why + "\n")
		}
		list = append(list, printed(r.in.out.String())...)
	}
	return list
}

// Event runs the probes on an event, and returns what they print.
func (r *Runner) Event(e *Event) []Shown {
	var ran bool
	for _, b := range r.p.probes {
		for i := range b.points {
			pt := &b.points[i]
			if pt.event == nil || pt.event.Name != e.Kind || !e.matches(pt.glob) {
				continue
			}
			if !ran {
				ran, r.ran = true, true
				r.in.out.Reset()
				r.in.name, r.in.text = e.value, e.Text
			}
			r.in.steps = 0
			if why := r.in.run(b); why != "" {
				r.in.out.WriteString("nvtrace: " + pt.event.Name + why + "\n")
			}
		}
	}
	if !ran {
		return nil
	}
	return printed(r.in.out.String())
}

// Ran reports whether any event was one that a probe is at, whatever its filter said.
func (r *Runner) Ran() bool { return r.ran }

// HostPlaces returns the probes on the host, as they are written.
func (p *Program) HostPlaces() (list []string) {
	for _, b := range p.probes {
		for i := range b.points {
			if pt := &b.points[i]; pt.event != nil {
				list = append(list, p.lexer.text[pt.at:pt.end])
			}
		}
	}
	return list
}

// End runs END, if that is not the kernels', and returns what it printed, and the maps.
func (r *Runner) End() []Shown {
	r.in.out.Reset()
	r.in.steps, r.in.name = 0, r.time
	var list []Shown
	if r.p.Object == nil {
		list = r.in.all(r.p, "END")
		return append(list, r.in.s.shown()...)
	}
	return r.in.s.shown(sideKernel, sideCalls, sideNone)
}

// time is a built-in where there is no event: in intervals and in END.
func (r *Runner) time(x *nameRef) Value { return x.host.of(&Event{Time: r.last}) }

// matches reports whether a pattern names the event.
func (e *Event) matches(pattern string) bool {
	if e.Kind == "launch" {
		return object.Point{Kind: object.KindEntry, Kernel: pattern}.Matches(e.Kernel, false)
	}
	if e.Kind == "image" {
		return glob.Match(pattern, e.Format)
	}
	return glob.Match(pattern, e.Name) || e.Sub != "" && glob.Match(pattern, e.Sub)
}

// value returns a built-in.
func (e *Event) value(x *nameRef) Value {
	if x.host != nil {
		return x.host.of(e)
	}
	if name, ok := argName(x, true); ok {
		if e.Arg == nil {
			return number(0)
		}
		n, _ := e.Arg(name)
		return number(int64(n))
	}
	return number(int64(e.Args[x.arg]))
}
