package ioctl

import (
	"strconv"
	"time"
	"unicode/utf8"

	"nvtrace/rm"
	"nvtrace/traces"
	"nvtrace/traces/escape"
)

// Clock says how a line shows its time.
type Clock uint8

// The ways to show time.
const (
	ClockRelative Clock = iota // seconds since the recording began
	ClockDelta                 // seconds since the previous printed line
	ClockWall                  // time of day, local
	ClockEpoch                 // seconds since 1970
	ClockNone
)

// Namer gives an object a name for printing: it appends the name to dst, or
// returns dst as it was where it knows none.
type Namer func(dst []byte, client, handle uint32) []byte

// LineOptions say how lines look. The zero value, and nil, are good defaults.
type LineOptions struct {
	Clock    Clock
	Start    int64                      // ClockWall, ClockEpoch: the header's Start, ns since the Unix epoch
	Duration bool                       // append the call's duration in seconds, <0.000021>
	Width    int                        // longest line in characters, cut with "…"; 0 no limit. At most 100: what stands before the call is shortened
	Elems    int                        // elements of an array that are shown, and a quarter of the characters of a string; 0 means 32, negative all
	Zeros    bool                       // show members that are zero too
	Hex      bool                       // follow the line with a dump of the call's memory
	Color    bool                       // mark names, errors and times with ANSI sequences
	NoPID    bool                       // leave out the process and thread
	Indent   int                        // spaces before what the line is about
	Name     Namer                      // nil prints handles in hexadecimal
	FDName   func(pid, fd int32) string // names a descriptor's file; nil uses what the Decoder saw opened
	Demangle func(name string) string   // names functions for people; nil leaves them as they are
}

const defaultElems = 32

// appendLine decodes ev and appends its line, newline included:
//
//	[ 4711  4712]    12.003412 nvidiactl      NV_ESC_RM_CONTROL(NV2080_CTRL_CMD_GPU_GET_NAME_STRING, 0xc1d00001:0x5c000003) {gpuNameString.ascii → "NVIDIA H200"} = 0 <0.000021>
//
// Decode must not be called for the same event; AppendCall prints what it
// returned.
func (d *Decoder) appendLine(dst []byte, ev *traces.Event, o *LineOptions) []byte {
	c := d.Decode(ev)
	return d.AppendCall(dst, ev, &c, o)
}

// AppendCall appends the line of an event that Decode has decoded as c.
func (d *Decoder) AppendCall(dst []byte, ev *traces.Event, c *Call, o *LineOptions) []byte {
	if o == nil {
		o = &LineOptions{}
	}
	start := len(dst)
	p := &d.printer
	p.set(d, dst, ev, c, o)
	p.prefix(ev, o, ev.Time-d.last)
	p.spaces(o.Indent)
	d.last = ev.Time
	if ev.Kind == traces.KindIoctl {
		if !o.narrow() || c.Name == "" { // else the name says it
			p.device(ev)
		}
		p.ioctl(ev)
		p.result(ev)
	} else {
		p.plainEvent(ev)
	}
	if o.Duration && ev.Dur > 0 && ev.Kind <= traces.KindIoctl && ev.Flags&(traces.FlagNoExit|traces.FlagUnfinished) == 0 {
		p.text(" ")
		p.mark(escape.ColorDim, "<")
		p.seconds(ev.Dur, 0)
		p.mark(escape.ColorOff, ">")
	}
	if o.Width > 0 {
		p.dst = cutLine(p.dst, start, o.Width)
	}
	p.dst = append(p.dst, '\n')
	if o.Hex {
		p.dump(ev)
	}
	dst = p.dst
	p.release()
	return dst
}

// AppendText appends a line of an event's that another package has put into
// words: the time, process and thread of ev as AppendCall shows them, then text.
func (d *Decoder) AppendText(dst []byte, ev *traces.Event, text []byte, o *LineOptions) []byte {
	if o == nil {
		o = &LineOptions{}
	}
	start := len(dst)
	p := &d.printer
	p.set(d, dst, ev, nil, o)
	p.prefix(ev, o, ev.Time-d.last)
	p.spaces(o.Indent)
	d.last = ev.Time
	dst = append(p.dst, text...)
	if o.Width > 0 {
		dst = cutLine(dst, start, o.Width)
	}
	p.release()
	return append(dst, '\n')
}

// set prepares the printer for a call; c is nil where nothing of it is printed.
func (p *printer) set(d *Decoder, dst []byte, ev *traces.Event, c *Call, o *LineOptions) {
	if c != nil {
		p.own, p.used = *c, true
	}
	p.dst, p.abi, p.call, p.pid = dst, d.ABI(ev.PID), &p.own, ev.PID
	p.name, p.zeros, p.color = o.Name, o.Zeros, o.Color
	p.links, p.fds, p.demangle = &d.links, o.FDName, o.Demangle
	p.elems = o.Elems
	if p.elems == 0 {
		p.elems = defaultElems
	}
	p.part, p.depth = 0, 0
	p.infos = d
}

// release lets go of everything of the caller's.
func (p *printer) release() {
	p.dst, p.call, p.name, p.fds, p.demangle = nil, nil, nil, nil, nil
	if p.used {
		p.own, p.used = Call{}, false
	}
}

// mark appends text, and a colour where colours are wanted: before the text, or
// after it if it is escape.ColorOff.
func (p *printer) mark(color, text string) {
	if p.color && color != escape.ColorOff {
		p.dst = append(p.dst, color...)
	}
	p.dst = append(p.dst, text...)
	if p.color && color == escape.ColorOff {
		p.dst = append(p.dst, color...)
	}
}

func (p *printer) text(s string) { p.dst = append(p.dst, s...) }

// maxIndent bounds what calls in calls are moved to the right.
const maxIndent = 64

func (p *printer) spaces(n int) {
	for range min(n, maxIndent) {
		p.dst = append(p.dst, ' ')
	}
}

// pad appends spaces up to width columns after start.
func (p *printer) pad(start, width int) {
	for len(p.dst)-start < width {
		p.dst = append(p.dst, ' ')
	}
}

// narrowWidth is the widest line in which the call would have too little room behind all
// that stands before it.
const narrowWidth = 100

// narrow reports whether lines are so short that they leave out what can be told from the
// rest: the process, of which the thread's id is enough, and the device of a named ioctl.
func (o *LineOptions) narrow() bool { return o.Width > 0 && o.Width <= narrowWidth }

// prefix appends process, thread and time.
func (p *printer) prefix(ev *traces.Event, o *LineOptions, delta int64) {
	seconds := 12
	if o.narrow() {
		seconds = 8
	}
	if !o.NoPID {
		p.dst = append(p.dst, '[')
		if !o.narrow() {
			p.padded(int64(ev.PID), 5)
			p.dst = append(p.dst, ' ')
		}
		p.padded(int64(ev.TID), 5)
		p.dst = append(p.dst, ']', ' ')
	}
	switch o.Clock {
	case ClockRelative:
		p.mark(escape.ColorDim, "")
		p.seconds(ev.Time, seconds)
		p.mark(escape.ColorOff, "")
		p.dst = append(p.dst, ' ')
	case ClockDelta:
		p.mark(escape.ColorDim, "")
		p.seconds(delta, seconds)
		p.mark(escape.ColorOff, "")
		p.dst = append(p.dst, ' ')
	case ClockWall:
		p.mark(escape.ColorDim, "")
		p.dst = time.Unix(0, o.Start+ev.Time).AppendFormat(p.dst, "15:04:05.000000")
		p.mark(escape.ColorOff, "")
		p.dst = append(p.dst, ' ')
	case ClockEpoch:
		p.mark(escape.ColorDim, "")
		p.seconds(o.Start+ev.Time, seconds)
		p.mark(escape.ColorOff, "")
		p.dst = append(p.dst, ' ')
	}
}

// padded appends a number right-aligned.
func (p *printer) padded(v int64, width int) {
	var buf [20]byte
	s := strconv.AppendInt(buf[:0], v, 10)
	for i := len(s); i < width; i++ {
		p.dst = append(p.dst, ' ')
	}
	p.dst = append(p.dst, s...)
}

// seconds appends nanoseconds as seconds with six decimals, right-aligned.
func (p *printer) seconds(ns int64, width int) {
	var buf [32]byte
	s := buf[:0]
	us := ns / 1000
	if us < 0 {
		s = append(s, '-')
		us = -us
	}
	s = strconv.AppendInt(s, us/1_000_000, 10)
	s = append(s, '.')
	frac := us % 1_000_000
	for div := int64(100_000); div > 0; div /= 10 {
		s = append(s, byte('0'+frac/div%10))
	}
	for i := len(s); i < width; i++ {
		p.dst = append(p.dst, ' ')
	}
	p.dst = append(p.dst, s...)
}

// deviceWidth is the width of the column of device names.
const deviceWidth = 14

func (p *printer) device(ev *traces.Event) {
	start := len(p.dst)
	if ev.Dev == "" {
		p.text("?")
	} else {
		p.dst = escape.Append(p.dst, ev.Dev)
	}
	p.pad(start, deviceWidth)
	p.dst = append(p.dst, ' ')
}

// ioctl appends name, subject and parameters.
func (p *printer) ioctl(ev *traces.Event) {
	c := p.call
	p.mark(escape.ColorName, "")
	if c.Xfer {
		p.text("NV_ESC_IOCTL_XFER_CMD>")
	}
	p.dst = c.AppendName(p.dst)
	p.mark(escape.ColorOff, "")
	main := 0
	if c.Xfer {
		main = 1
	}
	if len(c.Parts) <= main {
		p.subject(nil)
		if len(c.Parts) == 0 && ev.Arg() != 0 {
			p.text(" ")
			p.hexNumber(ev.Arg())
		}
		return
	}
	arg := &c.Parts[main]
	p.part = main
	p.subject(arg)
	switch {
	case c.HasSub && (c.Nr == escControl || c.Nr == escAlloc) && c.Escape != nil:
		// The parameters are what matters; the rest stands in the parentheses.
		p.pointed(c, main)
	case c.Device == DeviceModeset && c.Request != nil && len(c.Parts) > 1:
		p.part = 1
		p.parameters(&c.Parts[1], c)
	default:
		p.parameters(arg, c)
	}
	p.remark(c)
}

// pointed appends the parameters that a control or an allocation points to.
func (p *printer) pointed(c *Call, main int) {
	for i := main + 1; i < len(c.Parts); i++ {
		if q := &c.Parts[i]; q.Parent == main && (q.Field == "params" || q.Field == "pAllocParms") {
			p.part = i
			p.parameters(q, c)
			return
		}
	}
	// NVOS54.params and NVOS21/64.pAllocParms are at 16 in every version.
	if addr := load64(c.Parts[main].In, 16); addr != 0 {
		p.dst = append(p.dst, ' ')
		p.hexNumber(addr)
	}
}

// subject appends in parentheses what the call is about: its control command
// or class, the objects, and the members of the argument that are left over.
func (p *printer) subject(arg *Part) {
	c := p.call
	if !c.HasSub {
		return
	}
	p.dst = append(p.dst, '(')
	p.mark(escape.ColorSub, "")
	p.dst = c.AppendSub(p.dst, p.abi)
	p.mark(escape.ColorOff, "")
	if c.Escape != nil && arg != nil && c.Nr != escVidHeap {
		p.text(", ")
		p.objects(c)
		if arg.Struct != nil && (c.Nr == escControl || c.Nr == escAlloc) {
			p.members(arg.Struct, partView(arg), 0, p.infos.infoOf(arg.Struct).skip, true)
		}
	}
	p.dst = append(p.dst, ')')
}

// objects appends client:object, or client:parent > new.
func (p *printer) objects(c *Call) {
	if c.Nr == escControl {
		p.pair(c.Client, c.Object)
		return
	}
	if c.Parent != 0 {
		p.pair(c.Client, c.Parent)
		p.text(" > ")
	}
	if c.New != c.Client {
		p.object(c.Client, c.New)
		return
	}
	p.pair(c.Client, c.New)
}

// pair appends an object with its client, or its name.
func (p *printer) pair(client, h uint32) {
	n := len(p.dst)
	if p.name != nil {
		p.dst = p.name(p.dst, client, h)
	}
	if len(p.dst) > n {
		return
	}
	if client != h && client != 0 {
		p.hexNumber(uint64(client))
		p.dst = append(p.dst, ':')
	}
	p.hexNumber(uint64(h))
}

// parameters appends a part in braces, after a space.
func (p *printer) parameters(q *Part, c *Call) {
	p.dst = append(p.dst, ' ')
	switch {
	case len(q.In) == 0 && q.Len > 0:
		p.hexNumber(q.Addr) // could not be read
		return
	case q.Struct != nil && q.Array:
		p.body(q)
	case q.Struct != nil:
		p.dst = append(p.dst, '{')
		inner := wrapped(q.Struct)
		v := partView(q)
		switch {
		case inner != nil:
			some := p.members(inner, v.at(0, inner.Size), 0, p.skipped(inner), false)
			p.members(q.Struct, v, 0, 1, some)
		case p.part == 0 || c.Xfer && p.part == 1:
			p.members(q.Struct, v, 0, p.skipped(q.Struct), false)
		default:
			p.members(q.Struct, v, 0, 0, false)
		}
		p.dst = append(p.dst, '}')
	case c.Finn && len(q.In) >= finnHeader:
		p.finn(q)
	default:
		p.dst = append(p.dst, '{')
		p.body(q)
		p.dst = append(p.dst, '}')
	}
	if q.Struct != nil && !q.Array && q.Len != q.Struct.Size {
		p.text(" /* ")
		p.dst = strconv.AppendInt(p.dst, int64(q.Len), 10)
		p.text(" bytes, the layout has ")
		p.dst = strconv.AppendInt(p.dst, int64(q.Struct.Size), 10)
		p.text(" */")
	}
}

// finnHeader is the size of FINN_RM_API (finn_rm_api.h), which serialised
// parameters begin with: version, payloadSize, interface, message.
const finnHeader = 32

// finn appends FINN-serialised parameters: the header's members, then bytes.
func (p *printer) finn(q *Part) {
	p.text("{interface=")
	p.hexNumber(load64(q.In, 16))
	p.text(", message=")
	p.hexNumber(load64(q.In, 24))
	p.text(", payloadSize=")
	p.plain(load64(q.In, 8))
	p.text(", payload=")
	v := partView(q)
	v.before = v.before[finnHeader:]
	if v.after != nil {
		v.after = window(v.after, finnHeader, len(v.after))
	}
	p.changes(v, func(b []byte) { p.hex(b) })
	p.text("}")
}

// skipped returns which members of an argument stand elsewhere in the line.
func (p *printer) skipped(s *rm.Struct) uint64 {
	info := p.infos.infoOf(s)
	switch p.call.Nr {
	case escAllocMemory, escAllocObject, escAllocCtxDMA2:
		if p.call.HasSub {
			return info.skip
		}
	}
	return info.status1
}

// wrapped returns the struct that nv_ioctl_nvos02_parameters_with_fd and its
// like begin with, nil if s is none of them.
func wrapped(s *rm.Struct) *rm.Struct {
	if s.Union || len(s.Fields) < 2 {
		return nil
	}
	if f := &s.Fields[0]; f.Name == "params" && f.Dims == nil {
		return f.Struct
	}
	return nil
}

// remark appends what the reader should know about the decoding of the call.
func (p *printer) remark(c *Call) {
	switch {
	case c.Finn:
		p.text(" /* FINN-serialised */")
	case !c.Other.IsZero():
		p.text(" /* layout of ")
		p.text(c.Other.String())
		p.text(" */")
	case c.Unknown == UnknownControl || c.Unknown == UnknownClass || c.Unknown == UnknownRequest:
		p.text(" /* ")
		p.text(c.Unknown.String())
		p.text(" */")
	}
}

// result appends what came of a call.
func (p *printer) result(ev *traces.Event) {
	c := p.call
	switch {
	case ev.Flags&traces.FlagNoExit != 0:
		p.text(" = ?")
	case ev.Flags&traces.FlagUnfinished != 0:
		p.text(" = ")
		p.mark(escape.ColorNote, "? <unfinished ...>")
		p.mark(escape.ColorOff, "")
	case ev.Flags&traces.FlagRestarted != 0:
		p.text(" = ")
		p.mark(escape.ColorNote, "? ")
		p.text(errnoName(c.Errno))
		p.mark(escape.ColorOff, "")
	case c.Errno != 0:
		p.text(" = ")
		p.mark(escape.ColorError, "-1 ")
		p.text(errnoName(c.Errno))
		if c.HasStatus && c.Status != rm.OK {
			p.text(" ")
			p.text(c.StatusName())
		}
		p.mark(escape.ColorOff, "")
	default:
		p.text(" = ")
		p.dst = strconv.AppendInt(p.dst, ev.Ret, 10)
		if c.HasStatus && c.Status != rm.OK {
			p.text(" ")
			p.mark(escape.ColorError, c.StatusName())
			p.mark(escape.ColorOff, "")
		}
	}
	if ev.Flags&traces.FlagTruncated != 0 {
		p.text(" /* truncated */")
	}
	if ev.Flags&traces.FlagCompat != 0 {
		p.text(" /* 32-bit */")
	}
}

// cutLine cuts the line that begins at start to width characters, the last of
// them "…". Colour sequences have no width, and stay.
func cutLine(b []byte, start, width int) []byte {
	col, cut := 0, -1
	for i := start; i < len(b); {
		if b[i] == 0x1b {
			for i < len(b) && b[i] != 'm' {
				i++
			}
			i++
			continue
		}
		if col == width-1 {
			cut = i
		}
		if col == width {
			colored := false
			for _, c := range b[start:cut] {
				colored = colored || c == 0x1b
			}
			b = append(b[:cut], "…"...)
			if colored {
				b = append(b, escape.ColorOff...)
			}
			return b
		}
		_, n := utf8.DecodeRune(b[i:])
		i += n
		col++
	}
	return b
}

// dump appends the call's memory as a hex dump, each segment with what it held
// at entry and, where that differs, at exit.
func (p *printer) dump(ev *traces.Event) {
	for i := range ev.Mem {
		s := &ev.Mem[i]
		p.text("    ")
		p.hexNumber(s.Addr)
		p.text(", ")
		p.dst = strconv.AppendUint(p.dst, uint64(s.Len), 10)
		p.text(" bytes")
		switch {
		case s.Out == nil:
			p.text(" before (not read after)\n")
			p.dumpBytes(s.In)
		case sameBytes(s.In, s.Out):
			p.text(", unchanged\n")
			p.dumpBytes(s.In)
		default:
			p.text(" before\n")
			p.dumpBytes(s.In)
			p.text("    after\n")
			p.dumpBytes(s.Out)
		}
	}
}

// dumpBytes appends rows of 16 bytes; rows of the same byte are folded to "*",
// as hexdump(1) does.
func (p *printer) dumpBytes(b []byte) {
	folded := false
	for at := 0; at < len(b); at += 16 {
		row := b[at:min(at+16, len(b))]
		if at > 0 && len(row) == 16 && string(row) == string(b[at-16:at]) {
			if !folded {
				p.text("      *\n")
			}
			folded = true
			continue
		}
		folded = false
		p.text("      ")
		for shift := 16; shift >= 0; shift -= 4 {
			p.dst = append(p.dst, hexDigits[at>>shift&15])
		}
		p.text("  ")
		for i := range 16 {
			if i < len(row) {
				p.dst = append(p.dst, hexDigits[row[i]>>4], hexDigits[row[i]&15], ' ')
			} else {
				p.text("   ")
			}
			if i == 7 {
				p.text(" ")
			}
		}
		p.text(" |")
		for _, c := range row {
			if c < 0x20 || c >= 0x7f {
				c = '.'
			}
			p.dst = append(p.dst, c)
		}
		p.text("|\n")
	}
}
