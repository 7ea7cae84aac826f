package fatbin

import (
	"encoding/binary"
	"fmt"
)

// ContainerMagic begins a container. A container's header:
//
//	0  u32  ContainerMagic
//	4  u16  version, 1
//	6  u16  size of the header, 16
//	8  u64  size of what follows the header
//
// Entries follow, back to back.
const ContainerMagic = 0xBA55ED50

// oldMagic began the fat binaries of CUDA before 4.0.
const oldMagic = 0x1EE55A01

const (
	containerVersion = 1
	containerHeader  = 16
)

// Container is a fat binary container: the same code for several
// architectures, in several forms. The driver picks the entry that fits best.
type Container struct {
	// Offset is where the container begins in what it was read from.
	Offset int64
	// Member is the archive member it is in, "" outside of archives.
	Member string
	// Section is the ELF section it is in, "" where there is none.
	Section string
	// Entries may be changed, removed and added to.
	Entries []Entry
	// Tail is what stands after the last entry; none of the known tools
	// leaves anything there.
	Tail []byte

	head []byte // as read; nil for a new container
}

// ParseContainer reads the container that b begins with and returns how many
// bytes it takes. Entries alias b. Bytes after the container are left alone.
//
// With an error (in whose chain [ErrFormat] is) come the entries before the
// damage, and 0 if not even the header can be trusted.
func ParseContainer(b []byte) (*Container, int, error) {
	const what = "container"
	if len(b) < containerHeader {
		return nil, 0, formatError(what, 0, "%d bytes are less than a header", len(b))
	}
	if m := u32(b); m != ContainerMagic {
		return nil, 0, formatError(what, 0, "magic 0x%08x, want 0x%08x", m, uint32(ContainerMagic))
	}
	version, headerSize, size := u16(b[4:]), uint64(u16(b[6:])), u64(b[8:])
	if version != containerVersion || headerSize < containerHeader {
		return nil, 0, formatError(what, 4, "version %d with a header of %d bytes, want version %d", version, headerSize, containerVersion)
	}
	head, ok := cut(b, 0, headerSize)
	if !ok {
		return nil, 0, formatError(what, 6, "a header of %d bytes in %d", headerSize, len(b))
	}
	body, ok := cut(b, headerSize, size)
	if !ok {
		return nil, 0, formatError(what, 8, "%d bytes of entries, and %d are there", size, uint64(len(b))-headerSize)
	}
	c := &Container{head: head}
	n := int(headerSize + size)
	p := uint64(0)
	for size-p >= entryHeader {
		e, err := parseEntry(body[p:])
		if err != nil {
			c.Tail = body[p:]
			return c, n, fmt.Errorf("%s: entry %d at +0x%x: %w", what, len(c.Entries)+1, headerSize+p, err)
		}
		e.offset = int64(headerSize + p)
		if c.Entries == nil {
			c.Entries = make([]Entry, 0, 4)
		}
		c.Entries = append(c.Entries, e)
		p += uint64(len(e.head) + len(e.payload))
	}
	if p < size {
		c.Tail = body[p:]
	}
	return c, n, nil
}

// size returns how many bytes [Container.Append] appends.
func (c *Container) size() int {
	n := max(len(c.head), containerHeader) + len(c.Tail)
	for i := range c.Entries {
		n += len(c.Entries[i].head) + len(c.Entries[i].payload)
	}
	return n
}

// Append appends the container to dst, as a driver loads it. A container that
// was read and not changed is appended as it was.
func (c *Container) Append(dst []byte) []byte {
	start := len(dst)
	if c.head != nil {
		dst = append(dst, c.head...)
	} else {
		dst = binary.LittleEndian.AppendUint32(dst, ContainerMagic)
		dst = binary.LittleEndian.AppendUint16(dst, containerVersion)
		dst = binary.LittleEndian.AppendUint16(dst, containerHeader)
		dst = binary.LittleEndian.AppendUint64(dst, 0)
	}
	body := len(dst)
	for i := range c.Entries {
		dst = append(dst, c.Entries[i].head...)
		dst = append(dst, c.Entries[i].payload...)
	}
	dst = append(dst, c.Tail...)
	binary.LittleEndian.PutUint64(dst[start+8:], uint64(len(dst)-body))
	return dst
}
