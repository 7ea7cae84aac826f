package sim

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"
	"strconv"
	"strings"
)

//go:embed lib
var libFS embed.FS

// libraryNames are the files, by their number on the wire.
var libraryNames = []string{"libcuda.so.1", "libcudart.so.12", "libcudart.so.13"}

// An entry is an exported function of a library.
type entry struct {
	name    string
	fn      handler // nil: not implemented
	ptds    bool    // the variant whose default stream is the thread's
	runtime bool
}

// A catalog is all entries of the three libraries.
//
// lib/*.names has what each library exports, one name a line, and is also what the stubs of the
// libraries are made of (internal/mklib). On the wire an entry is its number in that list, so that
// both must be of the same build; the libraries are embedded for that.
type catalog struct {
	entries  [3][]entry
	index    [3]map[string]int
	versions map[string][]version // of the driver's functions, ascending
}

// A version says which symbol a driver function has since a version of CUDA.
type version struct {
	since  int
	symbol string
}

// newCatalog builds the catalog. An entry with the ending _ptsz or _ptds, for programs whose
// default stream is the thread's, has the handler of the one without.
func newCatalog() *catalog {
	c := &catalog{versions: map[string][]version{}}
	handlers := [3]map[string]handler{driverHandlers(), runtimeHandlers(libCudart12), runtimeHandlers(libCudart13)}
	for lib, file := range []string{"cuda", "cudart12", "cudart13"} {
		names := strings.Fields(mustRead("lib/" + file + ".names"))
		c.index[lib] = make(map[string]int, len(names))
		for i, name := range names {
			e := entry{name: name, fn: handlers[lib][name], runtime: lib != libCUDA}
			for _, suffix := range []string{"_ptsz", "_ptds"} {
				if base, ok := strings.CutSuffix(name, suffix); ok {
					e.ptds = true
					if e.fn == nil {
						e.fn = handlers[lib][base]
					}
				}
			}
			c.entries[lib] = append(c.entries[lib], e)
			c.index[lib][name] = i
		}
	}
	for line := range strings.Lines(mustRead("lib/cuda.versions")) {
		f := strings.Fields(line)
		if len(f) != 3 {
			panic("BUG: lib/cuda.versions: " + line)
		}
		since, err := strconv.Atoi(f[1])
		if err != nil {
			panic("BUG: lib/cuda.versions: " + line)
		}
		c.versions[f[0]] = append(c.versions[f[0]], version{since, f[2]})
	}
	return c
}

// mustRead returns an embedded file.
func mustRead(name string) string {
	b, err := libFS.ReadFile(name)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return string(b)
}

// lookup finds the export for a name as cuGetProcAddress takes it: the newest
// that the CUDA version has. ok is false if the name is unknown, found if it is
// known but newer.
func (c *catalog) lookup(name string, cuda int, ptds bool) (symbol string, found, ok bool) {
	vs := c.versions[name]
	for _, v := range vs {
		isPtds := strings.HasSuffix(v.symbol, "_ptsz") || strings.HasSuffix(v.symbol, "_ptds")
		if v.since <= cuda && (!isPtds || ptds) {
			symbol = v.symbol
		}
	}
	if ptds && symbol != "" && !strings.HasSuffix(symbol, "_ptsz") && !strings.HasSuffix(symbol, "_ptds") {
		for _, suffix := range []string{"_ptsz", "_ptds"} {
			if _, has := c.index[libCUDA][symbol+suffix]; has {
				symbol += suffix
				break
			}
		}
	}
	return symbol, len(vs) != 0, symbol != ""
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
