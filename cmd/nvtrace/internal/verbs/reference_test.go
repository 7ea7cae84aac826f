package verbs

import (
	"strings"
	"testing"

	"nvtrace/nvattach"
	"nvtrace/nvattach/proof"
)

// TestReference: nothing of what programs can use lacks a meaning, and C has all fields of contexts.
func TestReference(t *testing.T) {
	for _, m := range append(nvattach.MapTypes(), nvattach.HostMapTypes()...) {
		if mapDocs[m] == "" {
			t.Errorf("nothing is said of maps of type %s", m)
		}
	}
	all := contextFields()
	for _, k := range nvattach.Kinds() {
		known := make(map[string]bool)
		for _, name := range []string{"nvtrace_thread", "nvtrace_" + k.String()} {
			for _, f := range all[name] {
				if known[f.name] = true; f.doc == "" && f.ctype != "struct nvtrace_thread" {
					t.Errorf("%s: nothing is said of %s", name, f.name)
				}
				if f.ctype == "struct nvtrace_dim" {
					known[f.name+".x"], known[f.name+".y"], known[f.name+".z"] = true, true, true
				}
			}
		}
		for _, f := range proof.ContextFields(k) {
			if !known[f.Name] {
				t.Errorf("the header has no field %s of cuda.%s", f.Name, k)
			}
		}
	}
	// All of it, and each row has all of its cells.
	text := probesText() + flagsText()
	for _, want := range []string{"| `ctx->t.block`, each `.x`, `.y`, `.z` | struct nvtrace_dim | the thread's block |\n", "| `ctx->kind` | nvtrace_access_kind | NVTRACE_LOAD (1), ", "| `long bpf_map_delete_elem(void *map, const void *key)` | 3 | kernels, host |", "| hash | 1 | kernels, host |", "| queue | 22 | host |", "| `launch:KERNEL` |", "| 125 | ", "\n## fleet\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the reference lacks %s", want)
		}
	}
	for _, d := range documentedVerbs() {
		for _, f := range d.flags {
			if !strings.Contains(text, "| `"+flagName(f)) || f.Usage == "" {
				t.Errorf("nothing is said of %s %s", d.name, flagName(f))
			}
		}
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "|") && strings.Contains(line, "|  |") {
			t.Errorf("a row without a cell: %s", line)
		}
	}
}
