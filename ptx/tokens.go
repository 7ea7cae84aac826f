package ptx

import "fmt"

// TokenKind says what a [Token] is. Every byte of the input belongs to exactly
// one token, white space and comments included.
type TokenKind uint8

// The token kinds. PTX ISA §4.2–4.5 (comments, identifiers, constants).
const (
	TokEOF         TokenKind = iota // end of input, empty
	TokSpace                        // run of blanks, tabs, newlines, \r \f \v
	TokLineComment                  // // to the end of the line, newline excluded
	TokComment                      // /* … */, not nested
	TokMarker                       // line marker, "# 1 \"a.cu\"", or "@@DWARF …" of PTX 1.x: to the end of the line
	TokPadding                      // NUL bytes at the very end, as fat binaries pad
	TokIdent                        // add, %r1, $L__BB0_1, _Z3foov
	TokDirective                    // .reg, .f32, .2d, .shared::cta
	TokInt                          // 12, 0x1F, 017, 0b11, 7U
	TokFloat                        // 1.5, 1e3, 0f3F800000, 0d3FF0000000000000
	TokString                       // "…" with its quotes
	TokPunct                        // one byte: - + * / % & | ^ ~ ! < > = ? : ; , ( ) { } [ ] @
	TokBad                          // bytes that no PTX token starts with, or an unterminated string or comment
)

// trivia reports whether tokens of this kind separate other tokens and mean
// nothing themselves.
func (k TokenKind) trivia() bool { return k >= TokSpace && k <= TokPadding }

// A Pos is a byte offset into the source of a [File]. [File.Position] turns it
// into a line and a column.
type Pos uint32

// A Span is the half-open byte range [Pos, End) of the source of a [File]. The
// zero Span is empty and stands for "not there".
type Span struct{ Pos, End Pos }

// Empty reports whether the span holds no byte.
func (s Span) Empty() bool { return s.Pos >= s.End }

// Len returns the number of bytes in the span.
func (s Span) Len() int {
	if s.Empty() {
		return 0
	}
	return int(s.End - s.Pos)
}

// A Token is one lexical element: a kind and the bytes it covers.
type Token struct {
	Kind TokenKind
	Span
}

// A Space is a PTX state space (PTX ISA §5.1). Sub-qualifiers (.shared::cta)
// are not part of it.
type Space uint8

// The state spaces. SpaceGeneric is what an instruction without a state space
// uses.
const (
	SpaceGeneric Space = iota
	SpaceReg
	SpaceSreg
	SpaceConst
	SpaceGlobal
	SpaceLocal
	SpaceParam
	SpaceShared
	SpaceTex
	SpaceTmem // tensor memory of sm_100 and later, reached only by tcgen05.*
)

var spaceNames = [...]string{"generic", ".reg", ".sreg", ".const", ".global", ".local", ".param", ".shared", ".tex", "tmem"}

// String returns the PTX spelling; "generic" and "tmem" have none and are words.
func (s Space) String() string {
	if int(s) < len(spaceNames) {
		return spaceNames[s]
	}
	return fmt.Sprintf("Space(%d)", uint8(s))
}

// A Type is a PTX fundamental or packed type (PTX ISA §5.2).
type Type uint8

// The types. TypeNone means that none is written or that it is not known here.
const (
	TypeNone Type = iota
	Pred
	B8
	B16
	B32
	B64
	B128
	U8
	U16
	U32
	U64
	S8
	S16
	S32
	S64
	F16
	F16x2
	BF16
	BF16x2
	TF32
	F32
	F32x2
	F64
	E4M3
	E5M2
	E4M3x2
	E5M2x2
	U16x2
	S16x2
	TexRef
	SamplerRef
	SurfRef
	typeCount
)

var typeNames = [typeCount]string{
	TypeNone: "", Pred: ".pred", B8: ".b8", B16: ".b16", B32: ".b32", B64: ".b64", B128: ".b128",
	U8: ".u8", U16: ".u16", U32: ".u32", U64: ".u64", S8: ".s8", S16: ".s16", S32: ".s32", S64: ".s64",
	F16: ".f16", F16x2: ".f16x2", BF16: ".bf16", BF16x2: ".bf16x2", TF32: ".tf32", F32: ".f32", F32x2: ".f32x2", F64: ".f64",
	E4M3: ".e4m3", E5M2: ".e5m2", E4M3x2: ".e4m3x2", E5M2x2: ".e5m2x2", U16x2: ".u16x2", S16x2: ".s16x2",
	TexRef: ".texref", SamplerRef: ".samplerref", SurfRef: ".surfref",
}

var typeSizes = [typeCount]uint8{
	B8: 1, B16: 2, B32: 4, B64: 8, B128: 16, U8: 1, U16: 2, U32: 4, U64: 8, S8: 1, S16: 2, S32: 4, S64: 8,
	F16: 2, F16x2: 4, BF16: 2, BF16x2: 4, TF32: 4, F32: 4, F32x2: 8, F64: 8,
	E4M3: 1, E5M2: 1, E4M3x2: 2, E5M2x2: 2, U16x2: 4, S16x2: 4, TexRef: 8, SamplerRef: 8, SurfRef: 8,
}

// String returns the PTX spelling, ".f32"; "" for TypeNone.
func (t Type) String() string {
	if t < typeCount {
		return typeNames[t]
	}
	return fmt.Sprintf("Type(%d)", uint8(t))
}

// Size returns the size of one value in bytes; 0 for .pred and TypeNone.
func (t Type) Size() int {
	if t < typeCount {
		return int(typeSizes[t])
	}
	return 0
}

// Signed reports whether the type is a signed integer.
func (t Type) Signed() bool { return t >= S8 && t <= S64 || t == S16x2 }

// Float reports whether the type is a floating-point type of any width.
func (t Type) Float() bool { return t >= F16 && t <= E5M2x2 }
