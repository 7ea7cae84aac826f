package gpu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"nvtrace/fatbin/sass"
	"nvtrace/nvattach/jit"
)

// Woven code has addresses of maps in it, and where the driver puts memory differs
// from run to run. So that code need not be compiled in each, memory for maps begins
// at a multiple of 4 GiB, and code is compiled for two places that it never has:
// their upper halves differ in every bit. Where the results differ, and only by these
// halves as they are, is where an address stands; the real one is written there.
// Whatever else the compiler did with an address shows as another difference, and then
// the code is compiled as it is.

const (
	mapsAlign = 4 << 30
	// The upper halves are 16 bits: addresses have 48.
	placeA = sass.PlaceA // upper halves of addresses
	placeB = sass.PlaceB
)

// placed returns the text with addresses of memory at base elsewhere; ok is false if
// there are none, or can't be told.
func placed(text string, base, place uint64) (moved string, ok bool) {
	if base%mapsAlign != 0 || base>>47 != 0 || base == 0 {
		return text, false
	}
	const digits = 8 // of the lower half
	from, to := fmt.Sprintf("%#x", base>>32), fmt.Sprintf("%#x", place)
	var b strings.Builder
	last := 0
	for i := 0; ; {
		n := strings.Index(text[i:], from)
		if n < 0 {
			break
		}
		start, end := i+n, i+n+len(from)
		i = end
		rest := text[end:min(end+digits+1, len(text))]
		if len(rest) < digits || hexDigits(rest) != digits || start > 0 && isWord(text[start-1]) {
			continue
		}
		b.WriteString(text[last:start] + to)
		last = end
	}
	if last == 0 {
		return text, false
	}
	b.WriteString(text[last:])
	return b.String(), true
}

// bothPlaces returns the text for both places.
func bothPlaces(text string, base uint64) (a, b string, ok bool) {
	a, okA := placed(text, base, placeA)
	b, okB := placed(text, base, placeB)
	return a, b, okA && okB
}

// hexDigits counts those that s begins with.
func hexDigits(s string) int {
	for i := range len(s) {
		if !strings.ContainsRune("0123456789abcdefABCDEF", rune(s[i])) {
			return i
		}
	}
	return len(s)
}

// isWord reports whether a character can stand in a name or a number of PTX.
func isWord(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == '$' || c == '%'
}

// resolved returns the code for memory at base, made of that for both places.
func resolved(a, b []byte, base uint64) (code []byte, ok bool) {
	if len(a) != len(b) {
		return nil, false
	}
	var halves [3][2]byte
	for i, place := range []uint64{placeA, placeB, base >> 32} {
		binary.LittleEndian.PutUint16(halves[i][:], uint16(place))
	}
	code = bytes.Clone(a)
	for i := 0; i < len(a); i++ {
		if a[i] == b[i] {
			continue
		}
		if i+2 > len(a) || [2]byte(a[i:i+2]) != halves[0] || [2]byte(b[i:i+2]) != halves[1] {
			return nil, false
		}
		copy(code[i:], halves[2][:])
		i++
	}
	return code, true
}

// compileMoved compiles text whose maps are at base; ok is false if it is to be compiled
// as it is.
func compileMoved(compile func(text string) (*jit.Result, error), text string, base uint64) (r *jit.Result, ok bool, err error) {
	a, b, ok := bothPlaces(text, base)
	if !ok {
		return nil, false, nil
	}
	type result struct {
		r   *jit.Result
		err error
	}
	other := make(chan result, 1)
	go func() {
		r, err := compile(b)
		other <- result{r, err}
	}()
	ra, errA := compile(a)
	rb := <-other
	if err := errors.Join(errA, rb.err); err != nil {
		if _, refused := errors.AsType[*jit.CompileError](err); refused {
			return nil, false, nil // the text as it is gives the message
		}
		return nil, true, err
	}
	code, ok := resolved(ra.Cubin, rb.r.Cubin, base)
	if !ok {
		return nil, false, nil
	}
	out := *ra
	out.Cubin, out.Cached = code, ra.Cached && rb.r.Cached
	return &out, true, nil
}
