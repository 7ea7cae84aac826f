package verbs

import (
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
)

// documented is a verb with its flags.
type documented struct {
	verb
	flags []*flag.Flag
}

// documentedVerbs asks each verb for its flags.
func documentedVerbs() []documented {
	var list []documented
	for _, v := range verbs() {
		d := documented{verb: v}
		e := &cli.Env{Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }}
		e.Help = func(fs *flag.FlagSet) {
			fs.VisitAll(func(f *flag.Flag) {
				if !slices.ContainsFunc(d.flags, func(o *flag.Flag) bool { return o.Name == f.Name }) {
					d.flags = append(d.flags, f)
				}
			})
		}
		v.run(e, []string{"-h"}, nil)
		for _, word := range subVerbs(v) {
			v.run(e, []string{word, "-h"}, nil)
		}
		list = append(list, d)
	}
	return list
}

// subVerbs returns the words that a verb begins with: of "ls|extract FILE...", ls and
// extract.
func subVerbs(v verb) []string {
	first, _, _ := strings.Cut(v.args, " ")
	if strings.ContainsAny(first, "[]-.") || first == "" {
		return nil
	}
	return strings.Split(first, "|")
}

// flagName returns a flag as it is typed.
func flagName(f *flag.Flag) string {
	if len(f.Name) == 1 {
		return "-" + f.Name
	}
	return "--" + f.Name
}

// roff makes text safe for a manual page.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`).Replace(s)
	if strings.HasPrefix(s, ".") {
		s = `\&` + s
	}
	return s
}

// writeMan writes the manual page nvtrace(1).
func writeMan(out io.Writer) error {
	var b strings.Builder
	b.WriteString(`.TH NVTRACE 1 "" "nvtrace" "User Commands"
.SH NAME
nvtrace \- show what a process does with an NVIDIA GPU
.SH SYNOPSIS
.nf
.B nvtrace [flags] \-\- command [args]
.B nvtrace VERB [flags] [arguments]
.fi
.SH DESCRIPTION
.B nvtrace
runs a program and shows its calls on the NVIDIA driver, the calls of CUDA's libraries,
the code that is loaded on the GPU, and what eBPF programs find out that it runs inside
the CUDA kernels. Without a verb it runs a program; the words behind \-\- are the program
and its arguments.
.SH VERBS
`)
	list := documentedVerbs()
	for _, d := range list {
		fmt.Fprintf(&b, ".SS nvtrace %s %s\n%s.\n", roff(d.name), roff(d.args), roff(strings.ToUpper(d.short[:1])+d.short[1:]))
		for _, f := range d.flags {
			value, text := flag.UnquoteUsage(f)
			fmt.Fprintf(&b, ".TP\n.B %s", roff(flagName(f)))
			switch {
			case value == "":
			case cli.TakesValue(f):
				fmt.Fprintf(&b, " \\fI%s\\fR", roff(strings.ToUpper(value)))
			default:
				fmt.Fprintf(&b, "\\fR[=\\fI%s\\fR]", roff(strings.ToUpper(value)))
			}
			fmt.Fprintf(&b, "\n%s\n", roff(text))
		}
	}
	b.WriteString(`.SH EXIT STATUS
That of the program that was run. 125: nvtrace failed; 126: the program can't be
executed; 127: it was not found. Verbs that run no program: 0; 1 where a comparison or a
check found something; 2 for a bad command line; 125 for the rest.
.SH EXAMPLES
.nf
nvtrace \-\- ./app                      \fRsummary of driver calls at exit\fP
nvtrace \-\-ioctl\-log \-\- ./app          \fRone decoded line per call\fP
nvtrace \-\-attach probe.o \-\- ./app      \fReBPF programs in its kernels\fP
nvtrace \-o run.nvt \-\- ./app            \fRrecord, then:\fP nvtrace report run.nvt
.fi
.SH SEE ALSO
.BR strace (1),
.BR perf (1),
.BR bpftrace (8)
`)
	_, err := io.WriteString(out, b.String())
	return err
}
