package channels

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"

	"nvtrace/ptrace/proc"
	"nvtrace/rm/channel"
)

// pages is memory of a process that a test writes.
type pages struct {
	maps []proc.Mapping
	b    [][]byte // of each mapping
}

func (p *pages) Maps() ([]proc.Mapping, error) { return p.maps, nil }

func (p *pages) at(address, size uint64) []byte {
	for i := range p.maps {
		if p.maps[i].Contains(address, size) {
			return p.b[i][address-p.maps[i].Start:][:size]
		}
	}
	return nil
}

func (p *pages) Read(address uint64, b []byte) error {
	from := p.at(address, uint64(len(b)))
	if from == nil {
		return fmt.Errorf("nothing at %#x", address)
	}
	copy(b, from)
	return nil
}

func (p *pages) add(path string, at, size uint64) []byte {
	p.maps = append(p.maps, proc.Mapping{Start: at, End: at + size, Path: path, Read: true, Write: true})
	p.b = append(p.b, make([]byte, size))
	return p.b[len(p.b)-1]
}

// The GPU's addresses of a program that maps its memory at others of its own.
const (
	gpuVideo, gpuSystem = 0x120000000, 0x120200000
	ownVideo, ownSystem = 0x7f0012000000, 0x7f0011ff0000
)

// ownProgram is a program like examples/rmlaunch: one launch, whose QMD is in the GPU's memory, and a semaphore behind it.
func ownProgram(t *testing.T, done uint32) *pages {
	t.Helper()
	var p pages
	system := p.add("/dev/nvidiactl", ownSystem, 2*pageSize)
	other := p.add("/dev/nvidiactl", ownSystem+0x4000, 2*pageSize) // of something else
	for i := range other {
		other[i] = byte(7 * i)
	}
	video := p.add("/dev/nvidia0", ownVideo, 2<<20)
	class := channel.ClassOf(0xcbc0)
	q, ok := class.NewQMD()
	if !ok {
		t.Fatal("no QMD")
	}
	if err := q.SetLaunch(channel.Launch{
		Program: gpuVideo + 0x6000, Grid: [3]uint32{391, 1, 1}, Block: [3]uint32{256, 1, 1}, Registers: 16, Constants: gpuVideo + 0x5000, ConstantSize: 0x230,
	}); err != nil {
		t.Fatal(err)
	}
	copy(video[0x4000:], q.Bytes())
	var w channel.Writer
	w.Bind(class, 1)
	w.Methods(class, 1, "SEND_PCAS_A", (gpuVideo+0x4000)>>8)
	w.Fields(class, 1, "SEND_SIGNALING_PCAS2_B", "PCAS_ACTION=INVALIDATE_COPY_SCHEDULE")
	w.Methods(class, 1, "SET_REPORT_SEMAPHORE_A", gpuSystem>>32, (gpuSystem+0x1000)&(1<<32-1), 1)
	w.Fields(class, 1, "SET_REPORT_SEMAPHORE_D", "OPERATION=RELEASE STRUCTURE_SIZE=ONE_WORD")
	for i, word := range w.Words {
		binary.LittleEndian.PutUint32(system[4*i:], word)
	}
	binary.LittleEndian.PutUint32(system[0x1000:], done)
	entry, ok := channel.Entry{Address: gpuSystem, Words: uint32(len(w.Words)), Subroutine: true}.Encode()
	if !ok {
		t.Fatal("no entry")
	}
	binary.LittleEndian.PutUint64(video, entry)
	put := uint32((gpuSystem + 4*len(w.Words)) & (1<<32 - 1))
	for offset, v := range map[int]uint32{0x40: put, 0x4c: gpuSystem >> 32, 0x44: put, 0x60: gpuSystem >> 32, 0x88: 1, 0x8c: 1} {
		binary.LittleEndian.PutUint32(video[0x2000+offset:], v)
	}
	return &p
}

// TestOtherAddresses wants the launch of a program whose GPU has its memory at other addresses than it has itself.
func TestOtherAddresses(t *testing.T) {
	v, err := NewView(1, ownProgram(t, 0))
	if err != nil {
		t.Fatal(err)
	}
	if v.Channels() != 1 {
		t.Fatalf("%d channels", v.Channels())
	}
	r := v.Look(true)
	c := &r.Channels[0]
	if len(c.Running) != 1 || c.Running[0].Program != "0x120006000" || *c.Running[0].Grid != [3]uint32{391, 1, 1} || c.Running[0].Registers != 16 {
		t.Errorf("while it runs: %+v", c)
	}
	pieces := v.Pieces(4)
	if len(pieces) != 1 || len(pieces[0].Pieces) != 1 || pieces[0].Pieces[0].Address != gpuSystem || len(pieces[0].Pieces[0].Words) == 0 {
		t.Errorf("%+v", pieces)
	}
	if programs := v.Programs(pieces); len(programs) != 1 || programs[0] != gpuVideo+0x6000 {
		t.Errorf("programs %#x", programs)
	}
	if v, err = NewView(1, ownProgram(t, 1)); err != nil {
		t.Fatal(err)
	}
	if r := v.Look(true); len(r.Channels) != 1 || r.Channels[0].Busy {
		t.Errorf("when it is over: %+v", r)
	}
}

// TestTwoPlaces wants no channel believed of which the pushbuffer could be in two places.
func TestTwoPlaces(t *testing.T) {
	p := ownProgram(t, 0)
	copy(p.b[1], p.b[0][:pageSize])
	if list, err := Find(p); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
}

// TestRmlaunch finds the channel of examples/rmlaunch as it was on an H200 (driver 580), behind its launch.
func TestRmlaunch(t *testing.T) {
	v := view(t, "rmlaunch")
	r := v.Look(true)
	if v.Channels() != 1 || r.Channels[0].Busy || r.Channels[0].Error != "" {
		t.Fatalf("%+v", r)
	}
	list := v.Pieces(4)
	var out strings.Builder
	for _, cp := range list {
		rd := v.Reader(cp.Of)
		for _, p := range cp.Pieces {
			if err := rd.Fprint(&out, p.Words, p.Address, v.Names.Of); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, want := range []string{"SET_OBJECT", "; launch program 0x120006000 grid 391 block 256 registers 16 shared memory 1024 B", "; release 0x120201000 = 1"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// TestNumberAgain wants a process that has ended not taken for another one that has got its number.
func TestNumberAgain(t *testing.T) {
	p, err := Open(os.Getpid(), AllMemory)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Maps(); err != nil {
		t.Fatal(err)
	}
	p.began = "1" // as another one with this number would have begun
	if maps, err := p.Maps(); err == nil {
		t.Errorf("%d mappings of another process", len(maps))
	}
}

// TestManyPlaces bounds what a process can have looked for: rings without end, of which no piece is anywhere.
func TestManyPlaces(t *testing.T) {
	p := ownProgram(t, 0)
	for i := 0; i+0x3000 <= len(p.b[2]); i += 0x3000 {
		copy(p.b[2][i:i+8], p.b[2][:8])
		copy(p.b[2][i+0x2000:i+0x2090], p.b[2][0x2000:0x2090])
	}
	for i := range p.b[0] {
		p.b[0][i] = 0xff
	}
	s := spaceOf(p.maps)
	s.probes = maxProbes - 10
	if list := findIn(p, &s, &s.gpu[0]); len(list) != 0 || s.probes > maxProbes+1000 {
		t.Errorf("%d channels, %d probes", len(list), s.probes)
	}
}
