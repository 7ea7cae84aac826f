package ioctl

import (
	"fmt"
	"slices"

	"nvtrace/rm"
	"nvtrace/traces"
)

// maxParts bounds what one call is taken apart into.
const maxParts = maxSegments

// Decoder says what the events of one recording mean. It must see them in
// order and each of them once (by Decode or AppendLine): it keeps the driver's
// version, descriptors, and which open file maps which object.
//
// A Decoder is for one goroutine. Decoding a call allocates nothing, save where
// a call creates something that later ones refer to.
type Decoder struct {
	abi    *rm.ABI           // where nothing else is known
	fixed  bool              // abi is the recorded machine's
	byPID  map[int32]*rm.ABI // from version handshakes
	notice string
	// stand is the driver that has no tables of its own, so that a neighbour's stand
	// in; zero: none. doubted says that a call was met that they do not fit.
	stand   rm.Version
	doubted bool

	parts [maxParts]Part
	n     int
	info  map[*rm.Struct]structInfo

	links   linker
	own     ownWork
	printer printer
	last    int64 // time of the last printed line
}

// structInfo is what decoding needs to know of an argument's layout.
type structInfo struct {
	status int // offset of the RM status, -1 none
	client int // offset of the hClient that the struct's handles belong to, -1 none
	// Bit sets of members that a line shows elsewhere: the status, as the
	// result, and what stands in the parentheses of a control or allocation.
	status1, skip uint64
}

// NewDecoder returns a Decoder for a recording with that header; nil stands for
// an unknown one.
func NewDecoder(h *traces.Header) *Decoder {
	d := &Decoder{byPID: make(map[int32]*rm.ABI), info: make(map[*rm.Struct]structInfo)}
	d.links.init()
	if h != nil && h.Driver != "" {
		v, err := rm.ParseVersion(h.Driver)
		if err == nil {
			d.setVersion(v)
			return d
		}
		d.notice = fmt.Sprintf("the recording's %v", err)
	}
	d.abi = rm.Newest()
	return d
}

// setVersion makes the Decoder use the layouts of that driver version whatever
// the recording says.
func (d *Decoder) setVersion(v rm.Version) {
	d.abi, d.fixed = rm.Load(v), true
	d.judge(d.abi, v)
}

// judge notes the driver whose calls are decoded with another one's tables. As a
// rule they fit: that is worth a notice only where a size says otherwise.
func (d *Decoder) judge(abi *rm.ABI, v rm.Version) {
	d.stand = rm.Version{}
	if !abi.Exact() && !v.IsZero() {
		d.stand = v
	}
}

// doubt prepares the notice about tables of another driver that do not fit: the
// parameters of a call have a size that is not theirs.
func (d *Decoder) doubt(c *Call) {
	if d.doubted || d.stand.IsZero() || c.Unknown != UnknownSize && c.Other.IsZero() {
		return
	}
	d.doubted = true
	name := c.AppendName(nil)
	if c.HasSub {
		name = c.AppendSub(append(name, ' '), d.abi)
	}
	d.notice = fmt.Sprintf("driver %v is not in the tables, and those of %v do not fit: the parameters of %s have another size; names and members may be wrong",
		d.stand, d.abi.Version(), name)
}

// Notice returns, once, what the reader of the output should know about how it
// was decoded, "" as a rule.
func (d *Decoder) Notice() string {
	s := d.notice
	d.notice = ""
	return s
}

// ABI returns the tables that serve a process's calls.
func (d *Decoder) ABI(pid int32) *rm.ABI {
	if !d.fixed {
		if a := d.byPID[pid]; a != nil {
			return a
		}
	}
	return d.abi
}

// Decode says what ev means. Call's slices are good until the next Decode, or
// the next change of ev.
func (d *Decoder) Decode(ev *traces.Event) Call {
	var c Call
	d.DecodeTo(&c, ev)
	return c
}

// DecodeTo is Decode into a Call that is zero or came of an earlier event: of calls of libraries, which are many
// and of which there is little to say, little of it is written.
func (d *Decoder) DecodeTo(to *Call, ev *traces.Event) {
	if ofLibrary(ev.Kind) && ofLibrary(to.Kind) {
		d.n, d.links.ended = 0, d.links.ended[:0]
		to.Kind, to.Name, to.Returned, to.Device = ev.Kind, kindName(ev), Returned{}, DeviceOf(ev.Dev, ev.Rdev)
		return
	}
	*to = d.decode(ev)
}

func ofLibrary(k traces.Kind) bool { return k == traces.KindCall || k == traces.KindReturn }

func (d *Decoder) decode(ev *traces.Event) Call {
	c := Call{Kind: ev.Kind, Device: DeviceOf(ev.Dev, ev.Rdev)}
	if ev.Ret < 0 && ev.Ret > -4096 && ev.Kind <= traces.KindIoctl {
		c.Errno = int32(-ev.Ret)
	}
	d.n = 0
	if ev.Kind == traces.KindIoctl {
		d.ioctl(ev, &c)
		c.Parts = d.parts[:d.n]
		d.doubt(&c)
	} else {
		c.Name = kindName(ev)
	}
	d.links.track(d, ev, &c)
	c.Own = d.isOwn(ev, &c)
	return c
}

// kindName names the calls that are no ioctls.
func kindName(ev *traces.Event) string {
	if ev.Kind == traces.KindOther {
		return ev.Name
	}
	return ev.Kind.String()
}

func (d *Decoder) ioctl(ev *traces.Event, c *Call) {
	req := ev.Request()
	abi := d.ABI(ev.PID)
	c.abi = abi
	c.Nr = iocNr(req)
	if name := genericName(req); name != "" {
		c.Nr, c.Name = req, name
		return
	}
	switch c.Device {
	case DeviceCtl, DeviceGPU:
		d.escape(abi, ev, c, iocNr(req), d.argument(ev))
		if c.Nr == escCheckVersion && !d.fixed {
			d.handshake(ev)
		}
	case DeviceUVM, DeviceUVMTools:
		c.Nr = req
		d.request(ev, c, abi.UVM(req), true)
	case DeviceModeset:
		d.modeset(abi, ev, c)
	case DeviceNVSwitch:
		d.request(ev, c, abi.NVSwitch(c.Nr), true)
	case DeviceNVSwitchCtl:
		c.Nr = req
		d.request(ev, c, abi.NVSwitchCtl(req), true)
	case DeviceNVLink:
		d.request(ev, c, abi.NVLink(c.Nr), true)
	case DeviceDRM:
		c.Nr = req
		// Numbers 0x40 to 0x9f are the driver's own, the others are every
		// driver's (drm.h DRM_COMMAND_BASE).
		nr := iocNr(req)
		d.request(ev, c, abi.DRM(req), nr >= 0x40 && nr < 0xa0)
	default:
		c.Nr = req
		c.Unknown = UnknownRequest
		d.add(ev, 0, Part{})
	}
}

// argument returns the index of the segment that holds the ioctl's argument, -1
// if there is none.
func (d *Decoder) argument(ev *traces.Event) int {
	return findSeg(ev, ev.Arg(), 0)
}

// findSeg returns the index of the segment at that address, from index from on.
func findSeg(ev *traces.Event, addr uint64, from int) int {
	for i := from; i < len(ev.Mem); i++ {
		if ev.Mem[i].Addr == addr {
			return i
		}
	}
	return -1
}

// add appends a part with the bytes of segment i, and returns it; nil if there
// are no such bytes or no more room.
func (d *Decoder) add(ev *traces.Event, i int, p Part) *Part {
	if i < 0 || i >= len(ev.Mem) || d.n >= len(d.parts) {
		return nil
	}
	s := &ev.Mem[i]
	p.Addr, p.Len, p.In, p.Out, p.Written = s.Addr, int(s.Len), s.In, s.Out, true
	d.parts[d.n] = p
	d.n++
	return &d.parts[d.n-1]
}

// request decodes a request that is one struct and no more.
func (d *Decoder) request(ev *traces.Event, c *Call, r *rm.Request, ours bool) {
	if r == nil {
		if ours {
			c.Unknown = UnknownRequest
		}
		d.add(ev, d.argument(ev), Part{})
		return
	}
	c.Request, c.Name = r, r.Name
	if r.Params == nil {
		d.add(ev, d.argument(ev), Part{})
		return
	}
	p := d.add(ev, d.argument(ev), Part{Struct: r.Params})
	if p == nil {
		unread(ev, c)
		return
	}
	if p.Len != r.Params.Size {
		c.Unknown = UnknownSize
	}
	d.status(c, p)
	if at := d.infoOf(r.Params).client; at >= 0 {
		c.Client = load32(p.In, at)
	}
}

// modeset decodes nvidia-modeset's only request, {cmd, size, address}.
func (d *Decoder) modeset(abi *rm.ABI, ev *traces.Event, c *Call) {
	c.Nr = ev.Request()
	outer := d.add(ev, d.argument(ev), Part{Struct: modesetEnvelope})
	if iocType(c.Nr) != modesetType || iocNr(c.Nr) != modesetNr || outer == nil || len(outer.In) < modesetArgSize {
		c.Unknown = UnknownRequest
		return
	}
	c.Nr = load32(outer.In, 0)
	r := abi.Modeset(c.Nr)
	part := Part{Field: "address", Offset: 8}
	if r == nil {
		c.Unknown = UnknownRequest
	} else {
		c.Request, c.Name, part.Struct = r, r.Name, r.Params
	}
	addr := load64(outer.In, 8)
	p := d.add(ev, findSeg(ev, addr, 1), part)
	if r != nil && r.Params != nil {
		switch {
		case p == nil:
			unread(ev, c)
		case p.Len != r.Params.Size:
			c.Unknown = UnknownSize
		}
	}
}

// modesetEnvelope is struct NvKmsIoctlParams (nvkms-ioctl.h), which no header
// that the tables are made of declares.
var modesetEnvelope = &rm.Struct{Name: "NvKmsIoctlParams", Size: modesetArgSize, Align: 8, Fields: []rm.Field{
	{Name: "cmd", Offset: 0, Size: 4, Elem: 4, Type: "NvU32"},
	{Name: "size", Offset: 4, Size: 4, Elem: 4, Type: "NvU32"},
	{Name: "address", Offset: 8, Size: 8, Elem: 8, Type: "NvU64", Kind: rm.KindPointer},
}}

// status reads the resource manager's result out of the argument.
func (d *Decoder) status(c *Call, p *Part) {
	if p.Struct == nil || p.Out == nil {
		return
	}
	at := d.infoOf(p.Struct).status
	if at < 0 || len(p.Out) < at+4 {
		return
	}
	c.Status, c.HasStatus = rm.Status(load32(p.Out, at)), true
}

// infoOf returns what is known of a layout, finding it out at the first time.
func (d *Decoder) infoOf(s *rm.Struct) structInfo {
	info, ok := d.info[s]
	if !ok {
		info = describe(s)
		d.info[s] = info
	}
	return info
}

// describe finds out what decoding and printing need of a layout.
func describe(s *rm.Struct) structInfo {
	info := structInfo{status: statusOffset(s, 0), client: -1}
	for i := range s.Fields[:min(len(s.Fields), 64)] {
		f := &s.Fields[i]
		switch {
		case f.Offset == info.status && f.Role == rm.RoleStatus:
			info.status1 |= 1 << i
		case f.Name == "hClient" && f.Size == 4 && f.Dims == nil:
			info.client = f.Offset
		}
		switch f.Name {
		case "function": // NVOS32_PARAMETERS
			if f.Domain != nil && s.Name == "NVOS32_PARAMETERS" {
				info.status1 |= 1 << i
			}
		case "hRoot", "hClient", "hObject", "hObjectParent", "hObjectNew", "hClass", "cmd", "params", "pAllocParms", "paramsSize":
			info.skip |= 1 << i
		}
	}
	info.skip |= info.status1
	return info
}

// statusOffset finds the result member of an argument: "status" or "rmStatus",
// maybe in the struct that nv_ioctl_nvos02_parameters_with_fd and its like wrap.
func statusOffset(s *rm.Struct, depth int) int {
	for i := range s.Fields {
		f := &s.Fields[i]
		if f.Dims != nil || f.Bits != 0 {
			continue
		}
		switch f.Name {
		case "status", "rmStatus", "Status":
			if f.Size == 4 {
				return f.Offset
			}
		}
	}
	if depth < 1 && len(s.Fields) > 0 && !s.Union {
		if f := &s.Fields[0]; f.Name == "params" && f.Struct != nil && f.Dims == nil {
			if at := statusOffset(f.Struct, depth+1); at >= 0 {
				return f.Offset + at
			}
		}
	}
	return -1
}

// handshake takes a process's driver version from NV_ESC_CHECK_VERSION_STR.
func (d *Decoder) handshake(ev *traces.Event) {
	i := d.argument(ev)
	if i < 0 {
		return
	}
	v, ok := handshakeVersion(&ev.Mem[i])
	if !ok {
		return
	}
	abi := rm.Load(v)
	if d.byPID[ev.PID] == abi {
		return
	}
	d.byPID[ev.PID] = abi
	d.abi = abi // children, and processes that attach without a handshake
	d.judge(abi, v)
}

// copiesOut reports whether a control command's parameters come back although
// the command failed.
func copiesOut(c *rm.Control) bool {
	return c != nil && slices.Contains(c.FlagNames, "COPYOUT_ON_ERROR")
}
