package sass

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// asWritten is nvdisasm's text without the blanks that some of its numbers have behind them.
func asWritten(text string) string { return strings.ReplaceAll(text, " ,", ",") }

// TestText: compilers' instructions are written as nvdisasm writes them.
func TestText(t *testing.T) {
	for _, file := range cubins(t) {
		arch, secs := readCubin(t, file)
		var words []Word
		for _, code := range secs {
			words = append(words, Words(code)...)
		}
		known := 0
		for i, want := range disassemble(t, arch, words) {
			in, _ := Decode(arch, words[i])
			if in.syntax() == nil {
				if known--; in.Known() {
					t.Logf("%s: %s is not known", file, want)
				}
				continue
			}
			if got := string(in.AppendText(nil, i*WordSize)); got != asWritten(want) {
				t.Errorf("%s: %v is %q for nvdisasm, %q for us", file, words[i], want, got)
			}
		}
		if known += len(words); known*100 < len(words)*98 {
			t.Errorf("%s: %d of %d instructions are known", file, known, len(words))
		}
	}
}

// TestTextOfOthers: so are nearly all instructions that are like them, which no compiler has written.
func TestTextOfOthers(t *testing.T) {
	for _, file := range cubins(t) {
		arch, secs := readCubin(t, file)
		rng := rand.New(rand.NewPCG(uint64(arch), 1))
		var words []Word
		for _, code := range secs {
			for _, w := range Words(code) {
				// Numbers of registers, and a modifier of another instruction.
				in, _ := Decode(arch, w)
				for _, o := range in.Operands(nil) {
					if o.Kind == GPR && rng.IntN(2) == 0 {
						w = in.Set(&o, uint8(rng.IntN(64))*4)
						in, _ = Decode(arch, w)
					}
				}
				words = append(words, w)
			}
		}
		wrong := 0
		for i, want := range disassemble(t, arch, words) {
			in, _ := Decode(arch, words[i])
			if got := string(in.AppendText(nil, i*WordSize)); in.syntax() != nil && got != asWritten(want) {
				if wrong++; wrong < 4 {
					t.Logf("%s: %v is %q for nvdisasm, %q for us", file, words[i], want, got)
				}
			}
		}
		if wrong*200 > len(words) {
			t.Errorf("%s: %d of %d are wrong", file, wrong, len(words))
		}
	}
}

// TestWritten: texts that nvdisasm gave.
func TestWritten(t *testing.T) {
	for _, tt := range []struct {
		arch       Arch
		word       Word
		name, text string
	}{
		{90, Word{Lo: 0x0000000402007981, Hi: 0x000ea8000c1e1b00}, "LDG.E.64", "LDG.E.64 R0, desc[UR4][R2.64]"},
		{90, Word{Lo: 0xe0623fc30c1879f0, Hi: 0x000fe2000c70eaff}, "HGMMA.SP.64x32x16.F32.TF32", "HGMMA.SP.64x32x16.F32.TF32 R24, gdesc[UR12].negB.tnspA.tnspB, RZ, !UPT, R63, 0x2"},
		{90, Word{Lo: 0x00000000041879f0, Hi: 0x000fe2000c7002ff}, "HGMMA.SP.64x8x16.F16", "HGMMA.SP.64x8x16.F16 R24, gdesc[UR4], RZ, !UPT, R0, 0x0"},
		{100, Word{Lo: 0xb9600000100a7446, Hi: 0x0c0fe4000780090b}, "VIADDMNMX", "VIADDMNMX R10, R16.reuse, -R11.reuse, 0xb9600000, !PT"},
		{120, Word{Lo: 0xffffffff00027402, Hi: 0x000fe20000800000}, "MOV.64", "MOV.64 R2, 0x800000ffffffff00"},
	} {
		in, ok := Decode(tt.arch, tt.word)
		if got := in.String(); !ok || got != tt.text || in.FullName() != tt.name {
			t.Errorf("%s: %q, %q, want %q, %q", tt.arch, got, in.FullName(), tt.text, tt.name)
		}
	}
}

// TestTextUnknown: a word that is not known is given as it is.
func TestTextUnknown(t *testing.T) {
	in := Inst{Word: Word{Lo: 1, Hi: 2}, Arch: 90}
	if got := in.String(); got != in.Word.String() || in.FullName() != "" {
		t.Errorf("%q, %q", got, in.FullName())
	}
}
