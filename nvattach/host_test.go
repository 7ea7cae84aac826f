package nvattach

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/hostmaps"
	"nvtrace/nvattach/hostrun"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptx/bpf"
)

func TestParseHostPoint(t *testing.T) {
	for _, tt := range []struct{ section, want, err string }{
		{"uprobe/libc.so.6:malloc", "uprobe/libc.so.6:malloc", ""},
		{"uprobe.s//usr/lib/libc.so.6:malloc", "uprobe//usr/lib/libc.so.6:malloc", ""},
		{"uprobe.multi/./app:do_*", "uprobe/./app:do_*", ""},
		{"uretprobe//bin/bash:readline", "uretprobe//bin/bash:readline", ""},
		{"uprobe/app:main+0x10", "uprobe/app:main+0x10", ""},
		{"uprobe/app:main+16", "uprobe/app:main+0x10", ""},
		{"uprobe/app:0x1234", "uprobe/app:0x1234", ""},
		{"uprobe/app:a::b(int)", "uprobe/app:a::b(int)", ""},
		{"uprobe/./a:b/app:f", "uprobe/./a:b/app:f", ""},
		{"tp/syscalls/sys_enter_write", "tracepoint/syscalls/sys_enter_write", ""},
		{"tracepoint/syscalls/sys_exit_openat2", "tracepoint/syscalls/sys_exit_openat2", ""},
		{"tracepoint/raw_syscalls/sys_enter", "tracepoint/raw_syscalls/sys_enter", ""},
		{"tracepoint/raw_syscalls/sys_exit", "tracepoint/raw_syscalls/sys_exit", ""},
		{"tracepoint/sched/sched_switch", "none", ""},
		{"kprobe/do_exit", "none", ""},
		{"uprobe_override/app:f", "uprobe/app:f", ""},
		{"usdt/app:a:b", "usdt/app:a:b", ""},
		{"usdt/./lib.so:a:b*", "usdt/./lib.so:a:b*", ""},
		{"cuda.api/cuLaunchKernel", "cuda.api/cuLaunchKernel", ""},
		{"cuda.apiret/cudaMalloc*", "cuda.apiret/cudaMalloc*", ""},
		{"", "none", ""},
		{"uprobe", "", "names no function"},
		{"uprobe/", "", "names no function"},
		{"uprobe/app", "", "the function is missing"},
		{"uprobe/app:", "", "the function is missing"},
		{"uprobe/:f", "", "the file is missing"},
		{"uretprobe/app:f+4", "", "an offset"},
		{"usdt/app:a", "", "write usdt/"},
		{"usdt", "", "write usdt/"},
		{"usdt/app::b", "", "write usdt/"},
		{"cuda.api/", "", "the function is missing"},
		{"tracepoint/syscalls/sys_enter_", "", "the system call is missing"},
	} {
		p, err := object.ParseHostPoint(tt.section)
		switch {
		case tt.err != "":
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%q: error %v, want one with %q", tt.section, err, tt.err)
			}
		case err != nil || p.String() != tt.want:
			t.Errorf("%q: %q, %v, want %q", tt.section, p, err, tt.want)
		}
	}
}

func TestHostPointMatches(t *testing.T) {
	for _, tt := range []struct {
		binary, path string
		want         bool
	}{
		{"libc.so.6", "/usr/lib/libc.so.6", true},
		{"libc", "/usr/lib/libc.so.6", true},
		{"libc.so", "/usr/lib/libc.so.6", true},
		{"libc", "/usr/lib/libcrypt.so.1", false},
		{"libc.so.6", "/usr/lib/libc.so.61", false},
		{"./app", "/home/u/app", true},
		{"bin/app", "/home/bin/app", true},
		{"bin/app", "/home/xbin/app", false},
		{"/bin/app", "/usr/bin/app", false},
		{"/bin/app", "/bin/app", true},
		{"app", "/bin/app2", false},
	} {
		if p := (object.HostPoint{Kind: object.HostEntry, Binary: tt.binary, Func: "f"}); p.InFile(tt.path) != tt.want {
			t.Errorf("%s in %s: %v", tt.binary, tt.path, !tt.want)
		}
	}
	for _, tt := range []struct {
		name, symbol string
		want         bool
	}{
		{"malloc", "malloc", true},
		{"mall*", "malloc", true},
		{"malloc", "malloc2", false},
		{"ns::f", "_ZN2ns1fEi", true},
		{"ns::f(int)", "_ZN2ns1fEi", true},
		{"ns::f(long)", "_ZN2ns1fEi", false},
		{"_ZN2ns1fEi", "_ZN2ns1fEi", true},
		{"f<int, 4>", "_ZN2ns1fEi", false},
		{"k<int, 4>", "_Z1kIiLi4EEvT_", true},
		{"void k<int, 4>*", "_Z1kIiLi4EEvT_", true},
		{"k<int,*", "_Z1kIiLi4EEvT_", true},
		{"(anonymous namespace)::g", "_ZN12_GLOBAL__N_11gEi", true},
		{"", "f", false},
	} {
		if p := (object.HostPoint{Kind: object.HostEntry, Binary: "x", Func: tt.name}); p.Matches(tt.symbol) != tt.want {
			t.Errorf("%s and %s: %v", tt.name, tt.symbol, !tt.want)
		}
	}
}

// fakeThread is a thread for programs.
type fakeThread struct {
	cpu int
	mem []byte // at address 0x1000
}

func (f *fakeThread) IDs() (pid, tid int)      { return 7, 8 }
func (f *fakeThread) Comm() string             { return "a name that is too long" }
func (f *fakeThread) User() (uid, gid uint32)  { return 1, 2 }
func (f *fakeThread) CPU() int                 { return f.cpu }
func (f *fakeThread) Now() uint64              { return 99 }
func (f *fakeThread) Callers(int) []uint64     { return nil }
func (f *fakeThread) Write(uint64, []byte) int { return 0 }
func (f *fakeThread) Read(addr uint64, buf []byte) int {
	if addr < 0x1000 || addr >= 0x1000+uint64(len(f.mem)) {
		return 0
	}
	return copy(buf, f.mem[addr-0x1000:])
}

// hostRun proves and runs one program with some maps, and returns what it left in the map
// out, an array of 8 values.
func hostRun(t *testing.T, kind object.HostKind, maps []*object.MapDef, th hostrun.Thread, ins asm.Instructions) (out [8]uint64, call *hostrun.Call, r *hostrun.Runner, err error) {
	t.Helper()
	o := &object.Object{Name: "test.o", Maps: append(maps, def("out", object.MapArray, 4, 64, 1))}
	slices.SortFunc(o.Maps, func(a, b *object.MapDef) int { return strings.Compare(a.Name, b.Name) })
	o.Host = []*object.HostProgram{{Name: "prog", Section: "x", Point: object.HostPoint{Kind: kind, Binary: "a", Func: "f"}, Object: o, Insns: ins}}
	plan, err := NewPlan([]*object.Object{o}, nil)
	if err != nil {
		return out, nil, nil, err
	}
	m, mem, err := plan.NewHostMaps(nil, nil)
	if err != nil {
		return out, nil, nil, err
	}
	r = hostrun.NewRunner(plan.Host, m, mem, func(int, string) {}, func(*mapmem.Map, mapmem.Record) {})
	call = &hostrun.Call{Thread: th, Fields: make([]uint64, len(object.PtRegs.Fields)), FuncIP: 0x4000}
	if err := r.Run(plan.Host[0], call); err != nil {
		return out, nil, nil, err
	}
	x := m.Find("out")
	if x == nil { // the program does not use it
		return out, call, r, nil
	}
	v, err := m.Lookup(mem, x, make([]byte, 4))
	if err != nil {
		return out, nil, nil, err
	}
	return out, call, r, binary.Read(bytes.NewReader(v), binary.LittleEndian, &out)
}

// result stores a register in out[i], whose value r9 points to.
func result(i int, from asm.Register) asm.Instruction {
	return asm.StoreMem(asm.R9, int16(8*i), from, asm.DWord)
}

// prologue sets r9 to the value of out, and r8 to the context.
func prologue() asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R8, asm.R1), asm.StoreImm(asm.RFP, -4, 0, asm.Word), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, 0).WithReference("out"), asm.FnMapLookupElem.Call(), asm.JNE.Imm(asm.R0, 0, "found"), asm.Return(),
		asm.Mov.Reg(asm.R9, asm.R0).WithSymbol("found"),
	}
}

var epilogue = asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}

// mapCall calls a helper of a hash with keys and values of 8 bytes.
func mapCall(fn asm.BuiltinFunc, name string, key, value, flags int64) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm(asm.R2, int32(key)), asm.StoreMem(asm.RFP, -16, asm.R2, asm.DWord), asm.Mov.Imm(asm.R3, int32(value)), asm.StoreMem(asm.RFP, -24, asm.R3, asm.DWord),
		asm.LoadMapPtr(asm.R1, 0).WithReference(name), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -16),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -24), asm.Mov.Imm(asm.R4, int32(flags)), fn.Call(),
	}
}

func join(parts ...asm.Instructions) (all asm.Instructions) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// TestHostMaps: the helpers of maps return what Linux's return.
func TestHostMaps(t *testing.T) {
	hash := def("hash", object.MapHash, 8, 8, 2)
	store := func(i int) asm.Instructions { return asm.Instructions{result(i, asm.R0)} }
	out, _, r, err := hostRun(t, object.HostEntry, []*object.MapDef{hash}, &fakeThread{}, join(prologue(),
		mapCall(3, "hash", 1, 0, 0), store(0), // there is none
		mapCall(2, "hash", 1, 5, 2), store(1), // must be there
		mapCall(2, "hash", 1, 5, 1), store(2),
		mapCall(2, "hash", 1, 6, 1), store(3), // must not
		mapCall(2, "hash", 2, 7, 0), mapCall(2, "hash", 3, 8, 0), store(4), // full
		mapCall(3, "hash", 1, 0, 0), store(5),
		mapCall(2, "hash", 3, 8, 0), store(6),
		mapCall(2, "hash", 3, 8, 9), store(7), // no such flag
		epilogue))
	if err != nil {
		t.Fatal(err)
	}
	neg := func(n int64) uint64 { return uint64(-n) }
	if want := [8]uint64{neg(2), neg(2), 0, neg(17), neg(7), 0, 0, neg(22)}; out != want {
		t.Errorf("results %x, want %x", out, want)
	}
	if lost := r.Losses(); len(lost) != 1 || lost[0].Error() != "map hash: 1 insertions found no room" {
		t.Errorf("lost %v", lost)
	}
	for key, want := range map[uint64]bool{1: false, 2: true, 3: true} {
		if addr, err := r.Lookup(r.Maps().Find("hash"), binary.LittleEndian.AppendUint64(nil, key), 0); err != nil || addr != 0 != want {
			t.Errorf("key %d is at %#x, %v", key, addr, err)
		}
	}
}

// TestHostMapsReused: a hash that is filled and emptied again and again holds what it should.
func TestHostMapsReused(t *testing.T) {
	o := &object.Object{Name: "test.o", Maps: []*object.MapDef{def("hash", object.MapHash, 8, 8, 16)}}
	m, err := mapmem.NewMaps([]*object.Object{o}, &mapmem.MapOptions{SMs: 1, Slots: 1})
	if err != nil {
		t.Fatal(err)
	}
	mem := &mapmem.HostMemory{B: mapmem.Buffer{Base: mapmem.HostBase, Data: make([]byte, m.Size())}}
	if err := m.Place(mapmem.HostBase); err != nil {
		t.Fatal(err)
	}
	r := hostmaps.NewWriter(m, mem)
	x, want := m.Find("hash"), map[uint64]uint64{}
	key := func(k uint64) []byte { return binary.LittleEndian.AppendUint64(nil, k) }
	for i := range uint64(3000) {
		k := i * i % 40
		if _, there := want[k]; there && i%3 != 0 {
			if result, err := r.Remove(x, key(k)); result != 0 || err != nil {
				t.Fatalf("key %d: %d, %v", k, int64(result), err)
			}
			delete(want, k)
			continue
		}
		result, err := r.ReplaceOrInsert(x, key(k), key(i), 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, there := want[k]; !there && len(want) == 16 {
			if result != hostmaps.TooBig {
				t.Fatalf("full, but %d", int64(result))
			}
			continue
		}
		if result != 0 {
			t.Fatal(int64(result))
		}
		want[k] = i
	}
	table, err := m.Read(mem, x)
	if err != nil || len(table.Rows) != len(want) {
		t.Fatalf("%d entries, want %d; %v", len(table.Rows), len(want), err)
	}
	for _, row := range table.Rows {
		if k, v := binary.LittleEndian.Uint64(row.Key), binary.LittleEndian.Uint64(row.Value); want[k] != v {
			t.Errorf("[%d] = %d, want %d", k, v, want[k])
		}
	}
}

// TestHostHelpers: what programs learn of the thread.
func TestHostHelpers(t *testing.T) {
	th := &fakeThread{cpu: mapmem.PossibleCPUs() + 3, mem: []byte("text")}
	call := func(fn int32, i int) asm.Instructions {
		return asm.Instructions{asm.Mov.Reg(asm.R1, asm.R8), asm.BuiltinFunc(fn).Call(), result(i, asm.R0)}
	}
	read := func(fn int32, size, from int32, i int) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, -40), asm.Mov.Imm(asm.R2, size), asm.Mov.Imm(asm.R3, from), asm.BuiltinFunc(fn).Call(), result(i, asm.R0),
		}
	}
	out, _, _, err := hostRun(t, object.HostEntry, nil, th, join(prologue(), call(14, 0), call(15, 1), call(5, 2), call(8, 3), call(173, 4),
		read(112, 8, 0x1000, 5), // beyond what there is
		read(114, 3, 0x1000, 6), asm.Instructions{asm.LoadMem(asm.R1, asm.RFP, -40, asm.Word), result(7, asm.R1)}, epilogue))
	if err != nil {
		t.Fatal(err)
	}
	if want := [8]uint64{7<<32 | 8, 2<<32 | 1, 99, uint64(3 % mapmem.PossibleCPUs()), 0x4000, 1<<64 - 14, 3, uint64('t') | 'e'<<8}; out != want {
		t.Errorf("results %x, want %x", out, want)
	}
	out, _, _, err = hostRun(t, object.HostEntry, nil, th, join(prologue(), asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, -40), asm.Mov.Imm(asm.R2, 8), asm.BuiltinFunc(16).Call(),
		asm.LoadMem(asm.R1, asm.RFP, -40, asm.DWord), result(0, asm.R1),
	}, epilogue))
	if err != nil || out[0] != binary.LittleEndian.Uint64([]byte("a name \x00")) {
		t.Errorf("name %x, %v", out[0], err)
	}
}

// TestHostLarge: helpers write more than a page of a value at once, but no more than there is.
func TestHostLarge(t *testing.T) {
	th := &fakeThread{mem: []byte(strings.Repeat("x", 9000))}
	program := func(most int32) asm.Instructions {
		return join(prologue(), asm.Instructions{
			asm.StoreImm(asm.RFP, -8, 0, asm.Word), asm.LoadMapPtr(asm.R1, 0).WithReference("big"), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8),
			asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "out"), asm.Mov.Reg(asm.R7, asm.R0),
			asm.BuiltinFunc(5).Call(), asm.Mov.Reg(asm.R2, asm.R0), asm.Or.Imm(asm.R2, most), asm.And.Imm(asm.R2, most), asm.Mov.Reg(asm.R1, asm.R7), asm.Mov.Imm(asm.R3, 0x1000),
			asm.BuiltinFunc(112).Call(), result(0, asm.R0), asm.LoadMem(asm.R1, asm.R7, 8183, asm.Byte), result(1, asm.R1),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("out"), asm.Return(),
		})
	}
	out, _, _, err := hostRun(t, object.HostEntry, []*object.MapDef{def("big", object.MapArray, 4, 8192, 1)}, th, program(8191))
	if err != nil || out[0] != 0 || out[1] != 'x' {
		t.Errorf("%x, %v", out, err)
	}
	if _, _, _, err = hostRun(t, object.HostEntry, []*object.MapDef{def("big", object.MapArray, 4, 8190, 1)}, th, program(8191)); err == nil {
		t.Error("a byte more than there is was allowed")
	}
}

// TestHostOverride: what is returned can be changed where it is not decided yet.
func TestHostOverride(t *testing.T) {
	ins := asm.Instructions{asm.Mov.Imm(asm.R2, -5), asm.BuiltinFunc(helper.OverrideReturn).Call(), asm.Mov.Imm(asm.R0, 0), asm.Return()}
	for _, kind := range []object.HostKind{object.HostEntry, object.HostSysEnter, object.HostSysEnters} {
		if _, call, _, err := hostRun(t, kind, nil, &fakeThread{}, ins); err != nil || !call.Overridden || int64(call.Override) != -5 {
			t.Errorf("kind %d: %+v, %v", kind, call, err)
		}
	}
	for _, kind := range []object.HostKind{object.HostReturn, object.HostSysExit, object.HostSysExits} {
		_, _, _, err := hostRun(t, kind, nil, &fakeThread{}, ins)
		if why, ok := errors.AsType[*bpf.RefusedError](err); !ok || !strings.Contains(why.Hint, "at the entry") {
			t.Errorf("kind %d: %v", kind, err)
		}
	}
}

// TestHostRefused: what only a GPU has is refused, and unknown helpers.
func TestHostRefused(t *testing.T) {
	for want, ins := range map[string]asm.Instructions{
		"helper 503":               {asm.BuiltinFunc(503).Call(), asm.Return()},
		"can't be had on the host": {asm.LoadMapPtr(asm.R1, 0).WithReference("rows"), asm.Mov.Imm(asm.R0, 0), asm.Return()},
		"no field":                 {asm.LoadMem(asm.R0, asm.R1, 168, asm.DWord), asm.Return()},
	} {
		rows := def("rows", object.MapGPUThreadArray, 4, 8, 1)
		if _, _, _, err := hostRun(t, object.HostEntry, []*object.MapDef{rows}, &fakeThread{}, ins); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// TestHostEnded: runs that a test ends are told.
func TestHostEnded(t *testing.T) {
	ins := asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 5, asm.Word), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4), asm.LoadMapPtr(asm.R1, 0).WithReference("out"), asm.FnMapLookupElem.Call(),
		asm.LoadMem(asm.R0, asm.R0, 0, asm.DWord), asm.Return(),
	}
	_, _, r, err := hostRun(t, object.HostEntry, nil, &fakeThread{}, ins)
	if err != nil {
		t.Fatal(err)
	}
	if lost := r.Losses(); len(lost) != 1 || !strings.Contains(lost[0].Error(), "program prog: 1 runs were ended at instruction 5: NULL") {
		t.Errorf("lost %v", lost)
	}
}

// TestPlaceProgram: who runs a program may say where.
func TestPlaceProgram(t *testing.T) {
	load := func() []*object.Object {
		o, err := object.Open("testdata/obj/host.bpf.o")
		if err != nil {
			t.Fatal(err)
		}
		return []*object.Object{o}
	}
	objs := load()
	before := len(objs[0].Host)
	for _, text := range []string{"no_target=./app:f", "add_return=libx.so:g"} {
		if err := object.PlaceProgram(objs, text); err != nil {
			t.Fatal(err)
		}
	}
	points := map[string]string{}
	for _, p := range objs[0].Host {
		points[p.Name] = p.Point.String()
	}
	if len(objs[0].Host) != before+1 || points["no_target"] != "uprobe/./app:f" || points["add_return"] != "uretprobe/libx.so:g" || points["add_enter"] != "uprobe/./victim:add" {
		t.Errorf("%d programs: %v", len(objs[0].Host), points)
	}
	for _, i := range objs[0].Ignored {
		if i.Name == "no_target" {
			t.Errorf("it is ignored still: %v", i)
		}
	}
	for text, want := range map[string]string{
		"no_target":            "want PROGRAM=FILE:FUNCTION",
		"=a:b":                 "want PROGRAM=FILE:FUNCTION",
		"no_target=app":        "the function is missing",
		"nothing=app:f":        "is called nothing; there are",
		"write_enter=app:f":    "runs at system calls",
		"add_return=app:f+0x5": "an offset",
		"usdt_point=app:f":     "write usdt/FILE:PROVIDER:PROBE",
	} {
		if err := object.PlaceProgram(load(), text); !errors.Is(err, object.ErrSetting) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
