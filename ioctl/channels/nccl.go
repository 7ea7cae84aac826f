package channels

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strings"
)

// NCCL is what a kernel of NCCL's was given to do, as far as its arguments tell: the first of several works.
// Element types, and for sums and the like the operation, stand in a table that NCCL was built with, and the ranks of
// a communicator in memory of the GPU: neither can be read from outside.
type NCCL struct {
	Operation string `json:"operation"`    // by the kernel's name: AllReduce, SendRecv, …
	Comm      string `json:"communicator"` // address of the GPU's part of the communicator, hexadecimal
	Channels  int    `json:"channels"`     // NCCL's own, each a block
	Works     int    `json:"works"`        // of the first channel

	Elements uint64 `json:"elements,omitempty"` // of a collective; bytes where NCCL counts bytes (AllGather, Broadcast)
	Root     *int   `json:"root,omitempty"`     // its rank, of operations that have one

	SendTo    *int   `json:"send_to,omitempty"` // ranks
	SendBytes uint64 `json:"send_bytes,omitempty"`
	From      *int   `json:"receive_from,omitempty"`
	FromBytes uint64 `json:"receive_bytes,omitempty"`
}

// The arguments of a kernel of NCCL's (2.23 to 2.32): struct ncclDevKernelArgs, and behind it one struct
// ncclDevWorkBatch for each channel.
const (
	ncclPrefix    = "ncclDevKernel_"
	ncclArgsSize  = 32
	ncclBatchSize = 16
	ncclMask      = 8
	ncclStorage   = 16 // a byte: where works are
	ncclWorkMask  = 20
	ncclWorkBuf   = 24
	ncclInArgs    = 0 // of ncclStorage: behind the batches
)

// Types of works, in a batch's first word from bit 15 on.
const (
	ncclPeer = iota
	ncclCollective
	ncclRegistered // a collective with buffers that are registered
)

// maxWork is the size of what is read of a work.
const maxWork = 128

// ncclOf reads what a kernel of NCCL's was given to do, or returns nil.
func ncclOf(m Memory, name string, args []byte) *NCCL {
	// Mangled there is "_Z" and the name's length before it.
	rest, ok := strings.CutPrefix(strings.TrimLeft(strings.TrimPrefix(name, "_Z"), "0123456789"), ncclPrefix)
	if !ok || len(args) < ncclArgsSize+ncclBatchSize {
		return nil
	}
	le := binary.LittleEndian
	n := &NCCL{Comm: fmt.Sprintf("%#x", le.Uint64(args)), Channels: bits.OnesCount64(le.Uint64(args[ncclMask:]))}
	n.Operation, _, _ = strings.Cut(rest, "_")
	batch := args[ncclArgsSize:]
	kind := le.Uint32(batch) >> 15 & 3
	offset := uint64(le.Uint32(batch[4:]))
	set := le.Uint64(batch[8:])
	if n.Channels == 0 || n.Comm == "0x0" || set == 0 {
		return nil
	}
	n.Works = bits.OnesCount64(set)
	size := map[uint32]uint64{ncclPeer: 48, ncclCollective: maxWork, ncclRegistered: maxWork}[kind]
	if size == 0 {
		return n
	}
	work := make([]byte, maxWork)
	first := uint64(bits.TrailingZeros64(set))
	switch {
	case args[ncclStorage] != ncclInArgs:
		// In a ring: of its size only the mask is known. The first work is where the batch begins if the set has
		// bit 0, as it has for all but the last channels.
		at := le.Uint64(args[ncclWorkBuf:]) + offset&uint64(le.Uint32(args[ncclWorkMask:]))
		if first != 0 || m.Read(at, work[:size]) != nil {
			return n
		}
	case first == 0 && offset < uint64(len(args)):
		copy(work, args[offset:])
	default:
		return n
	}
	if kind == ncclPeer {
		n.peer(work)
	} else {
		n.collective(work)
	}
	return n
}

// peer reads a struct ncclDevWorkP2p.
func (n *NCCL) peer(w []byte) {
	le := binary.LittleEndian
	rank := func(b []byte) *int {
		r := int(int32(le.Uint32(b)))
		if r < 0 || r > 1<<24 {
			return nil
		}
		return &r
	}
	// Sizes are -1 where there is nothing to do.
	if bytes := le.Uint64(w[16:]); bytes < 1<<60 {
		n.SendTo, n.SendBytes = rank(w[32:]), bytes
	}
	if bytes := le.Uint64(w[24:]); bytes < 1<<60 {
		n.From, n.FromBytes = rank(w[36:]), bytes
	}
}

// collective reads a struct ncclDevWorkColl. Since 2.30 there is padding before its buffers.
func (n *NCCL) collective(w []byte) {
	le := binary.LittleEndian
	parts := w[56:] // the counts of the first, the middle and the last channel
	if le.Uint64(w[8:]) == 0 && le.Uint64(w[16:]) == 0 {
		parts = w[80:]
	}
	low, high := uint64(w[0]), uint64(w[1])
	if high < low {
		return
	}
	count := le.Uint64(parts) + le.Uint64(parts[16:])
	if high > low {
		count += le.Uint64(parts[8:]) * (high - low - 1)
	}
	if count < 1<<56 {
		n.Elements = count
	}
	if n.Operation == "Broadcast" || n.Operation == "Reduce" {
		n.Root = new(int(le.Uint32(w[4:])))
	}
}
