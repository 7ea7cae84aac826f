// Package stamp ties a compiled file to the sources that it was made from.
package stamp

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
)

// Sources returns the hash of the files in a directory, by name and content.
func Sources(dir string) (string, error) {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", e.Name(), len(b))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Read returns the hash that a compiled file carries in its gzip comment.
func Read(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	zr, err := gzip.NewReader(f)
	if err != nil {
		return "", err
	}
	return zr.Comment, nil
}
