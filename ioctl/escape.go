package ioctl

import (
	"nvtrace/rm"
	"nvtrace/traces"
)

// escape decodes an escape of number nr whose argument is segment seg.
func (d *Decoder) escape(abi *rm.ABI, ev *traces.Event, c *Call, nr uint32, seg int) {
	c.Nr = nr
	esc := abi.Escape(nr)
	if esc == nil {
		c.Unknown = UnknownRequest
		d.add(ev, seg, Part{})
		return
	}
	c.Escape, c.Name = esc, esc.Name
	if seg < 0 {
		if len(esc.Params) > 0 && ev.Arg() != 0 && iocSize(ev.Request()) > 0 {
			c.Unknown = UnknownBytes
		}
		return
	}
	size := int(ev.Mem[seg].Len)
	layout := esc.Layout(size)
	part := Part{Struct: layout, Array: esc.Array}
	if layout != nil {
		part.Elem = layout.Size
	}
	p := d.add(ev, seg, part)
	if p == nil {
		return
	}
	if layout == nil {
		if len(esc.Params) > 0 {
			c.Unknown = UnknownSize
		} else if size > 0 {
			c.Unknown = UnknownBytes
		}
		return
	}
	if len(p.In) < min(layout.Size, size) {
		c.Unknown = UnknownBytes
		if len(p.In) < minNamed {
			return
		}
	}
	self := d.n - 1
	d.names(abi, c, p)
	d.status(c, p)
	for i := range esc.Embedded {
		if e := &esc.Embedded[i]; e.In == layout {
			d.follow(abi, ev, c, e, self, 0)
		}
	}
}

// unread notes that bytes of a call were not recorded, unless that was on
// purpose.
func unread(ev *traces.Event, c *Call) {
	if c.Unknown == Known && ev.Flags&traces.FlagNoExit == 0 {
		c.Unknown = UnknownBytes
	}
}

// minNamed is how many bytes of an argument it takes to name its subject.
const minNamed = 16

// names fills in the objects and the subject of an escape. The members' places
// are the same in every driver version and variant.
func (d *Decoder) names(abi *rm.ABI, c *Call, p *Part) {
	in, after := p.In, p.In
	if p.Out != nil {
		after = p.Out
	}
	switch c.Nr {
	case escControl: // NVOS54: hClient, hObject, cmd
		c.Client, c.Object = load32(in, 0), load32(in, 4)
		c.Finn = load32(in, 12)&controlFinn != 0
		d.control(abi, c, load32(in, 8), int(load32(in, 24)))
	case escAlloc, escAllocObject, escAllocMemory: // NVOS21/64, NVOS05, NVOS02: hRoot, hObjectParent, hObjectNew, hClass
		c.Client, c.Parent, c.New = load32(in, 0), load32(in, 4), load32(after, 8)
		c.Object = c.New
		d.class(abi, c, load32(in, 12))
		if c.Client == 0 {
			c.Client = c.New // a client is its own
		}
	case escAllocCtxDMA2: // NVOS39: hObjectParent, hSubDevice, hObjectNew, hClass; the client is the parent
		c.Client, c.Parent, c.New = load32(in, 0), load32(in, 0), load32(after, 8)
		c.Object = c.New
		d.class(abi, c, load32(in, 12))
	case escFree: // NVOS00: hRoot, hObjectParent, hObjectOld
		c.Client, c.Parent, c.Object = load32(in, 0), load32(in, 4), load32(in, 8)
	case escDupObject: // NVOS55: hClient, hParent, hObject, hClientSrc, hObjectSrc
		c.Client, c.Parent, c.New = load32(in, 0), load32(in, 4), load32(after, 8)
		c.Object = c.New
	case escVidHeap: // NVOS32: hRoot, hObjectParent, function
		c.Client, c.Parent = load32(in, 0), load32(in, 4)
		c.SubNr, c.HasSub = load32(in, 8), true
		c.Sub = valueName(fieldOf(p.Struct, "function"), c.SubNr)
	case escMapMemory, escUnmapMemory, escUpdateMapping: // NVOS33, NVOS34, NVOS56: hClient, hDevice, hMemory
		c.Client, c.Parent, c.Object = load32(in, 0), load32(in, 4), load32(in, 8)
	case escXfer:
		// The nested escape names itself when it is followed.
	default:
		c.Client = clientOf(p.Struct, in)
	}
}

// clientOf returns the value of the first member if that is the client's handle.
func clientOf(s *rm.Struct, in []byte) uint32 {
	if len(s.Fields) == 0 || s.Union {
		return 0
	}
	if f := &s.Fields[0]; f.Offset == 0 && f.Size == 4 && (f.Name == "hClient" || f.Name == "hRoot") {
		return load32(in, 0)
	}
	return 0
}

// valueName returns the name of a member's plain value, "" if it has none.
func valueName(f *rm.Field, v uint32) string {
	if f == nil || f.Domain == nil {
		return ""
	}
	for _, val := range f.Domain.Values {
		if val.V == uint64(v) {
			return val.Name
		}
	}
	return ""
}

// control names a control command.
func (d *Decoder) control(abi *rm.ABI, c *Call, cmd uint32, size int) {
	c.SubNr, c.HasSub = cmd, true
	ctl := abi.Control(cmd)
	if ctl == nil {
		c.Unknown = UnknownControl
		if isClosed(cmd) {
			c.Unknown = ClosedControl
		}
		return
	}
	c.Control, c.Sub = ctl, ctl.Name
	switch {
	case ctl.Params == nil && size > 0:
		c.Unknown = UnknownBytes
	case c.Finn: // packed: of any size
	case ctl.Params != nil && ctl.Size != size:
		c.Unknown = UnknownSize
		if other, v := abi.ControlLayout(cmd, size); other != nil {
			// A layout that fits, though another version's, under this version's name.
			c.Control, c.Other = other, v
			c.Unknown = Known
		}
	}
}

// Bits of a control command number (ctrlxxxx.h): commands of the GSS-legacy
// range and of class NV2081_BINAPI go to code whose parameters are not public.
const (
	gssLegacyMask = 0x8000
	classBinAPI   = 0x2081
)

// isClosed reports whether a control command goes to the closed parts of the driver.
func isClosed(cmd uint32) bool {
	return cmd&gssLegacyMask != 0 || cmd>>16 == classBinAPI
}

// class names an object class.
func (d *Decoder) class(abi *rm.ABI, c *Call, id uint32) {
	c.SubNr, c.HasSub = id, true
	c.Class = abi.Class(id)
	if c.Class == nil {
		c.Unknown = UnknownClass
		return
	}
	c.Sub = c.Class.Name
}

// follow adds the part that pointer e, in part parent, leads to.
func (d *Decoder) follow(abi *rm.ABI, ev *traces.Event, c *Call, e *rm.Embedded, parent, depth int) {
	if depth >= maxNesting {
		return
	}
	t := resolve(abi, e, d.parts[parent].In)
	if !t.ok {
		return
	}
	seg := findSeg(ev, t.addr, parent+1)
	if e.Of == rm.TargetEscape {
		c.Xfer = true
		if seg < 0 {
			c.Nr, c.Unknown = t.cmd, UnknownBytes
			if esc := abi.Escape(t.cmd); esc != nil {
				c.Escape, c.Name = esc, esc.Name
			}
			return
		}
		d.escape(abi, ev, c, t.cmd, seg)
		return
	}
	part := Part{Field: e.Field, Parent: parent, Offset: e.Offset, Struct: e.Struct, Elem: e.Elem, Text: e.Text}
	switch e.Of {
	case rm.TargetControl:
		c.Finn = t.finn
		part.Struct, part.Elem = nil, 1
		if c.Control != nil && !t.finn {
			part.Struct = c.Control.Params
		}
	case rm.TargetAlloc:
		c.Finn = t.finn
		part.Struct, part.Elem = nil, 1
		if t.class != nil && !t.finn {
			part.Struct = t.class.Alloc
		}
	default:
		part.Array = true
	}
	p := d.add(ev, seg, part)
	if p == nil {
		if e.Of != rm.TargetArray {
			unread(ev, c)
		}
		return
	}
	if c.HasStatus && c.Status != rm.OK && (e.Of == rm.TargetControl || depth > 0) {
		p.Written = copiesOut(c.Control)
	}
	if e.Of != rm.TargetControl || t.finn || c.Control == nil {
		return
	}
	self := d.n - 1
	for i := range c.Control.Embedded {
		d.follow(abi, ev, c, &c.Control.Embedded[i], self, depth+1)
	}
}
