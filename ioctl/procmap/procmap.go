// Package procmap holds values by process and address: what processes have mapped, and lose together.
// It takes some 70 bytes a value, however many processes they are of.
package procmap

import "iter"

// Map is empty as it is.
type Map[V any] struct {
	at    map[key]*node[V]
	first map[int32]*node[V] // of a process
}

type key struct {
	pid  int32
	addr uint64
}

type node[V any] struct {
	addr           uint64
	value          V
	previous, next *node[V] // of the same process
}

// Len returns how many values there are.
func (m *Map[V]) Len() int { return len(m.at) }

// Put sets the value at an address of a process.
func (m *Map[V]) Put(pid int32, addr uint64, v V) {
	k := key{pid, addr}
	if n := m.at[k]; n != nil {
		n.value = v
		return
	}
	if m.at == nil {
		m.at, m.first = make(map[key]*node[V]), make(map[int32]*node[V])
	}
	n := &node[V]{addr: addr, value: v, next: m.first[pid]}
	if n.next != nil {
		n.next.previous = n
	}
	m.at[k], m.first[pid] = n, n
}

// Take returns the value at an address of a process, which is not there any more.
func (m *Map[V]) Take(pid int32, addr uint64) (v V, ok bool) {
	n := m.at[key{pid, addr}]
	if n == nil {
		return v, false
	}
	m.remove(pid, n)
	return n.value, true
}

func (m *Map[V]) remove(pid int32, n *node[V]) {
	delete(m.at, key{pid, n.addr})
	if n.next != nil {
		n.next.previous = n.previous
	}
	switch {
	case n.previous != nil:
		n.previous.next = n.next
	case n.next != nil:
		m.first[pid] = n.next
	default:
		delete(m.first, pid)
	}
}

// TakeAll returns the values of a process, in no order. Those that it has come to are not there any more.
func (m *Map[V]) TakeAll(pid int32) iter.Seq[V] {
	return func(yield func(V) bool) {
		for n := m.first[pid]; n != nil; n = n.next {
			m.remove(pid, n)
			if !yield(n.value) {
				return
			}
		}
	}
}
