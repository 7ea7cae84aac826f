package script

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"nvtrace/nvattach"
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/object"
)

// tables are the parts of the README that the language's tables are.
func readmeTables() map[string]string {
	var kinds, calls, callBuiltins, hostKinds, builtins, hostBuiltins, functions strings.Builder
	hostKinds.WriteString("| probe | runs at |\n|---|---|\n")
	kinds.WriteString("| probe | runs at |\n|---|---|\n")
	for i := range Kinds {
		fmt.Fprintf(&kinds, "| `%s:%s` | %s |\n", Kinds[i].Name, strings.ReplaceAll(Kinds[i].Of, " or ", "` or `"), Kinds[i].Doc)
	}
	for i := range HostKinds {
		fmt.Fprintf(&hostKinds, "| `%s:%s` | %s |\n", HostKinds[i].Name, HostKinds[i].Of, HostKinds[i].Doc)
	}
	calls.WriteString("| probe | runs at |\n|---|---|\n")
	for i := range CallKinds {
		fmt.Fprintf(&calls, "| `%s:%s` | %s |\n", CallKinds[i].Name, CallKinds[i].Of, CallKinds[i].Doc)
	}
	callBuiltins.WriteString("| built-in | is |\n|---|---|\n")
	for i := range CallBuiltins {
		fmt.Fprintf(&callBuiltins, "| `%s` | %s |\n", CallBuiltins[i].Name, CallBuiltins[i].Doc)
	}
	callBuiltins.WriteString("| `arg0` to `arg5` | the arguments in registers, at uprobe and syscall; at usdt arg0 to arg11, where the probe says |\n")
	hostBuiltins.WriteString("| built-in | where | is |\n|---|---|---|\n")
	for i := range HostBuiltins {
		b, where := &HostBuiltins[i], "everywhere"
		if b.at != nil {
			where = strings.Join(b.at, ", ")
		}
		fmt.Fprintf(&hostBuiltins, "| `%s` | %s | %s |\n", b.Name, where, b.Doc)
	}
	hostBuiltins.WriteString("| `args.NAME` | api, apiret | the function's parameter of that name; at apiret of what the function writes, what it wrote |\n")
	hostBuiltins.WriteString("| `arg0` to `arg5` | api, launch | the arguments in registers |\n")
	builtins.WriteString("| built-in | where | is |\n|---|---|---|\n")
	for i := range Builtins {
		b := &Builtins[i]
		if b.Doc == "" {
			continue
		}
		where := "everywhere"
		if b.at != nil {
			var list []string
			for j := range Kinds {
				if b.there(&Kinds[j]) {
					list = append(list, Kinds[j].Name)
				}
			}
			where = strings.Join(list, ", ")
		}
		fmt.Fprintf(&builtins, "| `%s` | %s | %s |\n", b.Name, where, b.Doc)
	}
	builtins.WriteString("| `arg0`, `arg1` … | everywhere | the kernel's parameters, up to 8 bytes of each |\n")
	functions.WriteString("| function | where | does |\n|---|---|---|\n")
	for i := range Functions {
		f := &Functions[i]
		where := "everywhere"
		switch {
		case f.hostOnly:
			where = "END, host"
		case f.bytes > 0:
			where = "in kernels, at functions and system calls"
		case f.helper != 0 && f.helper != helper.Popc:
			where = "in kernels"
		case f.agg != aggNone:
			where = "`@ = `"
		}
		fmt.Fprintf(&functions, "| `%s` | %s | %s |\n", strings.ReplaceAll(f.Args, "), ", ")`, `"), where, f.Doc)
	}
	return map[string]string{"kinds": kinds.String(), "builtins": builtins.String(), "hostkinds": hostKinds.String(), "callkinds": calls.String(), "callbuiltins": callBuiltins.String(), "hostbuiltins": hostBuiltins.String(), "functions": functions.String()}
}

// TestReadme: the README has all that there is in the tables.
func TestReadme(t *testing.T) {
	old, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	now := string(old)
	for name, table := range readmeTables() {
		head, rest, ok1 := strings.Cut(now, "<!-- "+name+" -->\n")
		_, tail, ok2 := strings.Cut(rest, "<!-- end -->")
		if !ok1 || !ok2 {
			t.Fatalf("no table of %s", name)
		}
		now = head + "<!-- " + name + " -->\n" + table + "<!-- end -->" + tail
	}
	if *update {
		if err := os.WriteFile("README.md", []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if now != string(old) {
		t.Error("the tables of README.md are old: go test -update")
	}
}

// clocks are built-ins that no two runs agree on.
var clocks = []string{"nsecs", "cycles", "smid"}

// TestOneLiners runs each program of the README in addOne. What it shows is what the
// list of what happens in that kernel, which is written down in happenings, comes to. Of
// programs that ask for the time or the multiprocessor, the numbers of a map are added up.
func TestOneLiners(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	n, empty := 0, 0
	for line := range strings.Lines(string(readme)) {
		text, ok := strings.CutPrefix(line, "    nvtrace -e '")
		text, _, whole := strings.Cut(text, "' -- ./app")
		if !ok || strings.Contains(text, "gemm") {
			continue
		}
		n++
		p, err := Compile("-e", text)
		if err != nil || !whole {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if p.Object == nil || strings.Contains(text, "uprobe:") || strings.Contains(text, "syscall:") { // see TestEvents, TestSimScripts
			continue
		}
		if _, err := nvattach.NewPlan([]*object.Object{p.Object}, &nvattach.PlanOptions{Strict: true}); err != nil {
			t.Errorf("--strict: %v", err)
		}
		w := launch(t, p, nil)
		tables, lines := w.tables(t, p)
		in, want := p.interpret(w.buf.Base)
		got := strings.Join(lines, "") + shownOf(p.Show(tables, true))
		if slices.ContainsFunc(clocks, func(c string) bool { return strings.Contains(text, c) }) {
			s := newStore(p)
			s.load(tables)
			got, want = s.totals(), in.s.totals()
		}
		if got != want {
			t.Errorf("%s\nin the kernel:\n%s\nwant:\n%s", text, got, want)
		}
		if want == "" {
			empty++
			t.Logf("shows nothing: %s", text)
		}
	}
	if n < 20 || empty > 2 {
		t.Errorf("%d programs, %d of which show nothing", n, empty)
	}
}

// totals adds up how often something came into each map, or its numbers.
func (s *store) totals() string {
	var b strings.Builder
	for _, m := range s.p.maps {
		sum := int64(0)
		for _, e := range s.tables[m.name].entries {
			switch m.agg {
			case aggAvg, aggStats:
				sum += e.count
			default:
				sum += s.tables[m.name].shown(e)
			}
		}
		fmt.Fprintf(&b, "%s %d\n", m.name, sum)
	}
	return b.String()
}
