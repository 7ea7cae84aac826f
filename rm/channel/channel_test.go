package channel

import (
	"encoding/binary"
	"maps"
	"strings"
	"testing"
)

// TestFacts reads all facts: what can't be read panics.
func TestFacts(t *testing.T) {
	kinds := map[Kind]int{}
	for _, number := range Classes() {
		c := ClassOf(number)
		if c.Name == "" || len(c.methods) == 0 {
			t.Errorf("class %04x has no name or no methods", number)
		}
		kinds[c.Kind]++
		if (c.Kind == Compute) != (len(c.qmds) > 0) {
			t.Errorf("class %04x has %d layouts of QMDs", number, len(c.qmds))
		}
		for _, l := range c.qmds {
			for i := range l.Fields {
				if f := &l.Fields[i]; f.High < f.Low || int(f.High) >= 8*qmdSizes[l.Major] {
					t.Errorf("class %04x, QMD %d.%d: bits %d:%d of %s", number, l.Major, l.Minor, f.High, f.Low, f.Name)
				}
			}
		}
	}
	if kinds[Host] != 7 || kinds[Compute] != 8 || kinds[Copy] != 7 {
		t.Errorf("classes by kind: %v", kinds)
	}
}

// TestMethods holds offsets against those that NVIDIA's headers have, arrays too.
func TestMethods(t *testing.T) {
	for _, test := range []struct {
		class, offset uint16
		want          string
		index         int
	}{
		{0xcbc0, 0x02b4, "SEND_PCAS_A", 0},
		{0xcbc0, 0x02c0, "SEND_SIGNALING_PCAS2_B", 0},
		{0xcbc0, 0x1b0c, "SET_REPORT_SEMAPHORE_D", 0},
		{0xcbc0, 0x0328, "LOAD_INLINE_QMD_DATA", 2},
		{0xcbc0, 0x380c, "CALL_MME_DATA", 1},
		{0xcbc0, 0x3810, "CALL_MME_MACRO", 2},
		{0xc8b5, 0x0300, "LAUNCH_DMA", 0},
		{0xc86f, 0x006c, "SEM_EXECUTE", 0},
		{0xc86f, 0x0008, "NOP", 0}, // from Ampere's header: Hopper's leaves it out
		{0xcbc0, 0x0004, "", 0},
	} {
		m, index := ClassOf(test.class).Method(test.offset)
		name := ""
		if m != nil {
			name = m.Name
		}
		if name != test.want || index != test.index {
			t.Errorf("method %04x:%04x is %s(%d), want %s(%d)", test.class, test.offset, name, index, test.want, test.index)
		}
	}
}

// qmdOf makes a QMD of a version with fields set.
func qmdOf(t *testing.T, class uint16, major, minor uint8, fields map[string]uint64) []byte {
	t.Helper()
	for _, l := range ClassOf(class).qmds {
		if l.Major != major || l.Minor != minor {
			continue
		}
		b := make([]byte, qmdSizes[major])
		for name, v := range fields {
			found := false
			for i := range l.Fields {
				if f := &l.Fields[i]; f.Name == name {
					found = true
					for bit := uint16(0); bit <= f.High-f.Low; bit++ {
						at := f.Low + bit
						b[at/8] |= byte(v>>bit&1) << (at % 8)
					}
				}
			}
			if !found {
				t.Fatalf("QMD %d.%d has no field %s", major, minor, name)
			}
		}
		return b
	}
	t.Fatalf("class %04x has no QMD %d.%d", class, major, minor)
	return nil
}

// TestLaunch wants the same launch of QMDs of each architecture.
func TestLaunch(t *testing.T) {
	ampere := map[string]uint64{
		"CTA_RASTER_WIDTH": 7, "CTA_RASTER_HEIGHT": 3, "CTA_RASTER_DEPTH": 2,
		"PROGRAM_ADDRESS_LOWER": 0xa77ac200, "PROGRAM_ADDRESS_UPPER": 0x7f82, "REGISTER_COUNT_V": 40, "SHARED_MEMORY_SIZE": 5120,
		"CONSTANT_BUFFER_VALID": 1,
	}
	hopper := map[string]uint64{
		"QMD_TYPE": 2, "GRID_WIDTH": 7, "GRID_HEIGHT": 3, "GRID_DEPTH": 2,
		"PROGRAM_ADDRESS_LOWER": 0xa77ac200, "PROGRAM_ADDRESS_UPPER": 0x7f82, "REGISTER_COUNT": 40, "SHARED_MEMORY_SIZE": 5120,
		"CONSTANT_BUFFER_VALID": 1,
	}
	blackwell := map[string]uint64{
		"QMD_TYPE": 2, "GRID_WIDTH": 7, "GRID_HEIGHT": 3, "GRID_DEPTH": 2,
		"PROGRAM_ADDRESS_LOWER_SHIFTED4": 0x2a77ac20, "PROGRAM_ADDRESS_UPPER_SHIFTED4": 0x7f8, "REGISTER_COUNT": 40, "SHARED_MEMORY_SIZE_SHIFTED7": 40,
		"CONSTANT_BUFFER_VALID": 1,
	}
	version := func(fields map[string]uint64, minor string, major, n uint64) map[string]uint64 {
		out := map[string]uint64{"QMD_MAJOR_VERSION": major, minor: n, "CTA_THREAD_DIMENSION0": 96, "CTA_THREAD_DIMENSION1": 2, "CTA_THREAD_DIMENSION2": 1}
		maps.Copy(out, fields)
		return out
	}
	subTasks := func(fields map[string]uint64) map[string]uint64 {
		out := map[string]uint64{"QMD_MAJOR_VERSION": 5, "QMD_MINOR_VERSION": 1, "QMD_TYPE": 2}
		for k, v := range fields {
			if _, ok := out[k]; !ok && k != "CONSTANT_BUFFER_VALID" {
				out[subTask+k] = v
			}
		}
		return out
	}
	for _, test := range []struct {
		class        uint16
		major, minor uint8
		fields       map[string]uint64
	}{
		{0xc3c0, 2, 2, version(ampere, "QMD_VERSION", 2, 2)},
		{0xc5c0, 2, 3, version(ampere, "QMD_VERSION", 2, 3)},
		{0xc6c0, 2, 4, version(ampere, "QMD_VERSION", 2, 4)},
		{0xc7c0, 3, 0, version(ampere, "QMD_VERSION", 3, 0)},
		{0xc9c0, 3, 0, version(ampere, "QMD_VERSION", 3, 0)},
		{0xcbc0, 4, 0, version(hopper, "QMD_MINOR_VERSION", 4, 0)},
		{0xcdc0, 5, 0, version(blackwell, "QMD_MINOR_VERSION", 5, 0)},
		{0xcec0, 5, 0, version(blackwell, "QMD_MINOR_VERSION", 5, 0)},
		{0xcec0, 5, 1, subTasks(version(blackwell, "QMD_MINOR_VERSION", 5, 1))},
	} {
		b := qmdOf(t, test.class, test.major, test.minor, test.fields)
		program := uint64(0x7f82a77ac200)
		if test.major == 5 {
			program = (0x2a77ac20 | 0x7f8<<32) << 4
		}
		q, ok := ClassOf(test.class).ParseQMD(b)
		if !ok {
			t.Errorf("%04x: QMD %d.%d isn't read", test.class, test.major, test.minor)
			continue
		}
		l, ok := q.Launch()
		if !ok || l.Program != program || l.Grid != [3]uint32{7, 3, 2} || l.Block != [3]uint32{96, 2, 1} ||
			l.Registers != 40 || l.SharedMemory != 5120 {
			t.Errorf("%04x: QMD %d.%d is %+v", test.class, test.major, test.minor, l)
		}
	}
}

// TestEntry holds an entry of a ring that was seen on an H200.
func TestEntry(t *testing.T) {
	e := ParseEntry(0x00060e02_00c015bc)
	if e.Address != 0x200c015bc || e.Words != 0x183 || !e.Subroutine || e.Sync {
		t.Errorf("%+v", e)
	}
	if c := ParseEntry(2); c.Words != 0 || c.Address != 0 {
		t.Errorf("a control entry: %+v", c)
	}
}

// FuzzRead reads any words as a pushbuffer.
func FuzzRead(f *testing.F) {
	f.Add([]byte{0x40, 0x20, 0x01, 0x60, 1, 2, 3, 4}, uint8(1))
	f.Add([]byte{0x6d, 0x20, 0xff, 0x7f}, uint8(4))
	f.Fuzz(func(t *testing.T, b []byte, class uint8) {
		numbers := Classes()
		var r Reader
		r.Subchannels.Host = ClassOf(0xc86f)
		for i := range r.Subchannels.Engine {
			r.Subchannels.Engine[i] = ClassOf(numbers[(int(class)+i)%len(numbers)])
		}
		words := make([]uint32, len(b)/4)
		for i := range words {
			words[i] = binary.LittleEndian.Uint32(b[4*i:])
		}
		seen := 0
		for c := range Commands(words, 0x1000) {
			if seen += 1 + len(c.Data); c.Op == Immediate {
				seen--
			}
		}
		if seen != len(words) {
			t.Errorf("%d words of %d are part of a command", seen, len(words))
		}
		var out strings.Builder
		if err := r.Fprint(&out, words, 0x1000, nil); err != nil {
			t.Fatal(err)
		}
		if len(r.recent) > maxRecent {
			t.Errorf("%d writes are kept", len(r.recent))
		}
	})
}

// TestUnclustered counts a grid in blocks if what libcuda wrote to the constant bank fits the QMD: the numbers are
// those of an all-reduce of NCCL's, 24 blocks in clusters of four.
func TestUnclustered(t *testing.T) {
	launch := Launch{Clustered: true, Grid: [3]uint32{6, 1, 1}, Block: [3]uint32{544, 1, 1}, Constants: 0x7f748c280000}
	for _, test := range []struct {
		words []uint32
		want  uint32
	}{
		{[]uint32{544, 1, 1, 24, 1, 1, 0}, 24},
		{[]uint32{544, 1, 1, 25, 1, 1, 0}, 6},
		{[]uint32{512, 1, 1, 24, 1, 1, 0}, 6},
		{[]uint32{544, 1, 1, 24}, 6},
	} {
		r := Reader{recent: []written{{address: launch.Constants, data: test.words}}}
		l := launch
		r.unclustered(&l)
		if l.Grid[0] != test.want || l.Clustered != (test.want == 6) {
			t.Errorf("%v: grid %v, in clusters %v", test.words, l.Grid, l.Clustered)
		}
	}
	plain := launch
	plain.Clustered = false
	r := Reader{recent: []written{{address: launch.Constants, data: []uint32{544, 1, 1, 24, 1, 1}}}}
	if r.unclustered(&plain); plain.Grid[0] != 6 {
		t.Errorf("a grid of blocks became %v", plain.Grid)
	}
}
