package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fakeMemory stands for a program's memory: a little at one place.
type fakeMemory struct{ b []byte }

const fakeBase = 0x1000_0000

func (m *fakeMemory) span(addr uint64, n int) []byte {
	off := addr - fakeBase
	if off >= uint64(len(m.b)) {
		return nil
	}
	return m.b[off:min(off+uint64(n), uint64(len(m.b)))]
}

func (m *fakeMemory) ReadMem(addr uint64, b []byte) (int, error) {
	n := copy(b, m.span(addr, len(b)))
	if n < len(b) {
		return n, unix.EFAULT
	}
	return n, nil
}

func (m *fakeMemory) WriteMem(addr uint64, b []byte) (int, error) {
	n := copy(m.span(addr, len(b)), b)
	if n < len(b) {
		return n, unix.EFAULT
	}
	return n, nil
}

const fuzzPTX = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 4 .u32 v;\n" +
	".visible .entry k(.param .u64 p, .param .u32 n) { .reg .b64 %d<2>; .reg .b32 %r<2>; ld.param.u64 %d1, [p]; ld.param.u32 %r1, [n]; st.global.u32 [%d1], %r1; ret; }\n\x00"

// A hostile is a client that sends what the fuzzer says.
type hostile struct {
	tb  testing.TB
	fd  int
	mem *fakeMemory
	in  []byte
}

func (h *hostile) byte() byte {
	if len(h.in) == 0 {
		return 0
	}
	b := h.in[0]
	h.in = h.in[1:]
	return b
}

// value makes an argument: a small number, a pointer, a word from memory (where
// handles have been left), a size, or anything.
func (h *hostile) value() uint64 {
	k := h.byte()
	switch k % 8 {
	case 0, 1:
		return uint64(k / 8)
	case 2, 3:
		return fakeBase + 8*uint64(h.byte())
	case 4, 5:
		return binary.LittleEndian.Uint64(h.mem.b[8*uint64(h.byte())%2048:])
	case 6:
		return uint64(h.byte()) << (h.byte() % 64)
	}
	var v uint64
	for range 8 {
		v = v<<8 | uint64(h.byte())
	}
	return v
}

// exchange sends a request and answers what is asked, until the result comes. It waits
// as long as that takes: a call without an answer ends with the test's own time.
func (h *hostile) exchange(q *request) error {
	var b [requestSize]byte
	for range 100 {
		q.encode(b[:])
		if err := unix.Sendto(h.fd, b[:], unix.MSG_NOSIGNAL, nil); err != nil {
			return err
		}
		in := make([]byte, replyHeader+replyData)
		oob := make([]byte, 64)
		n, on, _, _, err := unix.Recvmsg(h.fd, in, oob, unix.MSG_CMSG_CLOEXEC)
		switch {
		case err != nil || n < replyHeader:
			return errGone
		}
		if on > 0 {
			if ms, err := unix.ParseSocketControlMessage(oob[:on]); err == nil && len(ms) > 0 {
				fds, _ := unix.ParseUnixRights(&ms[0])
				for _, fd := range fds {
					_ = unix.Close(fd)
				}
			}
		}
		le := binary.LittleEndian
		if le.Uint32(in) == actReturn {
			for d := in[replyHeader:n]; len(d) >= 16; {
				size := le.Uint64(d[8:])
				if size > uint64(len(d)-16) {
					h.tb.Fatalf("results of %d bytes in %d", size, len(d))
				}
				_, _ = h.mem.WriteMem(le.Uint64(d), d[16:16+size])
				d = d[16+(size+7)&^7:]
			}
			return nil
		}
		q.kind = kindDone
		q.result = le.Uint64(in[16:]) // what a mapping returns when it is well
		if h.byte()%16 == 15 {
			q.result = h.value()
		}
	}
	return nil
}

func newHostile(tb testing.TB, s *Sim, random uint64, data []byte) *hostile {
	tb.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: s.dir + "/s"}); err != nil {
		tb.Fatal(err)
	}
	h := &hostile{tb: tb, fd: fd, in: data}
	if err := h.exchange(&request{kind: kindHello, args: [6]uint64{0x1000, 0x2000, 0, 0, 0, random}}); err != nil {
		tb.Fatalf("hello: %v", err)
	}
	return h
}

// FuzzHostile lets a program call anything with any arguments, in any order, and
// send what is no request: the service goes on, in bounded memory.
func FuzzHostile(f *testing.F) {
	f.Add([]byte("\x00\x00\x00"))
	f.Add([]byte{0, 1, 0, 1, 2, 3, 4, 5, 6, 0x7f, 0xff})
	cat := newCatalog()
	call := func(lib int, name string, args ...byte) []byte {
		i := cat.index[lib][name]
		return append([]byte{byte(lib), byte(i), byte(i >> 8)}, args...)
	}
	var seq []byte
	seq = append(seq, call(0, "cuInit", 0, 0, 0, 0, 0, 0)...)
	seq = append(seq, call(0, "cuDevicePrimaryCtxRetain", 2, 0, 0, 0, 0, 0, 0)...)
	seq = append(seq, call(0, "cuCtxSetCurrent", 4, 0, 0, 0, 0, 0, 0)...)
	seq = append(seq, call(0, "cuModuleLoadData", 2, 1, 2, 128, 0, 0, 0, 0)...)
	seq = append(seq, call(0, "cuModuleGetFunction", 2, 2, 4, 1, 2, 250, 0, 0, 0)...)
	seq = append(seq, call(0, "cuMemAlloc_v2", 2, 3, 6, 1, 10, 0, 0, 0, 0)...)
	seq = append(seq, call(0, "cuLaunchKernel", 4, 2, 8, 8, 8, 8, 8)...)
	seq = append(seq, call(0, "cuCtxSynchronize", 0, 0, 0, 0, 0, 0)...)
	f.Add(seq)
	f.Add(append(call(2, "cudaMallocManaged", 2, 0, 8, 8, 0, 0, 0), call(2, "cudaFree", 4, 0, 0, 0, 0, 0, 0)...))
	f.Add(append(call(1, "cudaHostAlloc", 2, 0, 6, 9, 9, 0, 0, 0), call(1, "cudaMemcpy", 4, 0, 4, 0, 6, 3, 3, 32, 0, 0)...))

	s, err := New(&Options{
		MemoryLimit: 1 << 24, Timeout: 50 * time.Millisecond, Workers: 1,
		Memory: func(int) ProcessMemory {
			m := &fakeMemory{make([]byte, 1<<14)}
			copy(m.b[1024:], fuzzPTX)
			copy(m.b[2000:], "k\x00")
			return m
		},
	})
	if err != nil {
		f.Fatal(err)
	}
	go func() { _ = s.Serve(context.Background()) }()
	f.Cleanup(func() { _ = s.Close() })
	var images atomic.Uint64
	f.Fuzz(func(t *testing.T, data []byte) {
		h := newHostile(t, s, images.Add(1), data)
		defer unix.Close(h.fd)
		s.mu.Lock()
		for _, p := range s.procs {
			h.mem = p.mem.(*fakeMemory)
		}
		s.mu.Unlock()
		for calls := 0; len(h.in) > 0 && calls < 50; calls++ {
			lib := h.byte()
			if lib >= 0xf0 { // not even a request
				n := min(len(h.in), int(h.byte()))
				_ = unix.Sendto(h.fd, h.in[:n], unix.MSG_NOSIGNAL, nil)
				return
			}
			q := &request{kind: kindCall, lib: uint32(lib % 4), index: uint32(h.byte()) | uint32(h.byte())<<8, stack: fakeBase + 512, tid: uint64(h.byte() % 3)}
			if q.lib < 3 {
				if n := len(s.cat.entries[q.lib]); lib < 0xc0 {
					q.index %= uint32(n)
					if strings.Contains(s.cat.entries[q.lib][q.index].name, "WaitValue") {
						continue // waits as long as it is told to
					}
				}
			}
			for i := range q.args {
				q.args[i] = h.value()
			}
			if h.exchange(q) != nil {
				return
			}
		}
	})
}

// FuzzExecutable reads files of programs, which may be anything.
func FuzzExecutable(f *testing.F) {
	for lib := range libraryNames {
		b, err := library(lib)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[:min(len(b), 1<<15)])
	}
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		ex, err := readExecutable(bytes.NewReader(data))
		if ex == nil && err == nil {
			t.Error("neither a result nor an error")
		}
	})
}
