package api

import (
	"math/rand/v2"
	"strings"
	"testing"

	"nvtrace/traces"
)

const (
	libcuda   = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04"
	libcudart = "/usr/local/cuda/lib64/libcudart.so.13"
	libcublas = "/usr/local/cuda/lib64/libcublas.so.13"
)

// line prints a call and its return as one line.
func line(t *Tracker, c, r *traces.Event, s *Style) string {
	f := t.Add(c)
	b := AppendCall(nil, f, c, &t.Names, s)
	if r != nil {
		f = t.Add(r)
		b = AppendReturn(b, f, r, s)
	}
	return string(b)
}

func TestLines(t *testing.T) {
	launchConfig := words(1<<32|4096, 256<<32|1, 1<<32|1, 0, 0x5570, 0, 0)
	for name, c := range map[string]struct {
		call, ret *traces.Event
		want      string
	}{
		"out value": {
			call(1, libcuda, "cuMemAlloc_v2", 0x7ffd0010, 1<<20),
			out(ret(call(1, libcuda, "cuMemAlloc_v2"), 12_345, 0), 0x7ffd0010, words(0x7f2a00000000)),
			`cuMemAlloc_v2(dptr=0x7ffd0010, bytesize=1048576) = CUDA_SUCCESS (dptr -> 0x7f2a00000000) <12.3µs>`,
		},
		"failure shows no out value": {
			call(1, libcuda, "cuMemAlloc_v2", 0x7ffd0010, 1<<40),
			out(ret(call(1, libcuda, "cuMemAlloc_v2"), 999, 2), 0x7ffd0010, words(1)),
			`cuMemAlloc_v2(dptr=0x7ffd0010, bytesize=1099511627776) = CUDA_ERROR_OUT_OF_MEMORY <999ns>`,
		},
		"flags": {
			call(1, libcuda, "cuStreamCreate", 0x7ffd0010, 1), nil,
			`cuStreamCreate(phStream=0x7ffd0010, Flags=CU_STREAM_NON_BLOCKING)`,
		},
		"several flags, and one without a name": {
			call(1, libcuda, "cuMemHostAlloc", 0x10, 64, 0x103), nil,
			`cuMemHostAlloc(pp=0x10, bytesize=64, Flags=CU_MEMHOSTALLOC_PORTABLE|CU_MEMHOSTALLOC_DEVICEMAP|0x100)`,
		},
		"enum": {
			call(1, libcuda, "cuDeviceGetAttribute", 0x7ffd0010, 75, 0),
			out(ret(call(1, libcuda, "cuDeviceGetAttribute"), 1_500_000, 0), 0x7ffd0010, []byte{9, 0, 0, 0}),
			`cuDeviceGetAttribute(pi=0x7ffd0010, attrib=CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, dev=0) = CUDA_SUCCESS (pi -> 9) <1.50ms>`,
		},
		"text in": {
			in(call(1, libcuda, "cuModuleLoad", 0x7ffd0010, 0x5000), 0x5000, text("/tmp/k\x1b[2J.cubin")), nil,
			`cuModuleLoad(module=0x7ffd0010, fname="/tmp/k\x1b[2J.cubin")`,
		},
		"text out": {
			call(1, libcuda, "cuDeviceGetName", 0x7ffd0010, 256, 0),
			out(ret(call(1, libcuda, "cuDeviceGetName"), 2_000_000_000, 0), 0x7ffd0010, text("NVIDIA H200")),
			`cuDeviceGetName(name=0x7ffd0010, len=256, dev=0) = CUDA_SUCCESS (name -> "NVIDIA H200") <2.00s>`,
		},
		"launch, with words of the stack": {
			call(1, libcuda, "cuLaunchKernel", 0x5570, 4096, 1, 1, 256, 1, 1, 0, 0, 0x7ffd0020, 0), nil,
			`cuLaunchKernel(f=0x5570 vectorAdd(float const*, float*), grid=(4096,1,1), block=(256,1,1), smem=0, stream=0x0, kernelParams=0x7ffd0020, extra=NULL)`,
		},
		"launch whose stack was not recorded": {
			call(1, libcuda, "cuLaunchKernel", 0x5570, 4096, 1, 1, 256, 1), nil,
			`cuLaunchKernel(f=0x5570 vectorAdd(float const*, float*), grid=(4096,1,1), blockDimX=256, blockDimY=1, blockDimZ=?, smem=?, stream=?, kernelParams=?, extra=?)`,
		},
		"launch with a structure": {
			in(call(1, libcuda, "cuLaunchKernelEx", 0x7ffd0100, 0x5570, 0x7ffd0020, 0), 0x7ffd0100, launchConfig), nil,
			`cuLaunchKernelEx(config={grid=(4096,1,1), block=(256,1,1), sharedMemBytes=0, hStream=0x5570, attrs=NULL, numAttrs=0}, f=0x5570 vectorAdd(float const*, float*), kernelParams=0x7ffd0020, extra=NULL)`,
		},
		"dim3 by value": {
			call(1, libcudart, "cudaLaunchKernel", 0x401000, 2<<32|16, 3, 1<<32|128, 1, 0x7ffd0020, 4096, 0), nil,
			`cudaLaunchKernel(func=0x401000 vectorAdd(float const*, float*), gridDim=(16,2,3), blockDim=(128,1,1), args=0x7ffd0020, sharedMem=4096, stream=0x0)`,
		},
		"uuid": {
			in(call(1, libcuda, "cuGetExportTable", 0x10, 0x20), 0x20, words(0x464246c9658ed50b, 0x9b41b0a1e87d1a8a)), nil,
			`cuGetExportTable(ppExportTable=0x10, pExportTableId=0bd58e65-c946-4246-8a1a-7de8a1b0419b)`,
		},
		"operands of a library are not looked at, floats by value are not recorded": {
			call(1, libcublas, "cublasSscal", 10, 0x7f0000000000, 1), nil,
			`cublasSscal(n=10, alpha=?, x=0x7f0000000000, incx=1)`,
		},
		"handle out": {
			call(1, libcublas, "cublasCreate_v2", 0x7ffd0010),
			out(ret(call(1, libcublas, "cublasCreate_v2"), 45_678_900, 0), 0x7ffd0010, words(0xabc0)),
			`cublasCreate_v2(handle=0x7ffd0010) = CUBLAS_STATUS_SUCCESS (handle -> 0xabc0) <45.7ms>`,
		},
		"not in the tables": {
			call(1, libcuda, "cuFutureThing", 1, 2, 3, 4, 5, 6), ret(call(1, libcuda, "cuFutureThing"), 1, -1),
			`cuFutureThing(0x1, 0x2, 0x3, 0x4, 0x5, 0x6) = 0xffffffffffffffff <1ns>`,
		},
		"a name that attacks the terminal": {
			call(1, "/tmp/x.so", "evil\x1b]0;\x07\n"), nil, `evil\x1b]0;\x07\n(0x0, 0x0, 0x0, 0x0, 0x0, 0x0)`,
		},
		"no parameters, another result": {
			call(1, libcudart, "cudaGetLastError"), ret(call(1, libcudart, "cudaGetLastError"), 10, 700),
			`cudaGetLastError() = cudaErrorIllegalAddress <10ns>`,
		},
		"void": {
			call(1, libcudart, "__cudaRegisterFatBinaryEnd", 0x10), ret(call(1, libcudart, "__cudaRegisterFatBinaryEnd"), 10, 700),
			`__cudaRegisterFatBinaryEnd(fatCubinHandle=0x10) <10ns>`,
		},
	} {
		tr := NewTracker()
		tr.Names.Set(1, 0x5570, "_Z9vectorAddPKfPf")
		tr.Names.Set(1, 0x401000, "_Z9vectorAddPKfPf")
		style := &Style{Demangle: func(s string) string {
			if s != "_Z9vectorAddPKfPf" {
				t.Errorf("%s: demangled %q", name, s)
			}
			return "vectorAdd(float const*, float*)"
		}}
		if got := line(tr, c.call, c.ret, style); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
	}
}

func TestUnfinishedAndColor(t *testing.T) {
	tr := NewTracker()
	c := call(1, libcuda, "cuCtxSynchronize")
	r := ret(c, 5, 0)
	r.Flags = traces.FlagUnfinished
	if got, want := line(tr, c, r, nil), "cuCtxSynchronize() = ? <unfinished ...>"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	open := call(8, libcuda, "cuCtxSynchronize")
	unfinished := ret(open, 5, 0)
	unfinished.Flags = traces.FlagUnfinished
	if got, want := line(tr, open, unfinished, &Style{Color: true}), "\x1b[1mcuCtxSynchronize\x1b[0m() = \x1b[33m? <unfinished ...>\x1b[0m"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	got := line(tr, call(9, libcuda, "cuInit", 0), ret(call(9, libcuda, "cuInit"), 5, 100), &Style{Color: true})
	want := "\x1b[1mcuInit\x1b[0m(Flags=0) = \x1b[31mCUDA_ERROR_NO_DEVICE\x1b[0m \x1b[2m<5ns>\x1b[0m"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestKernelNames follows a kernel's name from its look-up to launches, of both
// APIs, across processes.
func TestKernelNames(t *testing.T) {
	tr := NewTracker()
	pair := func(c, r *traces.Event) { line(tr, c, r, nil) }
	get := in(call(1, libcuda, "cuLibraryGetKernel", 0x10, 0x77, 0x20), 0x20, text("_Z3addv"))
	pair(get, out(ret(get, 1, 0), 0x10, words(0xaaa0)))
	fn := call(2, libcuda, "cuKernelGetFunction", 0x30, 0xaaa0)
	pair(fn, out(ret(fn, 1, 0), 0x30, words(0xbbb0)))
	failed := in(call(3, libcuda, "cuModuleGetFunction", 0x10, 0x77, 0x20), 0x20, text("missing"))
	pair(failed, out(ret(failed, 1, 500), 0x10, words(0xccc0)))
	pair(in(call(4, libcudart, "__cudaRegisterFunction", 0x1, 0x401000, 0x20, 0x20), 0x20, text("_Z3addv")), nil)
	for handle, want := range map[uint64]string{0xaaa0: "_Z3addv", 0xbbb0: "_Z3addv", 0x401000: "_Z3addv", 0xccc0: "", 0: ""} {
		if got := tr.Names.kernel(1, handle); got != want {
			t.Errorf("%#x is %q, want %q", handle, got, want)
		}
	}
	tr.Add(&traces.Event{Kind: traces.KindFork, PID: 1, TID: 1, Child: 2})
	if got := tr.Names.kernel(2, 0x401000); got != "_Z3addv" {
		t.Errorf("the forked process has %q", got)
	}
	tr.Add(&traces.Event{Kind: traces.KindExec, PID: 2, TID: 2})
	if got := tr.Names.kernel(2, 0x401000); got != "" {
		t.Errorf("after exec there is still %q", got)
	}
}

// hostile makes an event out of arbitrary bytes.
func hostile(raw []byte, names []string) *traces.Event {
	next := func() (v uint64) {
		for range 8 {
			v <<= 8
			if len(raw) > 0 {
				v |= uint64(raw[0])
				raw = raw[1:]
			}
		}
		return v
	}
	pick := next()
	ev := &traces.Event{Kind: traces.KindCall, PID: 1, TID: int32(pick >> 8 & 3), Time: int64(next()), Dur: int64(next()), Ret: int64(next())}
	if pick&1 != 0 {
		ev.Kind = traces.KindReturn
	}
	ev.Flags = traces.Flags(pick >> 16 & 3)
	ev.Name = names[int(pick>>24%uint64(len(names)))%len(names)]
	ev.Path = []string{libcuda, libcudart, libcublas, "x"}[pick>>4&3]
	for i := range ev.Args {
		ev.Args[i] = next() & 0xff00ff // some of them equal
	}
	for len(raw) > 8 && len(ev.Mem) < 8 {
		n := int(next() % 600)
		b := raw[:min(n, len(raw))]
		raw = raw[len(b):]
		seg := traces.Seg{Addr: ev.Args[len(ev.Mem)%6], Len: uint32(n), In: b, Out: b}
		if len(ev.Mem) == 0 && n%2 == 0 {
			seg.Len = 40
		}
		ev.Mem = append(ev.Mem, seg)
	}
	return ev
}

func allNames() (names []string) {
	for _, l := range Libraries() {
		for f := range Functions(l) {
			names = append(names, f.Name)
		}
	}
	return append(names, "", "\xff\n", "cuNoSuchThing")
}

// check holds what is true of a line whatever the event: no byte that could act
// on a terminal, and a length that does not explode.
func check(t *testing.T, b []byte) {
	t.Helper()
	if len(b) > 64<<10 {
		t.Fatalf("a line of %d bytes", len(b))
	}
	if i := strings.IndexFunc(string(b), func(r rune) bool { return r < 0x20 || r == 0x7f }); i >= 0 {
		t.Fatalf("control character %q in %q", b[i], b)
	}
}

func feed(t *testing.T, tr *Tracker, s *Summary, ev *traces.Event) {
	f := tr.Add(ev)
	s.Add(ev, tr, f)
	switch {
	case f == nil:
	case ev.Kind == traces.KindCall:
		check(t, AppendCall(nil, f, ev, &tr.Names, nil))
	case ev.Kind == traces.KindReturn:
		check(t, AppendReturn(nil, f, ev, nil))
	}
}

// TestEveryFunctionPrints prints a call and a return of every function there
// is, with and without memory.
func TestEveryFunctionPrints(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	tr, s := NewTracker(), NewSummary()
	n := uint64(0)
	for _, l := range Libraries() {
		file := libraryInfo[l].files[0] + ".so"
		for f := range Functions(l) {
			for round := range 3 {
				c := call(int64(n), file, f.Name)
				for i := range c.Args {
					c.Args[i] = uint64(0x1000 * (i + 1))
				}
				if f.Stack > 0 {
					c.Mem = append(c.Mem, traces.Seg{Addr: 0x7ffe0000, Len: uint32(8 * f.Stack), In: make([]byte, 8*f.Stack)})
				}
				back := ret(c, 5, 0)
				for _, d := range f.hook().Derefs {
					if d.Arg < 6 && round > 0 {
						b := make([]byte, r.IntN(int(d.Len)+1))
						for i := range b {
							b[i] = byte(r.Uint32())
						}
						in(c, c.Args[d.Arg], b)
						out(back, c.Args[d.Arg], b)
					}
				}
				feed(t, tr, s, c)
				feed(t, tr, s, back)
				n++
			}
		}
	}
	if got := s.Report(); got.Calls != n || got.Unfinished != 0 || got.Time != 5*int64(n) {
		t.Errorf("%d calls, %d unfinished, %d ns; want %d calls", got.Calls, got.Unfinished, got.Time, n)
	}
}

func FuzzAppendCall(f *testing.F) {
	names := allNames()
	f.Add([]byte("0123456789"))
	f.Add(make([]byte, 300))
	r := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		b := make([]byte, 200+r.IntN(1000))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		tr, s := NewTracker(), NewSummary()
		for len(raw) > 0 {
			n := min(len(raw), 256)
			feed(t, tr, s, hostile(raw[:n], names))
			raw = raw[n:]
		}
		tr.Add(&traces.Event{Kind: traces.KindEnd})
		s.Add(&traces.Event{Kind: traces.KindEnd}, tr, nil)
		for _, c := range s.Report().Functions {
			if c.Total < 0 || c.Self < 0 || c.Max < 0 {
				t.Fatalf("negative times: %+v", c)
			}
		}
	})
}
