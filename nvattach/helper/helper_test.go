package helper

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"nvtrace/ptx/bpf"
)

var update = flag.Bool("update", false, "rewrite the declarations in the header")

// TestHeader: the headers' declarations are those of the table.
func TestHeader(t *testing.T) {
	for name, host := range map[string]bool{"../include/nvtrace_gpu.bpf.h": false, "../include/nvtrace_host.bpf.h": true} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		want, err := header(string(text), host)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case want == string(text):
		case *update:
			if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		default:
			t.Errorf("%s is not what the table says; -update writes it", name)
		}
	}
	if _, err := header("no marks", false); err == nil {
		t.Error("a header without marks was taken")
	}
}

// TestTable: rows are whole, and agree with themselves.
func TestTable(t *testing.T) {
	declared := regexp.MustCompile(`^(void|long|__[su](32|64)) \*?\(\*(\w+)\)\((.*)\)$`)
	for i, h := range byNumber {
		if i > 0 && byNumber[i-1].Number >= h.Number {
			t.Errorf("%d: two rows", h.Number)
		}
		if h.Name == "" || h.Doc == "" || h.In == 0 || len(h.Args) > 5 || h.Number > 211 && h.Number < 500 {
			t.Errorf("%d: %+v", h.Number, h)
		}
		if (h.Number < Puts || h.Number >= Log2) && h.C == "" && h.Number != BootTime && h.Number != CoarseTime {
			t.Errorf("%d, %s: no header declares it", h.Number, h.Name)
		}
		if h.HostArgs != nil && (h.In&Host == 0 || len(h.HostArgs) != len(h.Args)) {
			t.Errorf("%d, %s: arguments on the host", h.Number, h.Name)
		}
		for k, a := range h.Args {
			if needs := a.Kind == bpf.ArgRead || a.Kind == bpf.ArgWrite; needs && a.Size == 0 && (a.SizeArg <= 0 || a.SizeArg >= len(h.Args) || a.SizeArg == k) {
				t.Errorf("%d, %s: argument %d has its size in argument %d", h.Number, h.Name, k, a.SizeArg)
			}
		}
		if h.C == "" {
			continue
		}
		m := declared.FindStringSubmatch(h.C)
		if m == nil {
			t.Errorf("%d: declared as %q", h.Number, h.C)
			continue
		}
		if got := strings.TrimPrefix(m[3], "bpf_"); got != h.Name && h.Number != Device {
			t.Errorf("%d: declared as %s, is called %s", h.Number, m[3], h.Name)
		}
		params := 0
		if m[4] != "void" {
			params = len(strings.Split(m[4], ","))
		}
		if variadic := strings.HasSuffix(m[4], "..."); !variadic && params != len(h.Args) {
			t.Errorf("%d, %s: declared with %d parameters, takes %d", h.Number, h.Name, params, len(h.Args))
		}
		if void := strings.HasPrefix(h.C, "void ("); void != (h.Ret == bpf.RetVoid) {
			t.Errorf("%d, %s: declared as %q", h.Number, h.Name, h.C)
		}
	}
}

// TestPlaces: what rows say of places is found, and the verifier gets what the place has.
func TestPlaces(t *testing.T) {
	if h := Of(FuncArg); h.Env(Kernel).Args[1].Kind != bpf.ArgConst || h.Env(Host).Args[1].Kind != bpf.ArgScalar {
		t.Errorf("%+v", h)
	}
	if h := Of(Popc).Env(Kernel); h.Uniform == nil || !h.Uniform(nil) || h.Max != 64 {
		t.Errorf("%+v", h)
	}
	if h := Of(599); h != nil {
		t.Errorf("there is %+v", h)
	}
	for _, h := range In(Process) {
		if h.In&Process == 0 {
			t.Errorf("%+v", h)
		}
	}
	for w, want := range map[Where]string{Kernel: "kernels", Host: "host", Stop: "host, at stops", All: "kernels, host", 0: "nowhere"} {
		if w.String() != want {
			t.Errorf("%d: %s, want %s", w, w, want)
		}
	}
}
