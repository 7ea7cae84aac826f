// Package units prints sizes as a person reads them.
package units

import (
	"fmt"
	"strconv"
)

// Bytes returns a number of bytes as text: 512 B, 64 KiB, 1.5 GiB.
func Bytes(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, u := float64(n), 0
	for v >= 1024 && u < len(units)-1 {
		v, u = v/1024, u+1
	}
	if u == 0 || v == float64(uint64(v)) {
		return strconv.FormatUint(uint64(v), 10) + " " + units[u]
	}
	return strconv.FormatFloat(v, 'f', 1, 64) + " " + units[u]
}

// Memory returns a size of memory as text. Whole MiB stay MiB up to a TiB, so that sizes can be added up.
func Memory(n uint64) string {
	const mib, gib = 1 << 20, 1 << 30
	if n >= gib && n < 1024*gib && n%mib == 0 && n%gib != 0 {
		return fmt.Sprintf("%d MiB", n/mib)
	}
	return Bytes(n)
}
