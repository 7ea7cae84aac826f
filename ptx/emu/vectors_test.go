package emu

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"nvtrace/ptx"
)

// A vecBuffer is a buffer or symbol of a vector.
type vecBuffer struct {
	name, typ string
	data      []byte
	keep      bool
	symbol    bool
	region    Region
}

// A vector is a launch whose outputs a GPU computed; testdata/vectors/README.md
// describes the files.
type vector struct {
	ptx, kernel string
	cfg         LaunchConfig
	buffers     []*vecBuffer
	params      []func() []byte // once buffers have addresses
	outputs     [][]string

	mod   *Module // of the last run
	stats Stats
}

// splitmix is the vectors' random number generator.
type splitmix uint64

func (s *splitmix) next() uint64 {
	*s += 0x9E3779B97F4A7C15
	z := uint64(*s)
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

var vecSpecials = map[string]string{
	"f16":  "0000 8000 3c00 bc00 4000 3800 c100 3e00 0001 8001 03ff 83ff 0400 8400 7bff fbff 7c00 fc00 7e00 fe55 7c01 3c01 3bff 5640",
	"bf16": "0000 8000 3f80 bf80 4000 3f00 c020 3fc0 0001 8001 007f 807f 0080 8080 7f7f ff7f 7f80 ff80 7fc0 ffc5 7f81 3f81 3f7f 42c8",
	"f32":  "00000000 80000000 3f800000 bf800000 40000000 3f000000 c0200000 3fc00000 00000001 80000001 007fffff 807fffff 00800000 80800000 7f7fffff ff7fffff 7f800000 ff800000 7fc00000 ffc12345 7f800001 3f800001 3f7fffff 4f000000",
	"f64":  "0000000000000000 8000000000000000 3ff0000000000000 bff0000000000000 4000000000000000 3fe0000000000000 c004000000000000 3ff8000000000000 0000000000000001 8000000000000001 000fffffffffffff 800fffffffffffff 0010000000000000 8010000000000000 7fefffffffffffff ffefffffffffffff 7ff0000000000000 fff0000000000000 7ff8000000000000 fff8000012345678 7ff0000000000001 3ff0000000000001 3fefffffffffffff 41e0000000000000",
}

func vecWidth(typ string) uint {
	n, _ := strconv.Atoi(strings.TrimLeft(typ, "ubf"))
	return uint(n)
}

func vecSpecial(typ string) []uint64 {
	var s []uint64
	for word := range strings.FieldsSeq(vecSpecials[typ]) {
		v, _ := strconv.ParseUint(word, 16, 64)
		s = append(s, v)
	}
	if s == nil {
		w := uint64(vecWidth(typ))
		top := uint64(1) << (w - 1)
		s = []uint64{0, 1, 2, 3, top - 1, top, top + 1, ^uint64(0), ^uint64(0) - 1, 0x5555555555555555, 0xAAAAAAAAAAAAAAAA, 0x0123456789ABCDEF, w - 1, w, w + 1, 10}
	}
	return s
}

func vecNumber(s string) uint64 {
	if v, err := strconv.ParseInt(s, 0, 64); err == nil {
		return uint64(v)
	}
	v, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		panic(err)
	}
	return v
}

// vecInt converts a signed integer to the type.
func vecInt(typ string, v uint64) uint64 {
	switch typ {
	case "f32":
		return bits32(float32(int64(v)))
	case "f64":
		return bits64(float64(int64(v)))
	}
	return v
}

// vecPattern returns the generator of a buffer's elements.
func vecPattern(typ string, w []string) func(i uint64) uint64 {
	num := func(i int) uint64 { return vecNumber(w[i]) }
	special := vecSpecial(typ)
	var rnd splitmix
	if len(w) > 1 && (w[0] == "rand" || w[0] == "mask" || w[0] == "mix" || w[0] == "range" || w[0] == "uniform") {
		rnd = splitmix(num(1))
	}
	switch w[0] {
	case "zero":
		return func(uint64) uint64 { return 0 }
	case "fill":
		return func(uint64) uint64 { return num(1) }
	case "seq":
		return func(i uint64) uint64 { return vecInt(typ, num(1)+i*num(2)) }
	case "rand":
		return func(uint64) uint64 { return rnd.next() }
	case "mask":
		return func(uint64) uint64 { return rnd.next()&num(2) | num(3) }
	case "special":
		return func(i uint64) uint64 { return special[i/num(1)%uint64(len(special))] }
	case "mix":
		return func(uint64) uint64 {
			r := rnd.next()
			if r%4 == 0 {
				return special[(r>>8)%uint64(len(special))]
			}
			return rnd.next()
		}
	case "range":
		lo, hi := num(2), num(3)
		return func(uint64) uint64 { return vecInt(typ, lo+rnd.next()%(hi-lo+1)) }
	case "uniform":
		lo, _ := strconv.ParseFloat(w[2], 64)
		hi, _ := strconv.ParseFloat(w[3], 64)
		return func(uint64) uint64 {
			u := float64(rnd.next()>>11) * 0x1p-53
			v := float64((hi - lo) * u)
			v = lo + v
			if typ == "f32" {
				return bits32(float32(v))
			}
			return bits64(v)
		}
	case "list":
		return func(i uint64) uint64 { return num(2 + int(i/num(1)%uint64(len(w)-2))) }
	}
	panic("unknown pattern " + w[0])
}

func parseVector(text string) *vector {
	v := &vector{}
	dim := func(w []string) Dim3 {
		return Dim3{uint32(vecNumber(w[1])), uint32(vecNumber(w[2])), uint32(vecNumber(w[3]))}
	}
	for line := range strings.Lines(text) {
		w := strings.Fields(line)
		if len(w) == 0 || w[0][0] == '#' {
			continue
		}
		switch w[0] {
		case "ptx":
			v.ptx = w[1]
		case "kernel":
			v.kernel = w[1]
		case "grid":
			v.cfg.Grid = dim(w)
		case "block":
			v.cfg.Block = dim(w)
		case "cluster":
			v.cfg.Cluster = dim(w)
		case "shared":
			v.cfg.SharedBytes = uint32(vecNumber(w[1]))
		case "buffer", "symbol":
			v.addBuffer(w)
		case "param":
			v.addParam(w[1:])
		case "output":
			v.outputs = append(v.outputs, w[1:])
		default:
			panic("unknown directive " + w[0])
		}
	}
	return v
}

func (v *vector) addBuffer(w []string) {
	b := &vecBuffer{name: w[1], typ: w[2], symbol: w[0] == "symbol", keep: w[4] == "keep"}
	size := int(vecWidth(b.typ) / 8)
	b.data = make([]byte, size*int(vecNumber(w[3])))
	if !b.keep {
		f := vecPattern(b.typ, w[4:])
		for i := range len(b.data) / size {
			storeBytes(b.data[i*size:], size, f(uint64(i)))
		}
	}
	v.buffers = append(v.buffers, b)
}

func (v *vector) buffer(name string) *vecBuffer {
	for _, b := range v.buffers {
		if b.name == name {
			return b
		}
	}
	panic("unknown buffer " + name)
}

func (v *vector) addParam(w []string) {
	v.params = append(v.params, func() []byte {
		switch w[0] {
		case "buffer":
			return le(v.buffer(w[1]).region.Base + vecNumber(w[2]))
		case "bytes":
			b, err := hex.DecodeString(w[1])
			if err != nil {
				panic(err)
			}
			return b
		}
		return le(vecNumber(w[1]))[:vecWidth(w[0])/8]
	})
}

// run executes the vector; the buffers then hold the results.
func (v *vector) run(tb testing.TB, workers int) error {
	path := filepath.Join("testdata/vectors", v.ptx)
	src, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	f, err := ptx.Parse(v.ptx, string(src), nil)
	if err != nil {
		return err
	}
	if r := f.Check(); len(r.Errors)+len(r.Warnings) != 0 {
		return fmt.Errorf("check: %q %q", r.Errors, r.Warnings)
	}
	return v.runFile(f, workers)
}

// runFile executes the vector with another module.
func (v *vector) runFile(f *ptx.File, workers int) error {
	m := New(&Options{Workers: workers, Budget: 2_000_000_000})
	mod, err := m.Load(f)
	if err != nil {
		return err
	}
	for _, b := range v.buffers {
		if err := b.place(mod); err != nil {
			return err
		}
	}
	k, err := mod.Kernel(v.kernel)
	if err != nil {
		return err
	}
	cfg := v.cfg
	if len(v.params) != len(k.Params()) {
		return fmt.Errorf("%d parameters for a kernel with %d", len(v.params), len(k.Params()))
	}
	cfg.Params = make([]byte, k.ParamBytes())
	for i, p := range k.Params() {
		copy(cfg.Params[p.Offset:][:p.Size], v.params[i]())
	}
	v.mod = mod
	v.stats, err = m.Launch(context.Background(), k, &cfg)
	return err
}

// place puts the buffer into the machine's memory.
func (b *vecBuffer) place(mod *Module) error {
	if !b.symbol {
		r, err := mod.machine.Alloc(uint64(len(b.data)), b.name)
		copy(r.Data, b.data)
		b.region = r
		return err
	}
	v, ok := mod.Variable(b.name)
	if !ok || v.Size < uint64(len(b.data)) {
		return fmt.Errorf("no variable %s of %d bytes", b.name, len(b.data))
	}
	r, _ := mod.machine.Memory().Region(v.Addr)
	b.region = Region{Base: v.Addr, Data: r.Data[v.Addr-r.Base:][:len(b.data)]}
	if !b.keep {
		copy(b.region.Data, b.data)
	}
	return nil
}

// readWant parses a .want file into the bytes of each output.
func readWant(text string) (map[string][]byte, error) {
	out := map[string][]byte{}
	var name, enc string
	flush := func() error {
		if name == "" {
			return nil
		}
		b, err := base64.StdEncoding.DecodeString(enc)
		out[name] = b
		enc = ""
		return err
	}
	for line := range strings.Lines(text) {
		w := strings.Fields(line)
		switch {
		case len(w) == 3 && w[0] == "output":
			if err := flush(); err != nil {
				return nil, err
			}
			name = w[1]
		case len(w) == 1 && w[0] == "end":
			return out, flush()
		case len(w) == 1:
			enc += w[0]
		}
	}
	return nil, errors.New("no end line")
}

// check compares an output with what the GPU left.
func (b *vecBuffer) check(rule []string, want []byte) error {
	got := b.region.Data
	if len(got) != len(want) {
		return fmt.Errorf("output %s: %d bytes, want %d", b.name, len(got), len(want))
	}
	size := int(vecWidth(b.typ) / 8)
	x, y := vecElems(got, size), vecElems(want, size)
	switch rule[1] {
	case "sorted":
		slices.Sort(x)
		slices.Sort(y)
	}
	bad, first := 0, ""
	for i := range x {
		if x[i] == y[i] || rule[1] == "ulp" && b.close(rule, x[i], y[i]) {
			continue
		}
		if bad++; bad <= 6 {
			first += fmt.Sprintf(" [%d] got %0*x want %0*x;", i, 2*size, x[i], 2*size, y[i])
		}
	}
	if bad != 0 {
		return fmt.Errorf("output %s (%s): %d of %d elements differ:%s", b.name, b.typ, bad, len(x), first)
	}
	return nil
}

func vecElems(b []byte, size int) []uint64 {
	out := make([]uint64, len(b)/size)
	for i := range out {
		out[i] = loadBytes(b[i*size:], size)
	}
	return out
}

// close applies the rule "ulp N ABS".
func (b *vecBuffer) close(rule []string, x, y uint64) bool {
	f := map[string]*format{"f16": &fmtF16, "bf16": &fmtBF16, "f32": &fmtF32, "f64": &fmtF64}[b.typ]
	if f.isNaN(x) || f.isNaN(y) {
		return f.isNaN(x) && f.isNaN(y)
	}
	mono := func(v uint64) int64 {
		if v&f.signBit() != 0 {
			return -int64(v &^ f.signBit())
		}
		return int64(v)
	}
	d := mono(x) - mono(y)
	if d < 0 {
		d = -d
	}
	if uint64(d) <= vecNumber(rule[2]) {
		return true
	}
	limit, _ := strconv.ParseFloat(rule[3], 64)
	return math.Abs(halfToF64(x, f)-halfToF64(y, f)) <= limit
}

// vectorFiles lists the vectors.
func vectorFiles(tb testing.TB) []string {
	files, err := fs.Glob(os.DirFS("testdata/vectors"), "*.vec")
	if err != nil || len(files) == 0 {
		tb.Fatal("no vectors: ", err)
	}
	slices.SortFunc(files, func(a, b string) int { return cmp.Compare(a, b) })
	return files
}

// deviations are the places where the machine keeps to the ISA and the GPU's
// compiler does not.
var deviations = map[string]struct {
	why  string
	skip func(src, output string, at, threads int) bool // elements that are not compared
}{
	"video_scalar": {why: "unsigned saturation into d.h1 stores 0, the ISA says min(t, 0xffff)", skip: func(src, output string, at, threads int) bool {
		end := strings.Index(src, fmt.Sprintf("[%s+%d]", output, at/threads*threads*4))
		return end >= 0 && strings.Contains(src[strings.LastIndex(src[:end], "{\n"):end], ".u32.u32.u32.sat d.h1")
	}},
}

// TestVectors runs every vector. Where a GPU's results are stored they must be
// met; without them the launch must at least succeed.
func TestVectors(t *testing.T) {
	for _, file := range vectorFiles(t) {
		name := strings.TrimSuffix(file, ".vec")
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata/vectors", file))
			if err != nil {
				t.Fatal(err)
			}
			v := parseVector(string(text))
			err = v.run(t, 0)
			if err != nil {
				t.Fatal(err)
			}
			wantText, err := os.ReadFile(filepath.Join("testdata/vectors", name+".want"))
			if errors.Is(err, fs.ErrNotExist) {
				v.checkReproducible(t)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want, err := readWant(string(wantText))
			if err != nil {
				t.Fatal(err)
			}
			v.compare(t, name, want)
		})
	}
}

// compare checks all outputs, minding the known deviations.
func (v *vector) compare(t *testing.T, name string, want map[string][]byte) {
	dev := deviations[name]
	src, err := os.ReadFile(filepath.Join("testdata/vectors", v.ptx))
	if err != nil {
		t.Fatal(err)
	}
	threads := int(v.cfg.Grid.count() * v.cfg.Block.count())
	for _, rule := range v.outputs {
		b, w := v.buffer(rule[0]), want[rule[0]]
		if dev.skip != nil {
			size := int(vecWidth(b.typ) / 8)
			for at := 0; at < len(w); at += size {
				if dev.skip(string(src), b.name, at/size, threads) {
					copy(w[at:at+size], b.region.Data[at:])
				}
			}
		}
		if err := b.check(rule, w); err != nil {
			t.Errorf("%v %s", err, dev.why)
		}
	}
}

// checkReproducible runs the vector again on one worker; the results must be the
// same where the order of blocks does not matter.
func (v *vector) checkReproducible(t *testing.T) {
	first := map[string][]byte{}
	for _, rule := range v.outputs {
		first[rule[0]] = bytes.Clone(v.buffer(rule[0]).region.Data)
	}
	if err := v.run(t, 1); err != nil {
		t.Fatal(err)
	}
	for _, rule := range v.outputs {
		if err := v.buffer(rule[0]).check(rule, first[rule[0]]); err != nil {
			t.Errorf("second run: %v", err)
		}
	}
}
