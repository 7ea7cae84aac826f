package traces

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// MaxLine is the longest line that a [Reader] accepts, in bytes.
const MaxLine = 24 << 20

// rawBuffer is how much of a file is read at once.
const rawBuffer = 64 << 10

// maxWindow bounds what a zstd frame may make the reader allocate.
const maxWindow = 32 << 20

// Errors that a caller may want to tell apart with errors.Is.
var (
	// ErrNotRecording: the input is something else; the message says what it looks like.
	ErrNotRecording = errors.New("not an nvtrace recording")
	// ErrNewer: the recording was written in a newer version of the format.
	ErrNewer = errors.New("recording is newer than this nvtrace")
)

// DamageError says where a recording stops being readable. Everything before
// it has been delivered.
type DamageError struct {
	Name   string // the file, "" if not known
	Line   int    // 1-based line of the decompressed text
	Offset int64  // of that line in the decompressed text
	Events uint64 // events delivered before it
	Err    error
}

// Error names the file, the line, the offset and what is wrong there.
func (e *DamageError) Error() string {
	name := e.Name
	if name == "" {
		name = "recording"
	}
	return fmt.Sprintf("%s:%d: damaged at byte %d of its text (%d events before that are good): %v", name, e.Line, e.Offset, e.Events, e.Err)
}

// Unwrap returns the cause.
func (e *DamageError) Unwrap() error { return e.Err }

// Reader reads a recording, compressed or not, in one pass and bounded memory.
// It is for one goroutine.
type Reader struct {
	// Header is the recording's first record.
	Header Header

	name      string
	src       *countingReader
	dec       *zstd.Decoder
	in        *bufio.Reader
	closer    io.Closer
	long      []byte // a line longer than in's buffer
	p         parser
	block     blockDecoder
	blockRoom []byte // what the block is in
	skipTo    int64  // blocks that end before are left out
	found     int64  // where in the file the frames of the remaining blocks begin, if SkipTo found it
	line      int
	offset    int64 // of the line that is being read
	next      int64 // of the one after
	events    uint64
	complete  bool
	err       error
}

// Open opens the recording in the file of that name.
func Open(name string) (*Reader, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	r, err := newReader(f, name)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r.closer = f
	return r, nil
}

// NewReader reads the header of the recording in src. It returns an error that
// is ErrNotRecording or ErrNewer where that is the matter.
func NewReader(src io.Reader) (*Reader, error) { return newReader(src, "") }

func newReader(src io.Reader, name string) (*Reader, error) {
	r := &Reader{name: name, src: &countingReader{r: src}}
	r.p.strings = make(map[string]string)
	r.block.p = &r.p
	r.skipTo = math.MinInt64
	raw := bufio.NewReaderSize(r.src, rawBuffer)
	magic, err := raw.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", r.label(), err)
	}
	if isZstd(magic) {
		// One goroutine: reads stay where the caller is, and a damaged frame's
		// good blocks come out before its error.
		r.dec, err = zstd.NewReader(raw, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(1<<62))
		if err != nil {
			return nil, fmt.Errorf("%s: zstd: %w", r.label(), err)
		}
		r.in = bufio.NewReaderSize(r.dec, 256<<10)
	} else {
		r.in = raw
	}
	if err := r.readHeader(); err != nil {
		r.release()
		return nil, err
	}
	return r, nil
}

func (r *Reader) label() string {
	if r.name == "" {
		return "recording"
	}
	return r.name
}

// readHeader reads the first line.
func (r *Reader) readHeader() error {
	// What is there already: a pipe's writer may wait for the header to be read.
	_, _ = r.in.Peek(1)
	head, _ := r.in.Peek(min(512, r.in.Buffered()))
	head = bytes.Clone(head)
	line, err := r.readLine()
	if err != nil && !errors.Is(err, io.EOF) || len(line) == 0 {
		if len(head) == 0 && (err == nil || errors.Is(err, io.EOF)) {
			return fmt.Errorf("%s: %w: the file is empty", r.label(), ErrNotRecording)
		}
		if !looksLikeHeader(head) {
			return fmt.Errorf("%s: %w: %s", r.label(), ErrNotRecording, looksLike(head, r.dec != nil))
		}
		return r.damage(err)
	}
	if !looksLikeHeader(line) {
		return fmt.Errorf("%s: %w: %s", r.label(), ErrNotRecording, looksLike(head, r.dec != nil))
	}
	if err := r.p.header(line, &r.Header); err != nil {
		return r.damage(err)
	}
	switch s := r.Header.Schema; {
	case s > SchemaVersion:
		return fmt.Errorf("%s: %w: it has format %d, this one reads up to %d; use the nvtrace that wrote it (%s) or a later one",
			r.label(), ErrNewer, s, SchemaVersion, r.Header.Tool)
	case s < 1:
		return fmt.Errorf("%s: %w: its header names no format version", r.label(), ErrNotRecording)
	}
	return nil
}

// Next reads the next event into e, reusing e's buffers: its slices are good
// until e is used again. At the end it returns io.EOF; where the recording is
// damaged, a *DamageError. Either is returned for ever after.
func (r *Reader) Next(e *Event) error {
	if r.err != nil {
		return r.err
	}
	for {
		switch more, err := r.block.next(e); {
		case err != nil:
			r.err = r.damage(err)
			return r.err
		case more:
			r.count(e)
			return nil
		}
		if head, _ := r.in.Peek(1); len(head) > 0 && head[0] == blockMagic[0] {
			if err := r.readBlock(); err != nil {
				r.err = r.damage(err)
				return r.err
			}
			continue
		}
		line, err := r.readLine()
		if err != nil {
			if errors.Is(err, io.EOF) && len(line) == 0 {
				r.err = io.EOF
				return r.err
			}
			if errors.Is(err, io.EOF) {
				err = cutShort("the line", err)
			}
			r.err = r.damage(err)
			return r.err
		}
		if isBlank(line) {
			continue
		}
		if err := r.p.event(line, e); err != nil {
			r.err = r.damage(err)
			return r.err
		}
		r.count(e)
		return nil
	}
}

func (r *Reader) count(e *Event) {
	r.events++
	if e.Kind == KindEnd {
		r.complete = true
	}
}

// readBlock reads a block up to its events.
func (r *Reader) readBlock() error {
	r.line++
	r.offset = r.next
	var head [blockHead]byte
	if n, err := io.ReadFull(r.in, head[:]); err != nil {
		r.next += int64(n)
		return cutShort("the block", err)
	}
	size := binary.LittleEndian.Uint32(head[len(blockMagic):])
	switch {
	case string(head[:len(blockMagic)]) != blockMagic:
		return fmt.Errorf("neither a record nor a block of a version that is known: % x", head[:len(blockMagic)])
	case size > maxBlock:
		return fmt.Errorf("a block of %d bytes; %d are possible", size, maxBlock)
	}
	if cap(r.blockRoom) > 4*defaultBlockBytes {
		r.blockRoom = nil // one giant block need not stay in memory
	}
	b, err := readN(r.in, r.blockRoom, int(size))
	r.blockRoom = b
	r.next += int64(blockHead + len(b))
	if err != nil {
		return cutShort("the block", err)
	}
	return r.block.begin(b, r.skipTo)
}

// cutShort says what is missing.
func cutShort(what string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s is cut short: %w", what, io.ErrUnexpectedEOF)
	}
	return err
}

// readN reads n bytes into b's memory, and takes more as they come: a file may say what it
// likes.
func readN(r io.Reader, b []byte, n int) ([]byte, error) {
	const step = 1 << 20
	b = slices.Grow(b[:0], min(n, step))
	for len(b) < n {
		at := len(b)
		b = slices.Grow(b, min(n-at, max(at, step)))[:min(n, at+max(at, step))]
		m, err := io.ReadFull(r, b[at:])
		if err != nil {
			return b[:at+m], err
		}
	}
	return b, nil
}

// All yields the remaining events. The event is overwritten by the next step:
// Clone what must stay. A damaged recording yields its error last, with a nil
// event.
func (r *Reader) All() iter.Seq2[*Event, error] {
	return func(yield func(*Event, error) bool) {
		e := new(Event)
		for {
			err := r.Next(e)
			if err == io.EOF { //nolint:errorlint // Next returns it bare; a DamageError may wrap it
				return
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// Events returns how many events were read.
func (r *Reader) Events() uint64 { return r.events }

// Complete reports whether the record that ends a recording was read. A
// recording without it was cut off, if only between two records.
func (r *Reader) Complete() bool { return r.complete }

// InputBytes returns how many bytes of the file were read so far.
func (r *Reader) InputBytes() int64 { return r.src.n }

// Close frees the decompressor, and closes the file if Open opened it.
func (r *Reader) Close() error {
	r.release()
	if r.err == nil {
		r.err = errors.New("recording: read after Close")
	}
	if r.closer == nil {
		return nil
	}
	c := r.closer
	r.closer = nil
	return c.Close()
}

func (r *Reader) release() {
	if r.dec != nil {
		r.dec.Close()
	}
}

func (r *Reader) damage(err error) error {
	return &DamageError{Name: r.name, Line: r.line, Offset: r.offset, Events: r.events, Err: err}
}

// readLine returns the next line without its newline; the bytes are good until
// the next call. With io.EOF it returns what stood after the last newline.
func (r *Reader) readLine() ([]byte, error) {
	r.line++
	r.offset = r.next
	line, err := r.in.ReadSlice('\n')
	if err == nil {
		r.next += int64(len(line))
		return line[:len(line)-1], nil
	}
	if !errors.Is(err, bufio.ErrBufferFull) {
		r.next += int64(len(line))
		return line, err
	}
	if cap(r.long) > 1<<20 {
		r.long = nil // one giant record need not stay in memory
	}
	r.long = append(r.long[:0], line...)
	for errors.Is(err, bufio.ErrBufferFull) {
		if len(r.long) > MaxLine {
			return nil, fmt.Errorf("the line is longer than %d bytes", MaxLine)
		}
		line, err = r.in.ReadSlice('\n')
		r.long = append(r.long, line...)
	}
	if len(r.long) > MaxLine {
		return nil, fmt.Errorf("the line is longer than %d bytes", MaxLine)
	}
	r.next += int64(len(r.long))
	if err != nil {
		return r.long, err
	}
	return r.long[:len(r.long)-1], nil
}

func isBlank(line []byte) bool { return len(bytes.TrimSpace(line)) == 0 }

func isZstd(b []byte) bool {
	return len(b) >= 4 && b[0] == 0x28 && b[1] == 0xb5 && b[2] == 0x2f && b[3] == 0xfd
}

func looksLikeHeader(line []byte) bool {
	line = bytes.TrimSpace(line)
	return len(line) > 0 && line[0] == '{' && bytes.Contains(line[:min(len(line), 4096)], []byte(`"header"`))
}

// looksLike says what a file that is no recording seems to be.
func looksLike(head []byte, compressed bool) string {
	say := func(s string) string {
		if compressed {
			return "zstd data; unpacked, " + s
		}
		return s
	}
	for _, m := range []struct{ magic, is string }{
		{"\x7fELF", "an ELF file"},
		{"\x1f\x8b", "gzip data; unpack it first"},
		{"PK\x03\x04", "a zip archive"},
		{"\xfd7zXZ", "xz data; unpack it first"},
		{"SQLite format 3", "an SQLite database (an Nsight export?)"},
		{"\x04\x22\x4d\x18", "LZ4 data; unpack it first"},
		{"#!", "a script"},
	} {
		if bytes.HasPrefix(head, []byte(m.magic)) {
			return say("it looks like " + m.is)
		}
	}
	text := bytes.TrimSpace(head)
	switch {
	case compressed && len(head) == 0:
		return "zstd data that ends before anything can be read"
	case len(text) == 0:
		return say("it holds nothing but white space")
	case bytes.HasPrefix(text, []byte(`{"k":`)):
		return say("it begins with a record that is not the header; its beginning is missing")
	case text[0] == '{' || text[0] == '[':
		return say("it looks like other JSON")
	case bytes.Contains(head, []byte("ioctl(")):
		return say("it looks like strace's output")
	}
	for _, c := range head {
		if c < 0x20 && c != '\n' && c != '\t' && c != '\r' {
			return say(fmt.Sprintf("it looks like binary data, beginning % x", head[:min(len(head), 8)]))
		}
	}
	return say(fmt.Sprintf("it looks like text, beginning %q", head[:min(len(head), 24)]))
}

// countingReader counts what passes.
type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}
