package escape

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// evil is what terminals act on, and how it is to be shown.
var evil = map[string]string{
	"\x1b[2J":                `\x1b[2J`,
	"\u009b2J":               `\u009b2J`,
	"\x9b2J":                 `\x9b2J`,
	"a\u0085b":               `a\u0085b`,
	"\u202egnp.exe":          `\u202egnp.exe`,
	"\u2066x\u2069":          `\u2066x\u2069`,
	"\u200b\u200f\u061c":     `\u200b\u200f\u061c`,
	"\ufeff":                 `\ufeff`,
	"\u2028\u2029":           `\u2028\u2029`,
	"\U000e0041":             `\udb40\udc41`,
	"\r\a\b\x00\x7f":         `\x0d\x07\x08\x00\u007f`,
	"plain ä € 漢 \U0001f600": "plain ä € 漢 \U0001f600",
	"\xff\xc3":               `\xff\xc3`,
}

func TestString(t *testing.T) {
	for in, want := range evil {
		if got := String(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
		if got := Lines(in); got != want {
			t.Errorf("lines of %q: %q, want %q", in, got, want)
		}
		if got := string(Append([]byte("x"), []byte(in))); got != "x"+want {
			t.Errorf("appended %q: %q", in, got)
		}
	}
	if got := String("a\nb\tc"); got != `a\nb\tc` {
		t.Errorf("%q", got)
	}
	if got := Lines("a\nb\tc\r"); got != "a\nb\tc\\x0d" {
		t.Errorf("%q", got)
	}
}

// TestWriter: in one piece, byte by byte, or in any two, the same comes out.
func TestWriter(t *testing.T) {
	var in, want string
	for i, w := range evil {
		if !strings.HasSuffix(i, "\xc3") { // the rest of a character may follow
			in, want = in+i+"\n", want+w+"\n"
		}
	}
	for cut := range len(in) + 1 {
		var b bytes.Buffer
		w := NewWriter(&b)
		for _, part := range []string{in[:cut], in[cut:]} {
			if n, err := io.WriteString(w, part); n != len(part) || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
		}
		if err := w.Flush(); err != nil || b.String() != want {
			t.Fatalf("cut at %d: %q, want %q (%v)", cut, b.String(), want, err)
		}
	}
	var b bytes.Buffer
	w := NewWriter(&b, "\x1b[32m", "\x1b[0m")
	_, _ = io.WriteString(w, "\x1b[32mgreen\x1b[0m \x1b[31mred\x1b]0;title\a\xc3")
	if b.String() != "\x1b[32mgreen\x1b[0m \\x1b[31mred\\x1b]0;title\\x07" {
		t.Errorf("%q", b.String())
	}
	if err := w.Flush(); err != nil || !strings.HasSuffix(b.String(), `\x07\xc3`) {
		t.Errorf("%q, %v", b.String(), err)
	}
	failed := errors.New("full")
	if _, err := NewWriter(failing{failed}).Write([]byte("x")); !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// TestJSON: JSON that is written through a Writer means the same.
func TestJSON(t *testing.T) {
	for in := range evil {
		in = strings.ToValidUTF8(in, "?")
		b, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		var out string
		if err := json.Unmarshal(Lines(b), &out); err != nil || out != in {
			t.Errorf("%q: %q, %v", in, out, err)
		}
	}
}

// FuzzAppendJSON: a JSON string means the same, nothing in it acts, and any byte can be found again.
func FuzzAppendJSON(f *testing.F) {
	for in := range evil {
		f.Add(in)
	}
	f.Add("\xff\xc3\t\n\"\\\u2028")
	f.Fuzz(func(t *testing.T, in string) {
		for _, s := range [][]byte{AppendJSON(nil, in), AppendJSONBytes(nil, in)} {
			if String(string(s)) != string(s) {
				t.Errorf("%q: %s acts", in, s)
			}
		}
		var out string
		if err := json.Unmarshal(AppendJSON(nil, in), &out); err != nil || out != string([]rune(in)) {
			t.Errorf("%q: %q, %v", in, out, err)
		}
		whole := string(AppendJSONBytes(nil, in))
		for b := 0x80; b <= 0xff; b++ {
			whole = strings.ReplaceAll(whole, fmt.Sprintf(`\udc%02x`, b), string([]byte{byte(b)}))
		}
		if utf8.ValidString(in) {
			if err := json.Unmarshal([]byte(whole), &out); err != nil || out != in {
				t.Errorf("%q: %q, %v", in, out, err)
			}
		} else if !strings.Contains(in, `\`) && strings.ToValidUTF8(whole, "?") == whole {
			t.Errorf("%q: %s lacks bytes", in, whole)
		}
	})
}

func FuzzWriter(f *testing.F) {
	for in := range evil {
		f.Add(in, 1)
	}
	f.Fuzz(func(t *testing.T, in string, cut int) {
		cut = max(0, min(cut, len(in)))
		var b bytes.Buffer
		w := NewWriter(&b)
		_, _ = io.WriteString(w, in[:cut])
		_, _ = io.WriteString(w, in[cut:])
		_ = w.Flush()
		if out := b.String(); out != Lines(in) || !utf8.ValidString(out) || strings.ContainsFunc(out, func(r rune) bool { return Acts(r) && r != '\n' && r != '\t' }) {
			t.Errorf("%q in, %q out", in, out)
		}
		if s := String(in); strings.ContainsFunc(s, Acts) {
			t.Errorf("%q in, %q out", in, s)
		}
	})
}

// TestAppendQuotable: what stands between quotes neither acts nor ends them, and says every byte.
func TestAppendQuotable(t *testing.T) {
	var all []byte
	for c := range 256 {
		all = append(all, byte(c))
	}
	got := string(AppendQuotable(nil, all))
	for _, c := range []byte(got) {
		if c < 0x20 || c >= 0x7f {
			t.Fatalf("%q has byte %#x", got, c)
		}
	}
	back, err := strconv.Unquote(`"` + got + `"`)
	if err != nil || back != string(all) {
		t.Errorf("%q, %v", back, err)
	}
	if s := string(AppendQuotable([]byte("x="), "a\"b\\\n\x1b")); s != `x=a\"b\\\n\x1b` {
		t.Errorf("%s", s)
	}
}

// TestPlain: of eight characters, each of which may be any, all are ASCII that shows, or not.
func TestPlain(t *testing.T) {
	for at := range 8 {
		for _, others := range []byte{' ', 'a', '~'} {
			for c := range 256 {
				b := bytes.Repeat([]byte{others}, 8)
				b[at] = byte(c)
				if got, want := plain(string(b)), c >= ' ' && c < 0x7f; got != want {
					t.Errorf("%q: %v", b, got)
				}
			}
		}
	}
}
