// Package stamp says what the embedded libraries of package sim were made from.
package stamp

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
)

// Sources are the files in lib that the libraries are made from.
func Sources() []string {
	return []string{"sim.c", "common.S", "cuda.names", "cudart12.names", "cudart13.names"}
}

// Sum returns the hash of the sources in lib.
func Sum(lib fs.FS) (string, error) {
	h := sha256.New()
	for _, name := range Sources() {
		b, err := fs.ReadFile(lib, name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", name, len(b))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
