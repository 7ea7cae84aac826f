package fatbin

import (
	"fmt"
	"strconv"
	"strings"
)

// Kind says what an entry of a container holds. Kinds without a name here are
// kept and printed as numbers.
type Kind uint16

// The kinds of entries that are known.
const (
	KindPTX   Kind = 1 // text, ended by a NUL
	KindELF   Kind = 2 // a cubin, final or relocatable
	KindLTOIR Kind = 8 // NVVM's intermediate code, for linking
)

// String returns the kind's name as the tools write it, or "kind(0x10)".
func (k Kind) String() string {
	switch k {
	case KindPTX:
		return "ptx"
	case KindELF:
		return "elf"
	case KindLTOIR:
		return "lto-ir"
	}
	return fmt.Sprintf("kind(0x%x)", uint16(k))
}

// ParseKind reads what [Kind.String] writes, "cubin" for [KindELF], or a number.
func ParseKind(s string) (Kind, error) {
	switch s {
	case "ptx":
		return KindPTX, nil
	case "elf", "cubin":
		return KindELF, nil
	case "lto-ir", "ltoir":
		return KindLTOIR, nil
	}
	num := strings.TrimSuffix(strings.TrimPrefix(s, "kind("), ")")
	n, err := strconv.ParseUint(num, 0, 16)
	if err != nil {
		return 0, fmt.Errorf("kind %q: want ptx, cubin, lto-ir or a number", s)
	}
	return Kind(n), nil
}

// Flags is the word of flags of an entry.
type Flags uint64

// The flags that are known; [Flags.String] prints others in hexadecimal. Each
// was found by compiling the same source in two ways.
const (
	Flag64Bit     Flags = 1 << 0
	FlagDebug     Flags = 1 << 1 // -G
	FlagCUDA      Flags = 1 << 2 // made from CUDA
	FlagOpenCL    Flags = 1 << 3 // made from OpenCL
	FlagLinux     Flags = 1 << 4 // host
	FlagMac       Flags = 1 << 5 // host
	FlagWindows   Flags = 1 << 6 // host
	FlagLZ4       Flags = 1 << 13
	FlagZstd      Flags = 1 << 15
	FlagScrambled Flags = 1 << 16 // the stored bytes are not what the other flags say
	FlagArch      Flags = 1 << 20 // architecture-specific target, sm_90a
	FlagFamily    Flags = 1 << 21 // family-specific target, sm_100f
	FlagAttrs     Flags = 1 << 24 // the options record holds attributes, not text
)

var flagNames = []struct {
	flag Flags
	name string
}{
	{Flag64Bit, "64bit"},
	{FlagDebug, "debug"},
	{FlagCUDA, "cuda"},
	{FlagOpenCL, "opencl"},
	{FlagLinux, "linux"},
	{FlagMac, "mac"},
	{FlagWindows, "windows"},
	{FlagLZ4, "lz4"},
	{FlagZstd, "zstd"},
	{FlagScrambled, "scrambled"},
	{FlagArch, "arch-specific"},
	{FlagFamily, "family-specific"},
	{FlagAttrs, "attributes"},
}

// String lists the flags, "64bit,linux,zstd"; bits without a name come last, in
// hexadecimal.
func (f Flags) String() string {
	var names []string
	for _, n := range flagNames {
		if f&n.flag != 0 {
			names = append(names, n.name)
			f &^= n.flag
		}
	}
	if f != 0 {
		names = append(names, fmt.Sprintf("0x%x", uint64(f)))
	}
	return strings.Join(names, ",")
}

// Compression says how an entry's content is stored.
type Compression uint8

// The ways to store content.
const (
	Stored Compression = iota // as it is
	LZ4                       // a bare LZ4 block
	Zstd                      // a Zstandard frame; drivers of CUDA 12.4 and later
)

// String returns "none", "lz4" or "zstd".
func (c Compression) String() string {
	switch c {
	case Stored:
		return "none"
	case LZ4:
		return "lz4"
	case Zstd:
		return "zstd"
	}
	return fmt.Sprintf("compression(%d)", uint8(c))
}

// flag returns the entry flag of a way to store.
func (c Compression) flag() Flags {
	switch c {
	case LZ4:
		return FlagLZ4
	case Zstd:
		return FlagZstd
	}
	return 0
}

// Arch is a GPU architecture: the number of sm_90a and its suffix.
type Arch struct {
	SM     uint32 // 80 for sm_80
	Suffix byte   // 'a', 'f', or 0 for none
}

// String returns "sm_90a".
func (a Arch) String() string {
	s := "sm_" + strconv.FormatUint(uint64(a.SM), 10)
	if a.Suffix != 0 {
		s += string(rune(a.Suffix))
	}
	return s
}

// ParseArch reads "sm_90a", "compute_90a" or "90a".
func ParseArch(s string) (Arch, error) {
	num := strings.TrimPrefix(strings.TrimPrefix(s, "sm_"), "compute_")
	var a Arch
	if n := len(num); n > 0 && (num[n-1] == 'a' || num[n-1] == 'f') {
		a.Suffix, num = num[n-1], num[:n-1]
	}
	sm, err := strconv.ParseUint(num, 10, 32)
	if err != nil {
		return Arch{}, fmt.Errorf("architecture %q: want a name such as sm_90a", s)
	}
	a.SM = uint32(sm)
	return a, nil
}

// flags returns the entry flags of an architecture's suffix.
func (a Arch) flags() Flags {
	switch a.Suffix {
	case 'a':
		return FlagArch
	case 'f':
		return FlagFamily
	}
	return 0
}
