package ptx

import (
	"fmt"
	"strings"
	"testing"
)

func TestLex(t *testing.T) {
	for _, c := range []struct{ src, want string }{
		{"add.s32 %r1,%r2,-1;", "identifier:add directive:.s32 identifier:%r1 punctuation:, identifier:%r2 punctuation:, punctuation:- integer:1 punctuation:;"},
		{"ld.shared::cta.v4.f32", "identifier:ld directive:.shared::cta directive:.v4 directive:.f32"},
		{"tex.2d.32x32b", "identifier:tex directive:.2d directive:.32x32b"},
		{".L2::128B :: .x::", "directive:.L2::128B punctuation:: punctuation:: directive:.x punctuation:: punctuation::"},
		{"%tid.x % 3", "identifier:%tid directive:.x punctuation:% integer:3"},
		{"$L__BB0_1: _ _Z3foov $", "identifier:$L__BB0_1 punctuation:: identifier:_ identifier:_Z3foov bad bytes:$"},
		{"0x1F 0X1fU 017 0b11 0B1U 12U 0", "integer:0x1F integer:0X1fU integer:017 integer:0b11 integer:0B1U integer:12U integer:0"},
		{"0f3F800000 0D3ff0000000000000 1.5 1. .5 1e3 2.5E-3", "float:0f3F800000 float:0D3ff0000000000000 float:1.5 float:1. float:.5 float:1e3 float:2.5E-3"},
		{"0f3F80000 0x 0b2 12u 1e3x 3abc", "bad bytes:0f3F80000 bad bytes:0x bad bytes:0b2 bad bytes:12u bad bytes:1e3x bad bytes:3abc"},
		{`"a\"b" "\\" "`, `string:"a\"b" string:"\\" bad bytes:"`},
		{"// x\n/* ; */ /*", "line comment:// x comment:/* ; */ bad bytes:/*"},
		{"# 1 \"a\"\nx # 2", "line marker:# 1 \"a\" identifier:x bad bytes:# integer:2"},
		{"@@DWARF .byte 1\n@%p @", "line marker:@@DWARF .byte 1 punctuation:@ identifier:%p punctuation:@"},
		{"a\x00b\x00\x00", "identifier:a bad bytes:\x00 identifier:b padding:\x00\x00"},
		{"é ..", "bad bytes:é bad bytes:. bad bytes:."},
	} {
		var got []string
		for tok := range Lex(c.src) {
			if tok.Kind != TokSpace {
				got = append(got, tok.Kind.String()+":"+c.src[tok.Pos:tok.End])
			}
		}
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%q:\n got %s\nwant %s", c.src, g, c.want)
		}
	}
}

// FuzzLex: tokens follow one another without gap or overlap and concatenate to
// the input.
func FuzzLex(f *testing.F) {
	for _, src := range corpus(f) {
		if len(src) < 1<<12 {
			f.Add(src)
		}
	}
	f.Add("0f1 \"\\ /* @@ # \x00")
	f.Fuzz(func(t *testing.T, src string) {
		at := Pos(0)
		for tok := range Lex(src) {
			if tok.Pos != at || tok.End <= tok.Pos || tok.Kind == TokEOF {
				t.Fatalf("token %v [%d,%d) after offset %d", tok.Kind, tok.Pos, tok.End, at)
			}
			at = tok.End
		}
		if int(at) != len(src) {
			t.Fatalf("tokens end at %d of %d", at, len(src))
		}
	})
}

var tokenKindNames = [...]string{
	TokEOF: "end of file", TokSpace: "space", TokLineComment: "line comment", TokComment: "comment",
	TokMarker: "line marker", TokPadding: "padding", TokIdent: "identifier", TokDirective: "directive",
	TokInt: "integer", TokFloat: "float", TokString: "string", TokPunct: "punctuation", TokBad: "bad bytes",
}

// String returns the kind in words.
func (k TokenKind) String() string {
	if int(k) < len(tokenKindNames) {
		return tokenKindNames[k]
	}
	return fmt.Sprintf("TokenKind(%d)", uint8(k))
}
