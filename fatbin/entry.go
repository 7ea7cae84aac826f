package fatbin

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// An entry's header, of which only the first 64 bytes are always there:
//
//	 0  u16  kind
//	 2  u16  version, 0x0101
//	 4  u32  size of the header with its variable part
//	 8  u64  size of the stored bytes, padded to 8
//	16  u32  size of the stored bytes, unpadded; 0 if not compressed
//	20  u32  offset of the options record, 0 if there is none
//	24  u16  minor version of the content: PTX ISA, ELF 1.7 or 1.8, NVVM
//	26  u16  major version
//	28  u32  architecture
//	32  u32  offset of the identifier, 0 if there is none
//	36  u32  length of the identifier
//	40  u64  flags
//	48  u64  a key if the content is scrambled
//	56  u64  size of the content; 0 if not compressed
//	64       identifier, options record {u32 offset, u32 length}, options
//
// The tools of CUDA 12.4 leave eight zero bytes for an empty identifier, those
// of 11.8 and 13 don't; only the size of the header is to be trusted.
const entryHeader = 64

const entryVersion = 0x0101

// Entry is one image in a container. An Entry is not changed after it was
// made; it may be copied between containers.
type Entry struct {
	head, payload []byte
	offset        int64
}

func parseEntry(b []byte) (Entry, error) {
	headerSize, size := uint64(u32(b[4:])), u64(b[8:])
	if headerSize < entryHeader {
		return Entry{}, formatError("header", 4, "%d bytes, want at least %d", headerSize, entryHeader)
	}
	head, ok := cut(b, 0, headerSize)
	if !ok {
		return Entry{}, formatError("header", 4, "%d bytes, and %d are left", headerSize, len(b))
	}
	payload, ok := cut(b, headerSize, size)
	if !ok {
		return Entry{}, formatError("header", 8, "%d stored bytes, and %d are left", size, uint64(len(b))-headerSize)
	}
	return Entry{head: head, payload: payload}, nil
}

// Offset is where the entry's header begins in the container it was read from.
func (e *Entry) Offset() int64 { return e.offset }

// Header returns the entry's header with its variable part, raw.
func (e *Entry) Header() []byte { return e.head }

// Kind says what the entry holds.
func (e *Entry) Kind() Kind { return Kind(u16(e.head)) }

// Flags returns the entry's flags.
func (e *Entry) Flags() Flags { return Flags(u64(e.head[40:])) }

// Version returns the version of the content's format: of the PTX ISA, of
// cubins (1.7 until CUDA 12, 1.8 from 13 on), or of NVVM.
func (e *Entry) Version() (major, minor int) { return int(u16(e.head[26:])), int(u16(e.head[24:])) }

// Arch is the architecture that the entry is for.
func (e *Entry) Arch() Arch {
	a := Arch{SM: u32(e.head[28:])}
	switch f := e.Flags(); {
	case f&FlagArch != 0:
		a.Suffix = 'a'
	case f&FlagFamily != 0:
		a.Suffix = 'f'
	}
	return a
}

// Compression says how the content is stored.
func (e *Entry) Compression() Compression {
	switch f := e.Flags(); {
	case f&FlagZstd != 0:
		return Zstd
	case f&FlagLZ4 != 0:
		return LZ4
	}
	return Stored
}

// Ident is the identifier that the compiler gave the entry, mostly the name of
// the source file, or "".
func (e *Entry) Ident() string {
	b, ok := cut(e.head, uint64(u32(e.head[32:])), uint64(u32(e.head[36:])))
	if !ok || u32(e.head[32:]) < entryHeader {
		return ""
	}
	// Some tools count the padding.
	return strings.TrimRight(string(b), " \x00")
}

// Options are the options for the assembler or the linker that the compiler
// left, or "".
func (e *Entry) Options() string {
	if e.Flags()&FlagAttrs != 0 {
		return ""
	}
	return strings.TrimSpace(strings.TrimRight(string(e.record()), "\x00"))
}

// Attrs are the attributes that the tools of CUDA 13 add to cubins of sm_100 and
// later, raw; nil for other entries.
func (e *Entry) Attrs() []byte {
	if e.Flags()&FlagAttrs == 0 {
		return nil
	}
	return e.record()
}

// record returns the bytes that the options record points at.
func (e *Entry) record() []byte {
	rec, ok := cut(e.head, uint64(u32(e.head[20:])), 8)
	if !ok || u32(e.head[20:]) < entryHeader {
		return nil
	}
	b, _ := cut(e.head, uint64(u32(rec)), uint64(u32(rec[4:])))
	return b
}

// Raw returns the stored bytes without the padding. They alias the container.
func (e *Entry) Raw() []byte {
	if n := uint64(u32(e.head[16:])); e.Compression() != Stored && n <= uint64(len(e.payload)) {
		return e.payload[:n]
	}
	return e.payload
}

// StoredSize is the size of the stored bytes without padding.
func (e *Entry) StoredSize() int64 { return int64(len(e.Raw())) }

// Size is the size of the content as the header claims it; for PTX a
// terminating NUL (and padding, where it is not compressed) is counted.
func (e *Entry) Size() uint64 {
	if e.Compression() == Stored {
		return uint64(len(e.payload))
	}
	return u64(e.head[56:])
}

// Data returns the content, decompressed, PTX without its terminating NUL. It
// aliases the container where it is not compressed, and must not be written to then. To decompress many entries
// use an [Inflater].
//
// [ErrOpaque] is in the error's chain for scrambled content, [ErrTooLarge] for
// content above the limit (o may be nil), [ErrFormat] for damaged content.
func (e *Entry) Data(o *Options) ([]byte, error) {
	x := NewInflater(o)
	defer x.Close()
	return x.Data(e)
}

// Inflater decompresses entries one after another and keeps what it needs for
// that. It may not be used by two goroutines at once.
type Inflater struct {
	buf    []byte // what was decompressed last
	max    uint64
	budget *Budget // nil: one for each entry
	zstd   *zstd.Decoder
}

// NewInflater returns an Inflater that refuses content above o's limits. Close
// it after use.
func NewInflater(o *Options) *Inflater {
	x := &Inflater{max: o.maxEntry()}
	if o != nil {
		x.budget = o.Budget
	}
	return x
}

// Close frees the Inflater's memory.
func (x *Inflater) Close() {
	if x.zstd != nil {
		x.zstd.Close()
		x.zstd = nil
	}
}

// Data is as [Entry.Data]. The content is valid until the next call, and not to be written to:
// it lies in the container, which may be a mapped file, or where the next entry's will.
func (x *Inflater) Data(e *Entry) ([]byte, error) {
	if e.Compression() == Stored && e.Flags()&FlagScrambled == 0 {
		return slices.Clip(e.trim(e.payload)), nil
	}
	data, err := x.Append(x.buf[:0], e)
	if err != nil {
		return nil, err
	}
	x.buf = data
	return slices.Clip(data), nil
}

// Append appends an entry's content to dst; into a dst with room it decompresses without
// allocating. Errors are those of [Entry.Data]; then dst is returned as it was.
func (x *Inflater) Append(dst []byte, e *Entry) ([]byte, error) {
	if e.Flags()&FlagScrambled != 0 {
		return dst, fmt.Errorf("%s for %s: %w", e.Kind(), e.Arch(), ErrOpaque)
	}
	how := e.Compression()
	if how == Stored {
		return append(dst, e.trim(e.payload)...), nil
	}
	src, size := e.Raw(), e.Size()
	if n := uint64(u32(e.head[16:])); n > uint64(len(e.payload)) {
		return dst, formatError("entry", 16, "%d compressed bytes of %d that are stored", n, len(e.payload))
	}
	if size > x.max {
		return dst, fmt.Errorf("entry: %d bytes of content: %w of %d", size, ErrTooLarge, x.max)
	}
	start := len(dst)
	out, err := x.inflate(dst, src, size, how)
	if err != nil {
		return dst, err
	}
	return out[:start+len(e.trim(out[start:]))], nil
}

// inflate refuses a size that so few bytes can't decompress to before it
// allocates.
func (x *Inflater) inflate(dst, src []byte, size uint64, how Compression) ([]byte, error) {
	start := len(dst)
	ratio := uint64(lz4MaxRatio)
	if how == Zstd {
		ratio = zstdMaxRatio
	}
	if size/ratio > uint64(len(src)) {
		return nil, formatError("entry", 56, "%d bytes of content can't be in %d bytes of %s", size, len(src), how)
	}
	budget := x.budget
	if budget == nil {
		budget = NewBudget(DefaultBudget(int64(len(src))))
	}
	if err := budget.take(size); err != nil {
		return nil, fmt.Errorf("entry: %w", err)
	}
	var err error
	if how == LZ4 {
		dst = grow(dst, int(size))
		var n int
		n, err = decodeLZ4(dst[start:start+int(size)], src)
		dst = dst[:start+n]
	} else {
		if err := x.zstdReady(); err != nil {
			return nil, err
		}
		if err := zstdClaims(src, size); err != nil {
			return nil, err
		}
		dst = grow(dst, int(size))
		// The decoder writes no further than the capacity.
		var out []byte
		out, err = x.zstd.DecodeAll(src, dst[:start:start+int(size)])
		dst = dst[:min(len(out), start+int(size))]
		if err != nil {
			err = fmt.Errorf("zstd: %w: %w", ErrFormat, err)
		}
	}
	if err == nil && uint64(len(dst)-start) != size {
		err = formatError("entry", 56, "content of %d bytes, %d were promised", len(dst)-start, size)
	}
	if err != nil {
		return nil, fmt.Errorf("entry: %w", err)
	}
	return dst, nil
}

// zstdMaxRatio: a block of one repeated byte takes 4 bytes and makes 128 KiB.
const zstdMaxRatio = 128 << 10 / 4

func (x *Inflater) zstdReady() error {
	if x.zstd != nil {
		return nil
	}
	// A frame's window may be larger than its content.
	memory := max(x.max, 64<<20)
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxMemory(memory))
	if err != nil {
		return fmt.Errorf("zstd: %w", err)
	}
	x.zstd = d
	return nil
}

// zstdClaims checks the frame's own header before it is believed: the decoder
// allocates what that promises.
func zstdClaims(src []byte, size uint64) error {
	var h zstd.Header
	if err := h.Decode(src); err != nil {
		return fmt.Errorf("zstd: %w: %w", ErrFormat, err)
	}
	if h.HasFCS && h.FrameContentSize != size {
		return fmt.Errorf("zstd: a frame of %d bytes, %d were promised: %w", h.FrameContentSize, size, ErrFormat)
	}
	return nil
}

// grow makes room for n bytes.
func grow(b []byte, n int) []byte {
	if cap(b)-len(b) >= n {
		return b
	}
	return append(make([]byte, 0, len(b)+n), b...)
}

// trim cuts the NULs that end PTX text.
func (e *Entry) trim(b []byte) []byte {
	if e.Kind() != KindPTX {
		return b
	}
	return bytes.TrimRight(b, "\x00")
}

// EntryOptions say how [NewEntry] makes an entry; nil is the zero value.
type EntryOptions struct {
	// Compression of the content.
	Compression Compression
	// Ident is the identifier, mostly the name of the source file.
	Ident string
	// Options are options for the assembler, with PTX.
	Options string
	// Flags are added to those that follow from kind, architecture and
	// compression: 64-bit and Linux are set.
	Flags Flags
}

// NewEntry makes an entry of data, in the layout that the tools of CUDA 13
// write. PTX gets the NUL that the driver wants at its end; its version, and
// that of a cubin, are read from data. An error says that data is not what kind
// says, or too large.
//
// A cubin is loaded by a device of the same major architecture and the same or
// a higher minor one; the driver prefers one to any PTX.
func NewEntry(kind Kind, arch Arch, data []byte, o *EntryOptions) (Entry, error) {
	if o == nil {
		o = &EntryOptions{}
	}
	if len(data) > math.MaxInt32 || len(o.Ident) > math.MaxUint16 || len(o.Options) > math.MaxUint16 {
		return Entry{}, fmt.Errorf("new %s entry: %d bytes: %w", kind, len(data), ErrTooLarge)
	}
	major, minor, err := contentVersion(kind, data)
	if err != nil {
		return Entry{}, fmt.Errorf("new %s entry: %w", kind, err)
	}
	if kind == KindPTX {
		text := bytes.TrimRight(data, "\x00")
		data = append(slices.Clip(text), 0) // not into the caller's array
	}
	e := Entry{payload: data}
	var stored, size int
	switch o.Compression {
	case LZ4:
		e.payload, size = appendLZ4(nil, data), len(data)
		stored = len(e.payload)
	case Zstd:
		w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true))
		if err != nil {
			return Entry{}, fmt.Errorf("new %s entry: %w", kind, err)
		}
		e.payload, size = w.EncodeAll(data, nil), len(data)
		stored = len(e.payload)
		if err := w.Close(); err != nil {
			return Entry{}, fmt.Errorf("new %s entry: %w", kind, err)
		}
	case Stored:
	default:
		return Entry{}, fmt.Errorf("new %s entry: %s is not known", kind, o.Compression)
	}
	// The padding must not land in the caller's array.
	e.payload = append(slices.Clip(e.payload), make([]byte, align8(uint64(len(e.payload)))-uint64(len(e.payload)))...)

	flags := Flag64Bit | FlagLinux | arch.flags() | o.Compression.flag() | o.Flags
	le := binary.LittleEndian
	h := make([]byte, entryHeader, 128)
	le.PutUint16(h, uint16(kind))
	le.PutUint16(h[2:], entryVersion)
	le.PutUint64(h[8:], uint64(len(e.payload)))
	le.PutUint32(h[16:], uint32(stored))
	le.PutUint16(h[24:], minor)
	le.PutUint16(h[26:], major)
	le.PutUint32(h[28:], arch.SM)
	le.PutUint64(h[40:], uint64(flags))
	le.PutUint64(h[56:], uint64(size))
	if o.Ident != "" {
		le.PutUint32(h[32:], entryHeader)
		le.PutUint32(h[36:], uint32(len(o.Ident)))
		h = appendPadded(h, o.Ident)
	}
	if kind == KindPTX || o.Options != "" {
		le.PutUint32(h[20:], uint32(len(h)))
		h = le.AppendUint32(h, uint32(len(h)+8))
		h = le.AppendUint32(h, uint32(len(o.Options)))
		h = appendPadded(h, o.Options)
	}
	le.PutUint32(h[4:], uint32(len(h)))
	e.head = h
	return e, nil
}

// appendPadded appends s with a NUL, padded to 8.
func appendPadded(b []byte, s string) []byte {
	b = append(b, s...)
	return append(b, make([]byte, align8(uint64(len(s))+1)-uint64(len(s)))...)
}

// contentVersion reads the version that an entry's header repeats.
func contentVersion(kind Kind, data []byte) (major, minor uint16, err error) {
	switch kind {
	case KindPTX:
		h := ScanPTX(data)
		ma, mi, ok := strings.Cut(h.Version, ".")
		x, err1 := strconv.ParseUint(ma, 10, 16)
		y, err2 := strconv.ParseUint(mi, 10, 16)
		if !ok || err1 != nil || err2 != nil {
			return 0, 0, formatError("PTX", 0, "no .version directive")
		}
		return uint16(x), uint16(y), nil
	case KindELF:
		if !isCubin(data) {
			return 0, 0, formatError("cubin", 0, "not an ELF file for CUDA")
		}
		return 1, uint16(data[8]), nil
	}
	return 1, 0, nil
}
