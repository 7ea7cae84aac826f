package verbs

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/probe"
	"nvtrace/cmd/nvtrace/internal/run"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/script"
	"nvtrace/ptrace/proc"
	"nvtrace/rm"
)

// completeWord is the hidden verb that completions of shells call: its words are those of the command line, the
// last being typed. It prints what that can become, a line each, with a description behind a tab.
const completeWord = "complete"

// Lines that are no words: what else can stand there.
const (
	completeFiles   = ":files"
	completeCommand = ":command"
)

// A candidate is what a word can become.
type candidate struct{ word, about string }

// flagValues are the values that flags can have, by the flags' names.
var flagValues = map[string][]string{
	"color": {"auto", "always", "never"}, "fast": {"auto", "off"}, "seccomp": {"auto", "off"},
	"gpu-times": {"events", "tracker", "probe", "auto", "off"}, "overflow": {"wait", "drop"},
	"orphans": {"wait", "kill", "detach", "auto"}, "on-tracer-death": {"kill", "live"},
	"interpose": {"auto", "off", "only"}, "modules": {"hash", "refs"}, "stat": {"csv"}, "maps": {"text", "json"},
	"start-on": {"cudaProfilerStart", "NVTX:"}, "stacks": {"alloc", "free", "sync", "launch", "failed"},
	"completion": slices.Sorted(maps.Keys(completions)), "kind": {"ptx", "cubin", "lto-ir"},
	"sim": run.Simulated(), "sim-probes": {"simulator", "driver"},
}

// formats are the values of --format, by verbs.
var formats = map[string][]string{
	"export": view.ExportFormats(), "allowlist": {"text", "json", "seccomp", "nvproxy"},
}

// pidVerbs take processes.
var pidVerbs = []string{"ps", "where", "sample", "top", "stat", "pushbuffer", "dump", "maps"}

// completeVerb prints what the last word of a command line can become.
func completeVerb(e *cli.Env, words []string) int {
	shell := ""
	if len(words) > 1 && words[0] == "--shell" {
		shell, words = words[1], words[2:]
	}
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	if len(words) == 0 {
		words = []string{""}
	}
	cut := ""
	if shell == "bash" {
		words, cut = joinEquals(words)
	}
	var b strings.Builder
	for _, c := range complete(words) {
		word := strings.TrimPrefix(c.word, cut)
		if c.about != "" && !strings.HasPrefix(word, ":") {
			word += "\t" + c.about
		}
		b.WriteString(word + "\n")
	}
	if _, err := io.WriteString(e.Stdout, b.String()); err != nil {
		return cli.ExitFailed
	}
	return cli.ExitOK
}

// joinEquals joins what bash takes apart at "=", and returns what of the last word it leaves out of its answer.
func joinEquals(words []string) (joined []string, cut string) {
	for i := 0; i < len(words); i++ {
		last := len(joined) - 1
		if words[i] != "=" || last < 0 || !strings.HasPrefix(joined[last], "-") {
			joined = append(joined, words[i])
			continue
		}
		joined[last] += "="
		cut = joined[last]
		if i++; i < len(words) {
			joined[last] += words[i]
		}
		if i < len(words)-1 {
			cut = ""
		}
	}
	if len(joined) > 0 && !strings.HasPrefix(joined[len(joined)-1], cut) {
		cut = ""
	}
	return joined, cut
}

// complete returns what the last of some words can become.
func complete(words []string) (list []candidate) {
	before, word := words[:len(words)-1], words[len(words)-1]
	if slices.Contains(before, "--") {
		what := completeFiles
		if before[len(before)-1] == "--" {
			what = completeCommand
		}
		return []candidate{{word: what}}
	}
	verb, rest := "run", before
	if len(before) > 0 && !strings.HasPrefix(before[0], "-") {
		verb, rest = before[0], before[1:]
	}
	flags := flagsOf(verb, rest)
	find := func(typed string) *flag.Flag {
		name := strings.TrimPrefix(strings.TrimPrefix(typed, "-"), "-")
		i := slices.IndexFunc(flags, func(f *flag.Flag) bool { return f.Name == name })
		if i < 0 || name == typed {
			return nil
		}
		return flags[i]
	}
	if typed, _, joined := strings.Cut(word, "="); joined {
		if f := find(typed); f != nil {
			return matching(valuesOf(verb, f.Name), word, typed+"=")
		}
	}
	if len(before) > 0 {
		if f := find(before[len(before)-1]); f != nil && cli.TakesValue(f) {
			return matching(valuesOf(verb, f.Name), word, "")
		}
	}
	if strings.HasPrefix(word, "-") {
		for _, f := range flags {
			_, text := flag.UnquoteUsage(f)
			text, _, _ = strings.Cut(text, ";")
			list = append(list, candidate{flagName(f), text})
		}
		if len(before) == 0 {
			list = append(list, candidate{"--version", "print the version"}, candidate{"--help", "say how nvtrace is used"})
		}
		return matching(list, word, "")
	}
	if len(before) == 0 {
		for _, v := range verbs() {
			list = append(list, candidate{v.name, v.short})
		}
		return matching(append(list, candidate{"help", "explain a verb, a topic or a tool"}), word, "")
	}
	return matching(wordsOf(verb, rest), word, "")
}

// matching keeps the candidates that begin with a word, and puts what is typed already before them.
func matching(list []candidate, word, before string) (fit []candidate) {
	for _, c := range list {
		if c.word == completeFiles || c.word == completeCommand {
			fit = append(fit, c)
		} else if c.word = before + c.word; strings.HasPrefix(c.word, word) {
			fit = append(fit, c)
		}
	}
	return fit
}

// flagsOf returns a verb's flags; those of tool, stat, annotate and top are also those of a run.
func flagsOf(verb string, rest []string) (flags []*flag.Flag) {
	for _, d := range documentedVerbs() {
		switch {
		case d.name == verb:
			flags = append(flags, d.flags...)
		case d.name == "run" && (verb == "tool" && len(rest) > 0 || verb == "stat" || verb == "annotate" || verb == "top"):
			flags = append(flags, d.flags...)
		}
	}
	return flags
}

// valuesOf returns what the value of a flag can be.
func valuesOf(verb, name string) (list []candidate) {
	choices := flagValues[name]
	switch name {
	case "format":
		choices = formats[verb]
	case "tool":
		return tools()
	case "p":
		return processes()
	case "driver":
		for _, v := range rm.Versions() {
			choices = append(choices, v.String())
		}
	case "api":
		choices = []string{"all", "none", "count"}
		for _, l := range api.Libraries() {
			choices = append(choices, l.String())
		}
	}
	for _, c := range choices {
		list = append(list, candidate{word: c})
	}
	if len(list) == 0 {
		return []candidate{{word: completeFiles}}
	}
	return list
}

// wordsOf returns what a word of a verb that is no flag can be.
func wordsOf(verb string, rest []string) (list []candidate) {
	switch verb {
	case "help":
		for _, v := range verbs() {
			list = append(list, candidate{v.name, v.short})
		}
		for _, t := range topics {
			list = append(list, candidate{t.name, t.short})
		}
		return append(list, tools()...)
	case "tool":
		if !slices.ContainsFunc(rest, func(s string) bool { return !strings.HasPrefix(s, "-") }) {
			return tools()
		}
		return parametersOf(rest)
	case "list":
		if len(rest) == 0 {
			for _, k := range slices.Concat(script.Kinds, script.CallKinds) {
				list = append(list, candidate{k.Name + ":", k.Doc})
			}
			for _, k := range script.HostKinds {
				list = append(list, candidate{k.Name + ":", k.Doc})
			}
			return list
		}
	case "run":
		return nil // the command stands behind --
	case "maps":
		if len(rest) > 0 && rest[0] == "pin" {
			for _, word := range []string{"ls", "dump", "set", "rm"} {
				list = append(list, candidate{word: word})
			}
			return list
		}
		list = append(list, candidate{"pin", "maps of probes that outlive runs"})
	}
	for _, v := range verbs() {
		if v.name != verb || len(rest) > 0 {
			continue
		}
		for _, word := range subVerbs(v) {
			if word == strings.ToLower(word) { // else it stands for something, such as PID
				list = append(list, candidate{word: word})
			}
		}
	}
	if len(list) > 0 && verb != "maps" {
		return list
	}
	if slices.Contains(pidVerbs, verb) {
		list = append(list, processes()...)
	}
	return append(list, candidate{word: completeFiles})
}

func tools() (list []candidate) {
	for _, t := range script.Tools() {
		about, _, _ := strings.Cut(t.Doc, ". ")
		list = append(list, candidate{t.Name, about})
	}
	return list
}

// parametersOf returns what the next parameter of a tool can be: of those that have some, a time.
func parametersOf(words []string) (list []candidate) {
	t, err := probe.FindTool(words[0])
	if err != nil || !strings.Contains(t.Source, "$"+strconv.Itoa(len(words))) {
		return nil
	}
	for _, c := range []string{"5s", "20s", "60s"} {
		list = append(list, candidate{c, "after the start"})
	}
	return list
}

// processes returns those that have a GPU open.
func processes() (list []candidate) {
	pids, _ := cli.GpuProcesses()
	for _, pid := range pids {
		list = append(list, candidate{strconv.Itoa(pid), cli.Printable(proc.Comm(pid))})
	}
	return list
}

// completions are what shells load.
var completions = map[string]string{
	"bash": `# bash completion of nvtrace, made by: nvtrace version --completion bash
_nvtrace() {
	local line cur=${COMP_WORDS[COMP_CWORD]}
	[[ $cur == = ]] && cur=
	COMPREPLY=()
	while IFS= read -r line; do
		case $line in
		:files) while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$cur") ;;
		:command) while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -c -f -- "$cur") ;;
		*) COMPREPLY+=("${line%%$'\t'*}") ;;
		esac
	done < <("${COMP_WORDS[0]}" complete --shell bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
	[[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *: ]] && compopt -o nospace 2>/dev/null
	return 0
}
complete -o filenames -F _nvtrace nvtrace
`,
	"zsh": `#compdef nvtrace
# zsh completion of nvtrace, made by: nvtrace version --completion zsh
_nvtrace() {
	local line
	local -a found
	for line in "${(@f)$("${words[1]}" complete --shell zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
		case $line in
		'') ;;
		:files) _files ;;
		:command) _command_names -e; _files ;;
		*$'\t'*) found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
		*) found+=("${line//:/\\:}") ;;
		esac
	done
	(( $#found )) && _describe nvtrace found
}
compdef _nvtrace nvtrace
`,
	"fish": `# fish completion of nvtrace, made by: nvtrace version --completion fish
function __nvtrace_complete
	set -l words (commandline -opc)
	set -l typed (commandline -ct)
	for line in ($words[1] complete --shell fish -- $words[2..-1] "$typed" 2>/dev/null)
		switch $line
			case :files
				__fish_complete_path "$typed"
			case :command
				__fish_complete_command
			case '*'
				echo $line
		end
	end
end
complete -c nvtrace -f -a '(__nvtrace_complete)'
`,
}

// writeCompletion writes the completion of a shell.
func writeCompletion(out io.Writer, shell string) error {
	text, ok := completions[shell]
	if !ok {
		return fmt.Errorf("no completion for %q; want bash, zsh or fish", shell)
	}
	_, err := io.WriteString(out, text)
	return err
}
