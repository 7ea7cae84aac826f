package emu

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestRecordedSums compares the units with what GPUs computed, in the folder that
// NVTRACE_TENSOR_VECTORS names: model_validation of the repository
// north-numerical-computing/MATLAB-tensor-core, or GPU/TYPE/{a_TYPE,b_TYPE,c_fp32,d_fp32,d_fp16}.txt.
func TestRecordedSums(t *testing.T) {
	dir := os.Getenv("NVTRACE_TENSOR_VECTORS")
	if dir == "" {
		t.Skip("NVTRACE_TENSOR_VECTORS names no folder of recorded sums")
	}
	devices := map[string]Device{
		"A100": {Major: 8}, "A2": {Major: 8, Minor: 6}, "Ada": {Major: 8, Minor: 9}, "L40S": {Major: 8, Minor: 9}, "H100": {Major: 9}, "H200": {Major: 9}, "B200": {Major: 10},
	}
	for gpu, dev := range devices {
		for name, e := range recordedTypes() {
			for _, out := range []*format{&fmtF32, &fmtF16} {
				r := recorded{dir: filepath.Join(dir, gpu, name), in: name, e: e, out: out}
				if r.path("d", r.outName()) != "" {
					t.Run(fmt.Sprintf("%s/%s/%s", gpu, name, r.outName()), func(t *testing.T) { r.test(t, &dev) })
				}
			}
		}
	}
}

// TestMatrixUnits has a sum for each point in which units differ from each other and from
// an exact sum that is rounded once.
func TestMatrixUnits(t *testing.T) {
	type terms map[int]float64 // products, by their place among 16
	ampere, ada, hopper, blackwell := Device{Major: 8}, Device{Major: 8, Minor: 9}, Device{Major: 9}, Device{Major: 10}
	for _, tt := range []struct {
		name     string
		dev      Device
		typ      string
		products terms
		c        float64
		out      *format
		want     float64
	}{
		{"24 fraction bits", ampere, ".f16", terms{0: 0x1p-25, 1: 0x1p-25, 2: 0x1p-25, 3: 0x1p-25}, 1, &fmtF32, 1},
		{"25 fraction bits", hopper, ".f16", terms{0: 0x1p-25, 1: 0x1p-25, 2: 0x1p-25, 3: 0x1p-25}, 1, &fmtF32, 1 + 0x1p-23},
		{"cut off", hopper, ".f16", terms{3: -0x1p-25}, 1, &fmtF32, 1 - 0x1p-24},
		{"groups of eight", ampere, ".bf16", terms{0: -1, 8: 0x1p-30}, 1, &fmtF32, 0x1p-30},
		{"groups of four", ampere, ".tf32", terms{0: -1, 4: 0x1p-30}, 1, &fmtF32, 0x1p-30},
		{"one group", hopper, ".bf16", terms{0: -1, 8: 0x1p-30}, 1, &fmtF32, 0},
		{"f16 to nearest", hopper, ".f16", terms{0: 0x1p-11, 1: 0x1p-20}, 1, &fmtF16, 1 + 0x1p-10},
		{"f16 overflows", hopper, ".f16", terms{0: 32768, 1: 32768}, 0, &fmtF16, math.Inf(1)},
		{"f32 overflows", ampere, ".bf16", terms{0: -0x1p127, 1: -0x1p127}, 0, &fmtF32, math.Inf(-1)},
		{"products above f32", ampere, ".bf16", terms{0: 0x1p150, 1: -0x1p150, 8: 3}, 0, &fmtF32, 3},
		{"13 fraction bits", ada, ".e4m3", terms{0: 1, 1: 0x1p-13, 2: 0x1p-14}, 0, &fmtF32, 1 + 0x1p-13},
		{"8 bits by f16, c last", blackwell, ".e4m3", terms{0: 0x1p-12, 2: 0x1p-12}, 0x1p12 + 0x1p-11, &fmtF32, 0x1p12 + 0x1p-10},
		{"8 bits by f16, pairs", hopper, ".e5m2", terms{0: 1, 4: -1, 2: 0x1p-30}, 0, &fmtF32, 0x1p-30},
	} {
		e, _ := elemOf(tt.typ)
		u, err := matrixUnitOf(&tt.dev, e, 16)
		if err != nil {
			t.Fatal(err)
		}
		// A product's exponent is halved between its operands, where they can have it.
		x, y := make([]uint64, 16), make([]uint64, 16)
		for i, p := range tt.products {
			m, exp := math.Frexp(p)
			x[i], y[i] = fromF64(math.Ldexp(m, exp-exp/2), e.f, roundNearest), fromF64(math.Ldexp(1, exp/2), e.f, roundNearest)
		}
		got := u.sum(u.unpack(x, e.f, 16), u.unpack(y, e.f, 16), e.f, e.f, fromF64(tt.c, tt.out, roundNearest), tt.out)
		if v := halfToF64(got, tt.out); v != tt.want {
			t.Errorf("%s: %g, want %g", tt.name, v, tt.want)
		}
	}
}

// TestUnpackedSubnormal: as an f16, the least e4m3 is a normal number, so its products are
// aligned to less than they would be with e4m3's least exponent.
func TestUnpackedSubnormal(t *testing.T) {
	e, _ := elemOf(".e5m2")
	u, err := matrixUnitOf(&Device{Major: 9}, e, 16)
	if err != nil {
		t.Fatal(err)
	}
	x, y := make([]uint64, 16), make([]uint64, 16)
	x[0], y[0] = 0x58, 0x01 // 2^7 · 2^-9
	x[1], y[1] = 0x01, 0x01 // 2^-16 · 2^-9
	got := u.sum(u.unpack(x, &fmtE5M2, 16), u.unpack(y, &fmtE4M3, 16), &fmtE5M2, &fmtE4M3, 0, &fmtF32)
	if want := bits32(0.25 + 0x1p-25); got != want {
		t.Errorf("%#x, want %#x", got, want)
	}
}

// TestMatrixUnitsRefuse has what no GPU of that capability multiplies, and whose sums are not known.
func TestMatrixUnitsRefuse(t *testing.T) {
	for _, tt := range []struct {
		major, minor int
		typ          string
		want         error
	}{
		{7, 0, ".f16", ErrNotImplemented},
		{7, 5, ".bf16", ErrInvalid},
		{8, 6, ".e4m3", ErrInvalid},
		{10, 3, ".f16", ErrNotImplemented},
		{11, 0, ".tf32", ErrNotImplemented},
		{12, 1, ".e5m2", ErrNotImplemented},
	} {
		e, _ := elemOf(tt.typ)
		if _, err := matrixUnitOf(&Device{Major: tt.major, Minor: tt.minor}, e, 16); !errors.Is(err, tt.want) {
			t.Errorf("%d.%d %s: %v, want %v", tt.major, tt.minor, tt.typ, err, tt.want)
		}
	}
}

// recordedTypes maps the names of the recordings' types.
func recordedTypes() map[string]elemType {
	types := map[string]elemType{}
	for name, mod := range map[string]string{"fp16": ".f16", "bf16": ".bf16", "tf32": ".tf32", "E4M3": ".e4m3", "E5M2": ".e5m2"} {
		types[name], _ = elemOf(mod)
	}
	return types
}

// A recorded is one GPU's sums of one type.
type recorded struct {
	dir, in string
	e       elemType
	out     *format
}

func (r *recorded) outName() string {
	if r.out == &fmtF16 {
		return "fp16"
	}
	return "fp32"
}

// path returns the file of a matrix, "" if there is none.
func (r *recorded) path(matrix, typ string) string {
	files, _ := filepath.Glob(filepath.Join(r.dir, matrix+"*_"+typ+".txt"))
	if len(files) != 1 {
		return ""
	}
	return files[0]
}

// file reads the numbers of a file, a row a line, as f32.
func (r *recorded) file(t *testing.T, matrix, typ string, base int) [][]uint64 {
	text, err := os.ReadFile(r.path(matrix, typ))
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]uint64
	for line := range strings.Lines(string(text)) {
		var row []uint64
		for word := range strings.FieldsSeq(line) {
			v, err := strconv.ParseUint(word, base, 32)
			if err != nil {
				t.Fatal(err)
			}
			row = append(row, v)
		}
		if row != nil {
			rows = append(rows, row)
		}
	}
	return rows
}

// to converts f32 numbers to f.
func to(v []uint64, f *format) []uint64 {
	out := make([]uint64, len(v))
	for i, x := range v {
		out[i] = unpack(x, &fmtF32).pack(f, roundNearest)
	}
	return out
}

func (r *recorded) test(t *testing.T, dev *Device) {
	a, b := r.file(t, "a", r.in, 16), r.file(t, "b", r.in, 16)
	c, d := r.file(t, "c", "fp32", 2), r.file(t, "d", r.outName(), 2)
	k := len(a[0])
	u, err := matrixUnitOf(dev, r.e, k)
	wgmma := dev.Major == 9 && r.e.width == 8 && r.out == &fmtF32 // these were recorded of wgmma, with c = 0
	if wgmma {
		u, err = wgmmaUnit(r.e, k)
	}
	if err != nil {
		t.Fatal(err)
	}
	bad := 0
	for i := range d {
		x, y := u.unpack(to(a[i], r.e.f), r.e.f, k), u.unpack(to(b[i], r.e.f), r.e.f, k)
		s := to(c[i], r.out)[0]
		if wgmma {
			s = 0
		}
		s = u.sum(x, y, r.e.f, r.e.f, s, r.out)
		if got := unpack(s, r.out).pack(&fmtF32, roundNearest); got != d[i][0] {
			if bad++; bad <= 3 {
				t.Errorf("row %d: %#x, the GPU computed %#x", i+1, got, d[i][0])
			}
		}
	}
	t.Logf("%d of %d rows of %d products differ", bad, len(d), k)
}

// wgmmaUnit is the unit of wgmma, which the machine does not have: that of mma, but
// numbers of 8 bits are multiplied as such.
func wgmmaUnit(e elemType, k int) (*matrixUnit, error) {
	if e.width == 8 {
		return &matrixUnit{frac: 13, group: k, out: 13, below: noFloor}, nil
	}
	return matrixUnitOf(&Device{Major: 9}, e, k)
}

// TestWgmmaSums compares wgmmaUnit with what a GPU computed; vectors/gen/wgmma.go says
// where the matrices lie.
func TestWgmmaSums(t *testing.T) {
	files, err := filepath.Glob("testdata/vectors/wgmma/*.vec")
	if err != nil || len(files) == 0 {
		t.Fatal("no vectors: ", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".vec")
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			wantText, err := os.ReadFile(strings.TrimSuffix(file, "vec") + "want")
			if err != nil {
				t.Fatal(err)
			}
			want, err := readWant(string(wantText))
			if err != nil {
				t.Fatal(err)
			}
			v := parseVector(string(text))
			types := strings.Split(name, "_") // wgmma, input, output, launch
			in, _ := elemOf("." + types[1])
			out, _ := elemOf("." + types[2])
			if err := wgmmaSums(v, in, out); err != nil {
				t.Fatal(err)
			}
			o := v.buffer("out")
			o.region.Data = o.data
			if err := o.check(v.outputs[0], want["out"]); err != nil {
				t.Error(err)
			}
		})
	}
}

// wgmmaSums fills the vector's buffer out.
func wgmmaSums(v *vector, in, out elemType) error {
	k := 256 / int(in.width)
	unit, err := wgmmaUnit(in, k)
	if err != nil {
		return err
	}
	words := func(name string) []uint64 { return vecElems(v.buffer(name).data, 4) }
	op := &matrixOp{m: 16, n: 8, k: k, a: in, b: in, c: out, d: out, unit: unit}
	regs := []int32{0, 1, 2, 3}
	fa, fc := mmaA(in, regs, op.m), mmaC(out, regs[:4/out.perReg()])
	n := len(fc.regs)
	a, b, c, d := words("a"), words("b"), words("c"), v.buffer("out").data
	for warp := range len(a) / 4 / warpSize {
		x, z, s := make([]uint64, 16*k), make([]uint64, 16*8), make([]uint64, 16*8)
		gather(&fa, a[warp*4*warpSize:], x, k)
		gather(&fc, c[warp*n*warpSize:], z, 8)
		op.addUp(s, x, wgmmaB(in, b[warp/4*64:], k), z)
		for lane := range warpSize {
			for r := range n {
				word := uint64(0)
				for j := range out.perReg() {
					row, col := fc.at(lane, r, j)
					word |= s[row*8+col] << (uint(j) * out.width)
				}
				storeBytes(d[((warp*warpSize+lane)*n+r)*4:], 4, word)
			}
		}
	}
	return nil
}

// gather reads a fragment whose registers lie in memory, thread by thread.
func gather(f *fragment, words, dst []uint64, cols int) {
	for lane := range warpSize {
		for r := range f.regs {
			for j := range f.e.perReg() {
				row, col := f.at(lane, r, j)
				dst[row*cols+col] = f.e.get(words[lane*len(f.regs)+r], j)
			}
		}
	}
}

// wgmmaB reads the columns of b from two core matrices.
func wgmmaB(e elemType, words []uint64, k int) []uint64 {
	b := make([]uint64, 8*k)
	for i := range b {
		col, at := i/k, i%k*int(e.width)/32 // at: which word of the column
		b[i] = e.get(words[at/4*32+col*4+at%4], i%e.perReg())
	}
	return b
}
