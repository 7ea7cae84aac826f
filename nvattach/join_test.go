package nvattach

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/hostrun"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// countBody is a program that looks entry 0 of map m up and does something with its value, at
// which r0 points, with 3 in r1.
func countBody(name string, body ...asm.Instruction) asm.Instructions {
	insns := asm.Instructions{
		asm.Mov.Imm(asm.R6, 0).WithSymbol(name), asm.StoreImm(asm.R10, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -4), asm.LoadMapPtr(asm.R1, 0).WithReference("m"), asm.BuiltinFunc(helper.MapLookup).Call(),
		asm.JEq.Imm(asm.R0, 0, "end"), asm.Mov.Imm(asm.R1, 3),
	}
	insns = append(insns, body...)
	return append(insns, asm.Mov.Reg(asm.R0, asm.R6).WithSymbol("end"), asm.Return())
}

func addAt(off int16, size asm.Size) asm.Instruction {
	x := asm.AddAtomic.Mem(asm.R0, asm.R1, asm.Word, off)
	x.OpCode = x.OpCode.SetSize(size)
	return x
}

// joined plans a program on the host and one in kernels that use map m.
func joined(t *testing.T, m *ebpf.MapSpec, host, kernel []asm.Instruction) *Plan {
	t.Helper()
	o, err := object.New("test", &ebpf.CollectionSpec{
		Programs: map[string]*ebpf.ProgramSpec{
			"host":   {SectionName: "uprobe/app:f", Instructions: countBody("host", host...)},
			"kernel": {SectionName: "cuda.entry/*", Instructions: countBody("kernel", kernel...)},
		},
		Maps: map[string]*ebpf.MapSpec{"m": m},
	})
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPlan([]*object.Object{o}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestJoins: a map has parts of its own on both sides if programs only add to it.
func TestJoins(t *testing.T) {
	add := []asm.Instruction{addAt(0, asm.DWord)}
	increment := []asm.Instruction{asm.LoadMem(asm.R2, asm.R0, 0, asm.DWord), asm.Add.Imm(asm.R2, 5), asm.StoreMem(asm.R0, 0, asm.R2, asm.DWord)}
	read := []asm.Instruction{addAt(0, asm.DWord), asm.LoadMem(asm.R6, asm.R0, 0, asm.DWord)}
	fetch := []asm.Instruction{asm.FetchAdd.Mem(asm.R0, asm.R1, asm.DWord, 0), asm.Mov.Reg(asm.R6, asm.R1)}
	or := []asm.Instruction{asm.OrAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0)}
	calls := func(helper int32) []asm.Instruction {
		return []asm.Instruction{asm.Mov.Reg(asm.R1, asm.R0), asm.Mov.Imm(asm.R2, 7), asm.BuiltinFunc(helper).Call()}
	}
	array := func() *ebpf.MapSpec { return &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 2} }
	of := func(kind ebpf.MapType) *ebpf.MapSpec {
		return &ebpf.MapSpec{Type: kind, KeySize: 4, ValueSize: 16, MaxEntries: 2}
	}
	for _, tt := range []struct {
		name         string
		m            *ebpf.MapSpec
		host, kernel []asm.Instruction
		joins        bool
	}{
		{"both add", array(), add, add, true},
		{"both increment", array(), increment, increment, true},
		{"fields of their own", array(), []asm.Instruction{addAt(8, asm.Word)}, []asm.Instruction{addAt(0, asm.DWord), addAt(12, asm.Word)}, true},
		{"the host reads", array(), read, add, false},
		{"a kernel reads", array(), add, read, false},
		{"the host fetches", array(), fetch, add, false},
		{"a kernel fetches", array(), add, fetch, false},
		{"the host stores", array(), []asm.Instruction{asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord)}, add, false},
		{"a kernel stores", array(), add, []asm.Instruction{asm.StoreMem(asm.R0, 8, asm.R1, asm.DWord), addAt(0, asm.DWord)}, false},
		{"the host sets bits of a sum", array(), or, add, false},
		{"both set bits", array(), or, []asm.Instruction{asm.LoadMem(asm.R2, asm.R0, 0, asm.DWord), asm.Or.Imm(asm.R2, 5), asm.StoreMem(asm.R0, 0, asm.R2, asm.DWord)}, true},
		{"the highest number", array(), calls(helper.Max), calls(helper.Max), true},
		{"sums and a highest number", array(), slices.Concat([]asm.Instruction{addAt(8, asm.Word), addAt(12, asm.Word)}, calls(helper.Max)), calls(helper.Max), true},
		{"sums of highest numbers", array(), add, calls(helper.Max), false},
		{"the lowest number", array(), []asm.Instruction{addAt(8, asm.DWord)}, calls(helper.Min), false},
		{"the highest signed number", array(), []asm.Instruction{addAt(8, asm.DWord)}, calls(helper.SMax), false},
		{"an exclusive or", array(), []asm.Instruction{asm.XorAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0)}, add, false},
		{"the host only looks up", array(), nil, add, false},
		{"fields that overlap", array(), add, []asm.Instruction{addAt(4, asm.Word)}, false},
		{"2 bytes", array(), []asm.Instruction{asm.LoadMem(asm.R2, asm.R0, 0, asm.Half), asm.Add.Imm(asm.R2, 5), asm.StoreMem(asm.R0, 0, asm.R2, asm.Half)}, add, false},
		{"a hash", of(ebpf.Hash), add, add, false},
		{"values for each CPU", of(ebpf.PerCPUArray), add, add, false},
	} {
		p := joined(t, tt.m, tt.host, tt.kernel)
		d := p.Objects[0].Map("m")
		if got := p.joins(d); got != tt.joins {
			t.Errorf("%s: %v", tt.name, got)
		}
		one, apart := p.SharedMaps()
		switch wantOne, wantApart := !tt.joins && d.Sharable(), !d.Sharable(); {
		case wantOne != slices.Contains(one, "m"), wantApart != slices.Contains(apart, "m"), tt.joins && len(p.ChangedByBoth()) > 0:
			t.Errorf("%s: shared %v, apart %v, changed by both %v", tt.name, one, apart, p.ChangedByBoth())
		}
	}
}

// TestJoin: the host's part becomes the sum of all parts, whenever those are read and whatever
// the host adds meanwhile.
func TestJoin(t *testing.T) {
	m := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 2}
	p := joined(t, m, []asm.Instruction{addAt(0, asm.DWord), addAt(8, asm.Word)}, []asm.Instruction{addAt(0, asm.DWord), addAt(8, asm.Word)})
	host, mem, err := p.NewHostMaps(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if host.SharedSize != 0 {
		t.Errorf("%d bytes of the host's memory are for kernels", host.SharedSize)
	}
	r := hostrun.NewRunner(p.Host, host, mem, nil, nil)
	d := p.Objects[0].Map("m")
	set, err := object.ParseMapSetting("m[1]=hex:64000000000000000500000000000000")
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Apply(mem, set, nil); err != nil {
		t.Fatal(err)
	}
	type part struct {
		maps *mapmem.Maps
		mem  *mapmem.Buffer
		join *hostrun.Join
	}
	var parts []part
	for range 2 {
		g, err := p.NewMaps(&mapmem.MapOptions{SMs: 3, Join: host})
		if err != nil {
			t.Fatal(err)
		}
		b := &mapmem.Buffer{Base: 1 << 32, Data: make([]byte, g.Size())}
		if err := g.Place(b.Base); err != nil {
			t.Fatal(err)
		}
		if err := g.Init(b, 1, 0); err != nil {
			t.Fatal(err)
		}
		if x := g.Of(d); x.Shared() || !x.Joined() || !x.Striped() {
			t.Fatalf("the part is %+v", x)
		}
		parts = append(parts, part{g, b, r.NewJoin(g)})
	}
	// add is what programs do: on multiprocessor sm of a GPU, -1: on the host.
	add := func(gpu, sm int, i, n uint64) {
		t.Helper()
		if sm < 0 {
			at := host.Of(d).Base + i*16
			for _, f := range []mapmem.AddField{{Offset: 0, Size: 8}, {Offset: 8, Size: 4}} {
				if _, err := mem.Change(at+uint64(f.Offset), int(f.Size), func(old uint64) uint64 { return old + n }); err != nil {
					t.Fatal(err)
				}
			}
			return
		}
		x := parts[gpu].maps.Of(d)
		at := parts[gpu].mem.Data[x.Off+uint64(sm)*x.CopyBytes+i*16:]
		binary.LittleEndian.PutUint64(at, binary.LittleEndian.Uint64(at)+n)
		binary.LittleEndian.PutUint32(at[8:], binary.LittleEndian.Uint32(at[8:])+uint32(n))
	}
	read := func(want string) {
		t.Helper()
		for _, q := range parts {
			if err := q.join.Add(q.mem); err != nil {
				t.Fatal(err)
			}
		}
		table, err := host.Read(mem, host.Of(d))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, row := range table.Rows {
			got += fmt.Sprint(binary.LittleEndian.Uint64(row.Value), " ", binary.LittleEndian.Uint32(row.Value[8:]), " ", binary.LittleEndian.Uint32(row.Value[12:]), "; ")
		}
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	read("0 0 0; 100 5 0; ")
	add(0, 0, 0, 1)
	add(0, 2, 0, 10)
	add(1, 1, 0, 100)
	add(0, -1, 0, 1000)
	read("1111 1111 0; 100 5 0; ")
	read("1111 1111 0; 100 5 0; ") // once only
	add(0, 0, 1, ^uint64(0))       // which is -1
	add(1, 0, 1, 1<<32+7)
	add(0, -1, 1, 2)
	read(fmt.Sprintf("1111 1111 0; %d 13 0; ", 100+1<<32+8))
	add(0, 0, 1, 1)
	read(fmt.Sprintf("1111 1111 0; %d 14 0; ", 100+1<<32+9))
}

// TestJoinOps: what two parts of a number are together does not depend on how often they were looked at.
func TestJoinOps(t *testing.T) {
	for _, tt := range []struct {
		op    mapmem.JoinOp
		host  uint64
		looks []uint64
		want  uint64
	}{
		{mapmem.JoinAdd, 100, []uint64{45}, 145},
		{mapmem.JoinAdd, 100, []uint64{5, 5, 45}, 145},
		{mapmem.JoinAdd, 100, []uint64{5, ^uint64(0)}, 99},
		{mapmem.JoinOr, 0x80, []uint64{5, 15, 15}, 0x8f},
		{mapmem.JoinMax, 8, []uint64{3, 15, 15}, 15},
		{mapmem.JoinMax, 16, []uint64{3, 15}, 16},
	} {
		got, before := tt.host, uint64(0)
		for _, n := range tt.looks {
			got, before = tt.op.Of(got, before, n), n
		}
		if got != tt.want {
			t.Errorf("%d: %d and %v are %d, want %d", tt.op, tt.host, tt.looks, got, tt.want)
		}
	}
}

// TestJoinsInMaps: maps that programs reach by an array of maps, too, lie in memory of both.
func TestJoinsInMaps(t *testing.T) {
	p := joined(t, &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 2}, []asm.Instruction{addAt(0, asm.DWord)}, []asm.Instruction{addAt(0, asm.DWord)})
	o := p.Objects[0]
	if !p.joins(o.Map("m")) {
		t.Fatal("it has no parts")
	}
	o.Maps = append(o.Maps, &object.MapDef{Name: "outer", Type: object.MapArrayOfMaps, KeySize: 4, MaxEntries: 1, Maps: map[uint32]string{0: "m"}})
	if p.joins(o.Map("m")) {
		t.Error("it has parts")
	}
}
