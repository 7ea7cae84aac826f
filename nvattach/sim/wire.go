package sim

import (
	"encoding/binary"
	"fmt"
)

// The wire between a program and nvtrace: packets over a SOCK_SEQPACKET Unix
// socket, one connection for every call that is in progress. lib/sim.c has the
// other end.
//
// A request is 128 bytes, little-endian:
//
//	0    u32     wireMagic
//	4    u32     kind
//	8    u32     library: the index in libraryNames
//	12   u32     index of the entry in the library's list of names
//	16   u64[6]  the arguments in registers
//	64   u64[4]  the low halves of xmm0 to xmm3
//	96   u64     address of the arguments on the stack
//	104  u64     return address
//	112  u64     thread id
//	120  u64     result of what the last reply asked for
//
// A reply has a header of 56 bytes and up to replyData bytes more:
//
//	0   u32     action
//	4   u32     number of bytes after the header
//	8   u64     result, or the function to call
//	16  u64[5]  what the action needs
const (
	wireMagic   = 0x4d49534e
	requestSize = 128
	replyHeader = 56
	replyData   = 2048
)

// The numbers of the libraries.
const (
	libCUDA     = 0
	libCudart12 = 1
	libCudart13 = 2
)

// The kinds of requests.
const (
	kindHello  = 1 // args: own stubs, libcuda's stubs, 1 if CUDA was initialised before a fork, session before it, 1 if threads can be made, a number of this image
	kindCall   = 2
	kindDone   = 3
	kindHelper = 4 // the thread for callbacks is there; never answered with a result
	kindExe    = 5 // args[0]: where the program headers are
)

// The actions of replies. All but actReturn are answered with kindDone and a
// result, a negative errno where the system refused.
const (
	actReturn = 0 // the call is over; a[0] is 1 once CUDA is initialised; the data are u64 address, u64 length and bytes, padded to 8, to be stored
	actCall   = 1 // call the function at result with a[0..3]
	actMap    = 2 // map a[1] bytes at a[0], from offset a[2] of the descriptor, or anonymous; protection a[3]
	actUnmap  = 3 // unmap a[1] bytes at a[0]
	actMove   = 4 // replace a[1] bytes at a[0] by offset a[2] of the descriptor, or by private memory; keep the content
	actHelper = 5 // start the thread for callbacks
	actPrint  = 6 // write the data to stdout (a[0] = 1) or a descriptor
	actExit   = 7 // write the data to stderr and exit with status a[0]
	actDriver = 8 // call the function at result with the u64[12] at the beginning of the data; where bit i of a[0] is set, argument i is an offset in the data
)

// A request is a decoded request. Its numbers are the program's: nothing is taken for
// good but its length and magic number.
type request struct {
	kind, lib, index uint32
	args             [6]uint64
	x                [4]uint64
	stack, caller    uint64
	tid              uint64
	result           uint64
}

// decode reads a request.
func (q *request) decode(b []byte) error {
	if len(b) != requestSize {
		return fmt.Errorf("a request of %d bytes, want %d", len(b), requestSize)
	}
	le := binary.LittleEndian
	if m := le.Uint32(b); m != wireMagic {
		return fmt.Errorf("a request that begins with %#x, want %#x", m, wireMagic)
	}
	q.kind, q.lib, q.index = le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:])
	for i := range q.args {
		q.args[i] = le.Uint64(b[16+8*i:])
	}
	for i := range q.x {
		q.x[i] = le.Uint64(b[64+8*i:])
	}
	q.stack, q.caller, q.tid, q.result = le.Uint64(b[96:]), le.Uint64(b[104:]), le.Uint64(b[112:]), le.Uint64(b[120:])
	return nil
}

// A reply is what goes back.
type reply struct {
	action uint32
	result uint64
	a      [5]uint64
	data   []byte
	fd     int // sent along if positive
}

// append appends the reply to dst.
func (r *reply) append(dst []byte) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint32(dst, r.action)
	dst = le.AppendUint32(dst, uint32(len(r.data)))
	dst = le.AppendUint64(dst, r.result)
	for _, v := range r.a {
		dst = le.AppendUint64(dst, v)
	}
	return append(dst, r.data...)
}
