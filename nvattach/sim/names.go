package sim

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"
)

//go:embed lib
var libFS embed.FS

// libraryNames are the files, by their number on the wire.
var libraryNames = []string{"libcuda.so.1", "libcudart.so.12", "libcudart.so.13"}

// A version says which symbol a driver function has since a version of CUDA.
type version struct {
	since  int
	symbol string
}

// mustRead returns an embedded file.
func mustRead(name string) string {
	b, err := libFS.ReadFile(name)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return string(b)
}

// library returns the bytes of one of the preloaded libraries.
func library(lib int) ([]byte, error) {
	z, err := libFS.ReadFile("lib/" + libraryNames[lib] + ".gz")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", libraryNames[lib], err)
	}
	r, err := gzip.NewReader(bytes.NewReader(z))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", libraryNames[lib], err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", libraryNames[lib], err)
	}
	return b, nil
}
