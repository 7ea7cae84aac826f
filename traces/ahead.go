package traces

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// What lies between those that read ahead and who takes the events in: of each goroutine so many
// batches, which is little enough to stay in a cache.
const (
	batchEvents = 256
	batchBytes  = 1 << 20 // of memory that events refer to
	batches     = 4
)

// maxReaders bounds how many goroutines decode blocks.
const maxReaders = 4

// maxAhead is how large a block may be that is decoded apart from others, compressed or not.
const maxAhead = 4 << 20

// batch is events that were read.
type batch struct {
	events [batchEvents]Event
	n      int
	bytes  int
	read   int64 // bytes of the file up to the last of them
	ended  bool  // the record that ends a recording is one of them
	err    error // why they are the last
}

func (b *batch) reset() { b.n, b.bytes, b.ended, b.err = 0, 0, false, nil }

// room returns where the batch's next event goes.
func (b *batch) room() *Event { return &b.events[b.n] }

// take counts the event that room returned, and reports whether the batch is full.
func (b *batch) take() (full bool) {
	e := &b.events[b.n]
	for i := range e.Mem {
		b.bytes += len(e.Mem[i].In) + len(e.Mem[i].Out)
	}
	b.ended = b.ended || e.Kind == KindEnd
	b.n++
	return b.n == batchEvents || b.bytes >= batchBytes
}

// Batches gives the remaining events to f, in order and some at a time, which are good until f
// returns; with them, how many bytes of the file were read up to there. They are read ahead by other
// goroutines. The blocks of a compressed file are decoded at the same time, as far as there are
// processors; what comes out is the same. A recording that is damaged yields a *DamageError after
// what could be read.
func (r *Reader) Batches(f func(events []Event, read int64)) error {
	if runtime.GOMAXPROCS(0) > 1 {
		if file, at, ok := r.boundary(); ok {
			r.readBlocks(file, at, f)
		}
	}
	if r.err == nil {
		r.readAhead(f)
	}
	if r.err == io.EOF { //nolint:errorlint // Next returns it bare; a DamageError may wrap it
		return nil
	}
	return r.err
}

// readAhead reads by one goroutine.
func (r *Reader) readAhead(f func(events []Event, read int64)) {
	full, free := make(chan *batch, batches), make(chan *batch, batches)
	for range batches {
		free <- new(batch)
	}
	go func() {
		defer close(full)
		for b := range free {
			b.reset()
			for {
				if b.err = r.Next(b.room()); b.err != nil || b.take() {
					break
				}
			}
			b.read = r.src.n
			full <- b
			if b.err != nil {
				return
			}
		}
	}()
	for b := range full {
		if f(b.events[:b.n], b.read); b.err == nil {
			free <- b
		}
	}
}

// boundary returns where the frames of blocks begin in a compressed file of which no event was read
// yet; false: it has none, or begins with anything but a frame for the header.
func (r *Reader) boundary() (f *os.File, at int64, ok bool) {
	f, ok = r.closer.(*os.File)
	if !ok || r.dec == nil || r.err != nil || r.events > 0 || r.block.left > 0 {
		return nil, 0, false
	}
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return nil, 0, false
	}
	if r.found > 0 {
		return f, r.found, true
	}
	in := newFrames(f, 0)
	frame, err := in.next(nil)
	if err != nil {
		return nil, 0, false
	}
	dec, err := newFrameDecoder()
	if err != nil {
		return nil, 0, false
	}
	defer dec.Close()
	text, err := dec.DecodeAll(frame, nil)
	return f, in.at, err == nil && int64(len(text)) == r.next
}

// compressedBlock is a block of a file that is decoded apart from others.
type compressedBlock struct {
	at, end int64 // in the file
	frame   []byte
	home    chan *batch // where its batches come from
	full    chan *batch // closed behind the last
	size    int         // of the block
	odd     bool        // it has to be read in order: it is damaged, or no such block
}

// readBlocks reads blocks by several goroutines until the end, or to the first that is not as
// expected, where it leaves the Reader.
func (r *Reader) readBlocks(f *os.File, at int64, give func(events []Event, read int64)) {
	n := min(runtime.GOMAXPROCS(0), maxReaders)
	order, work, quit := make(chan *compressedBlock, n), make(chan *compressedBlock, n), make(chan struct{})
	frames := sync.Pool{New: func() any { return new([]byte) }}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(order)
		defer close(work)
		for in := newFrames(f, at); ; {
			b := &compressedBlock{at: in.at, full: make(chan *batch, batches)}
			var err error
			b.frame, err = in.next(*frames.Get().(*[]byte))
			if err == io.EOF { //nolint:errorlint // as next has it
				return
			}
			b.end = in.at
			if err != nil {
				b.odd = true
				close(b.full)
			}
			select {
			case order <- b:
			case <-quit:
				return
			}
			if b.odd {
				return
			}
			select {
			case work <- b:
			case <-quit:
				return
			}
		}
	})
	for range n {
		wg.Go(func() {
			d := newBlockReader(r.skipTo)
			if d.dec != nil {
				defer d.dec.Close()
			}
			for b := range work {
				d.read(b, quit)
				frames.Put(&b.frame)
				close(b.full)
			}
		})
	}
	for b := range order {
		given := 0
		for events := range b.full {
			give(events.events[:events.n], b.end)
			given += events.n
			r.complete = r.complete || events.ended
			b.home <- events
		}
		if b.odd {
			close(quit)
			wg.Wait()
			r.restart(f, b.at, given)
			return
		}
		r.events += uint64(given)
		r.line++
		r.offset, r.next = r.next, r.next+int64(b.size)
		r.src.n = b.end
	}
	wg.Wait()
	r.err = io.EOF
}

// restart goes on in order at a frame, of whose events some were given already.
func (r *Reader) restart(f *os.File, at int64, given int) {
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		r.err = r.damage(err)
		return
	}
	r.src.n = at
	if err := r.dec.Reset(bufio.NewReaderSize(r.src, rawBuffer)); err != nil {
		r.err = r.damage(err)
		return
	}
	r.in.Reset(r.dec)
	e := new(Event)
	for ; given > 0 && r.err == nil; given-- {
		_ = r.Next(e) // what it returns stays
	}
}

// blockReader decodes blocks, one after another.
type blockReader struct {
	dec    *zstd.Decoder // nil: there is none
	p      parser
	block  blockDecoder
	text   []byte
	free   chan *batch
	skipTo int64
}

func newFrameDecoder() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(maxAhead), zstd.WithDecoderMaxMemory(maxAhead))
}

func newBlockReader(skipTo int64) *blockReader {
	d := &blockReader{free: make(chan *batch, batches), skipTo: skipTo}
	d.dec, _ = newFrameDecoder() // without it every block is odd
	d.p.strings = make(map[string]string)
	d.block.p = &d.p
	for range batches {
		d.free <- new(batch)
	}
	return d
}

// read puts a block's events into its batches.
func (d *blockReader) read(c *compressedBlock, quit <-chan struct{}) {
	c.odd, c.home = true, d.free
	if d.dec == nil {
		return
	}
	text, err := d.dec.DecodeAll(c.frame, d.text[:0])
	d.text = text
	if err != nil || len(text) < blockHead || string(text[:len(blockMagic)]) != blockMagic ||
		uint64(binary.LittleEndian.Uint32(text[len(blockMagic):])) != uint64(len(text)-blockHead) {
		return
	}
	if d.block.begin(text[blockHead:], d.skipTo) != nil {
		return
	}
	for more := true; more; {
		var b *batch
		select {
		case b = <-d.free:
		case <-quit:
			return
		}
		b.reset()
		for full := false; !full && more; {
			if more, err = d.block.next(b.room()); err != nil {
				break
			}
			if more {
				full = b.take()
			}
		}
		c.full <- b // there is room for all
		if err != nil {
			return
		}
	}
	c.odd, c.size = false, len(text)
}

// frames finds the zstd frames of a file.
type frames struct {
	in *bufio.Reader
	at int64 // of what comes next
}

func newFrames(f io.ReaderAt, at int64) *frames {
	return &frames{bufio.NewReaderSize(io.NewSectionReader(f, at, math.MaxInt64-at), rawBuffer), at}
}

// errFrame is the error of what is no frame, or too large a one.
var errFrame = errors.New("no frame that is known")

// next returns the next frame that is not to be skipped, in b's memory; at the end io.EOF. After any
// error at is still where the frame begins.
func (x *frames) next(b []byte) ([]byte, error) {
	for {
		head, err := x.in.Peek(zstd.HeaderMaxSize)
		if len(head) == 0 && err == io.EOF { //nolint:errorlint // as Peek has it
			return b, io.EOF
		}
		var h zstd.Header
		if h.Decode(head) != nil {
			return b, errFrame
		}
		if !h.Skippable {
			if b, err = x.frame(b[:0], &h); err == nil {
				x.at += int64(len(b))
			}
			return b, err
		}
		n := h.HeaderSize + int(h.SkippableSize)
		if m, err := x.in.Discard(n); err != nil || m < n {
			return b, errFrame
		}
		x.at += int64(n)
	}
}

// frame appends the frame to b (RFC 8878, 3.1.1).
func (x *frames) frame(b []byte, h *zstd.Header) ([]byte, error) {
	b, err := x.append(b, h.HeaderSize)
	for last := false; !last && err == nil; {
		at := len(b)
		if b, err = x.append(b, 3); err != nil {
			break
		}
		v := uint32(b[at]) | uint32(b[at+1])<<8 | uint32(b[at+2])<<16
		size := int(v >> 3)
		if last = v&1 != 0; v>>1&3 == 1 { // one byte, repeated
			size = 1
		}
		b, err = x.append(b, size)
	}
	if err == nil && h.HasCheckSum {
		b, err = x.append(b, 4)
	}
	return b, err
}

func (x *frames) append(b []byte, n int) ([]byte, error) {
	if len(b)+n > maxAhead {
		return b, errFrame
	}
	at := len(b)
	b = slices.Grow(b, n)[:at+n]
	if _, err := io.ReadFull(x.in, b[at:]); err != nil {
		return b[:at], errFrame
	}
	return b, nil
}
