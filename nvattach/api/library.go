package api

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Library is an interface whose functions the tables know.
type Library uint8

// The libraries.
const (
	Unknown   Library = iota
	Driver            // libcuda.so.1
	Runtime           // libcudart.so; a program that it is linked into statically has no library of it
	CuBLAS            // libcublas.so
	CuBLASLt          // libcublasLt.so
	CuDNN             // libcudnn.so and libcudnn_*.so
	CuFFT             // libcufft.so, libcufftw.so
	CuSPARSE          // libcusparse.so
	CuSOLVER          // libcusolver.so, libcusolverMg.so
	CuRAND            // libcurand.so
	NCCL              // libnccl.so
	NVRTC             // libnvrtc.so
	NVJitLink         // libnvJitLink.so
	NVTX              // ranges and marks of programs: the functions of the library of package nvtx
	LibC              // getenv and secure_getenv only, for [Environment]
	libraries
)

// libraryInfo is what tells libraries apart.
var libraryInfo = [libraries]struct {
	name   string   // as [ParseSelection] reads it
	files  []string // what their files are called, before ".so"
	prefix []string // what their functions begin with
}{
	Unknown:   {name: "unknown"},
	Driver:    {"driver", []string{"libcuda"}, []string{"cu"}},
	Runtime:   {"runtime", []string{"libcudart"}, []string{"cuda", "__cuda"}},
	CuBLAS:    {"cublas", []string{"libcublas"}, []string{"cublas"}},
	CuBLASLt:  {"cublasLt", []string{"libcublasLt"}, []string{"cublasLt"}},
	CuDNN:     {"cudnn", []string{"libcudnn"}, []string{"cudnn"}},
	CuFFT:     {"cufft", []string{"libcufft", "libcufftw"}, []string{"cufft"}},
	CuSPARSE:  {"cusparse", []string{"libcusparse"}, []string{"cusparse"}},
	CuSOLVER:  {"cusolver", []string{"libcusolver", "libcusolverMg"}, []string{"cusolver"}},
	CuRAND:    {"curand", []string{"libcurand"}, []string{"curand"}},
	NCCL:      {"nccl", []string{"libnccl"}, []string{"nccl", "pnccl"}},
	NVRTC:     {"nvrtc", []string{"libnvrtc", "libnvrtc.alt"}, []string{"nvrtc"}},
	NVJitLink: {"nvjitlink", []string{"libnvJitLink"}, []string{"nvJitLink", "__nvJitLink"}},
	NVTX:      {"nvtx", []string{"libnvtrace-nvtx"}, []string{"nvtx"}},
	LibC:      {"libc", []string{"libc"}, nil},
}

// String returns the library's name, as [ParseSelection] reads it: "driver",
// "runtime", "cublas".
func (l Library) String() string {
	if l < libraries {
		return libraryInfo[l].name
	}
	return "library(" + strconv.Itoa(int(l)) + ")"
}

// Libraries returns the libraries of CUDA, the driver first. [LibC] is none of
// them.
func Libraries() []Library {
	var list []Library
	for l := Driver; l < LibC; l++ {
		list = append(list, l)
	}
	return list
}

// Module is a library in a version of its binary interface.
type Module struct {
	Library Library
	Major   int // the number behind ".so." in its file's name, 0 if there is none
}

// Match returns which library a file is, by its name: "libcudart.so.12",
// "/usr/lib/libcuda.so.580.159.04", "libcudart-d0da41ae.so.11.0" (as wheels
// rename it). The zero Module is a file that is none of the known.
func Match(file string) Module {
	name := path.Base(strings.TrimSuffix(file, " (deleted)")) // as /proc/PID/maps says of a file that is gone
	stem, version, ok := strings.Cut(name, ".so")
	if !ok || version != "" && version[0] != '.' {
		return Module{}
	}
	if i := strings.IndexByte(stem, '-'); i > 0 && isHex(stem[i+1:]) {
		stem = stem[:i]
	}
	for l := Driver; l < libraries; l++ {
		if !slices.Contains(libraryInfo[l].files, stem) && (l != CuDNN || !strings.HasPrefix(stem, "libcudnn_")) {
			continue
		}
		m := Module{Library: l}
		if l != Driver && len(version) > 1 { // libcuda's file is named after the driver's version
			first, _, _ := strings.Cut(version[1:], ".")
			if n, err := strconv.Atoi(first); err == nil && n >= 0 && n < 1<<16 {
				m.Major = n
			}
		}
		return m
	}
	return Module{}
}

// isHex reports whether s is a hexadecimal number of at least 6 digits.
func isHex(s string) bool {
	return len(s) >= 6 && strings.Trim(s, "0123456789abcdef") == ""
}

// MatchSymbol returns which library a function belongs to, by its name's
// beginning: "cudaMalloc" is of Runtime, "cuInit" of Driver. It does not say
// that there is such a function.
func MatchSymbol(symbol string) Library {
	found, longest := Unknown, 0
	for l := Driver; l < libraries; l++ {
		for _, p := range libraryInfo[l].prefix {
			if len(p) > longest && len(symbol) > len(p) && strings.HasPrefix(symbol, p) {
				c := symbol[len(p)]
				if c >= 'A' && c <= 'Z' || c == '_' || strings.HasPrefix(p, "__") || l == CuBLAS || l == CuFFT {
					found, longest = l, len(p)
				}
			}
		}
	}
	return found
}

// Selection is a set of libraries.
type Selection uint32

// ParseSelection reads a list of libraries separated by commas:
// "driver,runtime,cublas". "all" is all of [Libraries], and so is the empty
// list. Case does not matter.
func ParseSelection(list string) (Selection, error) {
	if list == "" {
		list = "all"
	}
	var s Selection
	for word := range strings.SplitSeq(list, ",") {
		word = strings.TrimSpace(word)
		if strings.EqualFold(word, "all") {
			for _, l := range Libraries() {
				s = s.With(l)
			}
			continue
		}
		i := slices.IndexFunc(Libraries(), func(l Library) bool { return strings.EqualFold(l.String(), word) })
		if i < 0 {
			return 0, fmt.Errorf("%q is no library whose calls are known: want all or some of %s", word, strings.Join(libraryNames(), ","))
		}
		s = s.With(Libraries()[i])
	}
	return s, nil
}

func libraryNames() (names []string) {
	for _, l := range Libraries() {
		names = append(names, l.String())
	}
	return names
}

// With returns s with l.
func (s Selection) With(l Library) Selection { return s | 1<<l }

// Has reports whether l is in s.
func (s Selection) Has(l Library) bool { return s>>l&1 != 0 }

// String returns the list that [ParseSelection] reads.
func (s Selection) String() string {
	var names []string
	for l := Driver; l < libraries; l++ {
		if s.Has(l) {
			names = append(names, l.String())
		}
	}
	return strings.Join(names, ",")
}
