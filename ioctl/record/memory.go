package record

import (
	"nvtrace/ioctl"
	"nvtrace/ptrace"
)

// memory makes a stopped task readable for package ioctl. It is reused, so that
// reading allocates nothing.
type memory struct {
	*ptrace.Task
	ranges []ptrace.Range
}

var _ ioctl.VectorMemory = (*memory)(nil)

// of makes m read from t.
func (m *memory) of(t *ptrace.Task) *memory {
	m.Task = t
	return m
}

// ReadMemV implements ioctl.VectorMemory.
func (m *memory) ReadMemV(vecs []ioctl.Vec) (int, error) {
	m.ranges = m.ranges[:0]
	for _, v := range vecs {
		m.ranges = append(m.ranges, ptrace.Range{Addr: v.Addr, Buf: v.Buf})
	}
	err := m.Task.ReadMemV(m.ranges)
	total := 0
	for i := range m.ranges {
		total += m.ranges[i].N
		if m.ranges[i].N < len(m.ranges[i].Buf) {
			break
		}
	}
	return total, err
}
