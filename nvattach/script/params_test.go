package script

import (
	"slices"
	"strings"
	"testing"
)

// TestParams: what parameters become, and what is said of those that are wrong.
func TestParams(t *testing.T) {
	for _, tt := range []struct {
		text   string
		params Params
		want   string // what BEGIN prints, or the error
	}{
		{`BEGIN { print($1 + $2); }`, Params{Positional: []string{"5s", "-1"}}, "4999999999\n"},
		{`BEGIN { print($1 + $2); }`, Params{Positional: []string{"0x10"}}, "16\n"},
		{`BEGIN { print(($size, $who)); }`, Params{Named: map[string]string{"size": "4_096", "who": "python3"}}, "(4096, python3)\n"},
		{`BEGIN { print($1); }`, Params{Positional: []string{"1", "2"}}, "-e:1:1: the program has 1 parameter, and 2 were given"},
		{`BEGIN { print(1); }`, Params{Positional: []string{"1"}}, "-e:1:1: the program has no parameters, and 1 was given"},
		{`BEGIN { print($size); }`, Params{Named: map[string]string{"size": "1", "sise": "2"}}, "-e:1:1: the program has no parameter $sise; did you mean $size?"},
		{`BEGIN { print(1); }`, Params{Named: map[string]string{"size": "1"}}, "-e:1:1: the program has no parameter $size"},
		{`BEGIN { $size = 1; }`, Params{Named: map[string]string{"size": "1"}}, "-e:1:9: "},
	} {
		p, err := CompileWith("-e", tt.text, tt.params)
		got := ""
		if err != nil {
			got, _, _ = strings.Cut(err.Error(), "\n")
		} else if _, out := p.begun(); len(out) > 0 {
			got = out[0].Text
		}
		if got != tt.want && !(strings.HasSuffix(tt.want, " ") && strings.HasPrefix(got, tt.want)) {
			t.Errorf("%s with %v: %q, want %q", tt.text, tt.params, got, tt.want)
		}
	}
}

// TestEndless: which loops are warned of.
func TestEndless(t *testing.T) {
	for text, want := range map[string]int{
		`kernel:* { while (1) { @ = count(); } }`:                                       1,
		`kernel:* { while (1) { if (tid > 3) { break; } } }`:                            0,
		`kernel:* { while (1) { while (1) { break; } } }`:                               1,
		`kernel:* { while (1) { while (tid) { return; } } }`:                            0,
		`kernel:* { $i = 0; while ($i < 10) { @ = count(); } }`:                         1,
		`kernel:* { $i = 0; while ($i < 10) { $i++; } }`:                                0,
		`kernel:* { $i = 0; $j = 0; while ($i < 10) { $j++; } }`:                        1,
		`kernel:* { while (nsecs < 10) { @ = count(); } }`:                              0,
		`kernel:* { while (@x < 10) { @ = count(); } @x = 1; }`:                         0,
		`kernel:* { while (0) { @ = count(); } }`:                                       0,
		`END { $i = 0; while (!$i) { print(1); } }`:                                     1,
		`kernel:* { if (tid) { unroll (3) { while (1) { continue; } } } @ = count(); }`: 1,
	} {
		p, err := Compile("-e", text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if got := p.Warnings(); len(got) != want || want == 1 && !strings.Contains(got[0], "nothing in this loop ends it") {
			t.Errorf("%s: %q, want %d", text, got, want)
		}
	}
}

// TestNames: names may be quoted, in whole or in part.
func TestNames(t *testing.T) {
	for text, want := range map[string]string{
		`uprobe:./x:"void f<int, 4>*" { @ = count(); }`:          "uprobe/./x:void f<int, 4>*",
		`uprobe:"./my program":main { @ = count(); }`:            "uprobe/./my program:main",
		`uprobe:./x:"ns::g<a, b>(int, char)"+8 { @ = count(); }`: "uprobe/./x:ns::g<a, b>(int, char)+8",
		`uretprobe:x:"operator{}" /pid == 1/ { @ = count(); }`:   "uretprobe/x:operator{}",
		`kernel:"void k<int, 4>"* { @ = count(); }`:              "cuda.entry/void k<int, 4>*",
		`usdt::begin { @ = count(); }`:                           "usdt/*:*:begin",
		`usdt:::begin { @ = count(); }`:                          "usdt/*:*:begin",
		`usdt:libc::"set*" { @ = count(); }`:                     "usdt/libc:*:set*",
	} {
		p, err := Compile("-e", text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var got []string
		for i := range p.probes[0].points {
			got = append(got, p.probes[0].points[i].section)
		}
		if !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
