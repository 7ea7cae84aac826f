package verbs

import (
	"fmt"
	"strings"

	"nvtrace/nvattach"
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/script"
)

// whatToType is what people come with, and what to type for it.
const whatToType = `
What do you want to know?
  does it work on this machine?   nvtrace doctor
  my job is slow: where?          nvtrace stat -- ./app, nvtrace top -p PID,
                                  nvtrace tool synccost -- ./app
  which kernels, how long?        nvtrace tool kernels -- ./app
  why is a kernel slow?           nvtrace tool coalesce -- ./app; divergence,
                                  bankconflict, imbalance, occupancy, hotlines
  it leaks, or runs out of memory nvtrace tool leaks 10s 60s -- ./app,
                                  nvtrace tool oom -- ./app
  it fails                        nvtrace tool failures -- ./app
  it hangs                        nvtrace -p PID --api, nvtrace top -p PID
  what does it load and compile?  nvtrace tool jit -- ./app,
                                  nvtrace --modules -o run.nvt -- ./app
  count something of my own       nvtrace -e 'kernel:* { @[kernel] = count(); }'
                                  -- ./app; nvtrace list, nvtrace help probes
  what changed since last week?   nvtrace diff old.nvt new.nvt
`

// topics are what help explains beside the verbs, as Markdown, of which the site is made.
var topics = []struct {
	name, short string
	text        func() string
}{
	{"probes", "sections, contexts, helpers and maps of eBPF programs in kernels; the language of -e", probesText},
	{"flags", "all verbs with their flags; exit statuses", flagsText},
	{"tools", "the ready-made programs, with their source", toolsText},
}

// sectionDocs say where programs of a kind run.
var sectionDocs = map[object.Kind]string{
	object.KindEntry: "every thread, before the kernel's first instruction",
	object.KindExit:  "every thread, where it leaves the kernel",
	object.KindMem:   "every access to memory; of a load whose value is read, behind it",
	object.KindInsn:  "each instruction whose opcode matches, where its guard holds",
	object.KindBlock: "each basic block, at its start",
}

// probesText is the reference of probes.
func probesText() string {
	var b strings.Builder
	b.WriteString("# Reference of probes\n\nThis page lists what probes in C and in one line can use. `nvtrace help probes` prints it.\n\n## Sections of eBPF programs\n\n| section | runs at |\n|---|---|\n")
	for _, k := range nvattach.Kinds() {
		of := "KERNEL"
		if k == object.KindInsn {
			of = "KERNEL:OPCODE"
		}
		fmt.Fprintf(&b, "| `cuda.%s/%s` | %s |\n", k, of, sectionDocs[k])
	}
	b.WriteString("\nKERNEL and OPCODE are globs; `func:NAME` is a device function. Sections of programs on the host are in `nvtrace_host.bpf.h`.\n\n## Contexts\n\n" +
		"A program is given the address of its context. Fields cost nothing unless they are read.\n")
	writeContexts(&b)
	b.WriteString("\n## Helpers\n\nThe headers declare them: `nvtrace attach --header` prints the one for kernels. A declaration is a result, a name, and arguments.\n\n| helper | number | in | what it does |\n|---|---|---|---|\n")
	for _, h := range helper.In(helper.All) {
		fmt.Fprintf(&b, "| `%s` | %d | %s | %s |\n", prototype(h), h.Number, h.In, strings.ReplaceAll(h.Doc, "|", "\\|"))
	}
	b.WriteString("\n## Maps\n\nA CPU of a per-CPU map is a multiprocessor in kernels.\n\n| type | number | in | what it is |\n|---|---|---|---|\n")
	for _, t := range append(nvattach.MapTypes(), nvattach.HostMapTypes()...) {
		in := "kernels, host"
		switch d := (&object.MapDef{Type: t}); {
		case d.HostOnly():
			in = "host"
		case t > object.MapRingbuf:
			in = "kernels"
		}
		fmt.Fprintf(&b, "| %s | %d | %s | %s |\n", t, uint32(t), in, mapDocs[t])
	}
	b.WriteString("\n## The language of -e\n\n### Probes in kernels\n\n| probe | runs at |\n|---|---|\n")
	for _, k := range script.Kinds {
		fmt.Fprintf(&b, "| `%s:%s` | %s |\n", k.Name, strings.ReplaceAll(k.Of, " or ", "` or `"), k.Doc)
	}
	b.WriteString("\n### Probes on the host\n\n| probe | runs at |\n|---|---|\n")
	for _, k := range script.HostKinds {
		fmt.Fprintf(&b, "| `%s:%s` | %s |\n", k.Name, k.Of, k.Doc)
	}
	b.WriteString("\n### Probes at functions and system calls\n\n| probe | runs at |\n|---|---|\n")
	for _, k := range script.CallKinds {
		fmt.Fprintf(&b, "| `%s:%s` | %s |\n", k.Name, k.Of, k.Doc)
	}
	b.WriteString("\n### Built-ins in kernels\n\n| built-in | is |\n|---|---|\n")
	for i := range script.Builtins {
		if x := &script.Builtins[i]; x.Doc != "" {
			fmt.Fprintf(&b, "| `%s` | %s |\n", x.Name, x.Doc)
		}
	}
	b.WriteString("\n### Built-ins on the host\n\n| built-in | is |\n|---|---|\n")
	for i := range script.HostBuiltins {
		fmt.Fprintf(&b, "| `%s` | %s |\n", script.HostBuiltins[i].Name, script.HostBuiltins[i].Doc)
	}
	b.WriteString("| `args.NAME` | a function's parameter; at apiret of what it writes, what it wrote |\n\n### Built-ins at functions and system calls\n\n| built-in | is |\n|---|---|\n")
	for i := range script.CallBuiltins {
		fmt.Fprintf(&b, "| `%s` | %s |\n", script.CallBuiltins[i].Name, script.CallBuiltins[i].Doc)
	}
	b.WriteString("| `arg0` to `arg5` | the arguments in registers, where it begins |\n\n### Functions\n\n| function | does |\n|---|---|\n")
	for i := range script.Functions {
		fmt.Fprintf(&b, "| `%s` | %s |\n", script.Functions[i].Args, script.Functions[i].Doc)
	}
	return b.String()
}

// toolsText is the reference of the tools.
func toolsText() string {
	var b strings.Builder
	b.WriteString("# Tools\n\n`nvtrace tool NAME -- ./app` runs one.\n")
	for _, t := range script.Tools() {
		fmt.Fprintf(&b, "\n## %s", toolText(&t))
	}
	return b.String()
}

// toolText says what a tool is for.
func toolText(t *script.Tool) string {
	return fmt.Sprintf("%s\n\n%s.\n\n    nvtrace tool %s -- ./app\n\n```\n%s```\n", t.Name, t.Doc, t.Name, t.Source)
}
