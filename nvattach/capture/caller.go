package capture

import (
	"encoding/binary"
	"path/filepath"

	"nvtrace/ptrace/proc"
)

var le = binary.LittleEndian

// maxShimStack bounds the frames of the interposer.
const maxShimStack = 64 << 10

// libraryAt names the file that an address lies in, "" if there is none.
func libraryAt(maps *proc.View, addr uint64) string {
	if m := maps.At(addr); m != nil && filepath.IsAbs(m.Path) {
		return m.Path
	}
	return ""
}
