// Package hostmaps changes maps in the host's memory ([Writer]): what helpers do for programs that run
// at stops, and what users set while programs run. Threads of all traced processes do the same to
// that memory by the agent (ptrace/agent's helpers.c), and GPUs where they share it, so all of it goes by
// atomic operations and by the locks that lie in the maps.
package hostmaps

import "nvtrace/nvattach/mapmem"

// A Writer changes maps in the host's memory, as threads of all traced processes do by the agent at
// the same time, and GPUs where they share it.
type Writer struct {
	maps *mapmem.Maps
	mem  *mapmem.HostMemory
}

// NewWriter returns one of maps and their memory.
func NewWriter(m *mapmem.Maps, mem *mapmem.HostMemory) *Writer { return &Writer{m, mem} }
