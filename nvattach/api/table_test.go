package api

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// The functions that libcudart 12.4 asks cuGetProcAddress for: each must be an
// export that the tables know, plain or with a version's suffix.
func TestEveryRequestOfCudartIsKnown(t *testing.T) {
	names := readLines(t, "testdata/cudart-12.4-requests.txt")
	if len(names) != 327 {
		t.Fatalf("only %d names", len(names))
	}
	m := Module{Library: Driver}
	for _, name := range names {
		found := m.Lookup(name) != nil
		for _, suffix := range []string{"_v2", "_v3", "_v4"} {
			found = found || m.Lookup(name+suffix) != nil
		}
		if !found {
			t.Errorf("%s is not known", name)
		}
	}
}

func TestLibrariesHaveFunctions(t *testing.T) {
	least := map[Library]int{
		Driver: 700, Runtime: 400, CuBLAS: 700, CuBLASLt: 45, CuDNN: 200, CuFFT: 50, CuSPARSE: 400, CuSOLVER: 550, CuRAND: 28, NCCL: 100, NVRTC: 24, NVJitLink: 25,
	}
	for _, l := range Libraries() {
		n, placed := 0, 0
		for f := range Functions(l) {
			n++
			if f.Library != l || MatchSymbol(f.Name) != l {
				t.Errorf("%s is of %v, by its name of %v", f.Name, f.Library, MatchSymbol(f.Name))
			}
			for _, p := range f.Params {
				if p.Loc.Count > 0 {
					placed++
				}
				if p.Loc.Place == PlaceStack && int(p.Loc.Index)+int(p.Loc.Count) > f.Stack && f.Stack < maxStack {
					t.Errorf("%s: %s lies beyond the stack's %d words: %+v", f.Name, p.Name, f.Stack, p.Loc)
				}
			}
			h := f.hook()
			outs, total := 0, 0
			for _, d := range h.Derefs {
				if d.Out {
					outs++
				}
				total += int(d.Len)
				if d.Len == 0 || !d.In && !d.Out || int(d.Arg) >= 6+f.Stack {
					t.Errorf("%s: %+v", f.Name, d)
				}
			}
			if outs > maxOut || total > maxCopy || len(h.Derefs) > maxDerefs || int(h.StackWords) != f.Stack {
				t.Errorf("%s: hook beyond the bounds: %+v", f.Name, h)
			}
		}
		if n < least[l] || placed == 0 {
			t.Errorf("%v: %d functions, want at least %d", l, n, least[l])
		}
	}
}

// TestPlaces holds the places of parameters against what the calling convention
// says, found by hand for each kind of parameter.
func TestPlaces(t *testing.T) {
	for _, c := range []struct {
		lib    Library
		name   string
		hidden bool
		want   string // name:place index count
		stack  int
	}{
		{Driver, "cuInit", false, "Flags:i0,1", 0},
		{Driver, "cuMemAlloc_v2", false, "dptr:i0,1 bytesize:i1,1", 0},
		{Driver, "cuLaunchKernel", false, "f:i0,1 gridDimX:i1,1 gridDimY:i2,1 gridDimZ:i3,1 blockDimX:i4,1 blockDimY:i5,1 blockDimZ:s0,1 sharedMemBytes:s1,1 hStream:s2,1 kernelParams:s3,1 extra:s4,1", 5},
		{Driver, "cuLaunchKernelEx", false, "config:i0,1 f:i1,1 kernelParams:i2,1 extra:i3,1", 0},
		// dim3 is 12 bytes: two integer registers, and none of its own is split.
		{Runtime, "cudaLaunchKernel", false, "func:i0,1 gridDim:i1,2 blockDim:i3,2 args:i5,1 sharedMem:s0,1 stream:s1,1", 2},
		// cudaExtent is 24 bytes, and goes to memory; what follows stays in registers.
		{Runtime, "cudaMalloc3D", false, "pitchedDevPtr:i0,1 extent:s0,3", 3},
		// cudaChannelFormatDesc is 20 bytes, returned in memory.
		{Runtime, "cudaCreateChannelDesc", true, "x:i1,1 y:i2,1 z:i3,1 w:i4,1 f:i5,1", 0},
		{NCCL, "ncclCommInitRank", false, "comm:i0,1 nranks:i1,1 commId:s0,16 rank:i2,1", 16},
		{CuBLAS, "cublasSscal", false, "n:i0,1 alpha:x0,1 x:i1,1 incx:i2,1", 0},
		// cuComplex is two floats in one xmm register, cuDoubleComplex takes two.
		{CuBLAS, "cublasCscal", false, "n:i0,1 alpha:x0,1 x:i1,1 incx:i2,1", 0},
		{CuBLAS, "cublasZscal", false, "n:i0,1 alpha:x0,2 x:i1,1 incx:i2,1", 0},
	} {
		f := Module{Library: c.lib}.Lookup(c.name)
		if f == nil {
			t.Errorf("%s is not known", c.name)
			continue
		}
		var got []string
		for _, p := range f.Params {
			got = append(got, p.Name+":"+string("ixsm"[p.Loc.Place])+string('0'+rune(p.Loc.Index))+","+itoa(int(p.Loc.Count)))
		}
		if s := strings.Join(got, " "); s != c.want || f.Stack != c.stack || f.Hidden != c.hidden {
			t.Errorf("%s:\n got %s, %d on the stack, hidden %v\nwant %s, %d, %v", c.name, s, f.Stack, f.Hidden, c.want, c.stack, c.hidden)
		}
	}
}

// TestOperands holds that hooks of the libraries look at no memory that may be
// the GPU's, and at what is the host's.
func TestOperands(t *testing.T) {
	for name, want := range map[string]string{
		"cublasSgemm_v2":              "",
		"cublasSdot_v2":               "",
		"cublasGetVersion_v2":         "version",
		"cublasCreate_v2":             "handle",
		"cusolverDnSgetrf_bufferSize": "Lwork",
		"cusparseScsrsv2_bufferSize":  "",
		"cusparseSpMV_bufferSize":     "bufferSize",
		"cusparseCsrGet":              "rows cols nnz csrRowOffsets csrColInd csrValues csrRowOffsetsType csrColIndType idxBase valueType",
		"cufftPlan1d":                 "plan",
		"cufftExecC2C":                "",
		"ncclAllReduce":               "",
		"ncclGetUniqueId":             "uniqueId",
		"cudnnCreateTensorDescriptor": "tensorDesc",
		"curandGenerateUniform":       "",
	} {
		f := Module{Library: MatchSymbol(name)}.Lookup(name)
		if f == nil {
			if want != "" {
				t.Errorf("%s is not known", name)
			}
			continue
		}
		var got []string
		for _, p := range f.Params {
			if p.Dir != DirNone {
				got = append(got, p.Name)
			}
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: looks at %q, want %q", name, s, want)
		}
	}
}

func TestHookFor(t *testing.T) {
	for _, c := range []struct {
		lib    Library
		symbol string
		ok     bool
		words  uint8
		derefs int
	}{
		{Driver, "cuLaunchKernel", true, 5, 0},
		{Driver, "cuMemAlloc_v2", true, 0, 1},
		{Driver, "cuSomethingOfTomorrow", true, 0, 0},
		{Driver, "cudbgApiInit", false, 0, 0},
		{Driver, "_init", false, 0, 0},
		{Driver, "cudaMalloc", false, 0, 0}, // of another library
		{Runtime, "cudaMalloc", true, 0, 1},
		{CuBLAS, "cublasLtMatmul", false, 0, 0},
		{LibC, "getenv", true, 0, 1},
		{LibC, "malloc", false, 0, 0},
		{Unknown, "cuInit", false, 0, 0},
	} {
		h, ok := Module{Library: c.lib}.HookFor(c.symbol)
		if ok != c.ok || h.StackWords != c.words || len(h.Derefs) != c.derefs {
			t.Errorf("%v %s: %+v, %v", c.lib, c.symbol, h, ok)
		}
	}
}

func TestResults(t *testing.T) {
	for _, c := range []struct {
		lib    Library
		name   string
		ret    int64
		want   string
		failed bool
	}{
		{Driver, "cuInit", 0, "CUDA_SUCCESS", false},
		{Driver, "cuInit", 100, "CUDA_ERROR_NO_DEVICE", true},
		{Driver, "cuStreamQuery", 600, "CUDA_ERROR_NOT_READY", false},
		{Driver, "cuInit", 54321, "54321", true},
		{Driver, "cuInit", 0x7f0000000000, "CUDA_SUCCESS", false}, // the upper half of eax's register is undefined
		{Runtime, "cudaMalloc", 2, "cudaErrorMemoryAllocation", true},
		{CuBLAS, "cublasCreate_v2", 1, "CUBLAS_STATUS_NOT_INITIALIZED", true},
		{CuDNN, "cudnnCreate", 0, "CUDNN_STATUS_SUCCESS", false},
		{CuFFT, "cufftPlan1d", 0, "CUFFT_SUCCESS", false},
		{CuSPARSE, "cusparseCreate", 3, "CUSPARSE_STATUS_INVALID_VALUE", true},
		{CuSOLVER, "cusolverDnCreate", 2, "CUSOLVER_STATUS_ALLOC_FAILED", true},
		{CuRAND, "curandCreateGenerator", 0, "CURAND_STATUS_SUCCESS", false},
		{NCCL, "ncclCommInitRank", 7, "ncclInProgress", false},
		{NVRTC, "nvrtcCompileProgram", 6, "NVRTC_ERROR_COMPILATION", true},
		{NVJitLink, "nvJitLinkComplete", 0, "NVJITLINK_SUCCESS", false},
	} {
		f := Module{Library: c.lib}.Lookup(c.name)
		if f == nil {
			t.Errorf("%s is not known", c.name)
			continue
		}
		if got := f.ResultName(c.ret); got != c.want || f.Failed(c.ret) != c.failed {
			t.Errorf("%s = %d: got %s, failed %v; want %s, %v", c.name, c.ret, got, f.Failed(c.ret), c.want, c.failed)
		}
	}
}

// TestMajor holds that a prototype is that of the library's major version:
// cudaMemAdvise takes a device's number in 12 and a location, a structure of 8
// bytes, in 13.
func TestMajor(t *testing.T) {
	param := func(file string) string { return lookupIn(file, "cudaMemAdvise").Params[3].Type.String() }
	if got := param("libcudart.so.12"); got != "int" {
		t.Errorf("12: %s", got)
	}
	for _, file := range []string{"libcudart.so.13", "libcudart.so.14", "libcudart.so"} {
		if got := param(file); got != "cudaMemLocation" {
			t.Errorf("%s: %s", file, got)
		}
	}
	if got := param("libcudart.so.10"); got != "int" { // older than all: the oldest
		t.Errorf("10: %s", got)
	}
}

// TestVersionedSymbols holds that nvJitLink's symbols of releases that were not
// read are those of the function.
func TestVersionedSymbols(t *testing.T) {
	f := lookupIn("libnvJitLink.so.12", "__nvJitLinkCreate_12_4")
	if f == nil || f.Name != "nvJitLinkCreate" || len(f.Params) != 3 {
		t.Errorf("%v", f)
	}
	if f := lookupIn("libnvJitLink.so.12", "__nvJitLinkOther_12_4"); f != nil {
		t.Errorf("%v", f)
	}
}

func TestMatch(t *testing.T) {
	for file, want := range map[string]Module{
		"/usr/lib/x86_64-linux-gnu/libcuda.so.1": {Driver, 0},
		"libcuda.so.580.159.04":                  {Driver, 0},
		"libcudart.so.12":                        {Runtime, 12},
		"/x/libcudart-d0da41ae.so.11.0":          {Runtime, 11},
		"libcublas.so.13":                        {CuBLAS, 13},
		"libcublasLt.so.12":                      {CuBLASLt, 12},
		"libcudnn.so.9":                          {CuDNN, 9},
		"libcudnn_engines_precompiled.so.9":      {CuDNN, 9},
		"libcufft.so.11.2.1":                     {CuFFT, 11},
		"libcusolverMg.so.11":                    {CuSOLVER, 11},
		"libcurand.so":                           {CuRAND, 0},
		"libnccl.so.2":                           {NCCL, 2},
		"libnvrtc.so.12":                         {NVRTC, 12},
		"libnvJitLink.so.12":                     {NVJitLink, 12},
		"libnvrtc-builtins.so.12.4":              {},
		"libcudadebugger.so.1":                   {},
		"libcuda.so.1.bak/other":                 {},
		"libcudartx.so.1":                        {},
		"libcuda.sox":                            {},
		"":                                       {},
		"libcudart.so.99999999999999999999":      {Runtime, 0},
		"libc.so.6":                              {LibC, 6},
		"/opt/cu/lib/libcudart.so.12 (deleted)":  {Runtime, 12},
		"libnvrtc.alt.so.13":                     {NVRTC, 13},
		"/nix/store/abc-cudart/lib/libcudart.so.12.4.127": {Runtime, 12},
	} {
		if got := Match(file); got != want {
			t.Errorf("%q: got %+v, want %+v", file, got, want)
		}
	}
}

func TestSelection(t *testing.T) {
	s, err := ParseSelection("driver, cublaslt,RUNTIME")
	if err != nil || s.String() != "driver,runtime,cublasLt" || !s.Has(Driver) || s.Has(CuBLAS) {
		t.Errorf("got %q, %v", s, err)
	}
	for _, list := range []string{"", "all", "nccl,all"} {
		if s, err = ParseSelection(list); err != nil || s.String() != strings.Join(libraryNames(), ",") {
			t.Errorf("%q: got %q, %v", list, s, err)
		}
	}
	if _, err = ParseSelection("driver,opengl"); err == nil || !strings.Contains(err.Error(), `"opengl"`) || !strings.Contains(err.Error(), "cusparse") {
		t.Errorf("got %v", err)
	}
	if _, err = ParseSelection("libc"); err == nil {
		t.Error("libc is no choice")
	}
}

func TestDecodeRefusesDamage(t *testing.T) {
	if _, err := Decode(packed); err != nil {
		t.Fatal(err)
	}
	if _, err := Decode(packed[:len(packed)/2]); err == nil {
		t.Error("half a table is taken")
	}
	if _, err := Decode(nil); err == nil {
		t.Error("nothing is taken")
	}
	if _, err := Decode(bytes.Repeat([]byte{0xff}, 100)); err == nil {
		t.Error("garbage is taken")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{})
	f.Add(packed[:200])
	f.Fuzz(func(t *testing.T, raw []byte) {
		d := &tableReader{b: slices.Clone(raw)}
		d.table() // must not panic, nor take more memory than raw has bytes for
	})
}

// lookupIn returns the prototype of a function of the library that file is.
func lookupIn(file, symbol string) *Function { return Match(file).Lookup(symbol) }
