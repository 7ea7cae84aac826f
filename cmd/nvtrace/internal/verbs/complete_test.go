package verbs

import (
	"flag"
	"slices"
	"strings"
	"testing"

	"nvtrace/nvattach/sim"
)

// TestComplete: what words can become, by what stands before them.
func TestComplete(t *testing.T) {
	for _, c := range []struct {
		line string // words by spaces; the last is being typed
		want string // all, or with … some of them
	}{
		{"rep", "report replay"},
		{"help pro", "probes"},
		{"help synccos", "synccost"},
		{"tool leak", "leaks"},
		{"tool leaks --sim-g", "--sim-gpus"},
		{"tool leaks 2", "20s"},
		{"tool leaks 5s 6", "60s"},
		{"tool leaks 5s 20s ", ""},
		{"tool kernels 5", ""},
		{"stat --re", "--require --repeat"},
		{"stat --cs", "--csv"},
		{"--ioctl-", "--ioctl-log"},
		{"--color n", "never"},
		{"--color=a", "--color=auto --color=always"},
		{"--gpu-times=tr", "--gpu-times=tracker"},
		{"--sim=h2", "--sim=h200"},
		{"--tool sync", "synccost"},
		{"--api=cub", "--api=cublas --api=cublasLt"},
		{"run --on-tracer-death li", "live"},
		{"export --format p", "perfetto pprof parquet"},
		{"allowlist --format n", "nvproxy"},
		{"report --driver 580.14", "…580.142"},
		{"report run", ":files"},
		{"report --html x", ":files"},
		{"fatbin ex", "extract"},
		{"fatbin extract x", ":files"},
		{"sass d", "dis"},
		{"maps pin d", "dump"},
		{"list uret", "uretprobe:"},
		{"version --completion f", "fish"},
		{"-- py", ":command"},
		{"stat -- python tr", ":files"},
		{"x", ""},
	} {
		var got []string
		for _, c := range complete(strings.Split(c.line, " ")) {
			got = append(got, c.word)
		}
		want := strings.Fields(strings.TrimPrefix(c.want, "…"))
		same := slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want)))
		if strings.HasPrefix(c.want, "…") {
			same = slices.Contains(got, want[0])
		}
		if !same {
			t.Errorf("%s: %q, want %q", c.line, got, c.want)
		}
	}
}

// TestFlagValues: values that are offered are those of the help, and of flags that there are.
func TestFlagValues(t *testing.T) {
	usage := make(map[string]string)
	for _, d := range documentedVerbs() {
		for _, f := range d.flags {
			_, text := flag.UnquoteUsage(f)
			usage[f.Name] += text + " " + d.name + "\n"
		}
	}
	for name, values := range flagValues {
		for _, v := range values {
			if !strings.Contains(usage[name], v) {
				t.Errorf("the help of --%s says nothing of %s:\n%s", name, v, usage[name])
			}
		}
	}
	for verb, values := range formats {
		for _, v := range values {
			if !strings.Contains(usage["format"], v) {
				t.Errorf("the help of --format says nothing of %s, which %s is said to have", v, verb)
			}
		}
	}
	for _, v := range flagValues["sim"] {
		if _, err := sim.FindGPU(v); err != nil {
			t.Error(err)
		}
	}
}

// TestJoinEquals: bash takes words apart at "=".
func TestJoinEquals(t *testing.T) {
	for _, c := range []struct{ words, want, cut string }{
		{"--sim = h2", "--sim=h2", "--sim="},
		{"--sim =", "--sim=", "--sim="},
		{"--sim = h200 --co", "--sim=h200 --co", ""},
		{"a = b", "a = b", ""},
	} {
		got, cut := joinEquals(strings.Fields(c.words))
		if strings.Join(got, " ") != c.want || cut != c.cut {
			t.Errorf("%s: %q, %q", c.words, got, cut)
		}
	}
}
