package ioctl

import (
	"encoding/json"
	"strconv"

	"nvtrace/rm"
	"nvtrace/traces"
	"nvtrace/traces/escape"
)

// AppendJSON appends the event, as Decode has decoded it, as one line of JSON:
// what a log line says, for programs.
//
//	{"t":12003412000,"d":21000,"pid":4711,"tid":4712,"call":"ioctl","device":"nvidiactl","fd":5,
//	 "name":"NV_ESC_RM_CONTROL","sub":"NV2080_CTRL_CMD_GPU_GET_NAME_STRING","client":"0xc1d00001","object":"0x5c000003",
//	 "parts":[{"struct":"NVOS54_PARAMETERS","in":{…}},
//	          {"field":"params","struct":"NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS","in":{…},"out":{…}}],
//	 "ret":0,"status":"NV_OK"}
//
// A part's "in" holds every member that is not zero at the entry, "out" those
// that the call changed, with their new values. Handles, addresses and pointers
// are strings "0x…"; so are plain numbers beyond 2^53. Members with named
// values are strings as in a line. Arrays are whole.
func (d *Decoder) AppendJSON(dst []byte, ev *traces.Event, c *Call) []byte {
	p := &d.printer
	p.set(d, dst, ev, c, &LineOptions{Elems: -1})
	j := jsonPrinter{p}
	j.head(ev, c)
	switch {
	case ev.Kind == traces.KindIoctl:
		j.call(ev, c)
	case ev.Kind == traces.KindMmap && c.Link != nil:
		j.link(c.Link)
	case ev.Kind >= traces.KindCall && ev.Kind <= traces.KindKernel || ev.Kind == traces.KindFault || ev.Kind == traces.KindProbe || ev.Kind == traces.KindMap || ev.Kind == traces.KindCount || ev.Kind == traces.KindGPU || ev.Kind == traces.KindStack || ev.Kind == traces.KindChannels || ev.Kind == traces.KindSampled || ev.Kind == traces.KindMissed:
		j.library(ev)
	}
	j.tail(ev, c)
	dst = p.dst
	p.release()
	return dst
}

// jsonPrinter appends JSON with the help of a printer.
type jsonPrinter struct{ *printer }

// key appends ,"name": after the first member.
func (j jsonPrinter) key(name string) {
	if last := j.dst[len(j.dst)-1]; last != '{' {
		j.dst = append(j.dst, ',')
	}
	j.dst = append(j.dst, '"')
	j.dst = append(j.dst, name...)
	j.dst = append(j.dst, `":`...)
}

func (j jsonPrinter) int(name string, v int64) {
	j.key(name)
	j.dst = strconv.AppendInt(j.dst, v, 10)
}

func (j jsonPrinter) string(name, v string) {
	if v != "" {
		j.key(name)
		j.dst = escape.AppendJSON(j.dst, v)
	}
}

func (j jsonPrinter) hex(name string, v uint64) {
	j.key(name)
	j.quotedHex(v)
}

func (j jsonPrinter) quotedHex(v uint64) {
	j.dst = append(j.dst, `"0x`...)
	j.dst = strconv.AppendUint(j.dst, v, 16)
	j.dst = append(j.dst, '"')
}

func (j jsonPrinter) head(ev *traces.Event, c *Call) {
	j.dst = append(j.dst, '{')
	j.int("t", ev.Time)
	if ev.Dur != 0 {
		j.int("d", ev.Dur)
	}
	j.int("pid", int64(ev.PID))
	j.int("tid", int64(ev.TID))
	j.string("call", c.callName(ev))
	if ev.Flags != 0 {
		j.string("flags", ev.Flags.String())
	}
	j.string("device", ev.Dev)
	if ev.FD >= 0 {
		j.int("fd", int64(ev.FD))
	}
	if ev.File != 0 {
		j.int("file", int64(ev.File))
	}
	j.string("path", ev.Path)
	if len(ev.Argv) > 0 {
		j.key("argv")
		j.dst = append(j.dst, '[')
		for i, a := range ev.Argv {
			if i > 0 {
				j.dst = append(j.dst, ',')
			}
			j.dst = escape.AppendJSON(j.dst, a)
		}
		j.dst = append(j.dst, ']')
	}
	j.string("text", ev.Text)
	if ev.Child != 0 {
		j.int("child", int64(ev.Child))
	}
	switch ev.Kind {
	case traces.KindMmap, traces.KindMunmap, traces.KindMremap:
		j.hex("addr", ev.Args[0])
		j.hex("length", ev.Args[1])
	}
}

// callName names the kind of event.
func (c *Call) callName(ev *traces.Event) string {
	if ev.Kind == traces.KindOther {
		return ev.Name
	}
	return ev.Kind.String()
}

func (j jsonPrinter) call(ev *traces.Event, c *Call) {
	j.key("name")
	j.dst = append(j.dst, '"')
	j.dst = c.AppendName(j.dst) // from the tables, or number: nothing to escape
	j.dst = append(j.dst, '"')
	j.hex("request", uint64(ev.Request()))
	if c.HasSub {
		j.key("sub")
		j.dst = append(j.dst, '"')
		j.dst = c.AppendSub(j.dst, j.abi)
		j.dst = append(j.dst, '"')
		j.hex("number", uint64(c.SubNr))
	}
	for _, o := range [...]struct {
		name string
		h    uint32
	}{{"client", c.Client}, {"parent", c.Parent}, {"object", c.Object}, {"new", c.New}} {
		if o.h != 0 {
			j.hex(o.name, uint64(o.h))
		}
	}
	if c.Unknown != Known {
		j.string("unknown", c.Unknown.String())
	}
	if !c.Other.IsZero() {
		j.string("layout_of", c.Other.String())
	}
	if c.Finn {
		j.key("finn")
		j.dst = append(j.dst, "true"...)
	}
	if len(c.Parts) == 0 {
		return
	}
	j.key("parts")
	j.dst = append(j.dst, '[')
	for i := range c.Parts {
		if i > 0 {
			j.dst = append(j.dst, ',')
		}
		j.printer.part = i
		j.part(&c.Parts[i])
	}
	j.dst = append(j.dst, ']')
}

func (j jsonPrinter) part(q *Part) {
	j.dst = append(j.dst, '{')
	j.string("field", q.Field)
	if q.Struct != nil {
		j.string("struct", q.Struct.Name)
	}
	if q.Len != len(q.In) || q.Struct == nil || q.Len != q.Struct.Size {
		j.int("length", int64(q.Len))
	}
	v := partView(q)
	j.key("in")
	j.content(q, v.before, nil)
	if v.after != nil {
		j.key("out")
		j.content(q, v.after, v.before)
	}
	j.dst = append(j.dst, '}')
}

// content appends a part's bytes at one time; before, if not nil, limits it to
// what differs from that.
func (j jsonPrinter) content(q *Part, b, before []byte) {
	switch {
	case q.Text:
		j.dst = escape.AppendJSON(j.dst, string(b[:cstrlen(b)]))
	case q.Struct != nil && q.Array:
		size := max(1, q.Struct.Size)
		j.structs(q.Struct, b, (trimmed(b)+size-1)/size)
	case q.Struct != nil:
		j.object(q.Struct, b, before, true)
	case q.Array && q.Elem > 1 && q.Elem <= 8:
		f := rm.Field{Kind: rm.KindUint, Elem: q.Elem, Dims: oneDim, Size: q.Len, Role: listRole(q.Field)}
		j.array(&f, b, len(b)/q.Elem)
	default:
		j.bytes(b)
	}
}

// structs appends an array of objects.
func (j jsonPrinter) structs(s *rm.Struct, b []byte, n int) {
	j.dst = append(j.dst, '[')
	for i := range n {
		if i > 0 {
			j.dst = append(j.dst, ',')
		}
		j.object(s, window(b, i*s.Size, s.Size), nil, true)
	}
	j.dst = append(j.dst, ']')
}

// object appends a struct. Members that are zero are left out, or, where before
// is given, members that did not change.
func (j jsonPrinter) object(s *rm.Struct, b, before []byte, braces bool) {
	if braces {
		j.dst = append(j.dst, '{')
	}
	if j.depth < maxStructDepth {
		j.printer.depth++
		for i := range s.Fields {
			if s.Union && i != max(0, j.unionMember(s, view{before: b})) {
				continue
			}
			j.member(s, &s.Fields[i], b, before)
		}
		j.printer.depth--
	}
	if braces {
		j.dst = append(j.dst, '}')
	}
}

func (j jsonPrinter) member(s *rm.Struct, f *rm.Field, b, before []byte) {
	m, old := window(b, f.Offset, f.Size), window(before, f.Offset, f.Size)
	if m == nil || before != nil && sameBytes(m, old) || before == nil && isZero(m) {
		return
	}
	switch {
	case f.Bits != 0:
		v := load(m, min(f.Size, 8)) >> f.BitOff & (1<<f.Bits - 1)
		if v == 0 && before == nil {
			return
		}
		j.key(f.Name)
		j.number(f, v)
	case f.Kind == rm.KindStruct && f.Name == "" && f.Dims == nil:
		j.object(f.Struct, m, old, false)
	case f.Kind == rm.KindStruct && f.Dims == nil && f.Role != rm.RoleUUID:
		j.key(f.Name)
		j.object(f.Struct, m, old, true)
	case f.Kind == rm.KindStruct && f.Role != rm.RoleUUID:
		j.key(f.Name)
		j.structs(f.Struct, m, j.count(s, f, view{before: b}, view{before: m}))
	case f.Role == rm.RoleString && f.Elem == 1:
		j.key(f.Name)
		j.dst = escape.AppendJSON(j.dst, string(m[:cstrlen(m)]))
	case f.Role == rm.RoleUUID && f.Size == 16:
		j.key(f.Name)
		j.dst = append(j.dst, '"')
		j.uuid(m)
		j.dst = append(j.dst, '"')
	case f.Dims != nil && f.Elem == 1 && f.Role == rm.RoleNone && f.Domain == nil, f.Role == rm.RoleUUID:
		j.key(f.Name)
		j.bytes(m)
	case f.Dims != nil:
		j.key(f.Name)
		j.array(f, m, j.count(s, f, view{before: b}, view{before: m}))
	default:
		j.key(f.Name)
		j.scalar(s.As(f, b), m)
	}
}

// bytes appends bytes as a string of hexadecimal digits.
func (j jsonPrinter) bytes(b []byte) {
	j.dst = append(j.dst, '"')
	for _, c := range b {
		j.dst = append(j.dst, hexDigits[c>>4], hexDigits[c&15])
	}
	j.dst = append(j.dst, '"')
}

func (j jsonPrinter) array(f *rm.Field, b []byte, n int) {
	j.dst = append(j.dst, '[')
	size := max(1, f.Elem)
	for i := range min(n, len(b)/size) {
		if i > 0 {
			j.dst = append(j.dst, ',')
		}
		j.scalar(f, b[i*size:(i+1)*size])
	}
	j.dst = append(j.dst, ']')
}

// scalar appends one element: a number, or a string where it has a name or is
// an address.
func (j jsonPrinter) scalar(f *rm.Field, b []byte) {
	if len(b) < f.Elem || f.Elem > 8 {
		j.bytes(b)
		return
	}
	v := load(b, f.Elem)
	switch {
	case f.Role == rm.RoleHandle, f.Role == rm.RoleAddress, f.Role == rm.RolePointer, f.Role == rm.RoleGPU, f.Kind == rm.KindPointer:
		j.quotedHex(v)
	case f.Role == rm.RoleFD:
		j.dst = strconv.AppendInt(j.dst, int64(int32(uint32(v))), 10)
	case f.Role == rm.RoleClass, f.Role == rm.RoleStatus:
		j.dst = append(j.dst, '"')
		j.printer.scalar(f, b, nil)
		j.dst = append(j.dst, '"')
	default:
		j.number(f, v)
	}
}

// number appends a plain value; the names that the tables have need no escaping.
func (j jsonPrinter) number(f *rm.Field, v uint64) {
	const exact = 1 << 53
	at := len(j.dst)
	j.dst = append(j.dst, '"')
	if f.Domain != nil && j.domain(f, v) {
		j.dst = append(j.dst, '"')
		return
	}
	j.dst = j.dst[:at]
	switch {
	case v <= 1 && (f.Type == "NvBool" || f.Type == "bool"):
		j.dst = strconv.AppendBool(j.dst, v == 1)
	case f.Kind == rm.KindInt || f.Kind == rm.KindFloat:
		j.dst = append(j.dst, '"')
		n := len(j.dst)
		j.printer.number(&rm.Field{Kind: f.Kind, Elem: f.Elem, Bits: f.Bits}, v)
		if f.Kind == rm.KindInt && len(j.dst)-n < 16 { // a number that every reader takes
			copy(j.dst[n-1:], j.dst[n:])
			j.dst = j.dst[:len(j.dst)-1]
			return
		}
		j.dst = append(j.dst, '"')
	case v >= exact:
		j.quotedHex(v)
	default:
		j.dst = strconv.AppendUint(j.dst, v, 10)
	}
}

func (j jsonPrinter) link(l *Mapping) {
	j.key("maps")
	j.dst = append(j.dst, '{')
	if l.Managed {
		j.string("what", "managed memory")
	} else {
		j.string("what", MapName(l.Kind))
		j.hex("client", uint64(l.Client))
		j.hex("object", uint64(l.Memory))
		if l.Class != nil {
			j.string("class", l.Class.Name)
		}
		j.hex("offset", l.Offset)
		j.hex("length", l.Length)
	}
	j.dst = append(j.dst, '}')
}

func (j jsonPrinter) tail(ev *traces.Event, c *Call) {
	switch {
	case ev.Kind == traces.KindEnd && ev.Cost != nil:
		j.key("cost")
		j.dst = append(j.dst, '{')
		j.int("stops", int64(ev.Cost.Stops))
		j.int("events", int64(ev.Cost.Events))
		j.int("bytes", int64(ev.Cost.Bytes))
		j.int("cpu", ev.Cost.TracerCPU)
		j.int("wall", ev.Cost.Wall)
		j.dst = append(j.dst, '}')
	case ev.Kind == traces.KindCaptured && ev.Captured != nil:
		j.key("captured")
		j.dst = append(j.dst, '{')
		j.string("mode", ev.Captured.Mode)
		for _, f := range []struct {
			name  string
			value uint64
		}{
			{"images", ev.Captured.Images},
			{"loads", ev.Captured.Loads},
			{"bytes", ev.Captured.Bytes},
			{"drivers", ev.Captured.Drivers},
			{"kernels", ev.Captured.Kernels},
			{"gaps", ev.Captured.Gaps},
		} {
			j.key(f.name)
			j.dst = strconv.AppendUint(j.dst, f.value, 10)
		}
		j.dst = append(j.dst, '}')
	case ev.Flags&(traces.FlagNoExit|traces.FlagUnfinished) != 0 || !returns(ev.Kind):
	case c.Errno != 0:
		j.int("ret", -1)
		j.string("errno", errnoName(c.Errno))
	case ev.Kind == traces.KindMmap || ev.Kind == traces.KindMremap || ev.Kind == traces.KindReturn:
		j.hex("ret", uint64(ev.Ret))
	default:
		j.int("ret", ev.Ret)
	}
	if c.HasStatus {
		j.string("status", c.StatusName())
	}
	if c.Returned.Known {
		j.string("status", c.Returned.Name)
	}
	j.dst = append(j.dst, "}\n"...)
}

// returns reports whether an event of the kind has a result.
func returns(k traces.Kind) bool {
	switch k {
	case traces.KindNote, traces.KindCall, traces.KindImage, traces.KindKernel, traces.KindGap, traces.KindFault, traces.KindProbe, traces.KindMap, traces.KindCount, traces.KindGPU, traces.KindStack, traces.KindChannels, traces.KindThread, traces.KindSampled, traces.KindMissed, traces.KindPushbuffer, traces.KindCaptured, traces.KindEnd, traces.KindOther:
		return false
	}
	return true
}

// library appends what was recorded of a library's call, or of an image.
func (j jsonPrinter) library(ev *traces.Event) {
	j.string("name", ev.Name)
	if ev.Kind == traces.KindCall {
		j.key("args")
		j.dst = append(j.dst, '[')
		for i, v := range ev.Args {
			if i > 0 {
				j.dst = append(j.dst, ',')
			}
			j.quotedHex(v)
		}
		j.dst = append(j.dst, ']')
	}
	if ev.Kind == traces.KindSampled {
		if b, err := json.Marshal(ev.Sampled()); err == nil {
			j.key("sampled")
			j.dst = append(j.dst, b...)
		}
	}
	if ev.Kind == traces.KindGPU {
		w := ev.Work()
		j.key("gpu")
		j.dst = append(j.dst, '{')
		j.int("call", w.Call)
		j.int("start", w.Start)
		j.int("dur", w.Dur)
		j.int("margin", w.Margin)
		j.hex("stream", w.Stream)
		j.hex("context", w.Context)
		j.hex("subject", w.Subject)
		if w.Kernel != "" {
			j.string("kernel", w.Kernel)
			j.int("launch", int64(w.Launch))
		}
		if w.By.Outside() {
			j.int("device", int64(w.Device))
			j.int("end_margin", w.EndMargin)
			d := ev.Detail()
			j.string("named", d.Named)
			j.string("end", d.End)
		}
		j.dst = append(j.dst, '}')
	}
	if ev.Kind == traces.KindMissed {
		m := ev.Miss()
		j.key("missed")
		j.dst = append(j.dst, '{')
		if m.Called {
			j.int("call", m.Call)
		}
		j.int("after", m.After)
		j.int("before", m.Before)
		j.hex("stream", m.Stream)
		j.hex("subject", m.Subject)
		j.string("kernel", m.Kernel)
		j.int("device", int64(m.Device))
		j.string("named", ev.Detail().Named)
		j.dst = append(j.dst, '}')
	}
	if b := ev.Probe; b != nil {
		j.key("probe")
		j.dst = append(j.dst, '{')
		j.int("images", int64(b.Images))
		j.int("sites", int64(b.Sites))
		j.key("launched")
		j.dst = strconv.AppendBool(j.dst, b.Launched)
		j.string("reason", b.Reason)
		if b.Unprobed > 0 {
			j.int("unprobed", int64(b.Unprobed))
		}
		j.string("unprobed_why", b.UnprobedWhy)
		if b.Launches > 0 {
			j.int("launches", int64(b.Launches))
		}
		if b.Machine {
			j.key("machine")
			j.dst = append(j.dst, "true"...)
		}
		j.dst = append(j.dst, '}')
	}
	j.string("data", ev.Data)
	if im := ev.Image; im != nil {
		j.key("image")
		j.dst = append(j.dst, '{')
		j.string("sha256", im.SHA256)
		j.string("format", im.Format)
		j.int("size", im.Size)
		j.string("file", im.File)
		if im.Handle != 0 {
			j.hex("handle", im.Handle)
		}
		j.string("replaced", im.Replaced)
		j.dst = append(j.dst, '}')
	}
}
