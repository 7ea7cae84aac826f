package ioctl

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"nvtrace/rm"
	"nvtrace/traces"
	"nvtrace/traces/escape"
)

// plainEvent appends the line of an event that is no ioctl.
func (p *printer) plainEvent(ev *traces.Event) {
	switch ev.Kind {
	case traces.KindOpen:
		p.open(ev)
	case traces.KindClose:
		p.callName("close")
		p.fdOf(ev.FD, ev.Dev)
		p.text(")")
		p.sysResult(ev, false)
		if ev.Flags&traces.FlagImplicit != 0 {
			p.text(" /* by exec or a reused number */")
		}
	case traces.KindDup:
		p.callName("dup")
		p.fdOf(ev.FD, ev.Dev)
		p.text(")")
		p.sysResult(ev, false)
		if ev.Flags&traces.FlagImplicit != 0 {
			p.text(" /* seen without its open */")
		}
	case traces.KindMmap:
		p.mmap(ev)
	case traces.KindMunmap:
		p.callName("munmap")
		p.hexNumber(ev.Args[0])
		p.text(", ")
		p.hexNumber(ev.Args[1])
		p.text(")")
		p.sysResult(ev, false)
	case traces.KindMremap:
		p.callName("mremap")
		for i := range 3 {
			if i > 0 {
				p.text(", ")
			}
			p.hexNumber(ev.Args[i])
		}
		p.text(")")
		p.sysResult(ev, true)
	case traces.KindFork:
		if ev.Flags&traces.FlagAttached != 0 {
			p.text("--- attached to thread ")
			p.dst = strconv.AppendInt(p.dst, int64(ev.Child), 10)
			p.text(" ---")
			break
		}
		if ev.Flags&traces.FlagThread != 0 {
			p.callName("clone")
			p.text("CLONE_THREAD")
		} else {
			p.callName("fork")
		}
		p.text(") = ")
		p.dst = strconv.AppendInt(p.dst, int64(ev.Child), 10)
	case traces.KindExec:
		p.exec(ev)
	case traces.KindCall, traces.KindReturn:
		p.library(ev)
	case traces.KindImage, traces.KindKernel:
		p.image(ev)
	default:
		p.remarkEvent(ev)
	}
}

// callName appends a system call's name and the opening parenthesis.
func (p *printer) callName(name string) {
	p.mark(escape.ColorName, name)
	p.mark(escape.ColorOff, "")
	p.dst = append(p.dst, '(')
}

// fdOf appends a descriptor with its node.
func (p *printer) fdOf(fd int32, dev string) {
	p.dst = strconv.AppendInt(p.dst, int64(fd), 10)
	if dev != "" {
		p.dst = append(p.dst, '<')
		p.dst = escape.Append(p.dst, dev)
		p.dst = append(p.dst, '>')
	}
}

// sysResult appends " = result".
func (p *printer) sysResult(ev *traces.Event, address bool) {
	switch {
	case ev.Flags&traces.FlagUnfinished != 0:
		p.text(" = ")
		p.mark(escape.ColorNote, "? <unfinished ...>")
		p.mark(escape.ColorOff, "")
	case p.call.Errno != 0:
		p.text(" = ")
		p.mark(escape.ColorError, "-1 ")
		p.text(errnoName(p.call.Errno))
		p.mark(escape.ColorOff, "")
	case address:
		p.text(" = ")
		p.hexNumber(uint64(ev.Ret))
	default:
		p.text(" = ")
		p.dst = strconv.AppendInt(p.dst, ev.Ret, 10)
	}
}

// flagName is a named bit of an open or mmap argument.
type flagName struct {
	bit  uint64
	name string
}

// Flags of open(2) as x86 and arm64 share them (asm-generic/fcntl.h).
var openFlags = []flagName{
	{0o100, "O_CREAT"},
	{0o200, "O_EXCL"},
	{0o400, "O_NOCTTY"},
	{0o1000, "O_TRUNC"},
	{0o2000, "O_APPEND"},
	{0o4000, "O_NONBLOCK"},
	{0o2000000, "O_CLOEXEC"},
	{0o10000000, "O_PATH"},
}

var protFlags = []flagName{{1, "PROT_READ"}, {2, "PROT_WRITE"}, {4, "PROT_EXEC"}}

// Flags of mmap(2) (asm-generic/mman.h).
var mmapFlags = []flagName{
	{1, "MAP_SHARED"},
	{2, "MAP_PRIVATE"},
	{0x10, "MAP_FIXED"},
	{0x20, "MAP_ANONYMOUS"},
	{0x2000, "MAP_LOCKED"},
	{0x4000, "MAP_NORESERVE"},
	{0x8000, "MAP_POPULATE"},
	{0x100000, "MAP_FIXED_NOREPLACE"},
}

// flagSet appends the names of the set bits, the rest in hexadecimal, and none
// for 0.
func (p *printer) flagSet(v uint64, names []flagName, none string) {
	some := false
	for _, f := range names {
		if v&f.bit == f.bit {
			p.or(&some)
			p.text(f.name)
			v &^= f.bit
		}
	}
	switch {
	case v != 0:
		p.or(&some)
		p.hexNumber(v)
	case !some:
		p.text(none)
	}
}

func (p *printer) open(ev *traces.Event) {
	p.callName("open")
	p.dst = escape.AppendQuoted(p.dst, ev.Path)
	if flags, ok := openFlagsOf(ev); ok {
		p.text(", ")
		p.text([]string{"O_RDONLY", "O_WRONLY", "O_RDWR", "O_ACCMODE"}[flags&3])
		if rest := flags &^ 3; rest != 0 {
			p.dst = append(p.dst, '|')
			p.flagSet(rest, openFlags, "")
		}
	}
	p.text(")")
	if p.call.Errno == 0 && ev.Flags&traces.FlagUnfinished == 0 && ev.Dev != "" {
		p.text(" = ")
		p.fdOf(int32(ev.Ret), ev.Dev)
		return
	}
	p.sysResult(ev, false)
}

// openFlagsOf finds the flags among the raw arguments. The event does not say
// which of the open calls it was: openat's first argument is a descriptor or
// AT_FDCWD, open's is an address; openat2 has its flags in memory.
func openFlagsOf(ev *traces.Event) (uint64, bool) {
	const atFDCWD = -100
	flags := ev.Args[1]
	if dir := int32(uint32(ev.Args[0])); dir == atFDCWD || ev.Args[0] < 1<<16 {
		flags = ev.Args[2]
	}
	return flags, flags < 1<<24
}

func (p *printer) mmap(ev *traces.Event) {
	p.callName("mmap")
	if ev.Args[0] == 0 {
		p.text("NULL")
	} else {
		p.hexNumber(ev.Args[0])
	}
	p.text(", ")
	p.hexNumber(ev.Args[1])
	p.text(", ")
	p.flagSet(ev.Args[2], protFlags, "PROT_NONE")
	p.text(", ")
	p.flagSet(ev.Args[3], mmapFlags, "0")
	p.text(", ")
	p.fdOf(ev.FD, ev.Dev)
	p.text(", ")
	p.plain(ev.Args[5])
	p.text(")")
	p.sysResult(ev, true)
	if l := p.call.Link; l != nil && p.call.Errno == 0 {
		p.text(" <")
		p.link(l)
		p.text(">")
	}
}

// mapNames say what a mapping of an object is called.
var mapNames = [...]string{
	rm.MapNone:      "",
	rm.MapDoorbell:  "doorbell",
	rm.MapUSERD:     "USERD",
	rm.MapVidmem:    "vidmem",
	rm.MapSysmem:    "sysmem",
	rm.MapStats:     "statistics",
	rm.MapRegisters: "registers",
}

// MapName returns what a mapping of that kind is called: "doorbell", "vidmem";
// "object" where the kind is not known.
func MapName(k rm.MapKind) string {
	if int(k) < len(mapNames) && mapNames[k] != "" {
		return mapNames[k]
	}
	return "object"
}

// link appends what a mapping shows: "doorbell of 0xc1d00001:0x5c000010
// HOPPER_USERMODE_A".
func (p *printer) link(l *Mapping) {
	if l.Managed {
		p.text("managed memory")
		return
	}
	p.text(MapName(l.Kind))
	p.text(" of ")
	p.pair(l.Client, l.Memory)
	if l.Class != nil {
		p.text(" ")
		p.text(l.Class.Name)
	}
	if l.Offset != 0 {
		p.text(", offset ")
		p.hexNumber(l.Offset)
	}
	if l.Length != 0 {
		p.text(", length ")
		p.hexNumber(l.Length)
	}
}

func (p *printer) exec(ev *traces.Event) {
	p.callName("execve")
	p.dst = escape.AppendQuoted(p.dst, ev.Path)
	p.text(", [")
	for i, a := range ev.Argv {
		if i > 0 {
			p.text(", ")
		}
		if p.elems >= 0 && i >= p.elems {
			p.more(len(ev.Argv)-i, false)
			break
		}
		if limit := 4 * p.elems; p.elems >= 0 && len(a) > limit {
			p.dst = escape.AppendQuoted(p.dst, a[:limit])
			p.text("…")
			continue
		}
		p.dst = escape.AppendQuoted(p.dst, a)
	}
	p.text("])")
	if ev.Flags&traces.FlagImplicit != 0 {
		p.text(" /* was running already */")
		return
	}
	p.sysResult(ev, false)
}

// library appends a call of a library's function as it was recorded. What the
// arguments mean is not this package's business.
func (p *printer) library(ev *traces.Event) {
	if ev.Kind == traces.KindReturn {
		p.text("<... ")
		p.mark(escape.ColorName, "")
		p.dst = escape.Append(p.dst, ev.Name)
		p.mark(escape.ColorOff, "")
		p.text(" returned>")
		if ev.Flags&traces.FlagUnfinished != 0 {
			p.text(" = ")
			p.mark(escape.ColorNote, "? <unfinished ...>")
			p.mark(escape.ColorOff, "")
			return
		}
		p.text(" = ")
		p.hexNumber(uint64(ev.Ret))
		return
	}
	p.mark(escape.ColorName, "")
	p.dst = escape.Append(p.dst, ev.Name)
	p.mark(escape.ColorOff, "")
	p.text("(")
	for i, v := range ev.Args {
		if i > 0 {
			p.text(", ")
		}
		p.hexNumber(v)
	}
	p.text(")")
}

// image appends the load of a code image, or a kernel's first launch.
func (p *printer) image(ev *traces.Event) {
	p.mark(escape.ColorNote, "--- ")
	im := ev.Image
	switch {
	case ev.Kind == traces.KindKernel:
		p.text("first launch of ")
		p.kernel(ev.Name)
		if im != nil {
			p.text(", from image ")
			p.shortHash(im.SHA256)
		}
	case im == nil:
		p.text("image loaded")
	default:
		p.text("image ")
		p.shortHash(im.SHA256)
		p.text(" (")
		p.dst = escape.Append(p.dst, im.Format)
		p.text(", ")
		p.dst = strconv.AppendInt(p.dst, im.Size, 10)
		p.text(" bytes) loaded")
	}
	if ev.Kind == traces.KindImage && ev.Name != "" {
		p.text(" by ")
		p.dst = escape.Append(p.dst, ev.Name)
	}
	if ev.Kind == traces.KindImage && ev.Path != "" {
		p.text(" from ")
		p.dst = escape.Append(p.dst, ev.Path)
	}
	p.mark(escape.ColorOff, " ---")
}

// kernel appends the name of a kernel.
func (p *printer) kernel(name string) {
	if p.demangle != nil {
		name = p.demangle(name)
	}
	p.dst = escape.Append(p.dst, name)
}

// shortHash appends the beginning of a hash, which is enough to find it.
func (p *printer) shortHash(h string) { p.dst = escape.Append(p.dst, h[:min(len(h), 12)]) }

// probe appends what became of a kernel that probes were to run in.
func (p *printer) probe(ev *traces.Event) {
	p.mark(escape.ColorNote, "--- ")
	if ev.Probe == nil && ev.Args[0] != 0 {
		p.text("with programs, ")
		p.kernel(ev.Name)
		p.text(" has the handle 0x")
		p.dst = strconv.AppendUint(p.dst, ev.Args[0], 16)
		p.mark(escape.ColorOff, " ---")
		return
	}
	b := cmp.Or(ev.Probe, new(traces.Probe))
	if b.Images > 0 {
		p.text("probes at ")
		p.dst = strconv.AppendInt(p.dst, int64(b.Sites), 10)
		p.text(" places of ")
	} else {
		p.text("no probes in ")
	}
	p.kernel(ev.Name)
	if b.Reason != "" {
		p.text(": ")
		p.dst = escape.Append(p.dst, b.Reason)
	}
	p.mark(escape.ColorOff, " ---")
}

// remarkEvent appends events that are no calls.
func (p *printer) remarkEvent(ev *traces.Event) {
	switch ev.Kind {
	case traces.KindExit:
		status := uint32(ev.Ret)
		if sig := status & 0x7f; sig != 0 {
			p.mark(escape.ColorError, "+++ killed by ")
			p.text(signalName(int32(sig)))
			if status&0x80 != 0 {
				p.text(" (core dumped)")
			}
		} else {
			p.mark(escape.ColorNote, "+++ exited with ")
			p.dst = strconv.AppendUint(p.dst, uint64(status>>8&0xff), 10)
		}
		p.mark(escape.ColorOff, " +++")
	case traces.KindSignal:
		p.mark(escape.ColorNote, "--- ")
		p.text(signalName(int32(ev.Ret)))
		p.mark(escape.ColorOff, " ---")
	case traces.KindNote:
		p.mark(escape.ColorNote, "--- nvtrace: ")
		p.dst = escape.Append(p.dst, ev.Text)
		p.mark(escape.ColorOff, " ---")
	case traces.KindCaptured:
		p.mark(escape.ColorNote, "--- nvtrace: captured: ")
		if c := ev.Captured; c != nil {
			p.dst = escape.Append(p.dst, c.String())
		}
		p.mark(escape.ColorOff, " ---")
	case traces.KindGap:
		p.mark(escape.ColorError, "--- nvtrace: incomplete: ")
		p.dst = escape.Append(p.dst, ev.Text)
		p.mark(escape.ColorOff, " ---")
	case traces.KindChannels:
		p.mark(escape.ColorNote, "--- GPU channels: ")
		p.dst = escape.Append(p.dst, cmp.Or(strings.ReplaceAll(strings.TrimSpace(ev.Text), "\n", " "), "none is in use"))
		p.mark(escape.ColorOff, " ---")
	case traces.KindSampled:
		p.mark(escape.ColorNote, "--- looked at from outside")
		if s := ev.Sampled(); s != nil {
			p.text(": ")
			p.dst = strconv.AppendUint(p.dst, s.Looks, 10)
			p.text(" looks in ")
			p.text(time.Duration(s.Wall).String())
		}
		p.mark(escape.ColorOff, " ---")
	case traces.KindMissed:
		m := ev.Miss()
		p.mark(escape.ColorNote, "--- GPU: ")
		p.kernel(cmp.Or(ev.Name, m.Kernel, "copy"))
		p.text(" at a time that was not seen, between ")
		p.dst = strconv.AppendFloat(p.dst, float64(m.After)/1e9, 'f', 6, 64)
		p.text(" and ")
		p.dst = strconv.AppendFloat(p.dst, float64(m.Before)/1e9, 'f', 6, 64)
		p.text(" s")
		if device, channel, ok := traces.StreamChannel(m.Stream); ok {
			p.text(", on channel ")
			p.dst = strconv.AppendInt(p.dst, int64(channel), 10)
			p.text(" of GPU ")
			p.dst = strconv.AppendInt(p.dst, int64(device), 10)
		} else {
			p.text(", on stream 0x")
			p.dst = strconv.AppendUint(p.dst, m.Stream, 16)
		}
		p.mark(escape.ColorOff, " ---")
	case traces.KindPushbuffer:
		p.mark(escape.ColorNote, "--- pushbuffer of channel ")
		p.dst = strconv.AppendUint(p.dst, ev.Args[0], 10)
		p.text(" of /dev/")
		p.dst = escape.Append(p.dst, ev.Dev)
		p.text(": ")
		p.dst = strconv.AppendUint(p.dst, ev.Args[5], 10)
		p.text(" words")
		p.mark(escape.ColorOff, " ---")
	case traces.KindThread:
		p.mark(escape.ColorNote, "--- the thread is called ")
		p.dst = escape.Append(p.dst, ev.Text)
		p.mark(escape.ColorOff, " ---")
	case traces.KindFault:
		p.mark(escape.ColorError, "--- kernel ")
		p.kernel(ev.Name)
		p.text(" failed: ")
		p.dst = escape.Append(p.dst, ev.Text)
		p.mark(escape.ColorOff, " ---")
	case traces.KindProbe:
		p.probe(ev)
	case traces.KindMap:
		p.mark(escape.ColorNote, "--- map of the probes: ")
		heading, _, _ := strings.Cut(ev.Text, "\n")
		p.dst = escape.Append(p.dst, cmp.Or(heading, ev.Name))
		p.mark(escape.ColorOff, " ---")
	case traces.KindCount:
		p.mark(escape.ColorNote, "--- counted: ")
		p.dst = escape.Append(p.dst, ev.Name)
		p.text(", ")
		p.dst = strconv.AppendUint(p.dst, ev.Args[0], 10)
		p.text(" calls")
		if ev.Text != "" {
			p.text(" within ")
			p.dst = escape.Append(p.dst, ev.Text)
		}
		p.text(" in ")
		p.text(time.Duration(ev.Args[2] &^ (1 << 63)).String())
		p.mark(escape.ColorOff, " ---")
	case traces.KindStack:
		if ev.Flags&traces.FlagUnfinished != 0 {
			p.text("still in ")
			p.dst = escape.Append(p.dst, ev.Name)
			p.text(" ")
		}
		for i, f := range ev.Stack() {
			p.text([2]string{"at ", " < "}[min(i, 1)])
			p.dst = escape.Append(p.dst, f.Text(p.demangle))
		}
	case traces.KindGPU:
		w := ev.Work()
		p.mark(escape.ColorNote, "--- GPU: ")
		switch {
		case w.Kernel != "":
			p.kernel(w.Kernel)
		case !w.By.Called():
			p.text("copy")
		default:
			p.dst = escape.Append(p.dst, ev.Name)
		}
		p.text(" from ")
		p.dst = strconv.AppendFloat(p.dst, float64(w.Start)/1e9, 'f', 6, 64)
		p.text(" s on, for ")
		p.text(time.Duration(w.Dur).String())
		if ev.Flags&traces.FlagUnfinished != 0 {
			p.text(" by now, and not known to be over")
		}
		switch w.By {
		case traces.ByProbe:
			p.text(", launch ")
			p.dst = strconv.AppendUint(p.dst, w.Launch, 10)
			p.text(", by a probe")
		case traces.ByChannel, traces.ByLook:
			device, channel, _ := traces.StreamChannel(w.Stream)
			p.text(", on channel ")
			p.dst = strconv.AppendInt(p.dst, int64(channel), 10)
			p.text(" of GPU ")
			p.dst = strconv.AppendInt(p.dst, int64(device), 10)
			if w.By == traces.ByLook {
				p.text(", which a look stands for")
			}
		default:
			p.text(", on stream 0x")
			p.dst = strconv.AppendUint(p.dst, w.Stream, 16)
			if w.By == traces.ByTracker {
				p.text(", by the channel")
			}
		}
		p.mark(escape.ColorOff, " ---")
	case traces.KindLost:
		p.mark(escape.ColorError, "--- nvtrace: ")
		p.dst = strconv.AppendInt(p.dst, ev.Ret, 10)
		p.mark(escape.ColorOff, " events were lost ---")
	case traces.KindEnd:
		p.mark(escape.ColorNote, "--- nvtrace: end of the recording")
		if c := ev.Cost; c != nil {
			p.text(", ")
			p.dst = strconv.AppendUint(p.dst, c.Events, 10)
			p.text(" events, ")
			p.dst = strconv.AppendUint(p.dst, c.Stops, 10)
			p.text(" stops, ")
			p.seconds(c.TracerCPU, 0)
			p.text(" s of CPU time")
		}
		p.mark(escape.ColorOff, " ---")
	default:
		p.mark(escape.ColorNote, "--- ")
		p.dst = escape.Append(p.dst, p.call.Name)
		p.text(" (an event of a later nvtrace)")
		p.mark(escape.ColorOff, " ---")
	}
}
