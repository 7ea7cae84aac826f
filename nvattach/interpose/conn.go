package interpose

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/fatbin"
)

// conn is one connection. One goroutine serves it.
type conn struct {
	s        *Server
	u        *net.UnixConn
	raw      syscall.RawConn
	pid, uid int
	p        *Process
	begun    bool // it has said hello, or never will; guarded by s.mu
	draining atomic.Bool
	alive    bool // the process had not closed it when the server ended; read after serve
	buf      [maxMessage]byte
	oob      [64]byte
}

var errAgain = errors.New("nothing to read")

// errForeign says that a connection is not of a program of this run.
var errForeign = errors.New("not of this run")

// drain makes serve return once nothing is left to read.
func (c *conn) drain() {
	c.draining.Store(true)
	_ = c.u.SetReadDeadline(time.Unix(1, 0)) // wakes a waiting reader
}

func (c *conn) serve() {
	_ = c.u.SetReadDeadline(time.Now().Add(helloWait))
	err := c.hello()
	if err == nil && !c.draining.Load() {
		_ = c.u.SetReadDeadline(time.Time{})
	}
	var end time.Time
	for err == nil {
		var msg []byte
		var files []*os.File
		msg, files, err = c.receive(!c.draining.Load())
		if errors.Is(err, os.ErrDeadlineExceeded) && c.draining.Load() {
			_ = c.u.SetReadDeadline(time.Time{})
			end = time.Now().Add(drainLimit)
			err = nil
			continue
		}
		if err == nil {
			err = c.message(msg, files)
		}
		for _, f := range files {
			_ = f.Close()
		}
		if err == nil && !end.IsZero() && time.Now().After(end) {
			err = errAgain // it would go on for ever
		}
	}
	c.alive = errors.Is(err, errAgain)
	if errors.Is(err, errForeign) || c.p == nil && errors.Is(err, errWire) && !c.s.likely(c.uid) {
		c.s.refuse(c.pid, "")
	} else if errors.Is(err, errWire) {
		c.broken(err)
	}
}

// broken tells that the connection is ended for what came through it.
func (c *conn) broken(err error) {
	c.s.mu.Lock()
	c.s.stats.Broken++
	tell := c.s.stats.Broken <= maxBroken
	c.s.mu.Unlock()
	if tell {
		c.s.o.OnGap(&Gap{PID: c.pid, Code: GapProtocol, Text: "the interposer's connection is ended: " + err.Error()})
	}
}

// receive returns the next packet, which stays valid until the next call, and
// the files that came with it. Without wait it gives errAgain where there is none.
func (c *conn) receive(wait bool) ([]byte, []*os.File, error) {
	var n, oobn, flags int
	var rerr error
	err := c.raw.Read(func(fd uintptr) bool {
		for {
			n, oobn, flags, _, rerr = unix.Recvmsg(int(fd), c.buf[:], c.oob[:], unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
			if !errors.Is(rerr, unix.EINTR) {
				break
			}
		}
		return !errors.Is(rerr, unix.EAGAIN) || !wait
	})
	switch {
	case err != nil:
		return nil, nil, err
	case errors.Is(rerr, unix.EAGAIN):
		return nil, nil, errAgain
	case rerr != nil:
		return nil, nil, rerr
	}
	files := takeFiles(c.oob[:oobn])
	if n == 0 {
		err = io.EOF
	} else if flags&unix.MSG_TRUNC != 0 {
		err = wireError("a packet of more than %d bytes", maxMessage)
	}
	if err != nil {
		for _, f := range files {
			_ = f.Close()
		}
		return nil, nil, err
	}
	return c.buf[:n], files, nil
}

// takeFiles returns every descriptor that the kernel has put in our table, so
// that none stays open.
func takeFiles(oob []byte) []*os.File {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var files []*os.File
	for _, m := range msgs {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files
}

func (c *conn) hello() error {
	msg, files, err := c.receive(true)
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) && !c.draining.Load() {
			return wireError("no hello")
		}
		return err
	}
	for _, f := range files {
		_ = f.Close()
	}
	h, err := parseHeader(msg)
	if err != nil {
		return err
	}
	if h.Type != typeHello {
		return wireError("message %d before hello", h.Type)
	}
	m, exe, err := parseHello(msg)
	if err != nil {
		return err
	}
	if subtle.ConstantTimeCompare(m.Key[:], c.s.key[:]) != 1 {
		return errForeign
	}
	c.s.welcome(c)
	w := wireWelcome{Mode: uint32(c.s.o.Mode), WaitMS: uint32(min(c.s.o.Wait.Milliseconds(), 1<<30))}
	if c.s.o.Replace {
		w.Flags |= flagReplace
	}
	if m.Table != c.s.table {
		w.Mode = uint32(ModeOff)
	}
	w.H = newHeader(typeWelcome, w)
	if _, err := c.u.Write(encode(w)); err != nil {
		return err
	}
	if m.Table != c.s.table {
		return wireError("the shim of another nvtrace (table %08x, not %08x)", m.Table, c.s.table)
	}
	p, isNew := c.s.greet(&Process{
		PID: c.pid, UID: c.uid, OwnID: int(m.PID), Exe: exe, Libc: Libc(m.Libc),
		Major: int(m.LibcMajor), Minor: int(m.LibcMinor), Born: m.Born,
	})
	if c.p = p; isNew {
		c.s.o.OnHello(p)
	}
	return nil
}

func (c *conn) message(msg []byte, files []*os.File) error {
	h, err := parseHeader(msg)
	if err != nil {
		return err
	}
	switch h.Type {
	case typeCall:
		m, caller, data, err := parseCall(msg, len(c.s.functions))
		if err != nil {
			return err
		}
		c.note(&m, caller, data)
	case typeImage:
		m, caller, data, err := parseCall(msg, len(c.s.functions))
		if err != nil {
			return err
		}
		return c.image(&m, caller, data, files)
	case typeGap:
		m, err := parseGap(msg)
		if err != nil {
			return err
		}
		c.gap(&m)
	default:
		return wireError("message %d", h.Type)
	}
	return nil
}

func (c *conn) note(m *wireCall, caller, data []byte) {
	n := &Note{m.call(c.p, c.s.functions, caller, data)}
	c.s.mu.Lock()
	c.s.stats.Notes++
	if n.Size > 0 && n.Hashed == n.Size {
		n.SHA256 = c.s.known[imageKey{n.Hash, n.Size}]
	}
	c.s.mu.Unlock()
	c.s.o.OnNote(n)
}

func (c *conn) gap(m *wireGap) {
	g := &Gap{PID: c.pid, Code: GapCode(m.Code), Count: int(m.Count), Detail: m.Detail}
	if (g.Code == GapThunks || g.Code == GapUnwrapped) && m.Detail >= 0 && m.Detail < int64(len(c.s.functions)) {
		g.Function = c.s.functions[m.Detail].Name
	}
	c.s.mu.Lock()
	c.s.stats.Gaps++
	c.s.mu.Unlock()
	c.s.o.OnGap(g)
}

// image reads an image and gives it to the callback. The program waits for the
// answer where files has a second member.
func (c *conn) image(m *wireCall, caller, data []byte, files []*os.File) error {
	if len(files) == 0 {
		return wireError("an image without its file")
	}
	f := files[0]
	if err := checkImage(f, int64(m.Size)); err != nil {
		return err
	}
	im := &Image{Call: m.call(c.p, c.s.functions, caller, data), file: f}
	c.s.mu.Lock()
	tooMuch := im.Size > c.s.o.MaxImage || c.s.total+im.Size > c.s.o.MaxTotal
	if !tooMuch {
		c.s.total += im.Size
		c.s.stats.Images++
		c.s.stats.ImageBytes += im.Size
	}
	c.s.mu.Unlock()
	if tooMuch {
		c.s.o.OnGap(&Gap{PID: c.pid, Code: GapProtocol, Text: fmt.Sprintf(
			"an image of %d bytes is above the limits (%d each, %d in all)", im.Size, c.s.o.MaxImage, c.s.o.MaxTotal)})
		return c.verdict(files, nil)
	}
	sum, quick := sha256.New(), newHasher()
	if n, err := io.Copy(io.MultiWriter(sum, quick), io.NewSectionReader(f, 0, im.Size)); err != nil || n != im.Size {
		return wireError("an image of %d bytes ends after %d: %v", im.Size, n, err)
	}
	im.SHA256, im.Hash, im.Hashed = hex.EncodeToString(sum.Sum(nil)), quick.sum(), im.Size
	head := make([]byte, min(im.Size, 64<<10))
	if _, err := f.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return wireError("an image: %v", err)
	}
	im.Format = fatbin.Sniff(head)
	c.s.mu.Lock()
	if len(c.s.known) >= maxKnown {
		clear(c.s.known)
	}
	c.s.known[imageKey{im.Hash, im.Size}] = im.SHA256
	c.s.mu.Unlock()
	replacement, ok := c.s.o.OnImage(im)
	if !ok || len(replacement) == 0 {
		replacement = nil
	} else if fatbin.Sniff(replacement) == fatbin.FormatPTX && replacement[len(replacement)-1] != 0 {
		replacement = append(slices.Clip(replacement), 0)
	}
	return c.verdict(files, replacement)
}

// imageSeals are what makes a memfd's content final.
const imageSeals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// checkImage accepts sealed memfds of the announced size only: a read of those
// neither waits for anyone nor changes.
func checkImage(f *os.File, size int64) error {
	var st unix.Stat_t
	seals, err := control(f, func(fd int) (int, error) {
		if err := unix.Fstat(fd, &st); err != nil {
			return 0, err
		}
		return unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	})
	switch {
	case err != nil:
		return wireError("an image's file: %v", err)
	case seals&imageSeals != imageSeals:
		return wireError("an image's file is not sealed")
	case st.Size != size || size <= 0:
		return wireError("an image of %d bytes in a file of %d", size, st.Size)
	}
	return nil
}

func control(f *os.File, fn func(fd int) (int, error)) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var n int
	if cerr := raw.Control(func(fd uintptr) { n, err = fn(int(fd)) }); cerr != nil {
		return 0, cerr
	}
	return n, err
}

// verdict answers a program that waits. The socket it gave for that is checked:
// what it is not must not be written to with our rights.
func (c *conn) verdict(files []*os.File, replacement []byte) error {
	if len(files) < 2 {
		return nil
	}
	v := wireVerdict{Size: uint64(len(replacement))}
	v.H = newHeader(typeVerdict, v)
	var rights []byte
	if len(replacement) > 0 {
		f, err := memfd(replacement)
		if err != nil {
			v.Size = 0
			c.s.o.OnGap(&Gap{PID: c.pid, Code: GapProtocol, Text: "a replacement could not be handed over: " + err.Error()})
		} else {
			defer func() { _ = f.Close() }()
			if _, err := control(f, func(fd int) (int, error) { rights = unix.UnixRights(fd); return 0, nil }); err != nil {
				return err
			}
		}
	}
	_, err := control(files[1], func(fd int) (int, error) {
		domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err != nil {
			return 0, wireError("where the verdict goes: %v", err)
		}
		kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
		if err != nil || domain != unix.AF_UNIX || kind != unix.SOCK_SEQPACKET {
			return 0, wireError("where the verdict goes is no socket of ours")
		}
		// A program that has gone on, or ended, does not read it.
		_, _ = unix.SendmsgN(fd, encode(v), rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return 0, nil
	})
	return err
}

// memfd returns a sealed file with b in it.
func memfd(b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("nvtrace-image", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "nvtrace-image")
	_, err = f.Write(b)
	if err == nil {
		_, err = control(f, func(fd int) (int, error) {
			return unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, imageSeals)
		})
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
