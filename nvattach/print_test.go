package nvattach

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/values"

	"github.com/cilium/ebpf/btf"
)

// hostMaps lays out maps in a buffer.
func hostMaps(tb testing.TB, objs ...*object.Object) (*mapmem.Maps, *mapmem.Buffer) {
	tb.Helper()
	m, err := mapmem.NewMaps(objs, &mapmem.MapOptions{SMs: 4, Threads: 64, RingBytes: 1 << 16, PrintBytes: 1 << 16})
	if err != nil {
		tb.Fatal(err)
	}
	buf := &mapmem.Buffer{Base: 1 << 32, Data: make([]byte, m.Size())}
	if err := m.Place(buf.Base); err != nil {
		tb.Fatal(err)
	}
	if err := m.Init(buf, 4711, 0); err != nil {
		tb.Fatal(err)
	}
	return m, buf
}

func u64Type() btf.Type { return &btf.Int{Name: "unsigned long", Size: 8} }

func printed(tb testing.TB, m *mapmem.Maps, mem mapmem.Memory, name string, o *mapmem.PrintOptions) string {
	tb.Helper()
	tab, err := m.Read(mem, m.Find(name))
	if err != nil {
		tb.Fatal(err)
	}
	var b strings.Builder
	if err := tab.Print(&b, o); err != nil {
		tb.Fatal(err)
	}
	if js := tab.AppendJSON(nil, nil); !json.Valid(js) {
		tb.Errorf("not JSON: %s", js)
	}
	return b.String()
}

func apply(tb testing.TB, m *mapmem.Maps, mem mapmem.Memory, settings ...string) {
	tb.Helper()
	for _, text := range settings {
		s, err := object.ParseMapSetting(text)
		if err != nil {
			tb.Fatal(err)
		}
		if err := m.Apply(mem, s, nil); err != nil {
			tb.Fatal(err)
		}
	}
}

func TestPrintMaps(t *testing.T) {
	point := &btf.Struct{Name: "point", Size: 12, Members: []btf.Member{
		{Name: "x", Type: &btf.Int{Size: 4, Encoding: btf.Signed}},
		{Name: "name", Type: &btf.Array{Type: &btf.Int{Name: "char", Size: 1, Encoding: btf.Char}, Nelems: 4}, Offset: 32},
		{Name: "lo", Type: &btf.Int{Size: 4}, Offset: 64, BitfieldSize: 12},
		{Name: "hi", Type: &btf.Int{Size: 4}, Offset: 76, BitfieldSize: 20},
	}}
	color := &btf.Enum{Name: "color", Size: 4, Values: []btf.EnumValue{{Name: "RED", Value: 0}, {Name: "BLUE", Value: 7}}}
	o := &object.Object{Name: "t", Maps: []*object.MapDef{
		{Name: "a", Type: object.MapArray, KeySize: 4, ValueSize: 8, MaxEntries: 4, Value: &btf.Int{Size: 8, Encoding: btf.Signed}},
		{Name: "h", Type: object.MapHash, KeySize: 4, ValueSize: 12, MaxEntries: 8, Key: color, Value: point},
		{Name: "lat_hist", Type: object.MapArray, KeySize: 4, ValueSize: 8, MaxEntries: 32, Value: u64Type()},
		{Name: "small_hist", Type: object.MapArray, KeySize: 4, ValueSize: 8, MaxEntries: 4, Value: u64Type()},
		{Name: "sm", Type: object.MapPerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 1, Value: u64Type()},
		{Name: "t", Type: object.MapGPUThreadArray, KeySize: 4, ValueSize: 8, MaxEntries: 2, Value: u64Type()},
	}}
	m, mem := hostMaps(t, o)
	apply(t, m, mem, "a[1]=-5", "a[3]=0x10", "h[BLUE]={-3, abc}", "h[RED]=hex:ffffffff", "small_hist[1..2]=10", "t[1]=3")
	for i, n := range []uint64{0, 1, 0, 40, 20} {
		if err := m.Update(mem, m.Find("lat_hist"), mapmem.IndexKey(uint64(i+8)), binary.LittleEndian.AppendUint64(nil, n)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name, want string
		o          *mapmem.PrintOptions
	}{
		{name: "a", want: "a (array)\n  [1] = -5\n  [3] = 16\n"},
		{name: "a", o: &mapmem.PrintOptions{Zero: true, Rows: 2}, want: "a (array)\n  [0] = 0\n  [1] = -5\n  … and 2 more\n"},
		{name: "lat_hist", want: "lat_hist (array)\n" +
			"  512 to 1023 :  1 |@                                       |\n" +
			"   1Ki to 2Ki :  0 |                                        |\n" +
			"   2Ki to 4Ki : 40 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|\n" +
			"   4Ki to 8Ki : 20 |@@@@@@@@@@@@@@@@@@@@                    |\n"},
		{name: "small_hist", want: "small_hist (array)\n  1 : 10 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|\n  2 : 10 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|\n"},
		{name: "small_hist", o: &mapmem.PrintOptions{Histogram: func(*mapmem.Map) string { return "none" }}, want: "small_hist (array)\n  [1] = 10\n  [2] = 10\n"},
		{name: "sm", want: "sm (percpu_array)\n  (all 1 zero)\n"},
		{name: "t", want: "t (gpu_thread_array)\n  [1] = 192 in 64 threads, 3 to 3 each\n    threads 0 to 63: 3 each\n"},
		{name: "h", want: "h (hash, 2 of 8 entries)\n  [RED] = {x = -1, name = \"\", lo = 0, hi = 0}\n  [BLUE] = {x = -3, name = \"abc\", lo = 0, hi = 0}\n"},
	} {
		if got := printed(t, m, mem, tt.name, tt.o); got != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", tt.name, got, tt.want)
		}
	}
}

func TestPrintStructs(t *testing.T) {
	point := &btf.Struct{Name: "point", Size: 12, Members: []btf.Member{
		{Name: "x", Type: &btf.Int{Size: 4, Encoding: btf.Signed}},
		{Name: "name", Type: &btf.Array{Type: &btf.Int{Name: "char", Size: 1, Encoding: btf.Char}, Nelems: 4}, Offset: 32},
		{Name: "lo", Type: &btf.Int{Size: 4}, Offset: 64, BitfieldSize: 12},
		{Name: "hi", Type: &btf.Int{Size: 4, Encoding: btf.Signed}, Offset: 76, BitfieldSize: 20},
	}}
	data := []byte{0xfd, 0xff, 0xff, 0xff, 'a', 'b', 0, 0, 0x23, 0xf1, 0xff, 0xff}
	for _, tt := range []struct {
		t          btf.Type
		data       []byte
		text, json string
	}{
		{point, data, `{x = -3, name = "ab", lo = 291, hi = -1}`, `{"x": -3, "name": "ab", "lo": 291, "hi": -1}`},
		{point, data[:8], "?", "null"},
		{nil, []byte{1, 2}, "513", "513"},
		{nil, []byte{1, 2, 3}, "0x010203", `"010203"`},
		{&btf.Float{Size: 4}, []byte{0, 0, 0xc0, 0x7f}, "NaN", `"NaN"`},
		{&btf.Float{Size: 8}, []byte{0, 0, 0, 0, 0, 0, 0xf8, 0x3f}, "1.5", "1.5"},
		{&btf.Pointer{Target: &btf.Void{}}, []byte{0, 0x10, 0, 0, 0, 0, 0, 0}, "0x1000", `"0x1000"`},
		{&btf.Array{Type: &btf.Int{Size: 2}, Nelems: 2}, []byte{1, 0, 2, 0}, "[1, 2]", "[1, 2]"},
		{&btf.Array{Type: &btf.Struct{}, Nelems: 1 << 31}, []byte{1}, "[]", "[]"},
		{&btf.Array{Type: &btf.Int{Name: "char", Size: 1, Encoding: btf.Char}, Nelems: 3}, []byte{'"', 1, 0}, "[34, 1, 0]", "[34, 1, 0]"},
		{&btf.Typedef{Name: "u", Type: &btf.Const{Type: &btf.Int{Size: 1, Encoding: btf.Bool}}}, []byte{1}, "true", "true"},
		{&btf.Enum{Size: 1, Signed: true, Values: []btf.EnumValue{{Name: "MINUS", Value: ^uint64(0)}}}, []byte{0xff}, "MINUS", `"MINUS"`},
		{&btf.Enum{Size: 1, Signed: true}, []byte{0xfe}, "-2", "-2"},
		{&btf.Int{Size: 16}, make([]byte, 16), "0x" + strings.Repeat("0", 32), `"0x` + strings.Repeat("0", 32) + `"`},
	} {
		if got := string(values.Append(nil, tt.t, tt.data)); got != tt.text {
			t.Errorf("%v: %s, want %s", tt.t, got, tt.text)
		}
		if got := string(values.AppendJSON(nil, tt.t, tt.data)); got != tt.json {
			t.Errorf("%v: %s, want %s", tt.t, got, tt.json)
		}
	}
}

func TestSettings(t *testing.T) {
	o := testObject(t, "params")
	v, err := object.ParseVarSetting("wanted=7")
	if err != nil {
		t.Fatal(err)
	}
	if err := object.SetVar([]*object.Object{o}, v); err != nil {
		t.Fatal(err)
	}
	m, mem := hostMaps(t, o, testObject(t, "params"), testObject(t, "bpftime"))
	if got := printed(t, m, mem, ".rodata", nil); !strings.Contains(got, "wanted = 7\n") {
		t.Errorf("the first object's .rodata: %s", got)
	}
	if got := printed(t, m, mem, "params:.rodata#2", nil); !strings.Contains(got, "wanted = 32\n") {
		t.Errorf("the second object's .rodata: %s", got)
	}
	if got := printed(t, m, mem, "bpftime:.rodata", nil); !strings.HasPrefix(got, "bpftime:.rodata (") {
		t.Errorf("the third object's .rodata: %s", got)
	}
	apply(t, m, mem, "vec[3]=9")
	s, err := object.ParseMapSetting("vec=@x")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Apply(mem, s, func(string) ([]byte, error) { return []byte{1, 0, 0, 0, 2, 0, 0, 0}, nil }); err != nil {
		t.Fatal(err)
	}
	if got := printed(t, m, mem, "vec", nil); got != "vec (gpu_array)\n  [0] = 1\n  [1] = 2\n  [3] = 9\n" {
		t.Error(got)
	}
	endless, err := object.ParseMapSetting("vec=@/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Apply(mem, endless, nil); !errors.Is(err, object.ErrSetting) || !strings.Contains(err.Error(), "/dev/zero has more than the 1024 bytes of 256 values") {
		t.Errorf("an endless file: %v", err)
	}
	for _, bad := range []string{"vec", "vec[1]", "vec[1", "=1", "vec=5"} {
		if _, err := object.ParseMapSetting(bad); !errors.Is(err, object.ErrSetting) {
			t.Errorf("--map %s: %v", bad, err)
		}
	}
	for _, bad := range []string{"none[1]=1", "vec[256]=1", "vec[x]=1", "vec[1]=x", "vec[1]=0x100000000", "vec[5..300]=1", "vec[1]={1}", "vec[1]=hex:0000000000", "accesses[0]=1", "by_pid=@f"} {
		s, err := object.ParseMapSetting(bad)
		if err != nil {
			t.Errorf("--map %s: %v", bad, err)
			continue
		}
		if err := m.Apply(mem, s, func(string) ([]byte, error) { return nil, nil }); err == nil || !strings.HasPrefix(err.Error(), "--map "+bad) {
			t.Errorf("--map %s: %v", bad, err)
		}
	}
	for _, bad := range []string{"wanted", "=1"} {
		if _, err := object.ParseVarSetting(bad); !errors.Is(err, object.ErrSetting) {
			t.Errorf("--set %s: %v", bad, err)
		}
	}
	for _, bad := range []string{"nothing=1", "wanted=x", "params={1,2,3,4,5,6,7,8,9}"} {
		v, err := object.ParseVarSetting(bad)
		if err != nil {
			t.Fatal(err)
		}
		if err := object.SetVar([]*object.Object{o}, v); !errors.Is(err, object.ErrSetting) {
			t.Errorf("--set %s: %v", bad, err)
		}
	}
}

func TestLayoutLimits(t *testing.T) {
	for _, tt := range []struct {
		d    *object.MapDef
		want string
	}{
		{def("m", object.MapGPUThreadArray, 4, 8, 1000), "map m: "},
		{def("m", object.MapHash, 8, 1<<20, 1<<30), "map m: "},
		{def("m", object.MapArray, 4, 1<<20, 1<<31), "map m: "},
		{def("m", object.MapPerCPUHash, 4, 8, 1<<31), "map m: "},
	} {
		if _, err := mapmem.NewMaps([]*object.Object{{Maps: []*object.MapDef{tt.d}}}, nil); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.d.Type, err)
		}
	}
	m, err := mapmem.NewMaps([]*object.Object{{Maps: []*object.MapDef{def("m", object.MapHash, 8, 8, 1_000_000)}}}, nil)
	if err != nil || m.Size() > 128<<20 {
		t.Errorf("a million entries: %v", err)
	}
	if err := m.Place(100); err == nil {
		t.Error("an address that is not aligned")
	}
}

func TestSprintf(t *testing.T) {
	str := func(addr uint64) string { return "text" }
	for _, tt := range []struct {
		format string
		args   []uint64
		want   string
	}{
		{"plain\n", nil, "plain\n"},
		{"%d %i %u", []uint64{0xffffffff, 1<<32 + 5, 0xffffffff}, "-1 5 4294967295"},
		{"%ld %lld %lu", []uint64{^uint64(0), ^uint64(1), ^uint64(0)}, "-1 -2 18446744073709551615"},
		{"%hd %hhu %hx", []uint64{0x18000, 0x1ff, 0xabcde}, "-32768 255 bcde"},
		{"%x %#x %X %#X %o %#o", []uint64{255, 255, 255, 255, 8, 8}, "ff 0xff FF 0XFF 10 010"},
		{"[%5d|%-5d|%05d|%+d|% d|%.3d|%5.2d]", []uint64{42, 42, 42, 42, 42, 7, 7}, "[   42|42   |00042|+42| 42|007|   07]"},
		{"%c%c %s [%6s|%-6s|%.2s] %p", []uint64{'o', 'k', 0, 0, 0, 0, 0x1000}, "ok text [  text|text  |te] 0x1000"},
		{"100%% %d", []uint64{1}, "100% 1"},
		{"%d %d", []uint64{1}, "1 %d"},
		{"%y %", []uint64{1}, "%y %"},
		{"%99999999999d", []uint64{1}, strings.Repeat(" ", 999) + "1"},
		{"%lld", []uint64{1 << 63}, "-9223372036854775808"},
	} {
		if got := mapmem.Sprintf(tt.format, tt.args, str); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.format, got, tt.want)
		}
	}
}

func FuzzSprintf(f *testing.F) {
	f.Add("%08.3llx %s %-5d|%%", uint64(5))
	f.Fuzz(func(t *testing.T, format string, arg uint64) {
		out := mapmem.Sprintf(format, []uint64{arg, arg, arg}, func(uint64) string { return "s" })
		if len(out) > len(format)+3*1100 {
			t.Fatalf("%d bytes from a format of %d", len(out), len(format))
		}
	})
}
