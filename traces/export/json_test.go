package export

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"nvtrace/traces/escape"
)

func checkString(t *testing.T, s string) {
	got := appendString(nil, s)
	var back string
	if err := json.Unmarshal(got, &back); err != nil {
		t.Fatalf("%q: %v", got, err)
	}
	if want := strings.Map(func(r rune) rune { return r }, s); back != want { // Map makes U+FFFD of each bad byte
		t.Errorf("%q became %q, want %q", s, back, want)
	}
	for _, r := range string(got) {
		if escape.Acts(r) {
			t.Errorf("%q holds %U", got, r)
		}
	}
	if b := appendString(nil, []byte(s)); string(b) != string(got) {
		t.Errorf("bytes become %q, a string %q", b, got)
	}
	if c := clip(s, 3); len(c) > 3+len("…") || len(s) <= 3 && c != s || utf8.ValidString(s) && !utf8.ValidString(c) {
		t.Errorf("%q is cut to %q", s, c)
	}
}

func TestMicros(t *testing.T) {
	for _, row := range []struct {
		ns   int64
		want string
	}{
		{0, "0"},
		{1, "0.001"},
		{-1, "-0.001"},
		{999, "0.999"},
		{1000, "1"},
		{12003412010, "12003412.010"},
		{math.MaxInt64, "9223372036854775.807"},
		{math.MinInt64, "-9223372036854775.808"},
	} {
		j := jsonText{b: []byte("{")}
		j.micros("ts", row.ns)
		if got := string(j.b); got != `{"ts":`+row.want {
			t.Errorf("%d: %s, want %s", row.ns, got, row.want)
		}
	}
}
