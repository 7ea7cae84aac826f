package channels

import (
	"cmp"
	"encoding/binary"
	"slices"

	"nvtrace/ptrace/proc"
	"nvtrace/rm/channel"
)

// A Channel is a channel of a process.
type Channel struct {
	Device   string // the node whose memory has the ring: /dev/nvidia0; "": not known
	UserData uint64 // address of the page that program and GPU share (USERD); 0: it was not read
	Ring     uint64 // address of the ring; 0: it was not read
	Entries  int    // of the ring

	trail    *trail   // what stands for a ring that can't be read; nil: there is the ring
	windows  []window // where the process has what is not at the GPU's addresses; nil: all is
	unfound  []uint64 // QMDs that are in none of the process's mappings
	searches int      // for QMDs

	subchannels channel.Subchannels
	semaphores  map[uint64]bool // pages with semaphores that the last look wanted
}

const (
	maxChannels  = 4096 // of a process: a bound for hostile ones
	maxRingPages = 64   // between a ring's beginning and its USERD
)

// Find looks for the channels of a process that have been used. A page is believed to be a USERD
// if a ring lies before it in which an entry that the GPU has just fetched ends exactly where PUT
// stands. Where no memory of a GPU can be read, channels are found by their pushbuffers (see [trail]).
func Find(m Memory) ([]*Channel, error) {
	list, _, err := find(m)
	return list, err
}

// find is [Find]. blind: no ring can be read.
func find(m Memory) (list []*Channel, blind bool, err error) {
	maps, err := m.Maps()
	if err != nil {
		return nil, false, err
	}
	s := spaceOf(maps)
	if s.blind(m) {
		list = findTrails(m, &s)
		return list, len(list)+len(s.gpu) > 0, nil
	}
	for i := range s.gpu {
		list = append(list, findIn(m, &s, &s.gpu[i])...)
		if len(list) > maxChannels {
			break
		}
	}
	return list, false, nil
}

// Tracker returns the address of the tracker by which a channel was found whose ring can't be read; 0: its ring was read.
func (c *Channel) Tracker() uint64 {
	if c.trail == nil {
		return 0
	}
	return c.trail.tracker
}

// same reports whether two are the same channel, found at two times.
func (c *Channel) same(o *Channel) bool {
	return c.Device == o.Device && c.UserData == o.UserData && c.Ring == o.Ring && c.Entries == o.Entries && c.Tracker() == o.Tracker()
}

// userData reads what of the channel changes most often: where it is.
func (c *Channel) userData(m Memory) (channel.UserData, error) {
	if c.trail != nil {
		err := c.trail.look(m)
		return c.trail.userData(), err
	}
	page := make([]byte, channel.UserDataSize)
	if err := m.Read(c.UserData, page); err != nil {
		return channel.UserData{}, err
	}
	return channel.ParseUserData(page), nil
}

// free reads the first free index of the ring.
func (c *Channel) free(m Memory) (uint32, error) {
	if c.trail != nil {
		u, err := c.userData(m)
		return u.GPPut, err
	}
	var b [4]byte
	err := m.Read(c.UserData+channel.GPPutOffset, b[:])
	return binary.LittleEndian.Uint32(b[:]), err
}

// place orders channels by where they are. Pushbuffers are in the order of rings.
func (c *Channel) place() uint64 {
	if c.trail != nil {
		return c.trail.base
	}
	return c.UserData
}

// findIn looks for channels in one mapping.
func findIn(m Memory, s *space, mapping *proc.Mapping) []*Channel {
	var list []*Channel
	page := make([]byte, channel.UserDataSize)
	for at := mapping.Start; at < mapping.End; at += pageSize {
		// First the words with PUT: the GPU's memory is read a word at a time, which takes long.
		if m.Read(at+putOffset, page[:putSize]) != nil || allZero(page[:putSize]) || m.Read(at, page) != nil {
			continue
		}
		u := channel.ParseUserData(page)
		if c, ok := ringOf(m, s, mapping, at, u); ok {
			list = append(list, c)
		}
	}
	return list
}

// Where PUT stands in a USERD, with its high part.
const (
	putOffset = 0x40
	putSize   = 0x10
)

// allZero reports whether all bytes are 0.
func allZero(b []byte) bool { return !slices.ContainsFunc(b, func(v byte) bool { return v != 0 }) }

// ringOf finds the ring that a USERD belongs to among the pages before it. It returns false if u is
// none that was used.
func ringOf(m Memory, s *space, mapping *proc.Mapping, userData uint64, u channel.UserData) (*Channel, bool) {
	if u.Put == 0 {
		return nil, false
	}
	for pages := uint64(1); pages <= maxRingPages && userData-mapping.Start >= pages*pageSize; pages++ {
		c := Channel{Device: mapping.Path, UserData: userData, Ring: userData - pages*pageSize, Entries: int(pages * pageSize / channel.EntrySize)}
		if int(u.GPPut) >= c.Entries || int(u.GPGet) >= c.Entries {
			continue
		}
		// PUT is set when an entry is fetched, GP_GET about then.
		for _, index := range []uint32{last(u.GPGet, c.Entries), u.GPGet, last(u.GPPut, c.Entries)} {
			ends, pushes := endsAt(m, s, c.Ring+uint64(index)*channel.EntrySize, u.Put)
			if !ends {
				continue
			}
			if !pushes {
				w, ok := windowOf(m, s, c.Ring, index, c.Entries)
				if !ok {
					continue
				}
				c.windows = []window{w}
			}
			return &c, true
		}
	}
	return nil, false
}

// endsAt reports whether a ring's entry is a piece of pushbuffer that ends at put, and whether the process has
// that at the same address.
func endsAt(m Memory, s *space, entry, put uint64) (ends, pushes bool) {
	v, err := readLong(m, entry)
	if err != nil {
		return false, false
	}
	e := channel.ParseEntry(v)
	size := 4 * uint64(e.Words)
	return size != 0 && e.Address+size == put&(1<<40-1), s.pushes(e.Address, size)
}

// last returns the index of the entry before index in a ring.
func last(index uint32, entries int) uint32 {
	if index == 0 {
		return uint32(entries - 1)
	}
	return index - 1
}

// architectures are the engines' classes that go together, the latest first: compute, copy, host.
var architectures = [][3]uint16{
	{0xcec0, 0xcab5, 0xca6f}, // Blackwell, GB20x
	{0xcdc0, 0xc9b5, 0xc96f}, // Blackwell, GB10x
	{0xcbc0, 0xc8b5, 0xc86f}, // Hopper
	{0xc9c0, 0xc7b5, 0xc56f}, // Ada
	{0xc7c0, 0xc7b5, 0xc56f}, // Ampere, GA10x
	{0xc6c0, 0xc6b5, 0xc56f}, // Ampere, GA100
	{0xc5c0, 0xc5b5, 0xc46f}, // Turing
	{0xc3c0, 0xc3b5, 0xc36f}, // Volta
}

// libcuda's habit: which subchannel speaks to which engine.
const (
	computeSubchannel = 1
	copySubchannel    = 4
)

// assume has the channel's subchannels speak to an architecture's engines.
func (c *Channel) assume(a [3]uint16) {
	c.subchannels.Host = channel.ClassOf(a[2])
	c.subchannels.Engine[computeSubchannel] = channel.ClassOf(a[0])
	c.subchannels.Engine[copySubchannel] = channel.ClassOf(a[1])
}

// classify finds the architecture by a launch: the first whose compute class reads its QMD.
func (c *Channel) classify(m Memory, p *Piece) {
	if c.subchannels.Host != nil {
		return
	}
	for _, a := range architectures {
		probe := Channel{}
		probe.assume(a)
		r := channel.Reader{Subchannels: probe.subchannels}
		if len(c.windows) > 0 {
			r.ReadQMD = func(address uint64, b []byte) bool { return c.readQMD(m, address, b) }
		}
		found := false
		r.Read(p.Words, p.Address, func(w channel.Work) bool {
			found = w.Kind == channel.Kernel && !w.Unread
			return !found
		})
		if found {
			c.assume(a)
			return
		}
	}
}

// reader returns a reader for the channel's pieces, which reads QMDs that no piece has written from
// the process. A channel without a launch is read with Hopper's classes: the methods that matter lie
// where those of others do.
func (c *Channel) reader(m Memory) *channel.Reader {
	if c.subchannels.Host == nil {
		as := unclassified()
		as.Engine[0] = c.subchannels.Engine[0]
		return &channel.Reader{Subchannels: as}
	}
	return &channel.Reader{
		Subchannels: c.subchannels,
		ReadQMD:     func(address uint64, b []byte) bool { return c.readQMD(m, address, b) },
	}
}

// Sort orders channels by device and address.
func Sort(list []*Channel) {
	slices.SortFunc(list, func(a, b *Channel) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.place(), b.place()))
	})
}
