package channel

import (
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
)

// recorded is a QMD that libcuda wrote on an H200 (driver 580.159.04): grid 309x3x2, block 42.
const recorded = `113f0000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
00000000 00000000 00000003 00190000 00000000 10300011 0204e598 00000000
90000000 03000640 bc040040 00009e89 04637aa4 00000002 00000006 00000000
00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
00000135 00000003 00000002 80010000 0001002a 08100001 a77a0000 00007feb
00000000 00000000 eba77a00 0014007f 00000000 00000000 0000003b 00000000
ae996c00 018001ff ae980400 048001ff 00000000 00000000 00000000 00000000
00000000 00000000 ae996c00 018001ff 00000000 00000000 ae980000 800001ff
00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000`

func recordedQMD(t *testing.T) QMD {
	t.Helper()
	var b []byte
	for word := range strings.FieldsSeq(recorded) {
		w, err := hex.DecodeString(word)
		if err != nil {
			t.Fatal(err)
		}
		slices.Reverse(w)
		b = append(b, w...)
	}
	q, ok := ClassOf(0xcbc0).ParseQMD(b)
	if !ok {
		t.Fatal("the recorded QMD isn't read")
	}
	return q
}

// TestSetFields writes each field that a recorded QMD has into an empty one: they must be equal.
func TestSetFields(t *testing.T) {
	q := recordedQMD(t)
	made, ok := ClassOf(0xcbc0).NewQMD()
	if !ok || made.Layout != q.Layout {
		t.Fatalf("NewQMD: %+v", made.Layout)
	}
	for i := range q.Layout.Fields {
		f := &q.Layout.Fields[i]
		for index := range 8 {
			// Of arrays by another name, only the first element is sure to be one.
			v, ok := q.Element(f.Name, index)
			if !ok || v == 0 || f.Stride == 16 && index > 2 {
				continue
			}
			if err := made.SetElement(f.Name, index, v); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !slices.Equal(made.Bytes(), q.Bytes()) {
		t.Errorf("the recorded QMD is\n%x\nthe written one\n%x", q.Bytes(), made.Bytes())
	}
	for _, err := range []error{
		made.Set("BARRIER_COUNT", 32), made.Set("NOTHING", 0), made.SetElement("GRID_WIDTH", 1, 0), made.Set("", 1),
	} {
		if err == nil {
			t.Error("a mistake is taken")
		}
	}
	if v, _ := made.Get("BARRIER_COUNT"); v != 1 {
		t.Errorf("a value that doesn't fit is written: %d", v)
	}
}

// TestSetLaunch writes a launch for each architecture and reads it back. Of the recorded one each
// field that says how the grid is must be the same.
func TestSetLaunch(t *testing.T) {
	want := Launch{
		Program: 0x2a77ac2000, Grid: [3]uint32{7, 3, 2}, Block: [3]uint32{96, 2, 1}, Registers: 40,
		SharedMemory: 5120, Constants: 0x204e55800, ConstantSize: 0x300,
	}
	seen := 0
	for _, number := range Classes() {
		c := ClassOf(number)
		q, ok := c.NewQMD()
		if ok != (c.Kind == Compute) {
			t.Fatalf("class %04x: NewQMD says %v", number, ok)
		}
		if !ok {
			continue
		}
		seen++
		if err := q.SetLaunch(want); err != nil {
			t.Errorf("class %04x: %v", number, err)
			continue
		}
		back, ok := c.ParseQMD(q.Bytes())
		if !ok {
			t.Errorf("class %04x: QMD %d.%d isn't read back", number, q.Layout.Major, q.Layout.Minor)
			continue
		}
		if l, ok := back.Launch(); !ok || l != want {
			t.Errorf("class %04x: QMD %d.%d is %+v", number, q.Layout.Major, q.Layout.Minor, l)
		}
		for _, bad := range []Launch{{SharedMemory: 1}, {Program: 1 << 60}, {Grid: [3]uint32{1, 1 << 17, 1}}, {Block: [3]uint32{1 << 20, 1, 1}}, {ConstantSize: 1}, {ConstantSize: 1 << 20}, {Registers: 1 << 10}} {
			if err := q.SetLaunch(bad); err == nil {
				t.Errorf("class %04x: %+v is taken", number, bad)
			}
		}
	}
	if seen != 8 {
		t.Errorf("%d compute classes", seen)
	}

	q := recordedQMD(t)
	l, ok := q.Launch()
	if !ok {
		t.Fatal("the recorded launch isn't read")
	}
	made, _ := ClassOf(0xcbc0).NewQMD()
	if err := made.SetLaunch(l); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"QMD_TYPE", "QMD_MAJOR_VERSION", "QMD_MINOR_VERSION", "GRID_WIDTH", "GRID_HEIGHT", "GRID_DEPTH", "CTA_THREAD_DIMENSION0",
		"CTA_THREAD_DIMENSION1", "CTA_THREAD_DIMENSION2", "PROGRAM_ADDRESS_LOWER", "PROGRAM_ADDRESS_UPPER", "REGISTER_COUNT",
		"SHARED_MEMORY_SIZE", "CONSTANT_BUFFER_VALID", "CONSTANT_BUFFER_ADDR_LOWER_SHIFTED6", "CONSTANT_BUFFER_ADDR_UPPER_SHIFTED6",
		"CONSTANT_BUFFER_SIZE_SHIFTED4",
	} {
		seen, _ := q.Get(name)
		if got, ok := made.Get(name); !ok || got != seen {
			t.Errorf("%s is %#x in the recorded QMD, %#x in the written one", name, seen, got)
		}
	}
}

// TestWriter writes a piece and reads it as work.
func TestWriter(t *testing.T) {
	for _, test := range []struct{ host, compute uint16 }{{0xc46f, 0xc5c0}, {0xc56f, 0xc7c0}, {0xc86f, 0xcbc0}, {0xca6f, 0xcec0}} {
		host, compute := ClassOf(test.host), ClassOf(test.compute)
		var w Writer
		w.Bind(compute, 1)
		w.Methods(compute, 1, "SET_REPORT_SEMAPHORE_A", 0x12, 0x34567890, 7)
		w.Fields(compute, 1, "SET_REPORT_SEMAPHORE_D", "OPERATION=RELEASE STRUCTURE_SIZE=FOUR_WORDS")
		w.Methods(host, 0, "SEM_ADDR_LO", 0x1000, 2, 9, 0)
		w.Fields(host, 0, "SEM_EXECUTE", "OPERATION=RELEASE PAYLOAD_SIZE=32BIT")
		var work []Work
		r := Reader{Subchannels: Subchannels{Host: host}}
		r.Read(w.Words, 0, func(w Work) bool { work = append(work, w); return true })
		if len(work) != 2 || work[0].Semaphore != (Semaphore{Address: 0x1234567890, Payload: 7, Timed: true}) ||
			work[1].Semaphore != (Semaphore{Address: 0x200001000, Payload: 9}) {
			t.Errorf("class %04x: %+v", test.compute, work)
		}
	}
	c := ClassOf(0xcbc0)
	for _, wrong := range []func(*Writer){
		func(w *Writer) { w.Methods(c, 1, "NOTHING", 1) },
		func(w *Writer) { w.Fields(c, 1, "NOTHING", "") },
		func(w *Writer) { w.Fields(c, 1, "SET_REPORT_SEMAPHORE_D", "OPERATION=NOTHING") },
		func(w *Writer) { w.Fields(c, 1, "SET_REPORT_SEMAPHORE_D", "NOTHING=RELEASE") },
	} {
		func() {
			defer func() { _ = recover() }()
			var w Writer
			wrong(&w)
			t.Errorf("a mistake is taken: %x", w.Words)
		}()
	}
	if !c.Has("SEND_PCAS_A") || c.Has("NOTHING") {
		t.Error("Has is wrong")
	}
}

// TestEncode writes an entry that was seen on an H200, and what no ring can hold.
func TestEncode(t *testing.T) {
	const seen = 0x00060e02_00c015bc
	if e, ok := ParseEntry(seen).Encode(); !ok || e != seen {
		t.Errorf("%#x", e)
	}
	for _, e := range []Entry{{}, {Address: 2, Words: 1}, {Address: 1 << 40, Words: 1}, {Address: 4, Words: 1 << 21}} {
		if v, ok := e.Encode(); ok {
			t.Errorf("%+v is %#x", e, v)
		}
	}
	var b [UserDataSize]byte
	binary.LittleEndian.PutUint32(b[GPPutOffset:], 5)
	if u := ParseUserData(b[:]); u.GPPut != 5 {
		t.Errorf("%+v", u)
	}
}
