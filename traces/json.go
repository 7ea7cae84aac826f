package traces

import (
	"maps"
	"slices"
	"strconv"

	"nvtrace/traces/escape"
)

// SchemaVersion is the newest version of the file format that this package reads, and
// that of recordings with blocks. It grows only when an older reader would
// misunderstand a file; new keys and kinds do not count (SCHEMA.md).
const SchemaVersion = 2

// schemaText is the version of recordings that are text alone.
const schemaText = 1

// AppendHeader appends h's line as it begins a recording that is text, newline included.
func AppendHeader(dst []byte, h *Header) []byte { return appendHeader(dst, h, schemaText) }

func appendHeader(dst []byte, h *Header, schema int) []byte {
	dst = append(dst, `{"k":"header","schema":`...)
	dst = strconv.AppendInt(dst, int64(schema), 10)
	dst = appendStringKey(dst, `,"tool":`, h.Tool)
	dst = appendIntKey(dst, `,"start":`, h.Start)
	dst = appendStringKey(dst, `,"arch":`, h.Arch)
	dst = appendStringKey(dst, `,"kernel":`, h.Kernel)
	dst = appendStringKey(dst, `,"driver":`, h.Driver)
	dst, _ = appendStrings(dst, `,"argv":[`, h.Argv)
	dst = appendIntKey(dst, `,"pid":`, int64(h.PID))
	dst = appendIntKey(dst, `,"uvm":`, int64(h.UVMMajor))
	dst = appendStringKey(dst, `,"host":`, h.Host)
	dst = appendStringKey(dst, `,"boot":`, h.Boot)
	dst, _ = appendStrings(dst, `,"gpus":[`, h.GPUs)
	dst = appendStringKey(dst, `,"container":`, h.Container)
	dst = appendRank(dst, h.Rank)
	dst = appendStringKey(dst, `,"api":`, h.API)
	dst = appendIntKey(dst, `,"calls_from":`, h.CallsFrom)
	return append(dst, "}\n"...)
}

// AppendEvent appends e's line, newline included. It allocates nothing beyond
// growing dst. What exceeds the package's limits is cut, and the line then
// carries FlagTruncated.
func AppendEvent(dst []byte, e *Event) []byte {
	flags := e.Flags
	if exceeds(e) {
		flags |= FlagTruncated
	}
	dst = append(dst, `{"k":`...)
	if e.Kind == KindOther {
		dst = appendString(dst, e.Name)
	} else {
		dst = append(dst, '"')
		dst = append(dst, e.Kind.String()...)
		dst = append(dst, '"')
	}
	dst = appendIntKey(dst, `,"t":`, e.Time)
	dst = appendIntKey(dst, `,"d":`, e.Dur)
	dst = appendIntKey(dst, `,"p":`, int64(e.PID))
	if e.TID != e.PID {
		dst = append(dst, `,"h":`...)
		dst = strconv.AppendInt(dst, int64(e.TID), 10)
	}
	if flags != 0 {
		dst = append(dst, `,"fl":"`...)
		dst = flags.append(dst)
		dst = append(dst, '"')
	}
	if e.FD != -1 {
		dst = append(dst, `,"fd":`...)
		dst = strconv.AppendInt(dst, int64(e.FD), 10)
	}
	dst = appendIntKey(dst, `,"file":`, int64(e.File))
	dst = appendStringKey(dst, `,"dev":`, e.Dev)
	dst = appendHexKey(dst, `,"rdev":`, e.Rdev)
	dst = appendArgs(dst, &e.Args)
	dst = appendIntKey(dst, `,"r":`, e.Ret)
	dst = appendIntKey(dst, `,"child":`, int64(e.Child))
	if e.Kind != KindOther {
		dst = appendStringKey(dst, `,"name":`, e.Name)
	}
	dst = appendStringKey(dst, `,"path":`, e.Path)
	dst, _ = appendStrings(dst, `,"argv":[`, e.Argv)
	dst = appendStringKey(dst, `,"text":`, e.Text)
	dst = appendStringKey(dst, `,"data":`, e.Data)
	if len(e.Mem) > 0 {
		dst = appendMem(dst, e.Mem)
	}
	if e.Image != nil {
		dst = appendImage(dst, e.Image)
	}
	if e.Captured != nil {
		dst = appendCaptured(dst, e.Captured)
	}
	if e.Probe != nil {
		dst = appendProbe(dst, e.Probe)
	}
	if e.Cost != nil {
		dst = appendCost(dst, e.Cost)
	}
	return append(dst, "}\n"...)
}

// exceeds reports whether any limit cuts e.
func exceeds(e *Event) bool {
	if i := e.Image; i != nil && (len(i.File) > MaxText || len(i.SHA256) > MaxText || len(i.Format) > MaxText || len(i.Origin) > MaxText || len(i.Replaced) > MaxText) {
		return true
	}
	if p := e.Probe; p != nil && (len(p.Reason) > MaxText || len(p.UnprobedWhy) > MaxText) {
		return true
	}
	if len(e.Mem) > MaxSegs || len(e.Data) > MaxText || len(e.Path) > MaxText || len(e.Text) > MaxText || len(e.Dev) > MaxText || len(e.Name) > MaxText {
		return true
	}
	n := 0
	for _, a := range e.Argv {
		n += len(a) + 1
	}
	if n > MaxText {
		return true
	}
	n = 0
	for i := range e.Mem {
		n += len(e.Mem[i].In) + len(e.Mem[i].Out)
	}
	return n > MaxEventBytes
}

func appendIntKey(dst []byte, key string, v int64) []byte {
	if v == 0 {
		return dst
	}
	dst = append(dst, key...)
	return strconv.AppendInt(dst, v, 10)
}

func appendHexKey(dst []byte, key string, v uint64) []byte {
	if v == 0 {
		return dst
	}
	dst = append(dst, key...)
	return appendHexString(dst, v)
}

func appendStringKey(dst []byte, key, v string) []byte {
	if v == "" {
		return dst
	}
	dst = append(dst, key...)
	return appendString(dst, v)
}

// appendHexString appends v as "0x1f", quoted: JSON numbers beyond 2^53 lose
// bits in many readers, and people search logs for hexadecimal.
func appendHexString(dst []byte, v uint64) []byte {
	dst = append(dst, `"0x`...)
	dst = strconv.AppendUint(dst, v, 16)
	return append(dst, '"')
}

// appendArgs appends the system call arguments without their trailing zeros.
func appendArgs(dst []byte, args *[6]uint64) []byte {
	n := len(args)
	for n > 0 && args[n-1] == 0 {
		n--
	}
	if n == 0 {
		return dst
	}
	dst = append(dst, `,"a":[`...)
	for i := range n {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendHexString(dst, args[i])
	}
	return append(dst, ']')
}

// appendStrings appends a list as far as MaxText allows; false means that it was cut.
func appendStrings(dst []byte, key string, list []string) ([]byte, bool) {
	if len(list) == 0 {
		return dst, true
	}
	dst = append(dst, key...)
	left := MaxText
	for i, a := range list {
		if left -= len(a) + 1; left < 0 {
			return append(dst, ']'), false
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, a)
	}
	return append(dst, ']'), true
}

// appendRank appends the variables in the order of their names, as far as MaxText
// allows.
func appendRank(dst []byte, rank map[string]string) []byte {
	if len(rank) == 0 {
		return dst
	}
	dst = append(dst, `,"rank":{`...)
	left, sep := MaxText, false
	for _, name := range slices.Sorted(maps.Keys(rank)) {
		value := rank[name]
		if left -= len(name) + len(value); left < 0 {
			break
		}
		if sep {
			dst = append(dst, ',')
		}
		sep = true
		dst = appendString(dst, name)
		dst = append(dst, ':')
		dst = appendString(dst, value)
	}
	return append(dst, '}')
}

func appendMem(dst []byte, mem []Seg) []byte {
	left := MaxEventBytes
	cut := func(b []byte) []byte {
		b = b[:min(len(b), left)]
		left -= len(b)
		return b
	}
	dst = append(dst, `,"m":[`...)
	for i := range mem[:min(len(mem), MaxSegs)] {
		s := &mem[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"a":`...)
		dst = appendHexString(dst, s.Addr)
		dst = append(dst, `,"n":`...)
		dst = strconv.AppendUint(dst, uint64(s.Len), 10)
		in := s.In
		if in != nil {
			in = cut(in)
			dst = appendBytes(dst, `,"i":"`, `,"in":`, in, s.Len)
		}
		switch {
		case s.Out == nil:
		case s.In != nil && !s.Changed() && len(in) == len(s.In) && len(in) <= left:
			dst = append(dst, `,"o":"="`...)
			left -= len(in) // a reader counts them too
		default:
			dst = appendBytes(dst, `,"o":"`, `,"on":`, cut(s.Out), s.Len)
		}
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

const hexDigits = "0123456789abcdef"

// hexPairs holds the two digits of every byte.
var hexPairs = func() (t [256][2]byte) {
	for i := range t {
		t[i] = [2]byte{hexDigits[i>>4], hexDigits[i&15]}
	}
	return t
}()

// appendBytes appends b in hexadecimal without its trailing zero bytes, then,
// where it is not n bytes long, its length under lenKey.
func appendBytes(dst []byte, key, lenKey string, b []byte, n uint32) []byte {
	dst = append(dst, key...)
	end := len(b)
	for end > 0 && b[end-1] == 0 {
		end--
	}
	at := len(dst)
	dst = growBy(dst, 2*end)
	out := dst[at:]
	for i, c := range b[:end] {
		p := &hexPairs[c]
		out[2*i], out[2*i+1] = p[0], p[1]
	}
	dst = append(dst, '"')
	if uint64(len(b)) != uint64(n) {
		dst = append(dst, lenKey...)
		dst = strconv.AppendInt(dst, int64(len(b)), 10)
	}
	return dst
}

// growBy extends b by n bytes of any content.
func growBy(b []byte, n int) []byte {
	if cap(b)-len(b) < n {
		b = append(make([]byte, 0, 2*cap(b)+n), b...)
	}
	return b[:len(b)+n]
}

func appendImage(dst []byte, m *Image) []byte {
	dst = append(dst, `,"image":{"sha256":`...)
	dst = appendString(dst, m.SHA256)
	dst = append(dst, `,"size":`...)
	dst = strconv.AppendInt(dst, m.Size, 10)
	dst = appendStringKey(dst, `,"format":`, m.Format)
	dst = appendStringKey(dst, `,"file":`, m.File)
	dst = appendIntKey(dst, `,"offset":`, m.Offset)
	dst = appendHexKey(dst, `,"handle":`, m.Handle)
	dst = appendStringKey(dst, `,"origin":`, m.Origin)
	dst = appendStringKey(dst, `,"replaced":`, m.Replaced)
	return append(dst, '}')
}

func appendCaptured(dst []byte, c *Captured) []byte {
	dst = append(dst, `,"captured":{"mode":`...)
	dst = appendString(dst, c.Mode)
	for _, f := range [...]struct {
		key   string
		value uint64
	}{
		{`,"images":`, c.Images},
		{`,"loads":`, c.Loads},
		{`,"bytes":`, c.Bytes},
		{`,"drivers":`, c.Drivers},
		{`,"kernels":`, c.Kernels},
		{`,"gaps":`, c.Gaps},
	} {
		dst = append(dst, f.key...)
		dst = strconv.AppendUint(dst, f.value, 10)
	}
	return append(dst, '}')
}

func appendProbe(dst []byte, p *Probe) []byte {
	dst = append(dst, `,"probe":{"images":`...)
	dst = strconv.AppendInt(dst, int64(p.Images), 10)
	dst = appendIntKey(dst, `,"sites":`, int64(p.Sites))
	if p.Launched {
		dst = append(dst, `,"launched":1`...)
	}
	dst = appendStringKey(dst, `,"reason":`, p.Reason)
	dst = appendIntKey(dst, `,"unprobed":`, int64(p.Unprobed))
	dst = appendStringKey(dst, `,"unprobed_why":`, p.UnprobedWhy)
	dst = appendIntKey(dst, `,"launches":`, int64(p.Launches))
	if p.Machine {
		dst = append(dst, `,"machine":1`...)
	}
	return append(dst, '}')
}

func appendCost(dst []byte, c *Cost) []byte {
	dst = append(dst, `,"cost":{"stops":`...)
	dst = strconv.AppendUint(dst, c.Stops, 10)
	dst = append(dst, `,"events":`...)
	dst = strconv.AppendUint(dst, c.Events, 10)
	dst = append(dst, `,"bytes":`...)
	dst = strconv.AppendUint(dst, c.Bytes, 10)
	dst = append(dst, `,"cpu":`...)
	dst = strconv.AppendInt(dst, c.TracerCPU, 10)
	dst = append(dst, `,"wall":`...)
	dst = strconv.AppendInt(dst, c.Wall, 10)
	return append(dst, '}')
}

// appendString appends s, as far as MaxText allows, as a JSON string that any byte survives in.
func appendString(dst []byte, s string) []byte {
	return escape.AppendJSONBytes(dst, s[:min(len(s), MaxText)])
}
