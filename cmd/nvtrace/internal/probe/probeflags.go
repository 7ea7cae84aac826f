package probe

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/fatbin"
	"nvtrace/ioctl"
	"nvtrace/nvattach"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/script"
	"nvtrace/ptrace"
	"nvtrace/ptrace/unwind"
	"nvtrace/traces/glob"
)

// ScriptFlags are a program in nvtrace's own language for probes.
type ScriptFlags struct {
	Texts   cli.StringList // of -e
	file    string         // of --script
	tool    string         // of --tool: its name, and behind commas its parameters
	params  cli.StringList // of --param: VALUE, or NAME=VALUE
	Program *script.Program
	Began   []script.Shown
	// libraries are those whose calls the program has probes at.
	Libraries api.Selection
}

// Register adds the flags to a verb's.
func (f *ScriptFlags) Register(fs *flag.FlagSet) {
	fs.StringVar(&f.file, "script", "", "run the program in `FILE`, as -e 'PROGRAM' does")
	fs.StringVar(&f.tool, "tool", "", "run a program that nvtrace has, `NAME[,PARAMETER...]`; nvtrace tool lists them")
	fs.Var(&f.params, "param", "give the program of -e or --script a parameter: `VALUE` is $1, the next one $2; NAME=VALUE is $NAME (repeated)")
}

// parameters are those of --param.
func (f *ScriptFlags) parameters() (p script.Params) {
	for _, s := range f.params {
		name, value, named := strings.Cut(s, "=")
		if !named || !parameterName.MatchString(name) {
			p.Positional = append(p.Positional, s)
			continue
		}
		if p.Named == nil {
			p.Named = make(map[string]string)
		}
		p.Named[name] = value
	}
	return p
}

var parameterName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Warn says what of the program is likely to be a mistake.
func (f *ScriptFlags) Warn(e *cli.Env) {
	if f.Program == nil {
		return
	}
	for _, w := range f.Program.Warnings() {
		e.Notice("%s", w)
	}
}

// FromStdin reads the program that --script - says is on stdin, and returns it, and args with it in that place:
// who parses them again can't read stdin again.
func (f *ScriptFlags) FromStdin(e *cli.Env, args []string) ([]string, error) {
	if f.file != "-" {
		return args, nil
	}
	name, err := e.Input("-")
	if err != nil {
		return nil, fmt.Errorf("--script %w", err)
	}
	b, err := os.ReadFile(name)
	switch {
	case err != nil:
		return nil, err
	case !IsProgram(string(b)):
		return nil, errors.New("--script -: there is no program on stdin; write for example kernel:* { @[kernel] = count(); }")
	}
	var list []string
	for i := 0; i < len(args); i++ {
		switch strings.TrimPrefix(strings.TrimPrefix(args[i], "-"), "-") {
		case "script":
			i++
		case "script=-":
		default:
			list = append(list, args[i])
		}
	}
	f.file, f.Texts = "", append(f.Texts, string(b))
	return append(list, "-e", string(b)), nil
}

// Given reports whether there is a program.
func (f *ScriptFlags) Given() bool { return len(f.Texts) > 0 || f.file != "" || f.tool != "" }

// IsProgram reports whether the value of -e is a program: filters have no braces.
func IsProgram(s string) bool { return strings.ContainsRune(s, '{') }

// maxScript bounds what is read of a file.
const maxScript = 1 << 20

// Load compiles the program, if there is one.
func (f *ScriptFlags) Load(e *cli.Env) (err error) {
	name, text := "-e", strings.Join(f.Texts, "\n")
	params := f.parameters()
	switch {
	case !f.Given() && len(f.params) > 0:
		return errors.New("--param wants a program: -e 'PROGRAM' or --script FILE")
	case !f.Given():
		return nil
	case f.tool != "" && len(f.params) > 0:
		return errors.New("parameters of a tool stand behind its name: nvtrace tool leaks 5s 20s")
	case f.tool != "" && (f.file != "" || len(f.Texts) > 0):
		return errors.New("--tool, --script and -e with a program exclude each other")
	case f.tool != "":
		if name, text, params, err = toolProgram(f.tool); err != nil {
			return err
		}
		if f.Program, err = script.CompileWith(name, text, params); err != nil {
			if e, ours := errors.AsType[*script.Error](err); ours { // the program is not the user's
				err = fmt.Errorf("%s: %s; nvtrace tool --source %s prints the program", name, e.Reason, name)
			}
			return err
		}
	case f.file != "":
		if f.file, err = e.Input(f.file); err != nil {
			return err
		}
		e.Reads(f.file)
		in, err := os.Open(f.file)
		if err != nil {
			return err
		}
		defer in.Close()
		b, err := io.ReadAll(io.LimitReader(in, maxScript))
		if err != nil {
			return err
		}
		name, text = f.file, string(b)+"\n"+text
	}
	params.Start = ptrace.Now()
	if f.Program, err = script.CompileWith(name, text, params); err != nil {
		return err
	}
	if f.Program.Object == nil && !f.Program.OnHost() {
		return fmt.Errorf("%s: there is no probe but BEGIN and END; write for example kernel:* { @[kernel] = count(); }", name)
	}
	if f.Libraries, err = wantedLibraries(f.Program); err != nil {
		return err
	}
	return checkArgs(f.Program)
}

// checkArgs refuses args.NAME where none of the functions has such a parameter.
func checkArgs(p *script.Program) error {
	for _, u := range p.ArgUses() {
		var have []string
		found, isText := false, false
		for _, l := range api.Libraries() {
			for f := range api.Functions(l) {
				if !glob.Match(u.Glob, f.Name) {
					continue
				}
				if p := f.Param(u.Name); p != nil {
					found, isText = true, isText || p.IsText()
				}
				for i := range f.Params {
					if !slices.Contains(have, f.Params[i].Name) {
						have = append(have, f.Params[i].Name)
					}
				}
			}
		}
		switch {
		case found && u.Text && !isText:
			return u.Error(fmt.Sprintf("%s of %s points to no text; it is a number: args.%s", u.Name, u.Glob, u.Name))
		case found:
			continue
		}
		slices.Sort(have)
		hint := ioctl.Suggest(u.Name, slices.Values(have))
		if hint == "" && len(have) > 0 {
			hint = "; there are " + cli.SomeOf(have, 8)
		}
		return u.Error(fmt.Sprintf("%s has no parameter %s%s", u.Glob, u.Name, hint))
	}
	return nil
}

// Begin returns what the maps in kernels begin with.
func (f *ScriptFlags) Begin() (settings []object.Setting, err error) {
	if f.Object() != nil {
		f.Began, settings, err = f.Program.Begin()
	}
	return settings, err
}

// wantedLibraries returns the libraries whose functions a program has probes at.
func wantedLibraries(p *script.Program) (libs api.Selection, err error) {
	if len(p.Wants("launch")) > 0 {
		libs = libs.With(api.Driver)
	}
	if p.Ranges() {
		libs = libs.With(api.NVTX)
	}
	for _, pattern := range append(p.Wants("api"), p.Wants("apiret")...) {
		var all []string
		found := false
		for _, l := range api.Libraries() {
			for f := range api.Functions(l) {
				all = append(all, f.Name)
				if glob.Match(pattern, f.Name) {
					libs, found = libs.With(l), true
				}
			}
		}
		if !found {
			return 0, fmt.Errorf("api:%s: CUDA's libraries have no function of that name%s", pattern, ioctl.Suggest(pattern, slices.Values(all)))
		}
	}
	for _, kind := range []string{"alloc", "free"} {
		for _, pattern := range p.Wants(kind) {
			libs = libs.With(api.Driver)
			if all := memoryFunctions(kind); !slices.ContainsFunc(all, func(name string) bool { return glob.Match(pattern, name) }) {
				hint := ioctl.Suggest(pattern, slices.Values(all))
				if hint == "" {
					hint = fmt.Sprintf("; nvtrace list '%s:*' lists those there are", kind)
				}
				return 0, fmt.Errorf("%s:%s: there is no such function%s", kind, pattern, hint)
			}
		}
	}
	return libs, nil
}

// memoryFunctions returns those that probes of a kind are at: alloc, or free.
func memoryFunctions(kind string) (names []string) {
	is := map[string]func(api.Module, string) bool{"alloc": api.Allocates, "free": api.Frees}[kind]
	for _, l := range []api.Library{api.Driver, api.Runtime} {
		for f := range api.Functions(l) {
			if is(api.Module{Library: l}, f.Name) {
				names = append(names, f.Name)
			}
		}
	}
	return names
}

// Object returns what goes into kernels, nil if there is nothing.
func (f *ScriptFlags) Object() *object.Object {
	if f.Program == nil {
		return nil
	}
	return f.Program.Object
}

// InKernels returns the program if a part of it runs in kernels.
func (f *ScriptFlags) InKernels() *script.Program {
	if f.Object() == nil {
		return nil
	}
	return f.Program
}

// Planned tells the program where its probes are.
func (f *ScriptFlags) Planned(plan *nvattach.Plan) {
	if f.Program != nil {
		f.Program.Sites = plan.Sites
	}
}

// Named tells the program what functions' addresses are called: "main+12", where a function has
// no symbol "libfoo.so+0x1f30", and in no file "0x7f0012345678".
func (f *ScriptFlags) Named(place func(pid int, addr uint64, returned bool) unwind.Place) {
	if f.Program == nil {
		return
	}
	f.Program.Name = func(pid int, addr uint64, returned bool) string {
		switch at := place(pid, addr, returned); {
		case at.File == "":
			return fmt.Sprintf("%#x", at.Offset)
		case at.Func == "":
			return fmt.Sprintf("%s+%#x", path.Base(at.File), at.Offset)
		case at.Into == 0:
			return fatbin.DemangleShort(at.Func)
		default:
			return fmt.Sprintf("%s+%d", fatbin.DemangleShort(at.Func), at.Into)
		}
	}
}

// ScriptFile reports whether a file's first line says that nvtrace is to run it.
func ScriptFile(name string) bool {
	st, err := os.Stat(name)
	if err != nil || !st.Mode().IsRegular() {
		return false
	}
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 128)
	n, _ := io.ReadFull(f, head) // a shorter file is one, too
	line, _, _ := bytes.Cut(head[:n], []byte("\n"))
	return bytes.HasPrefix(line, []byte("#!")) && bytes.Contains(line, []byte("nvtrace"))
}

// ScriptCommand makes of the words that the kernel gives for an executable script,
// "FILE [flags] -- command" or "FILE command", those of a run.
func ScriptCommand(words []string) (args, command []string) {
	rest, command, cut := cli.SplitArgs(words[1:])
	if !cut {
		rest, command = nil, rest
	}
	return append([]string{"--script", words[0]}, rest...), command
}

// StacksAt returns the patterns of functions whose calls are to be recorded with their stacks.
func (f *ScriptFlags) StacksAt() []string {
	if f.Program == nil {
		return nil
	}
	return f.Program.StacksAt()
}

// AtIoctls reports whether ioctls are to be recorded with their stacks.
func (f *ScriptFlags) AtIoctls() bool { return f.Program != nil && f.Program.StacksAtIoctls() }

// Native reports whether these stacks are to have functions of machine code.
func (f *ScriptFlags) Native() bool { return f.Program != nil && f.Program.NativeStacks() }

// FindTool returns a program that comes with nvtrace.
func FindTool(name string) (*script.Tool, error) {
	tools := script.Tools()
	var names []string
	for i := range tools {
		if tools[i].Name == name {
			return &tools[i], nil
		}
		names = append(names, tools[i].Name)
	}
	return nil, fmt.Errorf("there is no tool %q%s; nvtrace tool lists them", name, ioctl.Suggest(name, slices.Values(names)))
}

// toolProgram returns the program that a value of --tool names.
func toolProgram(value string) (name, text string, params script.Params, err error) {
	words := strings.Split(value, ",")
	t, err := FindTool(words[0])
	if err != nil {
		return "", "", params, err
	}
	for _, w := range words[1:] {
		n, err := toolParameter(w)
		if err != nil {
			return "", "", params, fmt.Errorf("%s: %w", t.Name, err)
		}
		params.Positional = append(params.Positional, strconv.FormatInt(n, 10))
	}
	return t.Name, t.Source, params, nil
}

// toolParameter reads a time, and returns its nanoseconds.
func toolParameter(s string) (int64, error) {
	if n, err := strconv.ParseInt(s, 0, 64); err == nil {
		if n != 0 {
			return 0, fmt.Errorf("%s is a time: of what? write %ss for seconds", s, s)
		}
		return n, nil
	}
	if d, err := time.ParseDuration(s); err == nil {
		return int64(d), nil
	}
	return 0, fmt.Errorf("%q: a parameter is a time such as 10s", s)
}

// BadParameter returns which of a tool's parameters is the first that is none, and why; -1 if all are.
func BadParameter(parameters []string) (int, error) {
	for i, s := range parameters {
		if _, err := toolParameter(s); err != nil {
			return i, err
		}
	}
	return -1, nil
}
