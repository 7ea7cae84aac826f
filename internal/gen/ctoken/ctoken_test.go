package ctoken

import (
	"slices"
	"strings"
	"testing"
)

func words(l []Token) []string {
	var out []string
	for _, t := range l {
		out = append(out, t.Text)
	}
	return out
}

func TestLex(t *testing.T) {
	in := "a_1$ 0x1Fu 1e+5 .5 \"s \\\" // x\" 'c' /* gone\n over */ x<<=y->z...##q // tail\n# if 1\\\n2"
	var got [][]string
	for _, l := range Lines(in) {
		got = append(got, words(Lex(l)))
	}
	want := [][]string{
		{"a_1$", "0x1Fu", "1e+5", ".5", `"s \" // x"`, "'c'", "x", "<<=", "y", "->", "z", "...", "##", "q"},
		{"#", "if", "12"},
	}
	if !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("got %q, want %q", got, want)
	}
	l := Lex("f (x) 1 's' \"t\"")
	var kinds []Kind
	var spaces []bool
	for _, x := range l {
		kinds, spaces = append(kinds, x.Kind), append(spaces, x.Space)
	}
	if !slices.Equal(kinds, []Kind{Ident, Punct, Ident, Punct, Number, Char, String}) {
		t.Errorf("kinds %v", kinds)
	}
	if !slices.Equal(spaces, []bool{false, true, false, false, true, true, true}) {
		t.Errorf("spaces %v", spaces)
	}
	for _, open := range []string{`"a`, `'`, `"\`, "/* x"} { // what does not end, ends with the text
		if n := len(strings.Join(words(Lex(open)), "")); n != len(strings.ReplaceAll(open, " ", "")) {
			t.Errorf("%s: %d bytes in tokens", open, n)
		}
	}
}

// statements reads "NAME = …;" and fails at anything else.
func statements(text string) (names []string, errs []error) {
	c := Cursor{Tokens: Lex(text)}
	errs = c.Each(func() {
		if c.Peek() == "stay" { // takes nothing
			return
		}
		if !c.AtIdent() {
			c.Fail("no name")
		}
		name := c.Next().Text
		c.Want("=")
		for !c.Accept(";") {
			c.Skip()
		}
		names = append(names, name)
	})
	return names, errs
}

func TestCursor(t *testing.T) {
	for _, r := range []struct {
		in, names string
		errs      []string
	}{
		{"a = 1; b = (2; [3;] {4;}) 5;", "a b", nil},
		{"stay a = 1;", "a", nil},
		{"a; b = 1;", "b", []string{`";" where "=" is due, near: a ; b = 1 ; `}},
		{"f() { x; } b = 1;", "", []string{`"(" where`}},
		{"f() { x; }; b = 1;", "b", []string{`"(" where`}},
		{"f() { x; } 1; b = 1;", "b", []string{`"(" where`, "no name"}},
		{"a = (1; b = 2;", "", []string{"the text ends in a declaration"}},
		{"a =", "", []string{"the text ends in a declaration"}},
		{") = 1; b = 1;", "b", []string{"no name"}},
	} {
		names, errs := statements(r.in)
		if got := strings.Join(names, " "); got != r.names {
			t.Errorf("%s: read %q, want %q", r.in, got, r.names)
		}
		if len(errs) != len(r.errs) {
			t.Errorf("%s: errors %v, want %q", r.in, errs, r.errs)
			continue
		}
		for i, err := range errs {
			if !strings.Contains(err.Error(), r.errs[i]) {
				t.Errorf("%s: %v, want %q", r.in, err, r.errs[i])
			}
		}
	}
	var c Cursor
	if c.Peek() != "" || c.Ahead(7) != "" || c.AtIdent() || c.Accept("x") {
		t.Error("an empty text has tokens")
	}
	defer func() {
		if recover() != "other" {
			t.Error("a panic that is none of Fail's does not get through")
		}
	}()
	_ = Guard(func() { panic("other") })
}

func evaluate(in string) (Value, error) {
	c := Cursor{Tokens: Lex(in)}
	e := Evaluator{Cursor: &c}
	e.Constant = func(name string) (Value, bool) { return Value{Int: 7}, name == "SEVEN" }
	e.TypeName = func() (Sized, bool) {
		s, ok := map[string]Sized{
			"s8": {1, 1, true}, "u8": {1, 1, false}, "s16": {2, 2, true}, "u16": {2, 2, false}, "s32": {4, 4, true}, "u32": {4, 4, false}, "u64": {8, 8, false},
		}[c.Peek()]
		if ok {
			c.Pos++
		}
		return s, ok
	}
	return e.Whole()
}

func TestEvaluator(t *testing.T) {
	for in, want := range map[string]uint64{
		"1 + 2 * 3 - -4":                       11,
		"(1 << 31) >> 31":                      0xffffffff, // int
		"(1U << 31) >> 31":                     1,
		"(1ull << 63) >> 63":                   1,
		"-1":                                   0xffffffff,
		"-1 > 0u":                              1,
		"-1L > 0u":                             0,
		"~0ULL":                                ^uint64(0),
		"(0xC0 | 0x3F) ^ 1 & 3":                0xfe,
		"10 % 4 == 2 ? 7 : 8":                  7,
		"0 ? 1 : 0 ? 2 : 3":                    3,
		"sizeof(u64) * 8 + _Alignof(u16)":      66,
		"(u8)0x1ff":                            0xff,
		"(s8)0xff":                             0xffffffff,
		"(u16)-1":                              0xffff,
		"(s16)0x8000":                          0xffff8000,
		"(u64)-1":                              ^uint64(0),
		"(s32)0xffffffffffffffff":              0xffffffff,
		"'A' + '\\n'":                          75,
		"'ABCD'":                               0x41424344,
		"SEVEN != 7 || !(3 <= 2) && 2 < 3":     1,
		"0x80000000":                           0x80000000,
		"2147483648":                           2147483648,
		"077":                                  63,
		"4294967295U + 1":                      0,
		"(u32)7 / 2 + 7ul % 4 + 9 / -2 + 2000": 2002,
	} {
		if v, err := evaluate(in); err != nil || v.Bits() != want {
			t.Errorf("%s = %#x (%v), want %#x", in, v.Bits(), err, want)
		}
	}
	for _, in := range []string{
		"", "1 +", "(1", "1 2", "x", "1.5", "sizeof(nothing)", "sizeof 3", "1 ? 2", "1 ? 2 : ", "1 / 0", "1 % 0", "1 << 64", "1 >> -1",
		"99999999999999999999", "\"s\"", strings.Repeat("(", 5000), strings.Repeat("-", 5000),
	} {
		if v, err := evaluate(in); err == nil {
			t.Errorf("%.20q = %v", in, v)
		}
	}
	// In an #if, what is not known is 0, and numbers have 64 bits.
	for in, want := range map[string]int64{"HAS(x, (y)) + SEVEN == 0": 1, "1 << 40": 1 << 40, "F(": 0} {
		e := Evaluator{Cursor: &Cursor{Tokens: Lex(in)}, Wide: true, Zero: true}
		if v, err := e.Whole(); err != nil || v.Int != want {
			t.Errorf("#if %s = %d (%v), want %d", in, v.Int, err, want)
		}
	}
}
