package main

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
	"strings"
	"time"

	"nvtrace/fatbin"
	"nvtrace/ioctl"
	"nvtrace/nvattach"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/script"
	"nvtrace/ptrace/proc"
	"nvtrace/ptrace/unwind"
	"nvtrace/traces"
	"nvtrace/traces/ranks"
)

// scriptFlags are a program in nvtrace's own language for probes.
type scriptFlags struct {
	texts   stringList // of -e
	file    string     // of --script
	tool    string     // of --tool: its name, and behind commas its parameters
	params  stringList // of --param: VALUE, or NAME=VALUE
	program *script.Program
	began   []script.Shown
	// libraries are those whose calls the program has probes at.
	libraries api.Selection
}

func (f *scriptFlags) register(fs *flag.FlagSet) {
	fs.StringVar(&f.file, "script", "", "run the program in `FILE`, as -e 'PROGRAM' does")
	fs.StringVar(&f.tool, "tool", "", "run a program that nvtrace has, `NAME[,PARAMETER...]`; nvtrace tool lists them")
	fs.Var(&f.params, "param", "give the program of -e or --script a parameter: `VALUE` is $1, the next one $2; NAME=VALUE is $NAME (repeated)")
}

// parameters are those of --param.
func (f *scriptFlags) parameters() (p script.Params) {
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

// warn says what of the program is likely to be a mistake.
func (f *scriptFlags) warn(e *env) {
	if f.program == nil {
		return
	}
	for _, w := range f.program.Warnings() {
		e.notice("%s", w)
	}
}

// given reports whether there is a program.
func (f *scriptFlags) given() bool { return len(f.texts) > 0 || f.file != "" || f.tool != "" }

// isProgram reports whether the value of -e is a program: filters have no braces.
func isProgram(s string) bool { return strings.ContainsRune(s, '{') }

// maxScript bounds what is read of a file.
const maxScript = 1 << 20

// load compiles the program, if there is one.
func (f *scriptFlags) load(e *env) (err error) {
	name, text := "-e", strings.Join(f.texts, "\n")
	params := f.parameters()
	switch {
	case !f.given() && len(f.params) > 0:
		return errors.New("--param wants a program: -e 'PROGRAM' or --script FILE")
	case !f.given():
		return nil
	case f.tool != "" && len(f.params) > 0:
		return errors.New("parameters of a tool stand behind its name: nvtrace tool leaks 5s 20s")
	case f.tool != "" && (f.file != "" || len(f.texts) > 0):
		return errors.New("--tool, --script and -e with a program exclude each other")
	case f.tool != "":
		if name, text, params, err = toolProgram(f.tool); err != nil {
			return err
		}
		if f.program, err = script.CompileWith(name, text, params); err != nil {
			if e, ours := errors.AsType[*script.Error](err); ours { // the program is not the user's
				err = fmt.Errorf("%s: %s; nvtrace tool --source %s prints the program", name, e.Reason, name)
			}
			return err
		}
	case f.file != "":
		e.reads(f.file)
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
	if f.program, err = script.CompileWith(name, text, params); err != nil {
		return err
	}
	if f.program.Object == nil && !f.program.OnHost() {
		return fmt.Errorf("%s: there is no probe but BEGIN and END; write for example kernel:* { @[kernel] = count(); }", name)
	}
	if f.libraries, err = wantedLibraries(f.program); err != nil {
		return err
	}
	return checkArgs(f.program)
}

// checkArgs refuses args.NAME where none of the functions has such a parameter.
func checkArgs(p *script.Program) error {
	for _, u := range p.ArgUses() {
		var have []string
		found, isText := false, false
		for _, l := range api.Libraries() {
			for f := range api.Functions(l) {
				if !object.Glob(u.Glob, f.Name) {
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
			hint = "; there are " + someOf(have, 8)
		}
		return u.Error(fmt.Sprintf("%s has no parameter %s%s", u.Glob, u.Name, hint))
	}
	return nil
}

// begin returns what the maps in kernels begin with.
func (f *scriptFlags) begin() (settings []object.Setting, err error) {
	if f.object() != nil {
		f.began, settings, err = f.program.Begin()
	}
	return settings, err
}

// wantedLibraries returns the libraries whose functions a program has probes at.
func wantedLibraries(p *script.Program) (libs api.Selection, err error) {
	if len(p.Wants("launch")) > 0 {
		libs = libs.With(api.Driver)
	}
	for _, glob := range append(p.Wants("api"), p.Wants("apiret")...) {
		var all []string
		found := false
		for _, l := range api.Libraries() {
			for f := range api.Functions(l) {
				all = append(all, f.Name)
				if object.Glob(glob, f.Name) {
					libs, found = libs.With(l), true
				}
			}
		}
		if !found {
			return 0, fmt.Errorf("api:%s: CUDA's libraries have no function of that name%s", glob, ioctl.Suggest(glob, slices.Values(all)))
		}
	}
	for _, kind := range []string{"alloc", "free"} {
		for _, glob := range p.Wants(kind) {
			libs = libs.With(api.Driver)
			if all := memoryFunctions(kind); !slices.ContainsFunc(all, func(name string) bool { return object.Glob(glob, name) }) {
				hint := ioctl.Suggest(glob, slices.Values(all))
				if hint == "" {
					hint = fmt.Sprintf("; nvtrace list '%s:*' lists those there are", kind)
				}
				return 0, fmt.Errorf("%s:%s: there is no such function%s", kind, glob, hint)
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

// object returns what goes into kernels, nil if there is nothing.
func (f *scriptFlags) object() *object.Object {
	if f.program == nil {
		return nil
	}
	return f.program.Object
}

// inKernels returns the program if a part of it runs in kernels.
func (f *scriptFlags) inKernels() *script.Program {
	if f.object() == nil {
		return nil
	}
	return f.program
}

// planned tells the program where its probes are.
func (f *scriptFlags) planned(plan *nvattach.Plan) {
	if f.program != nil {
		f.program.Sites = plan.Sites
	}
}

// named tells the program what functions' addresses are called: "main+12", where a function has
// no symbol "libfoo.so+0x1f30", and in no file "0x7f0012345678".
func (f *scriptFlags) named(place func(pid int, addr uint64, returned bool) unwind.Place) {
	if f.program == nil {
		return
	}
	f.program.Name = func(pid int, addr uint64, returned bool) string {
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

// scriptFile reports whether a file's first line says that nvtrace is to run it.
func scriptFile(name string) bool {
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

// scriptCommand makes of the words that the kernel gives for an executable script,
// "FILE [flags] -- command" or "FILE command", those of a run.
func scriptCommand(words []string) (args, command []string) {
	rest, command, cut := splitArgs(words[1:])
	if !cut {
		rest, command = nil, rest
	}
	return append([]string{"--script", words[0]}, rest...), command
}

// A hostScript runs a program's probes on the host.
type hostScript struct {
	runner                    *script.Runner
	ioctls, calls, rets, runs bool // what there are probes at
	images, memory            bool
	places                    []string // that probes are at
	show                      func(text string)
	shown                     func([]script.Shown) // takes all in place of show; nil: show does
	programs                  map[int32]string     // that processes run
	ranks                     map[int32]int        // of processes, as far as they were looked up; nil: of a recording
	rank                      int                  // of processes of a recording
	stacks                    map[int32]calledFrom // of threads
	last                      int64                // when the latest event was
	came                      time.Time            // when it came here
	name, sub                 []byte
}

// onHost makes the sink run a program's probes on the host; show puts out what they print. of is
// the header of the recording that the events are from, nil: the processes run.
func (s *logSink) onHost(p *script.Program, of *traces.Header, show func(text string)) {
	wants := func(kind string) bool { return len(p.Wants(kind)) > 0 }
	h := &hostScript{ioctls: wants("ioctl"), calls: wants("api"), rets: wants("apiret"), runs: wants("launch"), images: wants("image"), memory: p.OfMemory(), places: p.HostPlaces(), show: show, programs: make(map[int32]string), ranks: make(map[int32]int), rank: ranks.Unknown, stacks: make(map[int32]calledFrom)}
	if of != nil {
		h.ranks = nil
		s.header = heldOf(of.API)
		h.rank = ranks.Of(of.Rank).Rank
	}
	var began []script.Shown
	h.runner, began = p.NewRunner()
	h.put(began)
	s.script = h
	s.traceAPI()
}

func (h *hostScript) put(list []script.Shown) {
	if h.shown != nil {
		h.shown(list)
		return
	}
	for i := range list {
		if i > 0 && list[i].Name != "" {
			h.show("\n")
		}
		h.show(list[i].Text)
	}
}

// event runs the probes on an event that was decoded as c.
func (h *hostScript) event(ev *traces.Event, c *ioctl.Call, d *ioctl.Decoder, a *apiTrace) {
	h.put(h.runner.Tick(ev.Time))
	h.last, h.came = ev.Time, time.Now()
	switch {
	case ev.Kind == traces.KindExec:
		keep(h.programs, ev.PID, path.Base(ev.Path))
		delete(h.ranks, ev.PID)
	case ev.Kind == traces.KindFork && ev.Flags&traces.FlagThread == 0:
		h.ended(ev.Child, ev.Child) // of which the end was not seen
		keep(h.programs, ev.Child, h.programs[ev.PID])
	case ev.Kind == traces.KindExit:
		h.ended(ev.PID, ev.TID)
		return
	}
	x := script.Event{PID: ev.PID, TID: ev.TID, Rank: h.rankOf(ev.PID), Comm: h.programs[ev.PID], Time: ev.Time, Duration: ev.Dur, Ret: ev.Ret}
	switch f := a.current; {
	case ev.Kind == traces.KindIoctl && h.ioctls:
		h.name = c.AppendName(h.name[:0])
		h.sub = c.AppendSub(h.sub[:0], d.ABI(ev.PID))
		x.Kind, x.Name, x.Sub, x.Device = "ioctl", string(h.name), string(h.sub), d.FDName(ev.PID, ev.FD)
		x.Status, x.Failed = c.StatusName(), c.Failed()
		h.put(h.runner.Event(&x))
	case ev.Kind == traces.KindCall && f != nil && (h.calls || h.runs):
		x.Kind, x.Name, x.Library, x.Args = "api", f.Name, f.LibraryName(), f.Args
		x.Arg, x.Text = argsOf(f, ev)
		if h.calls {
			h.put(h.runner.Event(&x))
		}
		if kernel, stream, ok := f.Launch(ev, &a.tracker.Names); ok && h.runs && (f.Module.Library != api.Runtime || f.Alone()) {
			x.Kind, x.Kernel, x.Stream = "launch", kernel, stream
			x.Grid, x.Block = f.Shape(ev)
			h.put(h.runner.Event(&x))
		}
	case ev.Kind == traces.KindImage && ev.Image != nil && h.images:
		x.Kind, x.Name, x.Library = "image", ev.Name, ev.Path
		x.Format, x.Size, x.File = ev.Image.Format, ev.Image.Size, ev.Image.File
		h.put(h.runner.Event(&x))
	case ev.Kind == traces.KindStack && (h.rets || h.memory):
		frames := ev.Stack()
		keep(h.stacks, ev.TID, calledFrom{ev.Name, pythonText(frames), nativeText(frames)})
	case ev.Kind == traces.KindReturn && f != nil && (h.rets || h.memory):
		if from, ok := h.stacks[ev.TID]; ok && from.function == f.Name {
			x.PyStack, x.UStack = from.python, from.native
			delete(h.stacks, ev.TID)
		}
		x.Kind, x.Name, x.Library = "apiret", f.Name, f.LibraryName()
		x.Status, x.Failed = c.Returned.Name, c.Returned.Failed
		x.Arg, x.Text = argsOf(f, ev)
		if h.rets {
			h.put(h.runner.Event(&x))
		}
		if h.memory {
			for _, m := range f.Memory() {
				if x.Kind = "alloc"; m.Freed {
					x.Kind = "free"
				}
				x.Size, x.Addr, x.Pinned = int64(m.Size), m.Addr, m.Host
				h.put(h.runner.Event(&x))
			}
		}
	}
}

// maxKept bounds what is known of threads and processes: a recording may lack their ends.
const maxKept = 1 << 14

// keep notes something of a thread or process, if there is room for it.
func keep[T any](m map[int32]T, id int32, v T) {
	if _, known := m[id]; known || len(m) < maxKept {
		m[id] = v
	}
}

// ended forgets a thread, and its process where that has ended with it: others may get their ids.
func (h *hostScript) ended(pid, tid int32) {
	delete(h.stacks, tid)
	if tid == pid {
		delete(h.programs, pid)
		delete(h.ranks, pid)
	}
}

// calledFrom is where the call that a thread is in was made.
type calledFrom struct{ function, python, native string }

// nativeText is a stack as text, of the innermost calls.
func nativeText(frames []traces.StackFrame) string {
	const most = 16
	var list []string
	for i := range frames[:min(len(frames), most)] {
		switch f := &frames[i]; {
		case f.Language == traces.LanguageNative && f.Func != "":
			list = append(list, fatbin.DemangleShort(f.Func))
		default:
			list = append(list, f.String())
		}
	}
	return strings.Join(list, " < ")
}

// pythonText is what of a stack is Python, as text, of the innermost calls.
func pythonText(frames []traces.StackFrame) string {
	const most = 8
	var list []string
	for _, f := range frames {
		if f.Language == "python" && len(list) < most {
			list = append(list, fmt.Sprintf("%s:%d %s", f.File, f.Line, f.Func))
		}
	}
	return strings.Join(list, " < ")
}

// stacksAt returns the patterns of functions whose calls are to be recorded with their stacks.
func (f *scriptFlags) stacksAt() []string {
	if f.program == nil {
		return nil
	}
	return f.program.StacksAt()
}

// native reports whether these stacks are to have functions of machine code.
func (f *scriptFlags) native() bool { return f.program != nil && f.program.NativeStacks() }

// rankOf returns the rank of a process: of one that runs it is in its environment, of a recording
// in its header.
func (h *hostScript) rankOf(pid int32) int {
	if h.ranks == nil {
		return h.rank
	}
	rank, ok := h.ranks[pid]
	if !ok {
		if rank = ranks.Rank(proc.Environ(int(pid))); rank == ranks.Unknown {
			rank = h.rank
		}
		keep(h.ranks, pid, rank)
	}
	return rank
}

// argsOf returns the parameters of a call, as ev has them.
func argsOf(f *api.Frame, ev *traces.Event) (arg func(string) (uint64, bool), text func(string) (string, bool)) {
	return func(name string) (uint64, bool) { return f.Arg(name, ev) }, func(name string) (string, bool) { return f.Text(name, ev) }
}

// tick runs intervals while nothing happens.
func (h *hostScript) tick(now time.Time) {
	if !h.came.IsZero() {
		h.put(h.runner.Tick(h.last + now.Sub(h.came).Nanoseconds()))
	}
}

// finish runs END and shows the maps, and tells if there was nothing that probes are at.
func (h *hostScript) finish(notice func(string)) {
	if h.ranks != nil { // what runs may have been silent for a while
		h.tick(time.Now())
	}
	h.put(h.runner.End())
	if h.runner.Ran() {
		return
	}
	why := []string{"nothing happened that these probes are at: " + someOf(h.places, 4)}
	for _, p := range h.places {
		if kind, name, _ := strings.Cut(p, ":"); kind == "api" || kind == "apiret" || kind == "alloc" || kind == "free" {
			if newest := newestOf(name); newest != "" {
				why = append(why, fmt.Sprintf("programs that say %s in their source call %s, by CUDA's headers: %s:%s*", name, newest, kind, name))
			}
		}
	}
	notice(strings.Join(why, "; "))
}

// newestOf returns the function that programs call which say name, if it is another one:
// cuMemAlloc_v2 of cuMemAlloc.
func newestOf(name string) (newest string) {
	for _, l := range api.Libraries() {
		for f := range api.Functions(l) {
			if v, ok := strings.CutPrefix(f.Name, name+"_v"); ok && len(v) == 1 && f.Name > newest {
				newest = f.Name
			}
		}
	}
	return newest
}
