package gpu

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"nvtrace/nvattach/jit"
)

func TestPlaced(t *testing.T) {
	t.Parallel()
	const base = 0x7fa5 << 32
	text := "mov.u64 %rd1, 0x7fa500001280;\nadd.s64 %rd2, %rd1, 0x7fa5;\nmov.u64 %rd3, 0x7fa5000012801;\nmov.u64 %rd4, x0x7fa500001280;\nmov.u64 %rd5, 0x7fa5ffffffff"
	want := "mov.u64 %rd1, 0x555500001280;\nadd.s64 %rd2, %rd1, 0x7fa5;\nmov.u64 %rd3, 0x7fa5000012801;\nmov.u64 %rd4, x0x7fa500001280;\nmov.u64 %rd5, 0x5555ffffffff"
	if got, ok := placed(text, base, placeA); got != want || !ok {
		t.Errorf("%v\n%s", ok, got)
	}
	for _, other := range []uint64{0, base + 4096, 1 << 50, 0x7fa6 << 32} {
		if _, ok := placed(text, other, placeA); ok {
			t.Errorf("base %#x: moved", other)
		}
	}
}

// What is compiled once serves every place.
func TestCompileMoved(t *testing.T) {
	t.Parallel()
	// code is what a compiler makes of a text whose first word is an address.
	code := func(text string, encode func(hi uint64) string) string {
		var addr uint64
		if _, err := fmt.Sscanf(text, "%v", &addr); err != nil {
			t.Fatal(err)
		}
		return "code" + string([]byte{byte(addr), byte(addr >> 8)}) + encode(addr>>32) + "end"
	}
	verbatim := func(hi uint64) string { return string([]byte{byte(hi), byte(hi >> 8), 0, 0}) }
	for name, encode := range map[string]func(hi uint64) string{
		"as it is": verbatim,
		"shifted":  func(hi uint64) string { return verbatim(hi >> 1) },
		"next":     func(hi uint64) string { return verbatim(hi + 1) },
		"length":   func(hi uint64) string { return strings.Repeat("x", int(hi>>13)) },
	} {
		known := make(map[string]bool)
		for _, base := range []uint64{0x7fa5 << 32, 0x7f01 << 32, 0x0055 << 32} {
			text := fmt.Sprintf("%#x ret", base+0x1234)
			r, ok, err := compileMoved(func(text string) (*jit.Result, error) {
				return &jit.Result{Cubin: []byte(code(text, encode))}, nil
			}, text, base)
			if err != nil || ok != (name == "as it is") {
				t.Fatalf("%s: %v, %v", name, ok, err)
			}
			if ok && string(r.Cubin) != code(text, encode) {
				t.Errorf("%s at %#x: %q, want %q", name, base, r.Cubin, code(text, encode))
			}
			moved, _ := placed(text, base, placeB)
			known[moved] = true
		}
		if len(known) != 1 {
			t.Errorf("%s: compiled anew for each place: %v", name, known)
		}
	}
	failed := errors.New("time limit")
	if _, ok, err := compileMoved(func(string) (*jit.Result, error) { return nil, failed }, "0x7fa500001234", 0x7fa5<<32); !ok || !errors.Is(err, failed) {
		t.Errorf("%v, %v", ok, err)
	}
	refused := &jit.CompileError{Result: 5}
	if _, ok, err := compileMoved(func(string) (*jit.Result, error) { return nil, refused }, "0x7fa500001234", 0x7fa5<<32); ok || err != nil {
		t.Errorf("refused: %v, %v", ok, err)
	}
}
