package replay

import (
	"errors"
	"fmt"
	"io"
	"maps"

	"nvtrace/ioctl"
	"nvtrace/rm"
	"nvtrace/traces"
)

// Escapes whose objects matter here (nv_escape.h).
const (
	escRMAllocMemory   = 0x27
	escRMAllocObject   = 0x28
	escRMFree          = 0x29
	escRMControl       = 0x2a
	escRMAlloc         = 0x2b
	escRMDupObject     = 0x34
	escRMAllocCtxDMA2  = 0x54
	escCheckVersionStr = 0xd2
)

// newHandleOffset is where all of the escapes that make an object have its
// handle (hObjectNew, hObject): 0 lets the driver choose.
const newHandleOffset = 8

// recording is a recording arranged for answering.
type recording struct {
	header traces.Header
	abi    *rm.ABI
	damage error // why it ends early, nil if it doesn't

	nodes  map[string]*node // by name below /dev
	refuse map[string]int64 // errno of opens that failed, by path
	files  map[uint32]*file
	// clients are the root clients that live at the end; handles are reused, so
	// that each answer has its own pointer.
	clients map[uint32]*client

	answers []*answer
	streams map[key][]*answer
	fds     map[fdOf]string // node that a descriptor is of, at the event being read
	layouts layouts
}

// node is a device node of the recorded machine.
type node struct {
	name  string
	rdev  uint64
	files []*file // in the order in which they were opened
	next  int     // first that no open of the program was paired with
}

// file is a recorded open file.
type file struct{ node *node }

// fdOf names a descriptor of a process.
type fdOf struct{ pid, fd int32 }

// client is a recorded root client with its objects.
type client struct {
	objects map[uint32]*object // itself included
}

// object is a recorded object: one life of a handle.
type object struct {
	client *client
	handle uint32
	class  uint32
	root   bool // it is the client itself
}

// ident is what was asked, whoever it was asked of.
type ident struct {
	dev  string
	req  uint32
	sub  uint32 // control command, class or function
	size uint32 // bytes of the parameters behind the argument
}

// key is an ident and a subject: an *object, a *file, a class number, or nil
// for any.
type key struct {
	ident
	subject any
}

// answer is one recorded ioctl.
type answer struct {
	index   int // of the event, for reports
	id      ident
	subject any
	client  *client // of the handles in it, nil if it names none
	// The handles of the client and of the subject, 0 none.
	clientHandle, subjectHandle uint32

	pid   int32
	tid   int32
	ret   int64
	parts []part

	made *object // the object that it brought into being
	ends *object // the object that it freed
	used bool
}

// makesClient reports whether the object that the call made is a root client.
func (a *answer) makesClient() bool { return a.made != nil && a.made.root }

// part is a piece of memory of a call.
type part struct {
	field  string
	parent int
	roles  []role // of the bytes, of an element's in an array; nil unknown
	addr   uint64
	size   int // bytes that the call refers to
	in     []byte
	out    []byte
	fds    map[int]string // offset → node, of members that are descriptors
}

// roleAt returns the role of the byte at offset i.
func (p *part) roleAt(i int) role {
	if len(p.roles) == 0 {
		return rolePlain
	}
	return p.roles[i%len(p.roles)]
}

// load reads a recording to its end.
func load(r *traces.Reader) (*recording, error) {
	rec := &recording{
		header:  r.Header,
		nodes:   make(map[string]*node),
		refuse:  make(map[string]int64),
		files:   make(map[uint32]*file),
		clients: make(map[uint32]*client),
		streams: make(map[key][]*answer),
		fds:     make(map[fdOf]string),
		layouts: make(layouts),
	}
	dec := ioctl.NewDecoder(&rec.header)
	ev := new(traces.Event)
	for n := 0; ; n++ {
		err := r.Next(ev)
		if errors.Is(err, io.EOF) && !errors.As(err, new(*traces.DamageError)) {
			break
		}
		if err != nil {
			rec.damage = err
			break
		}
		rec.add(dec, ev, n)
	}
	if len(rec.answers) == 0 && len(rec.nodes) == 0 {
		if rec.damage != nil {
			return nil, fmt.Errorf("%w: %w", ErrEmpty, rec.damage)
		}
		return nil, ErrEmpty
	}
	rec.abi = dec.ABI(rec.header.PID)
	if rec.header.Driver == "" && len(rec.answers) > 0 {
		rec.abi = dec.ABI(rec.answers[0].pid)
		rec.header.Driver = rec.abi.Version().String()
	}
	return rec, nil
}

// add enters one event.
func (rec *recording) add(dec *ioctl.Decoder, ev *traces.Event, n int) {
	switch ev.Kind {
	case traces.KindOpen, traces.KindDup:
		dec.Decode(ev)
		rec.addOpen(ev)
	case traces.KindClose:
		dec.Decode(ev)
		delete(rec.fds, fdOf{ev.PID, ev.FD})
	case traces.KindFork:
		dec.Decode(ev)
		rec.inherit(ev)
	case traces.KindIoctl:
		c := dec.Decode(ev)
		const lost = traces.FlagUnfinished | traces.FlagNoExit | traces.FlagRestarted
		if ev.Dev == "" || ev.Flags&lost != 0 || c.Own {
			return // no result to give, or nobody to give it to
		}
		rec.addIoctl(ev, &c, n)
	case traces.KindMmap, traces.KindExec:
		dec.Decode(ev)
	}
}

// inherit gives a new process its parent's descriptors.
func (rec *recording) inherit(ev *traces.Event) {
	if ev.Flags&traces.FlagThread != 0 {
		return
	}
	for of, node := range maps.Clone(rec.fds) {
		if of.pid == ev.PID {
			rec.fds[fdOf{ev.Child, of.fd}] = node
		}
	}
}

func (rec *recording) addOpen(ev *traces.Event) {
	if ev.Ret < 0 {
		if ev.Kind == traces.KindOpen && rec.refuse[ev.Path] == 0 {
			rec.refuse[ev.Path] = ev.Ret
		}
		return
	}
	if ev.Dev == "" {
		return
	}
	rec.file(ev.File, ev.Dev, ev.Rdev)
	rec.fds[fdOf{ev.PID, ev.FD}] = ev.Dev
	if ev.Kind == traces.KindDup {
		rec.fds[fdOf{ev.PID, int32(ev.Ret)}] = ev.Dev
	}
}

// file returns the open file of that number; files of which no open was
// recorded (FlagAttached) come into being at their first use.
func (rec *recording) file(id uint32, dev string, rdev uint64) *file {
	if f := rec.files[id]; f != nil && id != 0 && f.node.name == dev {
		return f
	}
	nd := rec.nodes[dev]
	if nd == nil {
		nd = &node{name: dev, rdev: rdev}
		rec.nodes[dev] = nd
	}
	if id == 0 && len(nd.files) > 0 {
		return nd.files[len(nd.files)-1]
	}
	f := &file{node: nd}
	nd.files = append(nd.files, f)
	rec.files[id] = f
	return f
}

// addIoctl turns a finished ioctl into an answer.
func (rec *recording) addIoctl(ev *traces.Event, c *ioctl.Call, n int) {
	f := rec.file(ev.File, ev.Dev, ev.Rdev)
	rec.fds[fdOf{ev.PID, ev.FD}] = ev.Dev
	a := &answer{index: n, pid: ev.PID, tid: ev.TID, ret: ev.Ret, id: identOf(ev, c)}
	a.client = rec.clients[c.Client]
	a.subject = f
	a.clientHandle, a.subjectHandle = c.Client, subjectHandle(ev.Dev, c)
	if o := a.client.lookup(a.subjectHandle); o != nil {
		a.subject = o
	}
	a.parts = partsOf(rec.layouts, c, true)
	for i := range a.parts {
		rec.resolveFDs(&a.parts[i], ev.PID)
	}
	rec.answers = append(rec.answers, a)
	rec.index(a)
	if ev.Ret < 0 || c.HasStatus && c.Status != rm.OK {
		return
	}
	switch h, kind := effectOf(ev.Dev, c); kind {
	case makesClient:
		cl := &client{objects: make(map[uint32]*object)}
		a.made = &object{cl, h, c.SubNr, true}
		cl.objects[h] = a.made
		rec.clients[h] = cl
	case makesObject:
		if a.client != nil {
			a.made = &object{a.client, h, c.SubNr, false}
			a.client.objects[h] = a.made
		}
	case endsObject:
		a.ends = a.client.lookup(h)
	}
}

// index enters an answer into the streams that it is looked for in.
func (rec *recording) index(a *answer) {
	put := func(subject any) {
		k := key{a.id, subject}
		rec.streams[k] = append(rec.streams[k], a)
	}
	put(a.subject)
	if o, ok := a.subject.(*object); ok {
		put(o.class)
	}
	put(nil)
}

// resolveFDs notes what the descriptors among the parameters were of.
func (rec *recording) resolveFDs(p *part, pid int32) {
	for i := 0; i+4 <= len(p.in); i += 4 {
		if p.roleAt(i) != roleFD {
			continue
		}
		if name := rec.fds[fdOf{pid, int32(word(p.in, i))}]; name != "" {
			if p.fds == nil {
				p.fds = make(map[int]string)
			}
			p.fds[i] = name
		}
	}
}

// lookup returns an object by its handle; nil for a nil client.
func (c *client) lookup(h uint32) *object {
	if c == nil {
		return nil
	}
	return c.objects[h]
}

// identOf says what an ioctl asks.
func identOf(ev *traces.Event, c *ioctl.Call) ident {
	id := ident{dev: ev.Dev, req: ev.Request()}
	if c.HasSub {
		id.sub = c.SubNr
	}
	if c.Xfer {
		// All transferred escapes have one request: tell them apart by their own.
		id.sub ^= c.Nr << 24
	}
	first := argPart(c) + 1
	if len(c.Parts) > first {
		id.size = uint32(c.Parts[first].Len)
	}
	return id
}

// argPart returns the index of the part that is the escape's own argument.
func argPart(c *ioctl.Call) int {
	if c.Xfer && len(c.Parts) > 1 {
		return 1
	}
	return 0
}

// isRM reports whether a node speaks the resource manager's escapes.
func isRM(dev string) bool {
	d := ioctl.DeviceOf(dev, 0)
	return d == ioctl.DeviceCtl || d == ioctl.DeviceGPU
}

// subjectHandle returns the handle of the object that a call is asked on, 0 if
// there is none. For calls that make an object that is its parent.
func subjectHandle(dev string, c *ioctl.Call) uint32 {
	if c.Client == 0 || !isRM(dev) {
		return 0
	}
	switch c.Nr {
	case escRMAlloc, escRMAllocObject, escRMAllocMemory, escRMDupObject, escRMAllocCtxDMA2:
		return c.Parent
	}
	for _, h := range [...]uint32{c.Object, c.Parent} {
		if h != 0 {
			return h
		}
	}
	return c.Client
}

// effect is what a successful call does to the objects.
type effect uint8

const (
	noEffect effect = iota
	makesClient
	makesObject
	endsObject
)

// effectOf returns the effect of a call, and the handle of the object.
func effectOf(dev string, c *ioctl.Call) (uint32, effect) {
	if !isRM(dev) {
		return 0, noEffect
	}
	switch c.Nr {
	case escRMAlloc:
		if c.Class != nil && c.Class.Kind == rm.Client || c.Client == 0 {
			return c.New, makesClient
		}
		return c.New, makesObject
	case escRMAllocObject, escRMAllocMemory, escRMDupObject, escRMAllocCtxDMA2:
		return c.New, makesObject
	case escRMFree:
		return c.Object, endsObject
	}
	return 0, noEffect
}

// partsOf takes over a decoded call's parts; keep copies their bytes, which
// otherwise are good as long as the call's are.
func partsOf(l layouts, c *ioctl.Call, keep bool) []part {
	parts := make([]part, len(c.Parts))
	for i := range c.Parts {
		p := &c.Parts[i]
		parts[i] = part{field: p.Field, parent: p.Parent, addr: p.Addr, size: p.Len, in: p.In, out: p.Out}
		if p.Struct != nil && (p.Array || p.Struct.Size == p.Len) {
			parts[i].roles = l.of(p.Struct)
		}
		if i == 0 {
			parts[i].parent = -1
		}
		if !keep {
			continue
		}
		parts[i].in = append([]byte(nil), p.In...)
		parts[i].out = append([]byte(nil), p.Out...)
	}
	return parts
}
