package traces

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/klauspost/compress/zstd"
)

// WriterOptions tune a [Writer]. The zero value, and nil, are good defaults.
type WriterOptions struct {
	// Blocks writes events by columns, many to a block, as .nvt files have them; the other form is
	// text. Create and NewFileWriter set it and Compress by the file's name.
	Blocks bool
	// Compress writes zstd frames, as .nvt files have them.
	Compress bool
	// FlushBytes is how much is gathered before it is written; 0 means 128 KiB of
	// text, 512 KiB of blocks.
	FlushBytes int
	// FlushInterval bounds, by the events' own times, how much recorded time
	// waits in the buffer; 0 means 200 ms, negative means no bound. No clock is
	// read: a caller whose program goes quiet calls Flush itself.
	FlushInterval time.Duration
	// OnError is called once, on the writer's goroutine, with the first error.
	OnError func(error)
}

const (
	defaultFlushBytes    = 128 << 10
	defaultBlockBytes    = 512 << 10
	defaultFlushInterval = 200 * time.Millisecond
)

// Writer writes a recording. Records gather in a buffer that goes out in one
// write at flush points; compressed, each flush is a complete zstd frame, with blocks
// one block.
// Whatever happens later, everything up to the last flush can be read.
//
// The first error sticks: it is told to OnError, returned by Err, Flush and
// Close, and later writes do nothing, so that a full disk never disturbs the
// traced program. A Writer is for one goroutine.
type Writer struct {
	w        io.Writer
	closer   io.Closer
	name     string
	enc      *zstd.Encoder
	block    *blockEncoder // nil: events are text
	buf      []byte
	frame    []byte
	flushAt  int
	interval int64 // ns
	first    int64 // time of the oldest event in buf
	waiting  bool  // buf holds an event
	onError  func(error)
	err      error
	closed   bool
	events   uint64
	written  uint64
}

// NewWriter starts a recording on w with header h, which reaches w at the first
// flush. It returns an error only for impossible options.
func NewWriter(w io.Writer, h *Header, o *WriterOptions) (*Writer, error) {
	if o == nil {
		o = &WriterOptions{}
	}
	wr := &Writer{
		w:        w,
		flushAt:  o.FlushBytes,
		interval: int64(o.FlushInterval),
		onError:  o.OnError,
		name:     "recording",
	}
	if o.Blocks {
		wr.block = newBlockEncoder()
	}
	if wr.flushAt <= 0 {
		wr.flushAt = defaultFlushBytes
		if o.Blocks {
			wr.flushAt = defaultBlockBytes
		}
	}
	if wr.interval == 0 {
		wr.interval = int64(defaultFlushInterval)
	}
	if o.Compress {
		enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(1<<20))
		if err != nil {
			return nil, fmt.Errorf("recording: zstd: %w", err)
		}
		wr.enc = enc
	}
	schema := schemaText
	if o.Blocks {
		schema = SchemaVersion
	}
	wr.buf = appendHeader(make([]byte, 0, wr.flushAt+16<<10), h, schema)
	return wr, nil
}

// CheckName refuses names that say nothing of a recording's form: it is compressed
// where the name ends in .nvt, plain JSON lines where it ends in .jsonl.
func CheckName(name string) error {
	switch filepath.Ext(name) {
	case ".nvt", ".jsonl":
		return nil
	}
	return fmt.Errorf("recording %s: the name must end in .nvt (compressed) or .jsonl (text)", name)
}

// NewFileWriter starts a recording in the open file f, in the form that f's name asks
// for; one called "-" is compressed. f is closed by [Writer.Close], and also if there is an error.
func NewFileWriter(f *os.File, h *Header, o *WriterOptions) (*Writer, error) {
	var opts WriterOptions
	if o != nil {
		opts = *o
	}
	name := f.Name()
	if err := CheckName(name); err != nil && name != "-" {
		return nil, errors.Join(err, f.Close())
	}
	opts.Compress = filepath.Ext(name) == ".nvt" || name == "-"
	opts.Blocks = opts.Compress
	w, err := NewWriter(f, h, &opts)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	w.closer, w.name = f, "recording "+name
	// The header goes out at once, so that even an empty run leaves a file that
	// says what it is, and an unwritable disk is noticed before the program runs.
	if err := w.Flush(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return w, nil
}

// Write appends e. The event is copied; the caller may reuse it. After an error
// Write does nothing.
func (w *Writer) Write(e *Event) {
	if w.err != nil {
		return
	}
	if w.closed {
		w.fail(errors.New("write after Close"))
		return
	}
	full := false
	if w.block != nil {
		w.block.add(e)
		full = w.block.events >= maxBlockEvents
	} else {
		w.buf = AppendEvent(w.buf, e)
	}
	w.events++
	end := e.Time + e.Dur
	if !w.waiting {
		w.first, w.waiting = end, true
	}
	if full || w.Pending() >= w.flushAt || w.interval > 0 && end-w.first >= w.interval {
		_ = w.Flush()
	}
}

// WriteBlock appends the events of a block that [Batch.AppendTo] made, behind those that were
// written before, and writes it out. Only an uncompressed recording in blocks takes it.
func (w *Writer) WriteBlock(block []byte) {
	if w.block == nil && w.err == nil || w.enc != nil {
		w.fail(errors.New("the writer does not take blocks"))
	}
	if w.Flush() != nil {
		return
	}
	n, err := w.w.Write(block)
	w.written += uint64(n)
	if err != nil {
		w.fail(err)
		return
	}
	c := column{b: block[blockHead:]}
	events, _ := c.unsigned()
	w.events += events
}

// Flush writes out what has gathered. It returns the sticky error.
func (w *Writer) Flush() error {
	if w.err != nil || w.Pending() == 0 {
		return w.err
	}
	w.frame = w.frame[:0]
	if w.block == nil {
		w.frame = w.appendFrame(w.frame, w.buf)
	} else {
		if len(w.buf) > 0 { // the header
			w.frame = w.appendFrame(w.frame, w.buf)
		}
		if w.block.events > 0 {
			x, at := indexEntry{events: uint32(w.block.events), least: w.block.least, most: w.block.most}, len(w.frame)
			w.buf = w.block.appendTo(w.buf[:0])
			if w.frame = w.appendFrame(w.frame, w.buf); w.enc != nil {
				x.size = uint32(len(w.frame) - at)
				w.frame = x.appendTo(w.frame)
			}
		}
	}
	out := w.frame
	n, err := w.w.Write(out)
	w.written += uint64(n)
	if err == nil && n < len(out) {
		err = io.ErrShortWrite
	}
	if err != nil {
		w.fail(err)
		return w.err
	}
	w.buf = w.buf[:0]
	w.waiting = false
	return nil
}

// appendFrame appends what goes out of b.
func (w *Writer) appendFrame(dst, b []byte) []byte {
	if w.enc == nil {
		return append(dst, b...)
	}
	return w.enc.EncodeAll(b, dst)
}

// Pending returns about how many bytes wait for the next flush.
func (w *Writer) Pending() int {
	if w.block != nil {
		return len(w.buf) + w.block.size
	}
	return len(w.buf)
}

// Events returns how many events Write took.
func (w *Writer) Events() uint64 { return w.events }

// Written returns how many bytes went out, as compressed.
func (w *Writer) Written() uint64 { return w.written }

// Err returns the first error, nil if there was none.
func (w *Writer) Err() error { return w.err }

// Close flushes, and closes the file of Create or NewFileWriter. It does not write
// KindEnd: its figures are the caller's. It returns the sticky error.
func (w *Writer) Close() error {
	if w.closed {
		return w.err
	}
	_ = w.Flush()
	w.closed = true
	if w.closer != nil {
		if err := w.closer.Close(); err != nil && w.err == nil {
			w.fail(err)
		}
	}
	if w.enc != nil {
		_ = w.enc.Close() // releases its buffers; nothing is pending in EncodeAll's use
	}
	w.buf, w.frame, w.block = nil, nil, nil
	return w.err
}

func (w *Writer) fail(err error) {
	w.err = fmt.Errorf("%s: after %d events: %w", w.name, w.events, err)
	w.buf, w.block = w.buf[:0], nil
	if w.onError != nil {
		w.onError(w.err)
	}
}
