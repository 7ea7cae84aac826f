package fatbin

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/pierrec/lz4/v4"
)

func TestDecodeLZ4(t *testing.T) {
	for _, tt := range []struct {
		name, src string
		room      int
		want      string
		err       string
	}{
		{name: "empty", src: "", want: ""},
		{name: "no literals", src: "\x00", want: ""},
		{name: "literals", src: "\x50hello", room: 5, want: "hello"},
		{name: "match far enough", src: "\x40abcd\x04\x00\x50hello", room: 13, want: "abcdabcdhello"},
		{name: "match of one byte", src: "\x12a\x01\x00\x50hello", room: 12, want: "aaaaaaahello"},
		{name: "match of two", src: "\x23ab\x02\x00\x10c", room: 10, want: "ababababac"},
		{name: "long literals", src: "\xf0\x00" + strings.Repeat("x", 15), room: 15, want: strings.Repeat("x", 15)},
		{name: "long match", src: "\x1fa\x01\x00\x02\x10b", room: 23, want: strings.Repeat("a", 22) + "b"},
		{name: "literal length cut", src: "\xf0", room: 99, err: "+0x1: the block ends in a literal length"},
		{name: "literal length of ones", src: "\xf0\xff\xff", room: 9999, err: "literal length"},
		{name: "literals cut", src: "\x50hell", room: 5, err: "+0x1: the block ends in 5 literals"},
		{name: "literals too long", src: "\x50hello", room: 4, err: "longer than the 4 bytes"},
		{name: "distance cut", src: "\x10a\x01", room: 9, want: "a", err: "+0x2: the block ends in a match's distance"},
		{name: "distance zero", src: "\x10a\x00\x00\x10b", room: 9, want: "a", err: "a match 0 bytes back"},
		{name: "distance before the start", src: "\x10a\x02\x00\x10b", room: 9, want: "a", err: "a match 2 bytes back, where 1"},
		{name: "match length cut", src: "\x1fa\x01\x00\xff", room: 9999, want: "a", err: "match length"},
		{name: "match too long", src: "\x1fa\x01\x00\x00\x10b", room: 10, want: "a", err: "longer than the 10 bytes"},
		{name: "match last", src: "\x10a\x01\x00", room: 9, want: "aaaaa", err: "ends with a match"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dst := make([]byte, tt.room)
			n, err := decodeLZ4(dst, []byte(tt.src))
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err) || !errors.Is(err, ErrFormat)) {
				t.Fatalf("error %v, want %q", err, tt.err)
			}
			if string(dst[:n]) != tt.want {
				t.Errorf("got %q, want %q", dst[:n], tt.want)
			}
		})
	}
}

// samples are texts that compress in different ways.
func lz4Samples() [][]byte {
	r := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 70_000)
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	words := []string{"ld.global.u32 ", "%r1", "%rd2", ", ", ";\n", "add.s32 ", "[%rd4+8]"}
	var text []byte
	for len(text) < 300_000 {
		text = append(text, words[r.IntN(len(words))]...)
	}
	return [][]byte{
		nil,
		[]byte("a"),
		[]byte("abcdefghijkl"),
		bytes.Repeat([]byte("a"), 13),
		make([]byte, 100_000),
		noise,
		text,
		append(append(noise[:65_535:65_535], noise...), noise[:20]...), // matches at the largest distance and beyond
	}
}

func TestLZ4AgainstOther(t *testing.T) {
	for i, want := range lz4Samples() {
		ours := appendLZ4([]byte("kept"), want)
		if string(ours[:4]) != "kept" {
			t.Fatalf("sample %d: what was there is gone", i)
		}
		got := make([]byte, len(want))
		if n, err := decodeLZ4(got, ours[4:]); err != nil || n != len(want) || !bytes.Equal(got, want) {
			t.Errorf("sample %d: own decoder: %d bytes, %v", i, n, err)
		}
		clear(got)
		if len(want) > 0 {
			if n, err := lz4.UncompressBlock(ours[4:], got); err != nil || n != len(want) || !bytes.Equal(got, want) {
				t.Errorf("sample %d: other decoder: %d bytes, %v", i, n, err)
			}
		}
		theirs := make([]byte, lz4.CompressBlockBound(len(want)))
		n, err := lz4.CompressBlock(want, theirs, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			continue // incompressible: it writes nothing
		}
		if len(ours) > n*3/2+16 {
			t.Errorf("sample %d: %d bytes, the other encoder needs %d", i, len(ours), n)
		}
		clear(got)
		if n, err := decodeLZ4(got, theirs[:n]); err != nil || n != len(want) || !bytes.Equal(got, want) {
			t.Errorf("sample %d: other encoder, own decoder: %d bytes, %v", i, n, err)
		}
	}
}

// plainLZ4 decodes a byte at a time, as the format is described.
func plainLZ4(src []byte, size int) (out []byte, ok bool) {
	length := func(n int) int {
		for more := n == 15; more; {
			if len(src) == 0 {
				return -1
			}
			n, more, src = n+int(src[0]), src[0] == 255, src[1:]
		}
		return n
	}
	for len(src) > 0 {
		token := int(src[0])
		src = src[1:]
		n := length(token >> 4)
		if n < 0 || n > len(src) || n > size-len(out) {
			return nil, false
		}
		out, src = append(out, src[:n]...), src[n:]
		if len(src) == 0 {
			return out, true
		}
		if len(src) == 1 {
			return nil, false
		}
		back := int(src[0]) + int(src[1])*256
		src = src[2:]
		if n = length(token&15) + 4; n < 4 || back == 0 || back > len(out) || n > size-len(out) {
			return nil, false
		}
		for range n {
			out = append(out, out[len(out)-back])
		}
		if len(src) == 0 {
			return nil, false
		}
	}
	return out, true
}

func FuzzLZ4(f *testing.F) {
	for _, s := range lz4Samples() {
		f.Add(s[:min(len(s), 4096)], 1000)
		f.Add(appendLZ4(nil, s[:min(len(s), 4096)]), 4096)
	}
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		if size < 0 || size > 1<<16 {
			return
		}
		const canary = 0x5a
		room := bytes.Repeat([]byte{canary}, size+16)
		n, err := decodeLZ4(room[:size:size], b)
		if !bytes.Equal(room[size:], bytes.Repeat([]byte{canary}, 16)) {
			t.Fatal("written past the end")
		}
		want, ok := plainLZ4(b, size)
		if ok != (err == nil) || ok && !bytes.Equal(want, room[:n]) {
			t.Fatalf("decoded %d bytes, %v; plainly %d, %v", n, err, len(want), ok)
		}
		// The other decoder is stricter about a block's last token, and takes
		// a block that ends with a match. What both accept is the same.
		other := make([]byte, size)
		if m, err2 := lz4.UncompressBlock(b, other); err == nil && err2 == nil && m > 0 && !bytes.Equal(other[:m], room[:n]) {
			t.Fatalf("decoded %d bytes, %v; the other decoder %d", n, err, m)
		}
		block := appendLZ4(nil, b)
		if len(block) > len(b)+len(b)/255+16 {
			t.Fatalf("%d bytes became %d", len(b), len(block))
		}
		got := make([]byte, len(b))
		if n, err := decodeLZ4(got, block); err != nil || n != len(b) || !bytes.Equal(got, b) {
			t.Fatalf("round trip: %d of %d bytes, %v", n, len(b), err)
		}
	})
}
