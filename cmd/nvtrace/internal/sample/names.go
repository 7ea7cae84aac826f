package sample

import "nvtrace/ioctl/channels"

// names finds the names of kernels in the process's memory, which takes up to a second for each GiB,
// beside the looks.
type names struct {
	pid      int
	found    map[uint64]named // without a name: it was looked for, and not found
	wanted   map[uint64]bool  // not looked for yet
	searched chan map[uint64]named
	busy     bool
	finder   channels.Names // the search's own while it is busy
}

// A named is a kernel's name, and whence it is.
type named struct{ name, source string }

// maxPrograms bounds what is kept of a hostile process.
const maxPrograms = 1 << 16

// of returns a kernel's name, "" if it isn't known, and whence it is.
func (n *names) of(program uint64) named { return n.found[program] }

// wants reports whether a name may still be found, and has it looked for.
func (n *names) wants(program uint64) bool {
	if _, done := n.found[program]; done {
		return false
	}
	if n.wanted == nil {
		n.found, n.wanted, n.searched = map[uint64]named{}, map[uint64]bool{}, make(chan map[uint64]named, 1)
	}
	if len(n.found)+len(n.wanted) >= maxPrograms {
		return false
	}
	n.wanted[program] = true
	return true
}

// collect takes what a search has found, and begins another one if there is something to search for. It
// returns the programs that have been looked for.
func (n *names) collect() (programs []uint64) {
	if n.busy {
		select {
		case found := <-n.searched:
			programs = n.take(found)
		default:
			return nil
		}
	}
	n.search()
	return programs
}

// finish waits for what is searched, and searches for the rest.
func (n *names) finish() {
	if n.busy {
		n.take(<-n.searched)
	}
	if n.search(); n.busy {
		n.take(<-n.searched)
	}
}

func (n *names) take(found map[uint64]named) (programs []uint64) {
	n.busy = false
	for p, name := range found {
		n.found[p] = name
		delete(n.wanted, p)
		programs = append(programs, p)
	}
	return programs
}

// search begins to search for what is wanted.
func (n *names) search() {
	if len(n.wanted) == 0 {
		return
	}
	var list []uint64
	for p := range n.wanted {
		list = append(list, p)
	}
	n.busy = true
	go func() {
		found := map[uint64]named{}
		p, err := channels.Open(n.pid, channels.AllMemory)
		if err == nil {
			_ = n.finder.Search(p, list) // what isn't found stays without a name
			_ = p.Close()
		}
		for _, program := range list {
			found[program] = named{n.finder.Of(program), n.finder.Source(program)}
		}
		n.searched <- found
	}()
}
