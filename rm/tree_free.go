package rm

// Free ends an object at the program's request, with everything under it and
// everything that depends on it. Freeing a handle that is not known does nothing.
func (t *Tree) Free(at At, r Ref) {
	if o := t.live[r]; o != nil {
		t.end(o, at, EndFreed)
	}
}

// doomed is an object on its way out.
type doomed struct {
	o   *Object
	end End
	by  *Object
}

// end ends an object and all that goes with it. The driver frees dependants and
// children first; the order does not show here, since all end at one time. It
// works on a list instead of calling itself: a hostile program can build trees
// of any depth.
func (t *Tree) end(o *Object, at At, end End) {
	todo := []doomed{{o, end, nil}}
	for len(todo) > 0 {
		d := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if d.o.Died != Alive {
			continue
		}
		t.drop(d, at)
		parent, dependency := EndParent, EndDependency
		if end == EndClosed || end == EndExit { // the driver takes down all of it by itself
			parent, dependency = end, end
		}
		for l := d.o.children.first; l != nil; l = l.next {
			todo = append(todo, doomed{l.object, parent, d.o})
		}
		for l := d.o.dependants.first; l != nil; l = l.next {
			todo = append(todo, doomed{l.object, dependency, d.o})
		}
	}
}

// drop takes one object out of all tables.
func (t *Tree) drop(d doomed, at At) {
	o := d.o
	o.Died, o.End, o.By = at.Time, d.end, d.by
	if d.end == EndClosed || d.end == EndExit {
		o.By = nil
	}
	if t.live[o.Ref] == o {
		delete(t.live, o.Ref)
	}
	if o.Parent != nil {
		o.Parent.children.remove(&o.sibling)
	}
	for _, dep := range o.deps {
		dep.on.dependants.remove(&dep.up)
	}
	o.deps = nil
	if o.IsClient() {
		if f := t.files[o.File]; f != nil {
			delete(f.clients, o)
		}
	}
	for m := range o.mappings {
		t.maps.unmap(m, at.Time)
	}
	for m := range o.dmas {
		t.maps.unmapDMA(m, at.Time)
	}
	t.release(o)
	if t.o.Notify != nil {
		t.o.Notify(o, false)
	}
	if t.o.Forget {
		t.sweep()
	}
}

// sweep drops dead objects when half of the list is dead: constant cost for each.
func (t *Tree) sweep() {
	t.dead++
	if t.dead < 64 || t.dead < len(t.objects)/2 {
		return
	}
	kept := t.objects[:0]
	for _, o := range t.objects {
		if o.Died == Alive {
			kept = append(kept, o)
		}
	}
	clear(t.objects[len(kept):])
	t.objects, t.dead = kept, 0
}

// list is a chain of objects from which any can be taken in constant time.
type list struct{ first *link }

type link struct {
	prev, next *link
	in         *list
	object     *Object
}

func (l *list) push(k *link) {
	k.prev, k.next, k.in = nil, l.first, l
	if l.first != nil {
		l.first.prev = k
	}
	l.first = k
}

func (l *list) remove(k *link) {
	if k.in != l {
		return
	}
	if k.prev != nil {
		k.prev.next = k.next
	} else {
		l.first = k.next
	}
	if k.next != nil {
		k.next.prev = k.prev
	}
	k.in, k.prev = nil, nil // next stays: iterations may stand here
}
