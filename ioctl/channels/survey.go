package channels

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"nvtrace/fatbin"
	"nvtrace/ptrace/proc"
	"nvtrace/rm/channel"
)

// A View is a process of which channels have been found, to be looked at again and again.
type View struct {
	PID      int
	Names    Names
	memory   Memory
	channels []*Channel
	process  *Process // that ViewOf has opened; nil: none
	blind    bool     // no ring can be read
}

// ViewOf opens a process and finds its channels. The view's user closes it.
func ViewOf(pid int, access Access) (*View, error) {
	p, err := Open(pid, access)
	if err != nil {
		return nil, err
	}
	v, err := NewView(pid, p)
	if err != nil {
		_ = p.Close()
		return nil, err
	}
	v.process = p
	return v, nil
}

// A Place is where a channel is, by what its program has asked the driver for.
type Place struct {
	Ring, UserData uint64 // addresses in the process
	Entries        int    // of the ring
}

// ViewAt opens a process whose channels are at these places, rather than look for them. Those of which ring or USERD
// can't be read are left out; if no ring can be read, channels are looked for.
func ViewAt(pid int, places []Place) (*View, error) {
	p, err := Open(pid, AllMemory)
	if err != nil {
		return nil, err
	}
	v, err := newViewAt(pid, p, places)
	if err != nil {
		_ = p.Close()
		return nil, err
	}
	v.process = p
	return v, nil
}

// maxEntries bounds rings.
const maxEntries = 1 << 20

func newViewAt(pid int, m Memory, places []Place) (*View, error) {
	maps, err := m.Maps()
	if err != nil {
		return nil, err
	}
	if s := spaceOf(maps); s.blind(m) {
		return NewView(pid, m)
	}
	v := &View{PID: pid, memory: m}
	for _, at := range places {
		page := make([]byte, channel.UserDataSize)
		mapping := proc.At(maps, at.UserData)
		if mapping == nil || at.Entries <= 0 || at.Entries > maxEntries || m.Read(at.UserData, page) != nil || m.Read(at.Ring, page[:channel.EntrySize]) != nil {
			continue
		}
		c := &Channel{Device: mapping.Path, UserData: at.UserData, Ring: at.Ring, Entries: at.Entries}
		_, _ = c.Look(m, lookDepth) // as in NewView
		v.channels = append(v.channels, c)
	}
	Sort(v.channels)
	return v, nil
}

// Close ends the use of a process that ViewOf has opened.
func (v *View) Close() error {
	if v.process == nil {
		return nil
	}
	return v.process.Close()
}

// NewView finds the channels of a process.
func NewView(pid int, m Memory) (*View, error) {
	list, blind, err := find(m)
	if err != nil {
		return nil, err
	}
	Sort(list)
	v := &View{PID: pid, memory: m, channels: list, blind: blind}
	of := counting{Memory: m}
	for _, c := range v.channels {
		_, _ = c.lookWithin(&of) // which finds the semaphores; what fails is said by the next look
	}
	return v, nil
}

// Refresh looks for channels that came since, and forgets those that are gone.
func (v *View) Refresh() error {
	list, blind, err := find(v.memory)
	if err != nil {
		return err
	}
	Sort(list)
	v.blind = blind
	for i, c := range list {
		at := slices.IndexFunc(v.channels, c.same)
		if at >= 0 {
			v.channels[at].trail = c.trail // the newer one; nil: there is the ring
			list[i] = v.channels[at]
		} else {
			_, _ = c.Look(v.memory, lookDepth) // as in NewView
		}
	}
	v.channels = list
	return nil
}

// Channels returns how many channels have been found.
func (v *View) Channels() int { return len(v.channels) }

// Rings says why no ring was read; "": rings were.
func (v *View) Rings() string { return ringsOf(v.memory, v.blind) }

// Why no ring was read.
const (
	RingsRefused   = "refused" // by the kernel or the driver
	RingsLeft      = "left"    // alone, as the user wants it
	RingsOfSeveral = "several" // either, and of a watch: the process has several GPUs, and which of them a channel is of is not known
)

func ringsOf(m Memory, blind bool) string {
	p, ok := m.(*Process)
	switch {
	case !blind:
		return ""
	case ok && p.access == SystemMemory:
		return RingsLeft
	}
	return RingsRefused
}

// A Report says what one process's channels were at. Its JSON is nvtrace ps's.
type Report struct {
	PID      int             `json:"pid"`
	User     string          `json:"user,omitempty"`
	Command  string          `json:"command,omitempty"`
	Channels []ChannelReport `json:"channels"`
	Rings    string          `json:"rings,omitempty"` // why no ring was read: "refused", by kernel or driver, or "left", as asked for; absent: rings were read
	Shared   *Shared         `json:"gpu,omitempty"`   // what the driver tells of its GPU, if it has one
	Error    string          `json:"error,omitempty"` // why nothing is known
}

// A ChannelReport says what one channel was at.
type ChannelReport struct {
	Channel int          `json:"channel"`           // in the order of addresses, from 0
	Device  string       `json:"device,omitempty"`  // absent: not known
	Address string       `json:"address,omitempty"` // of the USERD, hexadecimal; absent: the rings were not read
	Tracker string       `json:"tracker,omitempty"` // where the rings were not read, the address of the channel's tracker, hexadecimal
	Busy    bool         `json:"busy"`
	Running []JobReport  `json:"running,omitempty"`
	Waiting []JobReport  `json:"waiting,omitempty"`
	Behind  int          `json:"behind,omitempty"`  // how many wait
	Blocked *BlockReport `json:"blocked,omitempty"` // what it waits for; absent: for nothing
	More    bool         `json:"more,omitempty"`    // older work may be under way than was read
	Passed  uint64       `json:"passed_ns,omitempty"`
	Error   string       `json:"error,omitempty"`

	state State
}

// A Position is where a channel is in its work: a channel that isn't idle and has the same position for
// long does not get on.
type Position struct {
	index            uint32 // of the ring's entry with the oldest job that isn't over, or the first that waits
	queue            uint64 // address of the job's QMD
	began            uint64
	semaphore, value uint64 // that the channel waits for, if nothing runs
}

// Position returns where a busy channel is, or false for one that is idle or can't be read.
func (c *ChannelReport) Position() (p Position, busy bool) {
	s := &c.state
	switch {
	case len(s.Running) > 0:
		j := &s.Running[0]
		return Position{index: j.Index, queue: j.QMD, began: j.Began}, true
	case s.Blocked != nil:
		p.semaphore, p.value = s.Blocked.Address, s.Blocked.Payload
	case len(s.Waiting) == 0:
		return p, false
	}
	if len(s.Waiting) > 0 {
		p.index, p.queue = s.Waiting[0].Index, s.Waiting[0].QMD
	}
	return p, true
}

// A JobReport is a kernel or a copy.
type JobReport struct {
	Kind      string     `json:"kind"`              // "kernel" or "copy"
	Name      string     `json:"name,omitempty"`    // of a kernel, mangled; absent: not searched for, or not found
	Named     string     `json:"named,omitempty"`   // whence the name is: "memory", libcuda's structures in the process's memory, or "sim", the simulated GPU
	Program   string     `json:"program,omitempty"` // address of a kernel's first instruction, hexadecimal; absent: not known
	QMD       string     `json:"qmd,omitempty"`     // address of the first QMD of a graph that can't be read, hexadecimal
	Grid      *[3]uint32 `json:"grid,omitempty"`
	Clustered bool       `json:"clustered,omitempty"` // the grid is counted in clusters of blocks
	Block     *[3]uint32 `json:"block,omitempty"`
	Shared    uint32     `json:"shared_bytes,omitempty"`
	Registers uint32     `json:"registers,omitempty"`
	Arguments string     `json:"arguments,omitempty"`     // hexadecimal words of 64 bits
	NCCL      *NCCL      `json:"nccl,omitempty"`          // what a kernel of NCCL's was given to do
	Params    []Argument `json:"parameters,omitempty"`    // the same by the kernel's parameters, if these are known
	Graph     int        `json:"graph_kernels,omitempty"` // how many kernels the launch of a graph has, of which this is one
	Bytes     uint64     `json:"bytes,omitempty"`         // of a copy
	Since     int64      `json:"since_ns,omitempty"`      // how long before the look that was; the clocks of the GPU and the host differ a little
	Began     uint64     `json:"began_ns,omitempty"`      // when it was handed to the GPU, by the GPU's clock; absent: not known
}

// An Argument is what a launch gave a kernel for one parameter.
type Argument struct {
	Offset int    `json:"offset"`
	Size   int    `json:"size"`
	Value  string `json:"value"` // of up to 8 bytes a number, 0x…; of more the bytes in hexadecimal
	Bytes  []byte `json:"-"`
}

// A BlockReport is a semaphore that a channel waits for.
type BlockReport struct {
	Semaphore string  `json:"semaphore"`         // its address, hexadecimal
	Wanted    uint64  `json:"wanted"`            // the value that it waits for
	Value     *uint64 `json:"value,omitempty"`   // what is there; absent: it can't be read
	Channel   *int    `json:"channel,omitempty"` // the channel that will release it; absent: not known
	By        string  `json:"by,omitempty"`      // what of that channel will: "kernel", or "release", behind what is before it there
}

// What releases a semaphore.
const (
	ByKernel  = "kernel"
	ByRelease = "release"
)

// lookDepth is how many pieces of a channel a look reads.
const lookDepth = 64

var errTooMuch = errors.New("the process's pushbuffers are too large to read them all")

// lookWithin looks at a channel, unless too much has been read.
func (c *Channel) lookWithin(m *counting) (State, error) {
	if m.words > maxLookWords {
		return State{}, errTooMuch
	}
	return c.Look(m, lookDepth)
}

// Look reads each channel once. With names, those of the kernels that are found are searched for
// in the process's memory; that takes up to a second for each GiB of it.
func (v *View) Look(names bool) Report {
	r := Report{PID: v.PID, User: userOf(v.PID), Command: strings.Join(proc.Cmdline(v.PID), " "), Channels: []ChannelReport{}, Rings: v.Rings()}
	if s, ok := SharedData(v.memory); ok {
		r.Shared = &s
	}
	var programs []uint64
	looked := time.Now().UnixNano() // the search for names takes long
	of := counting{Memory: v.memory}
	for i, c := range v.channels {
		cr := ChannelReport{Channel: i, Device: c.Device}
		if tracker := c.Tracker(); tracker != 0 {
			cr.Tracker = fmt.Sprintf("%#x", tracker)
		} else {
			cr.Address = fmt.Sprintf("%#x", c.UserData)
		}
		s, err := c.lookWithin(&of)
		if err != nil {
			cr.Error = err.Error()
		}
		cr.state, cr.Busy, cr.More, cr.Passed = s, s.Busy(), s.Cut, s.Passed
		for _, job := range slices.Concat(s.Running, s.Waiting) {
			programs = append(programs, job.Launch.Program)
		}
		r.Channels = append(r.Channels, cr)
	}
	if names {
		if err := v.Names.Search(v.memory, programs); err != nil {
			r.Error = err.Error()
		}
	}
	for i := range r.Channels {
		c := &r.Channels[i]
		c.Running, c.Waiting, c.Behind = v.jobs(c.state.Running, looked), v.jobs(c.state.Waiting, looked), len(c.state.Waiting)
		if c.Blocked = v.blockedOn(v.channels[i], c.state.Blocked, r.Channels); c.Blocked.come() {
			c.Blocked = nil // since the look
		}
	}
	return r
}

// jobs describes jobs.
func (v *View) jobs(list []Job, looked int64) (reports []JobReport) {
	for i := range list {
		j := &list[i]
		r := JobReport{Kind: "copy", Bytes: j.Size, Graph: j.Graph, Began: j.Began}
		if j.Began != 0 {
			r.Since = looked - int64(j.Began)
		}
		if j.Kind == channel.Kernel {
			r.Kind = "kernel"
			if j.Unread {
				r.QMD = fmt.Sprintf("%#x", j.QMD)
			}
			if l := &j.Launch; !j.Unread {
				r.Name, r.Program, r.Grid, r.Block = v.Names.Of(l.Program), fmt.Sprintf("%#x", l.Program), &l.Grid, &l.Block
				r.Named, r.Clustered = v.Names.Source(l.Program), l.Clustered
				r.Shared, r.Registers, r.Arguments = l.SharedMemory, l.Registers, channel.Hex(j.Arguments)
				if params, known := v.Names.Params(l.Program); known {
					r.Params = arguments(params, j.Arguments)
				}
				r.NCCL = ncclOf(v.memory, r.Name, j.Arguments)
			}
		}
		reports = append(reports, r)
	}
	return reports
}

// arguments cuts what a launch gave a kernel into its parameters; nil if these don't fit. Of the last one a part may
// be missing: a launch may give less than there is room for.
func arguments(params []fatbin.Param, b []byte) (list []Argument) {
	for _, p := range params {
		if p.Size <= 0 || p.Offset < 0 || p.Offset >= len(b) {
			return nil
		}
		a := Argument{Offset: p.Offset, Size: p.Size, Bytes: b[p.Offset:min(p.Offset+p.Size, len(b))]}
		if p.Size <= 8 {
			var word [8]byte
			copy(word[:], a.Bytes)
			a.Value = fmt.Sprintf("%#x", binary.LittleEndian.Uint64(word[:]))
		} else {
			a.Value = hex.EncodeToString(a.Bytes)
		}
		list = append(list, a)
	}
	return list
}

// blockedOn says what a channel waits for, and which channel will release it.
func (v *View) blockedOn(c *Channel, s *channel.Semaphore, list []ChannelReport) *BlockReport {
	if s == nil {
		return nil
	}
	b := &BlockReport{Semaphore: fmt.Sprintf("%#x", s.Address), Wanted: s.Payload}
	if s.Wide {
		if value, err := readLong(located{v.memory, c}, s.Address); err == nil {
			b.Value = &value
		}
	} else if words, err := readWords(located{v.memory, c}, s.Address, 1); err == nil {
		b.Value = new(uint64(words[0]))
	}
	for i := range list {
		for _, j := range slices.Concat(list[i].state.Running, list[i].state.Waiting) {
			if j.Launch.Done.Address == s.Address {
				b.Channel, b.By = &list[i].Channel, ByKernel
			}
		}
	}
	for i := range list {
		if b.Channel == nil && slices.ContainsFunc(list[i].state.Releases, func(r channel.Semaphore) bool {
			return r.Address == s.Address && !before(r.Payload, s.Payload)
		}) {
			b.Channel, b.By = &list[i].Channel, ByRelease
		}
	}
	return b
}

// come reports whether what a channel waits for is there, and no kernel of the process is to write it.
func (b *BlockReport) come() bool {
	return b != nil && b.By != ByKernel && b.Value != nil && !before(*b.Value, b.Wanted)
}

// userOf returns the name of a process's user, or the number, or "".
func userOf(pid int) string {
	ids, ok := proc.Status(pid, "Uid")
	if !ok {
		return ""
	}
	id, _, _ := strings.Cut(strings.TrimSpace(ids), "\t")
	if _, err := strconv.Atoi(id); err != nil {
		return ""
	}
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

// Pieces returns the last n pieces of each channel's pushbuffer, oldest first.
func (v *View) Pieces(n int) []ChannelPieces {
	var list []ChannelPieces
	for i, c := range v.channels {
		u, err := c.userData(v.memory)
		if err != nil || int(u.GPPut) >= c.Entries {
			continue
		}
		cp := ChannelPieces{Channel: i, Of: c, Tracker: c.Tracker(), UserData: u}
		if cp.Pieces, err = c.pieces(v.memory, u, n); err != nil {
			continue
		}
		if cp.Tracker != 0 {
			cp.UserData = channel.UserData{}
		}
		list = append(list, cp)
	}
	return list
}

// ChannelPieces are the last pieces of a channel's pushbuffer.
type ChannelPieces struct {
	Channel  int
	Of       *Channel
	Tracker  uint64           // by which the channel was found; 0: its ring was read
	UserData channel.UserData // only if its ring was read
	Pieces   []Piece
}

// Reader returns a reader for a channel's pieces.
func (v *View) Reader(c *Channel) *channel.Reader { return c.reader(v.memory) }

// Programs returns the addresses of the kernels that the pieces launch.
func (v *View) Programs(list []ChannelPieces) (programs []uint64) {
	for _, cp := range list {
		r := v.Reader(cp.Of)
		for _, p := range cp.Pieces {
			r.Read(p.Words, p.Address, func(w channel.Work) bool {
				if w.Kind == channel.Kernel && !w.Unread {
					programs = append(programs, w.Launch.Program)
				}
				return true
			})
		}
	}
	return programs
}

// SearchNames searches for the names of all kernels that the pieces launch.
func (v *View) SearchNames(list []ChannelPieces) error {
	return v.Names.Search(v.memory, v.Programs(list))
}
