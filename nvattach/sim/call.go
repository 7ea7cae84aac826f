package sim

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"golang.org/x/sys/unix"
)

// call executes a call and fills the reply. An error is the end of the connection. An entry
// without a handler is counted for the report and returns CUDA_ERROR_NOT_SUPPORTED, so that
// programs with a way round it take that way.
func (p *Process) call(c *conn, q *request, out *reply) error {
	cat := p.sim.cat
	if int(q.index) >= len(cat.entries[q.lib]) {
		return fmt.Errorf("entry %d of %s, which has %d", q.index, libraryNames[q.lib], len(cat.entries[q.lib]))
	}
	e := &cat.entries[q.lib][q.index]
	for p.pending.Load() >= maxPending { // as on a GPU, a full queue holds the caller up
		select {
		case <-p.drained:
		case <-p.dead:
			return errGone
		}
	}
	cl := &call{p: p, conn: c, entry: e, lib: int(q.lib), req: q}
	cl.lock()
	cl.th = p.thread(q.tid)
	r := errNotSupported
	switch in := cl.th.in; {
	case in != nil && in.is(q):
		r = in.answer(cl)
	case e.fn == nil:
		p.sim.missing(e.name)
		if e.runtime {
			cl.th.lastErr = r
		}
	default:
		r = e.fn(cl)
		if cl.bad && r == success {
			r = errInvalidValue
			if e.runtime && !cl.has {
				cl.th.lastErr = r
			}
		}
	}
	cl.loaded(0, r)
	inited := p.inited
	cl.unlock()
	select {
	case <-p.dead:
		return errGone
	default:
	}
	*out = reply{result: uint64(r), data: cl.out, a: [5]uint64{uint64(bool32(inited))}}
	if cl.has {
		out.result = cl.ret
	}
	return nil
}

// lock takes the process's lock for the call. Process.cur says whose call it is, for what has
// to ask the program's thread for something, as the allocation of pinned memory has.
func (c *call) lock() {
	c.p.mu.Lock()
	c.p.cur = c
}

// unlock is called at the end of a call and while it waits.
func (c *call) unlock() {
	c.p.cur = nil
	c.p.mu.Unlock()
}

// returns sets what the entry returns, for those that do not return a result.
func (c *call) returns(v uint64) result {
	c.ret, c.has = v, true
	return success
}

// arg returns argument i, counted over those of integer class. The first six are in
// registers (System V ABI for x86-64), the others on the stack; ten of these, which is more than
// any entry has, are read when the first of them is asked for.
func (c *call) arg(i int) uint64 {
	if i < len(c.req.args) {
		return c.req.args[i]
	}
	if i -= len(c.req.args); i >= len(c.more) {
		var b [8 * 10]byte
		n, _ := c.p.mem.ReadMem(c.req.stack, b[:])
		c.more = nil
		for k := 0; k+8 <= len(b); k += 8 {
			c.more = append(c.more, binary.LittleEndian.Uint64(b[k:]))
		}
		if n < 8*(i+1) {
			c.bad = true
		}
	}
	return c.more[i]
}

func (c *call) u32(i int) uint32 { return uint32(c.arg(i)) }

// read reads the program's memory, or that of the GPU.
func (c *call) read(addr uint64, b []byte) bool {
	if c.p.readAny(addr, b) != nil {
		c.bad = true
		return false
	}
	return true
}

// readAny reads memory of the program or the GPU, of which addresses say which it is: CUDA's
// unified addressing. What begins in an allocation must end in it.
func (p *Process) readAny(addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if m, in := p.arena.bytes(addr, uint64(len(b))); in {
		if m == nil {
			return unix.EFAULT
		}
		copy(b, m)
		return nil
	}
	_, err := p.mem.ReadMem(addr, b)
	return err
}

// writeAny writes memory of the program or the GPU.
func (p *Process) writeAny(addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if m, in := p.arena.bytes(addr, uint64(len(b))); in {
		if m == nil {
			return unix.EFAULT
		}
		copy(m, b)
		return nil
	}
	_, err := p.mem.WriteMem(addr, b)
	return err
}

// The program stores results of up to storeMax bytes itself, which is quicker. What
// is below lowest is a null pointer or close to one.
const (
	storeMax = 256
	lowest   = 1 << 16
)

// write stores the result of a call through a pointer argument. The program sees it
// when the call returns. What is large, or goes to memory of a GPU, is written at once instead.
func (c *call) write(addr uint64, b []byte) {
	if addr < lowest || addr+uint64(len(b)) > 1<<47 {
		c.bad = true
		return
	}
	if len(b) <= storeMax && len(c.out)+24+len(b) <= replyData && c.p.arena.at(addr) == nil {
		c.out = binary.LittleEndian.AppendUint64(c.out, addr)
		c.out = binary.LittleEndian.AppendUint64(c.out, uint64(len(b)))
		c.out = append(c.out, b...)
		for len(c.out)%8 != 0 {
			c.out = append(c.out, 0)
		}
		return
	}
	if c.p.writeAny(addr, b) != nil {
		c.bad = true
	}
}

// put64, put32 and putF32 store a value through a pointer argument.
func (c *call) put64(addr, v uint64) { c.write(addr, binary.LittleEndian.AppendUint64(nil, v)) }

func (c *call) put32(addr uint64, v uint32) {
	c.write(addr, binary.LittleEndian.AppendUint32(nil, v))
}
func (c *call) putF32(addr uint64, v float32) { c.put32(addr, math.Float32bits(v)) }

// maybe64 and maybe32 are put64 and put32 for pointers that may be null.
func (c *call) maybe64(addr, v uint64) {
	if addr != 0 {
		c.put64(addr, v)
	}
}

func (c *call) maybe32(addr uint64, v uint32) {
	if addr != 0 {
		c.put32(addr, v)
	}
}

// get64 and get32 read a number that an argument points to; 0, and a bad call, where there is no
// memory.
func (c *call) get64(addr uint64) uint64 {
	var b [8]byte
	c.read(addr, b[:])
	return binary.LittleEndian.Uint64(b[:])
}

func (c *call) get32(addr uint64) uint32 {
	var b [4]byte
	c.read(addr, b[:])
	return binary.LittleEndian.Uint32(b[:])
}

// words reads n 64-bit words.
func (c *call) words(addr uint64, n int) []uint64 {
	b := make([]byte, 8*n)
	if !c.read(addr, b) {
		return make([]uint64, n)
	}
	w := make([]uint64, n)
	for i := range w {
		w[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return w
}

// cstring reads a string that a NUL ends.
func (c *call) cstring(addr uint64) (string, bool) {
	b, err := readString(c.p.reader(addr), maxString)
	if err != nil {
		c.bad = true
		return "", false
	}
	return string(b), true
}

// readString reads up to a NUL, which is not in the result.
func readString(r io.ReaderAt, limit int) ([]byte, error) {
	var out []byte
	var b [256]byte
	for len(out) < limit {
		n, err := r.ReadAt(b[:], int64(len(out)))
		for i := range n {
			if b[i] == 0 {
				return append(out, b[:i]...), nil
			}
		}
		out = append(out, b[:n]...)
		if n == 0 {
			return nil, err
		}
	}
	return nil, fmt.Errorf("no NUL in %d bytes", limit)
}

// reader reads the program's memory from addr on.
func (p *Process) reader(addr uint64) io.ReaderAt { return &memReader{p, addr} }

// A memReader is the program's memory from base on, as a file, for parsers of images.
type memReader struct {
	p    *Process
	base uint64
}

// ReadAt implements [io.ReaderAt]: what lies behind the memory that is there is
// the end of the file.
func (m *memReader) ReadAt(b []byte, off int64) (int, error) {
	addr := m.base + uint64(off)
	if r := m.p.arena.at(addr); r != nil {
		if n := copy(b, r.Data[addr-r.Base:]); n < len(b) {
			return n, io.EOF
		}
		return len(b), nil
	}
	done := 0
	for done < len(b) { // page by page: a read that touches a missing page may give nothing
		n := min(len(b)-done, int(pageSize-(addr+uint64(done))%pageSize))
		got, err := m.p.mem.ReadMem(addr+uint64(done), b[done:done+n])
		done += max(got, 0)
		if err != nil {
			return done, io.EOF
		}
	}
	return done, nil
}

// print writes text to the program's stdout, through its own buffer.
func (c *call) print(text []byte) {
	for len(text) > 0 {
		n := min(len(text), replyData)
		if _, err := c.conn.do(&reply{action: actPrint, a: [5]uint64{1}, data: text[:n]}); err != nil {
			return
		}
		text = text[n:]
	}
}
