package verbs

import (
	"flag"
	"fmt"
	"regexp"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/nvattach"
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/object"
)

// mapDocs say what maps are.
var mapDocs = map[object.MapType]string{
	object.MapHash:           "values by key",
	object.MapArray:          "values by index, all there from the start, with zeros",
	object.MapPerfEventArray: "records for the host, by `bpf_perf_event_output`",
	object.MapPerCPUHash:     "a hash, with a value for each CPU",
	object.MapPerCPUArray:    "an array, with a value for each CPU",
	object.MapLRUHash:        "a hash that drops what was used longest ago when it is full",
	object.MapLRUPerCPUHash:  "the same, with a value for each CPU",
	object.MapRingbuf:        "records for the host; shown by the type of its values",

	object.MapGPUHash:        "bpftime's name of a hash",
	object.MapGPUThreadArray: "an array with a value for each thread of the grid",
	object.MapGPUArray:       "bpftime's name of an array",
	object.MapGPUSharedArray: "the same",
	object.MapGPUThreadHost:  "bpftime's name of an array with a value for each thread",
	object.MapGPUArrayHost:   "bpftime's name of an array",
	object.MapGPURingbuf:     "bpftime's name of a ring buffer",
	object.MapBlockArray:     "an array of each block of threads, in shared memory; not shown",

	object.MapStackTrace:  "stacks by their number, by `bpf_get_stackid`",
	object.MapLPMTrie:     "values by the longest prefix that matches",
	object.MapArrayOfMaps: "maps by index",
	object.MapQueue:       "values, first in, first out",
	object.MapStack:       "values, last in, first out",
	object.MapBloomFilter: "whether a value may have been put in",
}

// pointerRE is the name in a declaration of a pointer to a function.
var pointerRE = regexp.MustCompile(`\(\*(\w+)\)`)

// prototype is a helper's declaration as authors read it: result, name, arguments.
func prototype(h *helper.Helper) string {
	if h.C == "" { // of bpftime, whose header declares it
		return h.Name + "(" + h.Takes() + ")"
	}
	return pointerRE.ReplaceAllString(h.C, "$1")
}

// contextField is a field of a context, as C has it.
type contextField struct{ ctype, name, doc string }

var (
	structRE = regexp.MustCompile(`(?ms)^struct (nvtrace_\w+) \{\n(.*?)^\};`)
	enumRE   = regexp.MustCompile(`(?ms)^enum (nvtrace_\w+) \{\n(.*?)^\};`)
	memberRE = regexp.MustCompile(`(\w+) = (\d+)`)
	// commentLine begins a further line of a comment.
	commentLine = regexp.MustCompile(`\n\s*\*`)
	fieldRE     = regexp.MustCompile(`(?s)(/\*(.*?)\*/\s*)?\b(struct \w+|enum \w+|__u\d+)\s+([\w, ]+);([ \t]*/\*(.*?)\*/)?`)
)

// enumText lists the values of an enumeration in the header for C.
func enumText(name string) string {
	var list []string
	for _, m := range enumRE.FindAllStringSubmatch(nvattach.Header, -1) {
		if m[1] == name {
			for _, v := range memberRE.FindAllStringSubmatch(m[2], -1) {
				list = append(list, v[1]+" ("+v[2]+")")
			}
		}
	}
	return strings.Join(list, ", ")
}

// contextFields takes the structures out of the header for C.
func contextFields() map[string][]contextField {
	all, docs := make(map[string][]contextField), make(map[string]string)
	for _, m := range structRE.FindAllStringSubmatch(nvattach.Header, -1) {
		for _, f := range fieldRE.FindAllStringSubmatch(m[2], -1) {
			doc := strings.Join(strings.Fields(commentLine.ReplaceAllString(f[6]+f[2], " ")), " ")
			for name := range strings.SplitSeq(f[4], ",") {
				name = strings.TrimSpace(name)
				if doc != "" && docs[name] == "" {
					docs[name] = doc
				}
				all[m[1]] = append(all[m[1]], contextField{f[3], name, doc})
			}
		}
	}
	for _, fields := range all { // what one structure says of a field holds in the others
		for i := range fields {
			if fields[i].doc == "" {
				fields[i].doc = docs[fields[i].name]
			}
			if e, ok := strings.CutPrefix(fields[i].ctype, "enum "); ok {
				fields[i].doc = enumText(e)
			}
		}
	}
	return all
}

// writeContexts writes the contexts of programs in kernels and at calls of CUDA's libraries.
func writeContexts(b *strings.Builder) {
	all := contextFields()
	write := func(title, name, prefix string) {
		fmt.Fprintf(b, "\n%s\n\n| field | type | meaning |\n|---|---|---|\n", title)
		for _, f := range all[name] {
			if f.ctype == "struct nvtrace_thread" {
				continue
			}
			names := "`ctx->" + prefix + f.name + "`"
			if f.ctype == "struct nvtrace_dim" {
				names += ", each `.x`, `.y`, `.z`"
			}
			fmt.Fprintf(b, "| %s | %s | %s |\n", names, strings.TrimPrefix(f.ctype, "enum "), strings.ReplaceAll(f.doc, "|", "\\|"))
		}
	}
	write("All contexts in kernels begin with a `struct nvtrace_thread t`:", "nvtrace_thread", "t.")
	for _, k := range nvattach.Kinds() {
		name := "nvtrace_" + k.String()
		write(fmt.Sprintf("`cuda.%s`: `struct %s`", k, name), name, "")
	}
	b.WriteString("\nOn the host, `cuda.api` and `cuda.apiret` have a `struct nvtrace_api` with `arg0` to `arg5` of the call's entry and `ret` of its return. " +
		"`uprobe`, `uretprobe` and `usdt` have a `struct pt_regs`, read by `PT_REGS_PARM1` to `PT_REGS_PARM6` and `PT_REGS_RC`. " +
		"`tracepoint/syscalls` and `tracepoint/raw_syscalls` have `struct trace_event_raw_sys_enter` and `_exit`. " +
		"`NVTRACE_CALL`, `BPF_UPROBE` and `BPF_URETPROBE` name the parameters.\n")
}

// statuses are what nvtrace exits with, if not with the program's own status.
var statuses = []struct {
	n    int
	what string
}{
	{cli.ExitOK, "verbs that run no program: all is well"},
	{cli.ExitDiffers, "`diff`, `check`, `abi diff` and others that compare or check: they found something"},
	{cli.ExitUsage, "a bad command line, where no program was to be run"},
	{cli.ExitFailed, "nvtrace failed; with `--require`, a probe was not placed"},
	{cli.ExitNoExec, "the program can't be executed"},
	{cli.ExitNotFound, "the program was not found"},
}

// flagsText is the reference of verbs, their flags, and exit statuses.
func flagsText() string {
	var b strings.Builder
	b.WriteString("# Verbs and flags\n\nThis page lists what `nvtrace VERB -h` prints, for all verbs. `nvtrace` without a verb is `nvtrace run`.\n\n" +
		"## Exit statuses\n\nA traced program's own status is passed on. nvtrace's own are:\n\n| status | meaning |\n|---|---|\n")
	for _, s := range statuses {
		fmt.Fprintf(&b, "| %d | %s |\n", s.n, s.what)
	}
	for _, d := range documentedVerbs() {
		fmt.Fprintf(&b, "\n## %s\n\n`nvtrace %s %s`: %s.\n", d.name, d.name, d.args, d.short)
		if len(d.flags) == 0 {
			continue
		}
		b.WriteString("\n| flag | meaning |\n|---|---|\n")
		for _, f := range d.flags {
			value, text := flag.UnquoteUsage(f)
			name := flagName(f)
			switch {
			case value == "":
			case cli.TakesValue(f):
				name += " " + strings.ToUpper(value)
			default:
				name += "[=" + strings.ToUpper(value) + "]"
			}
			fmt.Fprintf(&b, "| `%s` | %s |\n", name, escapeCell(text))
		}
	}
	return b.String()
}

// escapeCell makes text fit into a cell of a table of Markdown.
func escapeCell(text string) string {
	return strings.NewReplacer("|", `\|`, "*", `\*`, "<", `\<`, "\n", " ").Replace(text)
}
