package channel

import "encoding/binary"

// UserData is the page that a program and the GPU share for each channel (USERD).
type UserData struct {
	Put, Get     uint64 // addresses in pushbuffers: 40 bits; of Get only what the GPU has written
	GPGet, GPPut uint32 // indices in the ring: of the entry that the GPU fetches next, and the first free one
}

// GPPutOffset is where in the page the first free index of the ring stands: what a program writes.
const GPPutOffset = 0x8c

// UserDataSize is how many bytes of the page [ParseUserData] wants: the rest of it has no meaning.
const UserDataSize = 0x90

// ParseUserData reads a channel's user data. The offsets are those of struct Nvc36fControl and its
// successors up to Blackwell (clc36f.h, clca6f.h). b has at least UserDataSize bytes.
func ParseUserData(b []byte) UserData {
	word := func(offset int) uint64 { return uint64(binary.LittleEndian.Uint32(b[offset:])) }
	return UserData{
		Put: word(0x40) | (word(0x4c)&0xff)<<32, Get: word(0x44) | (word(0x60)&0xff)<<32,
		GPGet: uint32(word(0x88)), GPPut: uint32(word(GPPutOffset)),
	}
}

// Idle reports whether the GPU has fetched all that the program has put into the channel. The last
// piece may still be at work: its release tells.
func (u UserData) Idle() bool { return u.GPGet == u.GPPut && u.Put == u.Get }

// An Entry is one entry of a channel's ring: a piece of pushbuffer that the GPU is to fetch, or a
// control entry, which has no length.
type Entry struct {
	Address    uint64 // of the piece, in the GPU's address space
	Words      uint32 // its length; 0: a control entry
	Opcode     uint8  // of a control entry
	Subroutine bool
	Sync       bool // the entry waits until everything before it has been fetched
}

// EntrySize is the size of an entry in a ring, in bytes.
const EntrySize = 8

// ParseEntry reads one entry of a ring (NVC56F_GP_ENTRY0_* and GP_ENTRY1_* in clc56f.h, the same
// up to Blackwell).
func ParseEntry(e uint64) Entry {
	low, high := uint32(e), uint32(e>>32)
	entry := Entry{Words: high >> 10 & 0x1fffff, Subroutine: high>>9&1 != 0, Sync: high>>31 != 0}
	if entry.Words == 0 {
		entry.Opcode = uint8(high)
		return entry
	}
	entry.Address = uint64(high&0xff)<<32 | uint64(low&^3)
	return entry
}
