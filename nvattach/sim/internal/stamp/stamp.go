// Package stamp says what the embedded libraries of package sim were made from.
package stamp

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
)

// Sources are the files that the libraries are made from, in package sim's folder.
func Sources() []string {
	return []string{"lib/sim.c", "lib/common.S", "lib/cuda.names", "lib/cudart12.names", "lib/cudart13.names", "internal/mklib/main.go"}
}

// Sum returns the hash of the sources; sim is package sim's folder.
func Sum(sim fs.FS) (string, error) {
	h := sha256.New()
	for _, name := range Sources() {
		b, err := fs.ReadFile(sim, name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", name, len(b))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
