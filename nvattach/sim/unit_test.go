package sim

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"nvtrace/internal/gen/built"
	"nvtrace/ptx"
	"nvtrace/ptx/emu"
)

func gpu(t *testing.T, key string) *GPU {
	t.Helper()
	g, err := FindGPU(key)
	if err != nil {
		t.Fatal(err)
	}
	return &g
}

// TestStamp fails when the embedded libraries are older than their sources.
func TestStamp(t *testing.T) {
	if err := built.Check("lib/zstamp.txt"); err != nil {
		t.Error(err)
	}
}

// TestReproducible: the embedded libraries are what the sources make.
func TestReproducible(t *testing.T) {
	if why, ok := built.Reproducible("lib/zstamp.txt"); !ok {
		t.Skip(why)
	}
	dir := t.TempDir()
	if out, err := exec.Command("go", "run", "./internal/mklib", "-raw", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for lib, soname := range libraryNames {
		committed, err := library(lib)
		if err != nil {
			t.Fatal(err)
		}
		if made, err := os.ReadFile(filepath.Join(dir, soname)); err != nil || !bytes.Equal(made, committed) {
			t.Errorf("%s: %d bytes are made, %d are committed, and they differ (%v)", soname, len(made), len(committed), err)
		}
	}
}

// TestLibraries checks what the dynamic loader will see.
func TestLibraries(t *testing.T) {
	cat := newCatalog()
	for lib, soname := range libraryNames {
		b, err := library(lib)
		if err != nil {
			t.Fatal(err)
		}
		f, err := elf.NewFile(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := f.DynString(elf.DT_SONAME); len(got) != 1 || got[0] != soname {
			t.Errorf("%s: soname %v", soname, got)
		}
		if needed, _ := f.DynString(elf.DT_NEEDED); len(needed) != 0 {
			t.Errorf("%s needs %v", soname, needed)
		}
		syms, err := f.DynamicSymbols()
		if err != nil {
			t.Fatal(err)
		}
		at := map[string]uint64{}
		for _, s := range syms {
			if s.Section == elf.SHN_UNDEF {
				if s.Version != "" || elf.ST_BIND(s.Info) != elf.STB_WEAK {
					t.Errorf("%s wants %s@%s", soname, s.Name, s.Version)
				}
				continue
			}
			at[s.Name] = s.Value
		}
		first := at[cat.entries[lib][0].name]
		for i, e := range cat.entries[lib] {
			if at[e.name] != first+16*uint64(i) {
				t.Errorf("%s: entry %d, %s, is at %#x, the first at %#x", soname, i, e.name, at[e.name], first)
			}
		}
	}
}

// TestHandlers checks that every handler has an entry that leads to it.
func TestHandlers(t *testing.T) {
	cat := newCatalog()
	for name := range driverHandlers() {
		if _, has := cat.index[libCUDA][name]; !has {
			t.Errorf("libcuda has no %s", name)
		}
	}
	for name := range runtimeHandlers(libCudart13) {
		_, in12 := cat.index[libCudart12][name]
		_, in13 := cat.index[libCudart13][name]
		if !in12 && !in13 {
			t.Errorf("libcudart has no %s", name)
		}
	}
	counts := [3]int{}
	for lib := range cat.entries {
		for _, e := range cat.entries[lib] {
			if e.fn != nil {
				counts[lib]++
			}
		}
	}
	t.Logf("implemented: %v of %d, %d, %d", counts, len(cat.entries[0]), len(cat.entries[1]), len(cat.entries[2]))
}

func TestRuns(t *testing.T) {
	for _, c := range []struct {
		gpu, target string
		want        bool
	}{
		{"h200", "sm_90", true},
		{"h200", "sm_75", true},
		{"h200", "sm_90a", true},
		{"h200", "sm_100", false},
		{"h200", "sm_80", true},
		{"a100", "sm_90", false},
		{"a100", "sm_80", true},
		{"a100", "sm_86", false},
		{"rtx4090", "sm_86", true},
		{"rtx4090", "sm_90a", false},
		{"t4", "sm_75", true},
		{"t4", "sm_80", false},
		{"h200", "sm_100f", false},
		{"h200", "sm_90f", true},
		{"h100", "sm_80a", false},
	} {
		target, ok := ptx.ParseTarget(c.target)
		if !ok {
			t.Fatal(c.target)
		}
		if got := gpu(t, c.gpu).runs(target); got != c.want {
			t.Errorf("%s runs %s: %v", c.gpu, c.target, got)
		}
	}
	if _, err := FindGPU("voodoo"); err == nil || !strings.Contains(err.Error(), "a100") {
		t.Errorf("an unknown GPU: %v", err)
	}
}

// TestOccupancy holds the calculation against NVIDIA's occupancy tables.
func TestOccupancy(t *testing.T) {
	for _, c := range []struct {
		gpu             string
		threads, shared uint64
		registers, want int
	}{
		{"h200", 1024, 0, 32, 2},
		{"h200", 256, 0, 32, 8},
		{"h200", 32, 0, 32, 32},
		{"h200", 256, 0, 64, 4},
		{"h200", 256, 100 << 10, 32, 2},
		{"a100", 256, 48 << 10, 32, 3},
		{"rtx4090", 1024, 0, 32, 1},
		{"rtx4090", 128, 0, 32, 12},
		{"t4", 64, 32 << 10, 32, 2},
		{"t4", 1024, 0, 128, 0},
		{"h200", 0, 0, 32, 0},
		{"h200", 1025, 0, 32, 0},
	} {
		if got := gpu(t, c.gpu).Occupancy(c.threads, c.shared, c.registers); got != c.want {
			t.Errorf("%s: %d threads, %d shared, %d registers: %d blocks, want %d", c.gpu, c.threads, c.shared, c.registers, got, c.want)
		}
	}
}

func TestLookup(t *testing.T) {
	cat := newCatalog()
	for _, c := range []struct {
		name string
		cuda int
		ptds bool
		want string
	}{
		{"cuMemAlloc", 12000, false, "cuMemAlloc_v2"},
		{"cuMemAlloc", 3000, false, "cuMemAlloc"},
		{"cuLaunchKernel", 12000, true, "cuLaunchKernel_ptsz"},
		{"cuLaunchKernel", 12000, false, "cuLaunchKernel"},
		{"cuMemcpyHtoD", 13000, true, "cuMemcpyHtoD_v2_ptds"},
		{"cuGraphInstantiate", 12000, false, "cuGraphInstantiateWithFlags"},
		{"cuGetProcAddress", 11030, false, "cuGetProcAddress"},
		{"cuGetProcAddress", 12080, false, "cuGetProcAddress_v2"},
		{"cuCtxCreate", 13000, false, "cuCtxCreate_v4"},
		{"cuCtxCreate", 12000, false, "cuCtxCreate_v3"},
		{"cuLibraryLoadData", 11080, false, ""},
		{"cuInit", 13000, true, "cuInit"},
	} {
		got, known, ok := cat.lookup(c.name, c.cuda, c.ptds)
		if got != c.want || !known || ok != (c.want != "") {
			t.Errorf("%s of %d (%v) is %q, %v, %v", c.name, c.cuda, c.ptds, got, known, ok)
		}
	}
	if _, known, ok := cat.lookup("cuNothing", 13000, false); known || ok {
		t.Error("cuNothing is known")
	}
	for name, vs := range cat.versions {
		for _, v := range vs {
			if _, has := cat.index[libCUDA][v.symbol]; !has {
				t.Errorf("%s since %d is %s, which is not exported", name, v.since, v.symbol)
			}
		}
	}
}

func TestArena(t *testing.T) {
	a, err := newArena(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	r, err := a.Alloc(1000, 0, "x")
	if err != nil || r.Base < deviceBase || r.Base%256 != 0 || len(r.Data) != 1000 {
		t.Fatalf("%#x, %d bytes, %v", r.Base, len(r.Data), err)
	}
	r.Data[999] = 7
	if got, ok := a.Region(r.Base + 999); !ok || got.Base != r.Base || got.Data[999] != 7 {
		t.Errorf("the last byte: %v", ok)
	}
	if _, ok := a.Region(r.Base + 1000); ok {
		t.Error("a byte behind the allocation")
	}
	if b, in := a.bytes(r.Base+990, 11); !in || b != nil {
		t.Errorf("over the end: %v, %v", b, in)
	}
	if _, err := a.Alloc(1<<20, 0, "y"); !errors.Is(err, emu.ErrOutOfMemory) {
		t.Errorf("too much: %v", err)
	}
	if _, err := a.Alloc(0, 0, "y"); err == nil {
		t.Error("nothing was allocated")
	}
	if _, err := a.Alloc(8, 3, "y"); err == nil {
		t.Error("an odd alignment")
	}
	if err := a.Free(r.Base + 256); err == nil {
		t.Error("freed in the middle")
	}
	if err := a.Free(r.Base); err != nil {
		t.Error(err)
	}
	if _, ok := a.Region(r.Base); ok {
		t.Error("freed memory")
	}
	if again, err := a.Alloc(1000, 0, "z"); err != nil || again.Base == r.Base {
		t.Errorf("the address is used again at once: %v", err)
	}
}

// TestArenaModel allocates and frees at random and holds the arena against a list.
func TestArenaModel(t *testing.T) {
	const limit = 1 << 22
	a, err := newArena(limit)
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	rng := rand.New(rand.NewPCG(1, 2))
	live := map[uint64][]byte{}
	used := uint64(0)
	for i := range 20000 {
		if rng.IntN(2) == 0 || len(live) == 0 {
			size := uint64(1 + rng.IntN(1<<uint(rng.IntN(18))))
			r, err := a.Alloc(size, 1<<rng.IntN(13), "m")
			if size > limit-used {
				if !errors.Is(err, emu.ErrOutOfMemory) {
					t.Fatalf("%d bytes over the limit: %v", size, err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			for k, b := range r.Data {
				if b != 0 {
					t.Fatalf("step %d: byte %d of a new allocation is %#x", i, k, b)
				}
			}
			for base, b := range live {
				if r.Base < base+uint64(len(b)) && base < r.Base+size {
					t.Fatalf("%#x+%d overlaps %#x+%d", r.Base, size, base, len(b))
				}
			}
			for k := range r.Data {
				r.Data[k] = byte(i)
			}
			live[r.Base] = r.Data
			used += size
			continue
		}
		for base, b := range live {
			if r, ok := a.Region(base + uint64(len(b)) - 1); !ok || r.Base != base || r.Data[0] != b[len(b)-1] {
				t.Fatalf("%#x is lost", base)
			}
			if err := a.Free(base); err != nil {
				t.Fatal(err)
			}
			used -= uint64(len(b))
			delete(live, base)
			break
		}
		if a.Used() != used {
			t.Fatalf("%d bytes in use, want %d", a.Used(), used)
		}
	}
}

func TestWire(t *testing.T) {
	q := request{kind: 2, lib: 1, index: 3, args: [6]uint64{1, 2, 3, 4, 5, 6}, x: [4]uint64{7, 8, 9, 10}, stack: 11, caller: 12, tid: 13, result: 14}
	var b [requestSize]byte
	q.encode(b[:])
	var got request
	if err := got.decode(b[:]); err != nil || got != q {
		t.Errorf("%+v, %v", got, err)
	}
	if got.decode(b[:100]) == nil {
		t.Error("a short request")
	}
	b[0]++
	if got.decode(b[:]) == nil {
		t.Error("a request with another magic number")
	}
	r := reply{action: 1, result: 2, a: [5]uint64{3, 4, 5, 6, 7}, data: []byte("xyz")}
	if out := r.append(nil); len(out) != replyHeader+3 || string(out[replyHeader:]) != "xyz" || out[4] != 3 {
		t.Errorf("reply %x", out)
	}
}

// TestProperties checks the layouts of cudaDeviceProp at a few members that
// programs look at.
func TestProperties(t *testing.T) {
	s, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for lib, size := range map[int]int{libCudart12: 1032, libCudart13: 1008} {
		b := s.gpu.deviceProp(0, lib)
		word := func(off int) int { return int(b[off]) | int(b[off+1])<<8 | int(b[off+2])<<16 | int(b[off+3])<<24 }
		if len(b) != size || !strings.HasPrefix(string(b), "NVIDIA H200\x00") {
			t.Errorf("library %d: %d bytes, %q", lib, len(b), b[:16])
		}
		major, sms := 360, 384 // CUDA 13: major, multiProcessorCount
		if lib == libCudart12 {
			major, sms = 360, 388
		}
		if word(major) != 9 || word(308) != 32 || word(sms) != 132 {
			t.Errorf("library %d: major %d, warp %d, multiprocessors %d", lib, word(major), word(308), word(sms))
		}
	}
}

// TestServeTwice checks that a closed simulation does not serve.
func TestServeTwice(t *testing.T) {
	s, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(context.Background()); err != nil {
		t.Errorf("after Close: %v", err)
	}
}

// encode writes q, as a program does.
func (q *request) encode(b []byte) {
	le := binary.LittleEndian
	le.PutUint32(b, wireMagic)
	le.PutUint32(b[4:], q.kind)
	le.PutUint32(b[8:], q.lib)
	le.PutUint32(b[12:], q.index)
	for i, v := range q.args {
		le.PutUint64(b[16+8*i:], v)
	}
	for i, v := range q.x {
		le.PutUint64(b[64+8*i:], v)
	}
	le.PutUint64(b[96:], q.stack)
	le.PutUint64(b[104:], q.caller)
	le.PutUint64(b[112:], q.tid)
	le.PutUint64(b[120:], q.result)
}

// TestReportLength: what is said at the end of a run that launched very many kernels, some of
// which failed, fits on a screen, and the rest is counted.
func TestReportLength(t *testing.T) {
	r := &Report{GPU: "G", Count: 1, Processes: 1}
	for i := range 1000 {
		name := fmt.Sprintf("name%03d", i)
		r.Kernels = append(r.Kernels, KernelStat{Name: name, Launches: 2, Threads: 64, Instructions: 100, Time: time.Millisecond})
		r.Missing = append(r.Missing, Missing{Name: name, Calls: 3})
		r.Faults = append(r.Faults, Fault{Kernel: name, Result: "CUDA_ERROR_UNKNOWN", Cause: errors.New("a test")})
		r.Hints = append(r.Hints, "hint "+name)
	}
	text := string(r.AppendText(nil))
	if n := strings.Count(text, "\n"); n > 60 {
		t.Errorf("%d lines:\n%s", n, text)
	}
	for _, want := range []string{
		"simulated GPU: hint name009\nsimulated GPU: 990 more remarks\n", "simulated GPU: 990 more kernels failed\n", "simulated GPU: 990 more functions are not implemented\n",
		"1 × G, processes: 1, kernels: 1000\n", "  990ms        1980 launches      63360 threads        99000 instructions  990 more kernels\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if lines := r.Remarks(); len(lines) != 2001 || lines[0] != "simulated GPU: hint name000" || !strings.HasPrefix(lines[1999], "simulated GPU: name999 is not implemented and was called 3 times") {
		t.Errorf("%d remarks", len(lines))
	}
}

// TestEventAtOnce: an event on a stream with nothing to do is over when the call returns, and one
// behind work when that is.
func TestEventAtOnce(t *testing.T) {
	p := &Process{ctx: t.Context(), drained: make(chan struct{}, 1)}
	x := &cudaContext{streams: map[*stream]bool{}}
	s := &stream{ctx: x, nonblocking: true}
	idle := p.enqueue(s, nil, nil)
	if !idle.over() || idle.when.IsZero() {
		t.Error("an event on an idle stream waits")
	}
	hold := make(chan struct{})
	work := p.enqueue(s, nil, func() result { <-hold; return success })
	behind := p.enqueue(s, nil, nil)
	other := p.enqueue(&stream{ctx: x, nonblocking: true}, []*operation{idle, work}, nil)
	if behind.over() || other.over() {
		t.Error("an event does not wait for what is before it")
	}
	close(hold)
	<-behind.done
	<-other.done
	if behind.when.Before(work.when) || other.when.Before(work.when) {
		t.Error("an event was before what it is behind")
	}
	if last := p.enqueue(s, []*operation{idle, work}, nil); !last.over() {
		t.Error("an event waits for what is over")
	}
	p.users.Wait()
}
