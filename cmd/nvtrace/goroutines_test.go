package main

import (
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestGoFunctions: entries, arguments, returns and results of Go's functions are exact, whichever
// threads goroutines run on, and however often their stacks grow.
func TestGoFunctions(t *testing.T) {
	dir := t.TempDir()
	nvtrace, bin := filepath.Join(dir, "nvtrace"), filepath.Join(dir, "goroutines")
	buildNvtrace(t, nvtrace)
	for _, flags := range [][]string{nil, {"-ldflags=-s -w"}, {"-gcflags=-N -l", "-buildmode=pie"}} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			args := append(append([]string{"build"}, flags...), "-o", bin, "./testdata/goroutines")
			if b, err := exec.Command("go", args...).CombinedOutput(); err != nil {
				t.Fatalf("go build: %v\n%s", err, b)
			}
			goFunctions(t, nvtrace, bin)
		})
	}
}

// goFunctions compares what is counted of testdata/goroutines with what it does.
func goFunctions(t *testing.T, nvtrace, bin string) {
	t.Helper()
	alone, err := exec.Command(bin).CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(nvtrace, "-e", `
		uprobe:goroutines:main.blocks { @in["blocks"] = count(); @sum["blocks a"] = sum(arg0); @sum["blocks b"] = sum(arg1) }
		uretprobe:goroutines:main.blocks { @out["blocks"] = count(); @sum["blocks"] = sum(retval) }
		uprobe:goroutines:main.grows { @in["grows"] = count() }
		uretprobe:goroutines:main.grows { @out["grows"] = count(); @sum["grows"] = sum(retval) }
		uprobe:goroutines:main.deep { @in["deep"] = count(); @sum["deep n"] = sum(arg0) }
		uretprobe:goroutines:main.deep { @out["deep"] = count(); @sum["deep"] = sum(retval) }
		uprobe:goroutines:main.nine { @in["nine"] = count(); @sum["nine"] = sum(arg0 + arg1 * 10 + arg2 * 100 + arg3 * 1000 + arg4 * 10000 + arg5 * 100000) }
		uprobe:goroutines:main.leaf { @in["leaf"] = count() }
		uprobe:goroutines:main.spins { @in["spins"] = count() }
		uretprobe:goroutines:main.spins { @out["spins"] = count() }
		uprobe:goroutines:main.square.area { @sum["area n"] = sum(arg0 * 1000 + arg1) }
		uretprobe:goroutines:main.recovers { @out["recovers"] = count(); @sum["recovers"] = sum(retval) }
		uprobe:goroutines:runtime.memmove { @never = sum(arg0) }`, "--", bin).CombinedOutput()
	if err != nil || !strings.Contains(string(out), string(alone)) {
		t.Fatalf("%v, alone it prints %q\n%s", err, alone, out)
	}
	if want := "no probe at runtime.memmove in " + bin + ": the function is written in assembly code"; !strings.Contains(string(out), want) {
		t.Errorf("it does not say %q:\n%s", want, out)
	}
	got := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^(@\w+)\["?([^"\]]+)"?\]: +(-?\d+)`).FindAllStringSubmatch(string(out), -1) {
		got[m[1]+" "+m[2]], _ = strconv.Atoi(m[3])
	}
	want := map[string]int{
		"@in blocks": 400, "@sum blocks a": 3800, "@sum blocks b": 3800, "@out blocks": 400, "@sum blocks": 7600,
		"@in grows": 20, "@out grows": 20, "@sum grows": 190, "@in deep": 9020, "@out deep": 9020, "@sum deep n": 2854500, "@sum deep": 2854500,
		"@in nine": 20, "@sum nine": 10864390, "@in leaf": 20, "@in spins": 20, "@out spins": 20,
		"@sum area n": 190040, "@out recovers": 20, "@sum recovers": -10,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got  %v\nwant %v\n%s", got, want, out)
	}
}
