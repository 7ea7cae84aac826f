package sim

import (
	"strings"
	"testing"
)

// TestPTXErrors: what the driver's compiler refuses is refused when a module is loaded.
func TestPTXErrors(t *testing.T) {
	module := func(version, target, code string) string {
		return ".version " + version + "\n.target " + target + "\n.address_size 64\n.visible .entry k() { .reg .b32 r; .reg .f32 f;\n" + code + "\nret; }\n"
	}
	for _, tt := range []struct {
		name, text string
		want       result
		hint       string
	}{
		{"good", module("9.0", "sm_90", "min.f32 f, f, f;"), success, ""},
		{"newer than the driver", module("9.5", "sm_90", ""), errUnsupportedPTX, "PTX ISA 9.5 is newer"},
		{"target newer than the version", module("7.7", "sm_90", ""), errInvalidPTX, "sm_90 needs PTX ISA 7.8"},
		{"no such instruction", module("9.0", "sm_90", "min.sat.f32 f, f, f;"), errInvalidPTX, "there is no min.sat.f32"},
		{"instruction of a later target", module("8.0", "sm_80", "min.relu.s32 r, r, r;"), errInvalidPTX, "min.s32.relu needs"},
		{"no PTX", "hello", errInvalidPTX, "can't be parsed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := New(nil)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if _, got := s.parse("m.ptx", tt.text); got != tt.want {
				t.Errorf("result %d, want %d", got, tt.want)
			}
			if hints := strings.Join(s.report.Hints, "\n"); !strings.Contains(hints, tt.hint) || tt.hint == "" && hints != "" {
				t.Errorf("hints %q, want %q", hints, tt.hint)
			}
		})
	}
}
