package sim

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"nvtrace/ptrace/dso"
)

// ErrRuntime marks a program whose CUDA runtime can't be served.
var ErrRuntime = errors.New("its CUDA runtime is linked statically and can't be redirected to the simulated GPU: link the program again with nvcc -cudart shared")

// runtimeMarker is a string that every libcudart_static has: the name of an error.
const runtimeMarker = "cudaErrorMissingConfiguration"

// An executable is what the redirection needs to know of a program's file.
type executable struct {
	headers uint64            // address of the program headers, before relocation
	dynamic bool              // loaded by ld.so
	shared  bool              // needs libcudart.so
	static  bool              // has the runtime in it
	funcs   map[string]uint64 // the runtime's public functions that have symbols
}

// readExecutable reads a program's file. A file that is no 64-bit ELF file has
// nothing that concerns this package.
func readExecutable(r io.ReaderAt) (*executable, error) {
	f, err := dso.Read(r)
	if err != nil {
		return nil, fmt.Errorf("the program's file: %w", err)
	}
	if f.Machine != elf.EM_X86_64 {
		return nil, fmt.Errorf("the program's file is for %v, not for x86-64", f.Machine)
	}
	ex := &executable{funcs: map[string]uint64{}, dynamic: f.HasInterpreter()}
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Off <= f.Headers && f.Headers < p.Off+p.Filesz {
			ex.headers = p.Vaddr + f.Headers - p.Off
		}
	}
	ex.shared = slices.ContainsFunc(f.Strings(elf.DT_NEEDED), func(l string) bool { return strings.HasPrefix(l, "libcudart.so") })
	symbols, err := f.Symbols()
	if err != nil {
		return nil, fmt.Errorf("the program's file: %w", err)
	}
	for i := range symbols {
		if s := &symbols[i]; s.Function() && (strings.HasPrefix(s.Name, "cuda") || strings.HasPrefix(s.Name, "__cuda")) {
			ex.funcs[s.Name] = s.Addr
		}
	}
	if sec := f.Section(".rodata"); !ex.shared && sec != nil {
		const most = 1 << 30
		if b, err := f.Data(sec, most); err == nil {
			ex.static = bytes.Contains(b, []byte(runtimeMarker))
		}
	}
	return ex, nil
}

// version returns which of our libraries stands for the runtime in the file. Only
// 12.x has the second version of cudaGetDeviceProperties under its own name. It matters for
// structures that have another layout in 13, and for functions with other parameters.
func (ex *executable) version() uint32 {
	if _, has := ex.funcs["cudaGetDeviceProperties_v2"]; has {
		return libCudart12
	}
	return libCudart13
}

// redirectable reports whether the runtime's registration functions have symbols.
func (ex *executable) redirectable() bool {
	_, has := ex.funcs["__cudaRegisterFatBinary"]
	return has
}

// Check looks at a program before it is started, and returns an error that wraps
// [ErrRuntime] if the simulated GPU can't serve it. A program without CUDA, or that
// can't be read, is none of Check's business.
func Check(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	ex, err := readExecutable(f)
	if err != nil || !ex.static {
		return nil
	}
	if !ex.dynamic {
		return fmt.Errorf("%s is linked statically as a whole, so no library can be put before it; %w", path, ErrRuntime)
	}
	if !ex.redirectable() {
		return fmt.Errorf("%s: %w", path, ErrRuntime)
	}
	return nil
}

// Replaced returns the functions of the CUDA runtime that are linked into a program's file, in
// order. The simulated GPU puts jumps to its own where these begin, so that nothing else can be
// there.
func Replaced(path string) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	ex, err := readExecutable(f)
	if err != nil || ex.shared || !ex.static {
		return nil
	}
	return slices.Sorted(maps.Keys(ex.funcs))
}
