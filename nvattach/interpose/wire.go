package interpose

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"
)

// The wire format: shim/wire.h has the explanations. The structures here have
// the same fields in the same order, which a test checks; the tag is the C name.

const (
	wireMagic   = 0x7274766e
	wireVersion = 2

	maxMessage = 8192
	maxPath    = 1024
	maxData    = 4096
	maxImage   = 4 << 30

	// HashPrefix is how many bytes of an image [Call.Hash] covers in
	// [ModeObserve], where reading all of it would page in what the program may
	// never use.
	HashPrefix = 65536
)

const (
	typeHello   = 1
	typeImage   = 2
	typeCall    = 3
	typeGap     = 4
	typeWelcome = 16
	typeVerdict = 17
)

const flagReplace = 1 // wireWelcome.Flags

type wireHeader struct {
	Magic   uint32 `c:"magic"`
	Version uint16 `c:"version"`
	Type    uint16 `c:"type"`
	Length  uint32 `c:"length"`
	Seq     uint32 `c:"seq"`
}

type wireHello struct {
	H         wireHeader `c:"h"`
	PID       int32      `c:"pid"`
	Libc      uint32     `c:"libc"`
	LibcMajor uint16     `c:"libc_major"`
	LibcMinor uint16     `c:"libc_minor"`
	PathLen   uint32     `c:"path_len"`
	Born      uint64     `c:"born"`
	Table     uint32     `c:"table"`
	Pad       uint32     `c:"pad"`
	Key       [32]byte   `c:"key"`
}

type wireCall struct {
	H         wireHeader `c:"h"`
	Time      uint64     `c:"time"`
	Dur       uint64     `c:"dur"`
	TID       int32      `c:"tid"`
	Fn        uint16     `c:"fn"`
	Flags     uint16     `c:"flags"`
	Caller    uint64     `c:"caller"`
	Target    uint64     `c:"target"`
	Args      [6]uint64  `c:"args"`
	Image     uint64     `c:"image"`
	Size      uint64     `c:"size"`
	Hashed    uint64     `c:"hashed"`
	Hash      [2]uint64  `c:"hash"`
	Handle    uint64     `c:"handle"`
	Ret       int64      `c:"ret"`
	Part      uint16     `c:"part"`
	Parts     uint16     `c:"parts"`
	CallerLen uint16     `c:"caller_len"`
	DataLen   uint16     `c:"data_len"`
}

type wireGap struct {
	H      wireHeader `c:"h"`
	Code   uint32     `c:"code"`
	Count  uint32     `c:"count"`
	Detail int64      `c:"detail"`
}

type wireWelcome struct {
	H      wireHeader `c:"h"`
	Mode   uint32     `c:"mode"`
	Flags  uint32     `c:"flags"`
	WaitMS uint32     `c:"wait_ms"`
	Pad    uint32     `c:"pad"`
}

type wireVerdict struct {
	H    wireHeader `c:"h"`
	Size uint64     `c:"size"`
}

// tableSum tells apart tables of functions, whose indices are in messages.
func tableSum(functions []Function) uint32 {
	h := crc32.NewIEEE()
	for _, f := range functions {
		fmt.Fprintln(h, f.Name, f.Class, f.Args, f.Image, f.Size, f.Out, f.Of, f.Text)
	}
	return h.Sum32()
}

// TableSum returns the number by which the shim and nvtrace know that they mean
// the same table of functions. The shim's generator uses it.
func TableSum() uint32 { return tableSum(Functions()) }

// errWire says that a message is not what the shim sends.
var errWire = errors.New("not a message of the shim")

func wireError(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errWire)
}

// decode fills msg from the front of b and returns the rest.
func decode(b []byte, msg any) ([]byte, error) {
	n, err := binary.Decode(b, binary.LittleEndian, msg)
	if err != nil {
		return nil, wireError("%d bytes for a %T", len(b), msg)
	}
	return b[n:], nil
}

func encode(msg any) []byte {
	b, err := binary.Append(nil, binary.LittleEndian, msg)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return b
}

func newHeader(kind uint16, msg any) wireHeader {
	return wireHeader{Magic: wireMagic, Version: wireVersion, Type: kind, Length: uint32(binary.Size(msg))}
}

// parseHeader checks what every message begins with.
func parseHeader(b []byte) (wireHeader, error) {
	var h wireHeader
	if _, err := decode(b, &h); err != nil {
		return h, err
	}
	switch {
	case h.Magic != wireMagic:
		return h, wireError("magic 0x%x", h.Magic)
	case h.Version != wireVersion:
		return h, wireError("version %d, not %d", h.Version, wireVersion)
	case int(h.Length) != len(b) || len(b) > maxMessage:
		return h, wireError("%d bytes, the header says %d", len(b), h.Length)
	}
	return h, nil
}

func parseHello(b []byte) (wireHello, string, error) {
	var m wireHello
	rest, err := decode(b, &m)
	switch {
	case err != nil:
		return m, "", err
	case m.PathLen > maxPath || int(m.PathLen) != len(rest):
		return m, "", wireError("a path of %d bytes in %d", m.PathLen, len(rest))
	}
	return m, string(rest), nil
}

// parseCall returns the path of the caller and the data behind a call. Both are
// slices of b.
func parseCall(b []byte, functions int) (m wireCall, caller, data []byte, err error) {
	rest, err := decode(b, &m)
	switch {
	case err != nil:
		return m, nil, nil, err
	case int(m.Fn) >= functions:
		return m, nil, nil, wireError("function %d of %d", m.Fn, functions)
	case m.CallerLen > maxPath || m.DataLen > maxData || int(m.CallerLen)+int(m.DataLen) != len(rest):
		return m, nil, nil, wireError("%d + %d bytes of text in %d", m.CallerLen, m.DataLen, len(rest))
	case m.Size > maxImage || m.Hashed > m.Size:
		return m, nil, nil, wireError("an image of %d bytes, %d of them hashed", m.Size, m.Hashed)
	case CallFlags(m.Flags)&FlagHandles != 0 && m.DataLen%8 != 0:
		return m, nil, nil, wireError("%d bytes of handles", m.DataLen)
	case CallFlags(m.Flags)&FlagUUID != 0 && m.DataLen != 16:
		return m, nil, nil, wireError("%d bytes of a table's id", m.DataLen)
	}
	return m, rest[:m.CallerLen], rest[m.CallerLen:], nil
}

func parseGap(b []byte) (wireGap, error) {
	var m wireGap
	rest, err := decode(b, &m)
	if err == nil && len(rest) != 0 {
		err = wireError("%d bytes behind a gap", len(rest))
	}
	return m, err
}

const (
	hashSeed0 = 0x9e3779b97f4a7c15
	hashSeed1 = 0xd1b54a32d192ed03
	hashMul   = 0xff51afd7ed558ccd
)

func hashStep(h0, h1, a, b uint64) (uint64, uint64) {
	hi, lo := bits.Mul64(a^h0, b^h1|1)
	return lo ^ bits.RotateLeft64(b, 23) ^ hashMul, bits.RotateLeft64(h1, 31) + hi ^ a*hashMul
}

// hasher is Hash for data that comes in pieces.
type hasher struct {
	h0, h1 uint64
	n      uint64
	rest   []byte
}

func newHasher() *hasher { return &hasher{h0: hashSeed0, h1: hashSeed1} }

// Write never fails.
func (h *hasher) Write(b []byte) (int, error) {
	n := len(b)
	h.n += uint64(n)
	if len(h.rest) > 0 {
		k := min(16-len(h.rest), len(b))
		h.rest = append(h.rest, b[:k]...)
		if b = b[k:]; len(h.rest) < 16 {
			return n, nil
		}
		h.h0, h.h1 = hashStep(h.h0, h.h1, binary.LittleEndian.Uint64(h.rest), binary.LittleEndian.Uint64(h.rest[8:]))
		h.rest = h.rest[:0]
	}
	for len(b) >= 16 {
		h.h0, h.h1 = hashStep(h.h0, h.h1, binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]))
		b = b[16:]
	}
	h.rest = append(h.rest, b...)
	return n, nil
}

func (h *hasher) sum() [2]uint64 {
	h0, h1 := h.h0, h.h1
	if len(h.rest) > 0 {
		var last [16]byte
		copy(last[:], h.rest)
		h0, h1 = hashStep(h0, h1, binary.LittleEndian.Uint64(last[:]), binary.LittleEndian.Uint64(last[8:]))
	}
	h0, h1 = hashStep(h0, h1, h.n, hashMul)
	h0, h1 = hashStep(h0, h1, h1, h0)
	return [2]uint64{h0, h1}
}
