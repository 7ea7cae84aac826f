package rm

import (
	"iter"
	"math"
)

// Tree follows the objects that programs make in the driver: who made what
// under what, with how much memory, mapped where, and how it ended. It is pure
// bookkeeping, fed with operations that have already been decoded and that the
// driver has confirmed; see [AllocOp] and the other inputs.
//
// Each operation costs the same however many objects live (freeing costs what
// is freed). A Tree and what it returns must be used by one goroutine at a
// time; [Object] and [Mapping] values change as operations come in.
type Tree struct {
	o       TreeOptions
	live    map[Ref]*Object
	objects []*Object // all, in order of appearance; without the dead if o.Forget
	serial  uint32
	tasks   map[int32]*Task
	files   map[uint32]*OpenFile
	totals  map[TotalKey]*Total
	maps    mapTable
	uvm     map[uint32]*UVMSpace
	dead    int // dead objects in objects, where they are forgotten
}

// TreeOptions are a tree's options. A nil pointer means all zero.
type TreeOptions struct {
	// Forget drops objects that have ended, which bounds memory in long runs;
	// then [Tree.At] knows living objects only.
	Forget bool
	// Notify, if set, is called for every object that appears or ends.
	Notify func(o *Object, born bool)
}

// NewTree returns an empty tree.
func NewTree(o *TreeOptions) *Tree {
	t := &Tree{
		live: map[Ref]*Object{}, tasks: map[int32]*Task{}, files: map[uint32]*OpenFile{},
		totals: map[TotalKey]*Total{}, uvm: map[uint32]*UVMSpace{},
	}
	t.maps.init()
	if o != nil {
		t.o = *o
	}
	return t
}

// Alive is [Object.Died] and the like of what has not ended.
const Alive = math.MaxInt64

// Object is an object of the resource manager.
type Object struct {
	ID uint32 // serial number, from 1
	Ref
	ClassID uint32
	Class   *Class // nil: unknown class, or an object not seen being made
	Kind    Kindred
	Ord     int   // number among the objects of its nick in its process, from 0
	PID     int32 // process that made it
	Parent  *Object
	Client  *Object // the client that holds it; itself for a client
	File    uint32  // open file that a client lives on
	Born    int64   // when it was made; of a Guessed object, when it was first named
	Died    int64   // when it ended, Alive if it has not
	End     End
	By      *Object // EndParent, EndDependency: whose end took it along
	Guessed bool    // not seen being made: nvtrace attached later, or its making was lost
	Dup     *Object // the object that it is another handle of, nil if none
	Import  uint32  // open file that it was imported from, 0 if it was not
	DMABufs []int32 // descriptors of the dma-bufs that it was exported into
	Attr    Attr

	nick       string
	back       *backing
	children   list // of *Object.sibling
	sibling    link
	dependants list // of *dependency.up
	deps       []*dependency
	mappings   map[*Mapping]struct{}
	dmas       map[*DMAMapping]struct{}
}

// End says how an object ended.
type End uint8

// The ends.
const (
	EndNone       End = iota // it lives
	EndFreed                 // the program freed it
	EndParent                // the program freed something above it
	EndDependency            // the program freed something that it depends on
	EndClosed                // the driver freed it when its file was closed
	EndExit                  // the driver freed it when the process ended
	EndReplaced              // another object took its handle: its end was not seen
)

// String says the end in a few words.
func (e End) String() string {
	switch e {
	case EndFreed:
		return "freed by the program"
	case EndParent:
		return "freed with its parent"
	case EndDependency:
		return "freed with what it depends on"
	case EndClosed:
		return "freed by the driver when the file was closed"
	case EndExit:
		return "freed by the driver when the process ended"
	case EndReplaced:
		return "end not seen"
	}
	return "live"
}

// dependency ties an object to one that it does not outlive.
type dependency struct {
	of, on *Object
	up     link // in on.dependants
}

// Task is a process that uses the driver.
type Task struct {
	PID, Parent int32 // Parent: 0 unknown
	Name        string
	Born, Died  int64

	ords map[string]int
}

// OpenFile is an open device file.
type OpenFile struct {
	ID         uint32
	Node       string // name below /dev, "" unknown
	PID        int32  // process that opened it
	Born, Died int64
	Exports    []*Object // objects put into it, ended ones too

	clients map[*Object]struct{}
}

// Task returns a process, nil if it is not known.
func (t *Tree) Task(pid int32) *Task { return t.tasks[pid] }

// File returns an open file, nil if it is not known.
func (t *Tree) File(id uint32) *OpenFile { return t.files[id] }

func (t *Tree) task(at At) *Task {
	k := t.tasks[at.PID]
	if k == nil {
		k = &Task{PID: at.PID, Born: at.Time, Died: Alive, ords: map[string]int{}}
		t.tasks[at.PID] = k
	}
	return k
}

func (t *Tree) file(at At) *OpenFile {
	f := t.files[at.File]
	if f == nil {
		f = &OpenFile{ID: at.File, PID: at.PID, Born: at.Time, Died: Alive}
		t.files[at.File] = f
	}
	return f
}

// Process notes a process: its parent and name, as far as they are known.
func (t *Tree) Process(at At, parent int32, name string) {
	k := t.task(at)
	if parent != 0 {
		k.Parent = parent
	}
	if name != "" {
		k.Name = name
	}
}

// Exit notes that a process has ended. What it leaves is freed by the
// [Tree.CloseFile] of its files.
func (t *Tree) Exit(at At) {
	t.task(at).Died = at.Time
	t.maps.exit(at.PID)
}

// Open notes that a device file was opened: At.File is new.
func (t *Tree) Open(at At, node string) {
	if old := t.files[at.File]; old != nil && old.Died == Alive && old.Node == "" {
		old.Node = node // seen in use before its open
		return
	}
	t.files[at.File] = &OpenFile{ID: at.File, Node: node, PID: at.PID, Born: at.Time, Died: Alive}
	t.task(at)
}

// CloseFile notes that the last descriptor of an open file is gone; exit says
// that it went with its process. The driver frees the clients that live on it.
func (t *Tree) CloseFile(at At, exit bool) {
	t.closeUVM(at)
	t.maps.closeFile(at)
	f := t.files[at.File]
	if f == nil {
		return
	}
	end := EndClosed
	if exit {
		end = EndExit
	}
	for c := range f.clients {
		t.end(c, at, end)
	}
	f.Died, f.clients = at.Time, nil
}

// Object returns the living object of a handle, nil if there is none.
func (t *Tree) Object(r Ref) *Object { return t.live[r] }

// Live returns how many objects live.
func (t *Tree) Live() int { return len(t.live) }

// Objects iterates over all objects in order of appearance, ended ones too.
func (t *Tree) Objects() iter.Seq[*Object] {
	return func(yield func(*Object) bool) {
		for _, o := range t.objects {
			if !yield(o) {
				return
			}
		}
	}
}

// At iterates over the objects that lived at a time, in order of appearance.
func (t *Tree) At(time int64) iter.Seq[*Object] {
	return func(yield func(*Object) bool) {
		for _, o := range t.objects {
			if o.Born <= time && time < o.Died && !yield(o) {
				return
			}
		}
	}
}

// Alloc adds an object. It returns the object, whose place is guessed if its
// client or parent was not seen.
func (t *Tree) Alloc(op *AllocOp) *Object {
	o := t.add(op.At, op.Ref, op.ClassID, op.Class)
	o.Attr = op.Attr
	t.place(o, op.At, op.Parent)
	t.bind(o, op.At)
	t.account(o, nil)
	t.born(o)
	return o
}

// Duplicate adds another handle of an object. It is of the same class and has
// the same memory, which is counted once.
func (t *Tree) Duplicate(op *DupOp) *Object {
	src := t.live[op.Src]
	if src == nil {
		src = t.guess(op.At, op.Src, Other)
	}
	o := t.add(op.At, op.Ref, src.ClassID, src.Class)
	o.Dup, o.Kind, o.nick = src, src.Kind, src.nick
	t.place(o, op.At, op.Parent)
	t.share(o, src)
	t.born(o)
	return o
}

// share gives o the attributes and the memory of src.
func (t *Tree) share(o, src *Object) {
	o.Attr = src.Attr
	o.Attr.Deps, o.Attr.FD = nil, -1
	t.account(o, src.back)
}

// Export notes that objects were put into an open file.
func (t *Tree) Export(op *ExportOp) {
	if op.Into == 0 {
		return
	}
	f := t.file(At{op.Time, op.PID, op.Into})
	for _, h := range op.Handles {
		r := Ref{op.Client, h}
		o := t.live[r]
		if o == nil {
			o = t.guess(op.At, r, Other)
		}
		f.Exports = append(f.Exports, o)
	}
}

// ExportDMABuf notes that objects were put into a dma-buf. Who takes it, maybe
// another driver, does not do so through RM: the tree does not follow it.
func (t *Tree) ExportDMABuf(op *DMABufOp) {
	for _, h := range op.Handles {
		r := Ref{op.Client, h}
		o := t.live[r]
		if o == nil {
			o = t.guess(op.At, r, Memory)
		}
		if len(o.DMABufs) < maxDMABufs {
			o.DMABufs = append(o.DMABufs, op.FD)
		}
	}
}

// maxDMABufs bounds what is noted of one object.
const maxDMABufs = 64

// Import adds an object that was taken out of an open file. If the tree knows
// what was put there, the object is another handle of that.
func (t *Tree) Import(op *ImportOp) *Object {
	var src *Object
	if f := t.files[op.From]; f != nil && op.Index >= 0 && op.Index < len(f.Exports) {
		src = f.Exports[op.Index]
	}
	id, class := op.ClassID, op.Class
	if class == nil && src != nil {
		id, class = src.ClassID, src.Class
	}
	o := t.add(op.At, op.Ref, id, class)
	o.Import, o.Dup = op.From, src
	t.place(o, op.At, op.Parent)
	if src != nil {
		t.share(o, src)
	} else {
		o.Attr = Attr{FD: -1}
		t.account(o, nil)
	}
	t.born(o)
	return o
}

// add makes an object, named but without a place.
func (t *Tree) add(at At, r Ref, id uint32, class *Class) *Object {
	if old := t.live[r]; old != nil {
		t.end(old, at, EndReplaced)
	}
	t.serial++
	o := &Object{ID: t.serial, Ref: r, ClassID: id, Class: class, PID: at.PID, Born: at.Time, Died: Alive, nick: "obj"}
	if class != nil {
		o.Kind, o.nick = class.Kind, class.Nick
	}
	o.sibling.object = o
	t.live[r] = o
	t.objects = append(t.objects, o)
	return o
}

func (t *Tree) born(o *Object) {
	k := t.task(At{Time: o.Born, PID: o.PID})
	o.Ord = k.ords[o.nick]
	k.ords[o.nick]++
	if t.o.Notify != nil {
		t.o.Notify(o, true)
	}
}

// place puts an object under its parent, making up what was not seen.
func (t *Tree) place(o *Object, at At, parent uint32) {
	if o.IsClient() {
		o.Client, o.File = o, at.File
		t.onFile(o, at)
		return
	}
	o.Client = t.client(at, o.Ref.Client)
	p := o.Client
	if parent != o.Ref.Client && parent != 0 {
		r := Ref{o.Ref.Client, parent}
		if p = t.live[r]; p == nil || p == o {
			p = t.guess(at, r, Other)
		}
	}
	o.Parent = p
	p.children.push(&o.sibling)
}

// IsClient reports whether the object is a client: the root of a tree.
func (o *Object) IsClient() bool { return o.Ref.Client == o.Ref.Handle }

func (t *Tree) onFile(o *Object, at At) {
	if at.File == 0 {
		return
	}
	f := t.file(at)
	if f.clients == nil {
		f.clients = map[*Object]struct{}{}
	}
	f.clients[o] = struct{}{}
}

func (t *Tree) client(at At, h uint32) *Object {
	if c := t.live[Ref{h, h}]; c != nil {
		return c
	}
	return t.guess(at, Ref{h, h}, Client)
}

// guess makes up an object that is named but was not seen being made.
func (t *Tree) guess(at At, r Ref, kind Kindred) *Object {
	o := t.add(at, r, 0, nil)
	o.Guessed, o.Kind, o.Attr.FD = true, kind, -1
	if o.IsClient() {
		o.Kind, o.nick = Client, "client"
	}
	t.place(o, at, r.Client)
	t.account(o, nil)
	t.born(o)
	return o
}

// bind ties an object to what it depends on.
func (t *Tree) bind(o *Object, at At) {
	for _, h := range o.Attr.Deps {
		r := Ref{o.Ref.Client, h}
		on := t.live[r]
		if on == nil {
			on = t.guess(at, r, Other)
		}
		if on == o {
			continue
		}
		d := &dependency{of: o, on: on}
		d.up.object = o
		on.dependants.push(&d.up)
		o.deps = append(o.deps, d)
	}
}
