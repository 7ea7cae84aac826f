package fatbin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Format is what an image or a file is.
type Format uint8

// The formats that are told apart.
const (
	FormatUnknown      Format = iota
	FormatHost                // an ELF file for a CPU
	FormatContainer           // a fat binary container
	FormatWrapper             // __fatBinC_Wrapper_t, which points at a container
	FormatCubin               // an ELF file for a GPU
	FormatPTX                 // PTX text
	FormatLTOIR               // NVVM's intermediate code
	FormatArchive             // a static library
	FormatOldContainer        // a fat binary of CUDA 3
)

// String returns the format in a few words.
func (f Format) String() string {
	names := [...]string{
		"unknown", "host ELF", "fat binary", "fat binary wrapper", "cubin", "PTX", "LTO-IR", "archive", "old fat binary",
	}
	if int(f) < len(names) {
		return names[f]
	}
	return fmt.Sprintf("format(%d)", uint8(f))
}

// Word returns the format in a word, for fields of records: a fat binary is one
// with its wrapper and without; "unknown" is what no loader of a driver takes.
func (f Format) Word() string {
	switch f {
	case FormatContainer, FormatWrapper:
		return "fatbin"
	case FormatCubin:
		return "cubin"
	case FormatPTX:
		return "ptx"
	case FormatArchive:
		return "archive"
	case FormatLTOIR:
		return "nvvm"
	}
	return "unknown"
}

const (
	wrapperMagic = 0x466243B1
	ltoirMagic   = 0x7F4E43ED
	archiveMagic = "!<arch>\n"
)

// Sniff says what b begins as. The driver's loaders do the same: their names
// mean little, each takes any of these. PTX is text with a .version directive
// in the first 64 KiB.
func Sniff(b []byte) Format {
	if len(b) >= 4 {
		switch u32(b) {
		case ContainerMagic:
			return FormatContainer
		case wrapperMagic:
			return FormatWrapper
		case oldMagic:
			return FormatOldContainer
		case ltoirMagic:
			return FormatLTOIR
		}
	}
	switch {
	case isCubin(b):
		return FormatCubin
	case isELF(b):
		return FormatHost
	case bytes.HasPrefix(b, []byte(archiveMagic)):
		return FormatArchive
	}
	head := b[:min(len(b), 64<<10)]
	if before, _, ok := bytes.Cut(head, []byte(".version")); ok && bytes.IndexByte(before, 0) < 0 {
		s := ptxScanner{text: head}
		if string(s.word()) == ".version" {
			return FormatPTX
		}
	}
	return FormatUnknown
}

// Extent returns how many bytes the image takes that begins at offset 0 of r,
// where nothing but the image's own words says so: r may be the memory of a
// process, which goes on behind it. It reads no more than headers, except of PTX,
// which ends at a NUL that it counts.
//
// An image above limit bytes gives [ErrTooLarge]; one that does not say its size
// (a wrapper takes 24 bytes; archives and LTO-IR don't say) [ErrFormat].
func Extent(r io.ReaderAt, limit int64) (int64, error) {
	head := make([]byte, elfHeader)
	n, err := r.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) && n < 8 {
		return 0, fmt.Errorf("image: %w", err)
	}
	head = head[:n]
	var size uint64
	switch format := Sniff(head); {
	case format == FormatContainer && n >= containerHeader:
		size = uint64(u16(head[6:])) + u64(head[8:])
		if size < u64(head[8:]) {
			return 0, formatError("container", 8, "0x%x bytes of entries", u64(head[8:]))
		}
	case format == FormatWrapper:
		size = wrapperSize
	case format == FormatCubin || format == FormatHost:
		size, err = elfEnd(func(off, size uint64) ([]byte, error) {
			if off > uint64(limit) || size > uint64(limit) {
				return nil, fmt.Errorf("image: a table at 0x%x of %d bytes: %w of %d", off, size, ErrTooLarge, limit)
			}
			b := make([]byte, size)
			if n, err := r.ReadAt(b, int64(off)); n < len(b) {
				return nil, fmt.Errorf("image: +0x%x: %w", off, err)
			}
			return b, nil
		})
		if err != nil {
			return 0, err
		}
	case format == FormatUnknown || format == FormatPTX:
		return textExtent(r, limit)
	default:
		return 0, formatError("image", 0, "%s doesn't say its size", format)
	}
	if size > uint64(limit) {
		return 0, fmt.Errorf("image: %d bytes: %w of %d", size, ErrTooLarge, limit)
	}
	return int64(size), nil
}

// textExtent finds the NUL, a page at a time: text may end where a mapping does.
func textExtent(r io.ReaderAt, limit int64) (int64, error) {
	page := make([]byte, 4096)
	for off := int64(0); off < limit; {
		n, err := r.ReadAt(page, off)
		if i := bytes.IndexByte(page[:n], 0); i >= 0 && off+int64(i) < limit {
			return off + int64(i) + 1, nil
		} else if i >= 0 {
			break
		}
		off += int64(n)
		if errors.Is(err, io.EOF) || n == 0 {
			return 0, formatError("text", uint64(off), "no NUL ends it")
		}
		if err != nil && n < len(page) {
			return 0, fmt.Errorf("image: +0x%x: %w", off, err)
		}
	}
	return 0, fmt.Errorf("image: text without a NUL: %w of %d", ErrTooLarge, limit)
}
