package probe

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/code"
	"nvtrace/fatbin"
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/host"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/script"
	"nvtrace/ptrace"
	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/proc"
	"nvtrace/traces/glob"
)

// ListVerb lists what a probe of the language can be at.
func ListVerb(e *cli.Env, args, command []string) int {
	fs := cli.NewFlagSet(e, "list", "[-v] [KIND:GLOB [FILE...] [-- command]]")
	var asJSON cli.OptString
	asJSON.RegisterJSON(fs)
	verbose := fs.Bool("v", false, "list the parameters of functions, too; for code, the files that it is in")
	names, status, ok := cli.ParseAnywhere(fs, args)
	if !ok {
		return status
	}
	if len(names) == 0 {
		return listKinds(e, &asJSON)
	}
	kind, pattern, ok := strings.Cut(names[0], ":")
	if !ok || pattern == "" {
		pattern = "*"
	}
	files := names[1:]
	if err := e.Inputs(files); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if len(command) > 0 {
		exe, err := exec.LookPath(command[0])
		if err != nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
		files = append(files, exe)
	}
	l := &listing{e: e, kind: kind, glob: pattern, verbose: *verbose}
	var err error
	switch kind {
	case "kernel", "kernret", "mem", "block", "launch":
		err = l.kernels(files)
	case "api", "apiret", "alloc", "free":
		l.functions()
	case "ioctl":
		l.ioctls()
	case "uprobe", "uretprobe":
		err = l.symbols(files)
	case "usdt":
		err = l.markers(files)
	case "syscall", "sysret":
		l.systemCalls()
	case "insn":
		err = errors.New("which opcodes a program executes shows nvtrace tool opcodes -- command; those in PTX nvtrace ptx sites FILE")
	case "func", "funcret":
		err = errors.New("device functions are in PTX only, and not listed yet; nvtrace ptx sites FILE shows them")
	default:
		var kinds []string
		for _, k := range script.Kinds {
			kinds = append(kinds, k.Name)
		}
		for _, k := range script.HostKinds {
			kinds = append(kinds, k.Name)
		}
		for _, k := range script.CallKinds {
			kinds = append(kinds, k.Name)
		}
		if kind == names[0] { // there is no colon
			if st, err := os.Stat(kind); err == nil && st.Mode().IsRegular() {
				return e.Fail(cli.ExitUsage, "%s is no probe; what kernels are in a file: nvtrace list 'kernel:*' %s", kind, cli.ShellText([]string{kind}))
			}
			for _, lib := range api.Libraries() {
				for f := range api.Functions(lib) {
					if glob.Match(kind, f.Name) {
						return e.Fail(cli.ExitUsage, "%s is no probe; calls of functions are: nvtrace list 'api:%s'", kind, kind)
					}
				}
			}
		}
		return e.Fail(cli.ExitUsage, "there is no probe %s%s; nvtrace list lists them", kind, ioctl.Suggest(kind, slices.Values(kinds)))
	}
	if err == nil && len(l.lines) == 0 {
		err = l.nothing()
	}
	return e.Answer(&asJSON, err, map[string][]string{"probes": l.probes()}, func() error {
		_, err := io.WriteString(e.Stdout, strings.Join(append(l.lines, ""), "\n"))
		return err
	})
}

// probes are the lines without what stands behind the probes.
func (l *listing) probes() []string {
	list := make([]string, len(l.lines))
	for i, line := range l.lines {
		list[i], _, _ = strings.Cut(line, "  ")
	}
	return list
}

// kindDoc is a kind of probes.
type kindDoc struct {
	Kind  string `json:"kind"`
	Of    string `json:"of"` // what stands behind the colon
	About string `json:"about"`
}

// listKinds lists the kinds of probes.
func listKinds(e *cli.Env, asJSON *cli.OptString) int {
	var b strings.Builder
	width := 0
	for _, k := range script.CallKinds {
		width = max(width, len(k.Name)+1+len(k.Of))
	}
	add := func(name, doc string) {
		head := fmt.Sprintf("%-*s ", width, name)
		for _, line := range cli.Wrap(doc, cli.HelpWidth-len(head)) {
			b.WriteString(head + line + "\n")
			head = strings.Repeat(" ", len(head))
		}
	}
	var kinds []kindDoc
	for _, k := range script.Kinds {
		of, _, _ := strings.Cut(k.Of, " ")
		kinds = append(kinds, kindDoc{k.Name, of, k.Doc})
	}
	for _, k := range script.HostKinds {
		kinds = append(kinds, kindDoc{k.Name, k.Of, k.Doc})
	}
	for _, k := range script.CallKinds {
		kinds = append(kinds, kindDoc{k.Name, k.Of, k.Doc})
	}
	for _, k := range kinds {
		add(k.Kind+":"+k.Of, k.About)
	}
	b.WriteString("\nnvtrace list 'kernel:*' -- ./app lists the kernels in a program and its libraries;\nnvtrace list 'api:cuMem*', 'ioctl:*', 'syscall:*' and 'uprobe:libc:*' what there is\nto probe on the host.\n")
	return e.Answer(asJSON, nil, map[string][]kindDoc{"kinds": kinds}, func() error {
		_, err := io.WriteString(e.Stdout, b.String())
		return err
	})
}

// Doc says of a kind of probes what runs there, and with which values.
func Doc(kind string) (doc string, ok bool) {
	head := ""
	look := func(name, of, doc string) {
		if name == kind {
			head = name + ":" + of + ": " + doc
		}
	}
	for _, k := range slices.Concat(script.Kinds, script.CallKinds) {
		look(k.Name, k.Of, k.Doc)
	}
	for _, k := range script.HostKinds {
		look(k.Name, k.Of, k.Doc)
	}
	if head == "" {
		return "", false
	}
	lines := append(cli.Wrap(head, cli.HelpWidth), cli.Wrap("values: "+strings.Join(script.ValuesAt(kind), " "), cli.HelpWidth)...)
	return strings.Join(append(lines, "nvtrace help probes says what these are, nvtrace list what there is to probe."), "\n") + "\n", true
}

// listing is what was found.
type listing struct {
	e          *cli.Env
	kind, glob string
	verbose    bool
	lines      []string
	looked     int // files
	all        []string
}

// nothing says that nothing matches.
func (l *listing) nothing() error {
	if near := ioctl.Suggest(l.glob, slices.Values(l.all)); near != "" {
		return fmt.Errorf("nothing matches %s:%s%s", l.kind, l.glob, near)
	}
	if l.looked > 0 && len(l.all) == 0 {
		return fmt.Errorf("no GPU code in %s; what a program loads or compiles while it runs shows nvtrace --modules -o run.nvt -- command, and then nvtrace modules -v run.nvt",
			cli.CountOf(l.looked, "file"))
	}
	return fmt.Errorf("nothing matches %s:%s", l.kind, l.glob)
}

// functions lists those of CUDA's libraries.
func (l *listing) functions() {
	for _, lib := range api.Libraries() {
		for f := range api.Functions(lib) {
			module := api.Module{Library: lib}
			if l.kind == "alloc" && !api.Allocates(module, f.Name) || l.kind == "free" && !api.Frees(module, f.Name) {
				continue
			}
			l.all = append(l.all, f.Name)
			if !glob.Match(l.glob, f.Name) {
				continue
			}
			line := l.kind + ":" + f.Name
			if l.verbose {
				var params []string
				for i := range f.Params {
					params = append(params, "args."+f.Params[i].Name)
				}
				line = fmt.Sprintf("%s (%s) %s", line, lib, strings.Join(params, " "))
			}
			l.lines = append(l.lines, line)
		}
	}
}

// MostSyscalls is more than any system call's number: the kernel's tables end at half of it.
const MostSyscalls = 1024

// systemCalls lists those of the machine.
func (l *listing) systemCalls() {
	for nr := range uint64(MostSyscalls) {
		name := ptrace.NativeSyscallName(nr)
		if name == "" {
			continue
		}
		l.all = append(l.all, name)
		if glob.Match(l.glob, name) {
			l.lines = append(l.lines, l.kind+":"+name)
		}
	}
	slices.Sort(l.lines)
}

// libraryFile finds the file that a probe at a function calls by a path, or by the last part
// of one, with or without what follows ".so" there: near is what it may be, or be linked with.
func libraryFile(name string, near []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	called := func(path string) bool {
		base := filepath.Base(path)
		stem, _, _ := strings.Cut(base, ".so")
		return base == name || stem == name
	}
	for _, n := range near {
		if called(n) {
			return n, nil
		}
	}
	for _, folder := range append(filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")), libraryFolders...) {
		entries, err := os.ReadDir(folder)
		if err != nil {
			continue // most machines have some of them
		}
		for _, entry := range entries {
			path := filepath.Join(folder, entry.Name())
			if !called(path) {
				continue
			}
			file, _, err := proc.OpenRegular(path)
			if err != nil {
				continue
			}
			_, err = dso.Read(file) // libc.so is a text for the linker
			_ = file.Close()
			if err == nil {
				return path, nil
			}
		}
	}
	if _, err := os.Stat(name); err == nil {
		return name, nil
	}
	return "", fmt.Errorf("no library %s in the folders of libraries; name its file: /path/of/%s.so", name, name)
}

// symbols lists the functions of a file: "FILE:GLOB".
func (l *listing) symbols(near []string) error {
	name, pattern, ok := strings.Cut(l.glob, ":") // names of C++ have more of them
	if !ok {
		return fmt.Errorf("%s wants a file and a function: nvtrace list '%s:/path/of/file:GLOB'", l.kind, l.kind)
	}
	f, done, err := openLinked(name, near)
	if err != nil {
		return err
	}
	defer done()
	path, err := libraryFile(name, near)
	if err != nil {
		return err
	}
	static, err := f.SymbolsOf(path, "")
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	dynamic, err := f.DynamicSymbols()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	seen := make(map[string]bool)
	for _, s := range append(static, dynamic...) {
		if !s.Function() || seen[s.Name] {
			continue
		}
		seen[s.Name] = true
		plain := fatbin.Demangle(s.Name)
		l.all = append(l.all, plain)
		point := object.HostPoint{Func: pattern}
		if !point.Matches(s.Name) {
			continue
		}
		line := fmt.Sprintf("%s:%s:%s", l.kind, name, s.Name)
		if plain != s.Name {
			line += "  " + plain
		}
		l.lines = append(l.lines, line)
	}
	l.glob = pattern
	slices.Sort(l.lines)
	return nil
}

// openLinked opens a file that a probe names, which is near it or in the folders of libraries.
func openLinked(name string, near []string) (f *dso.File, done func(), err error) {
	path, err := libraryFile(name, near)
	if err != nil {
		return nil, nil, err
	}
	file, _, err := proc.OpenRegular(path)
	if err != nil {
		return nil, nil, err
	}
	if f, err = dso.Read(file); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	return f, func() { _ = file.Close() }, nil // it was only read
}

// markers lists the USDT probes of a file: "FILE:PROVIDER:NAME", or parts of that.
func (l *listing) markers(near []string) error {
	words := strings.Split(l.glob, ":")
	if words[0] == "" || words[0] == "*" || len(words) > 3 {
		return errors.New("usdt wants a file: nvtrace list 'usdt:/path/of/file:PROVIDER:NAME'")
	}
	f, done, err := openLinked(words[0], near)
	if err != nil {
		return err
	}
	defer done()
	found, err := host.Markers(f)
	if err != nil {
		return fmt.Errorf("%s: %w", words[0], err)
	}
	provider, name := "*", "*"
	switch len(words) {
	case 2:
		name = words[1]
	case 3:
		provider, name = words[1], words[2]
	}
	if provider == "" {
		provider = "*"
	}
	for _, m := range found {
		l.all = append(l.all, m.Name)
		if !glob.Match(provider, m.Provider) || !glob.Match(name, m.Name) {
			continue
		}
		line := fmt.Sprintf("usdt:%s:%s:%s", words[0], m.Provider, m.Name)
		if l.verbose && len(m.Args) > 0 {
			line += "  " + strings.Join(m.Args, " ")
		}
		l.lines = append(l.lines, line)
	}
	if len(found) == 0 {
		return fmt.Errorf("%s was compiled without USDT probes (sys/sdt.h)", words[0])
	}
	l.glob = name
	slices.Sort(l.lines)
	l.lines = slices.Compact(l.lines)
	return nil
}

// ioctls lists requests, control commands and classes.
func (l *listing) ioctls() {
	seen := make(map[string]bool)
	for _, key := range []string{"ioctl", "control", "class"} {
		for name := range ioctl.Names(key) {
			if name == "" || seen[name] {
				continue
			}
			seen[name] = true
			l.all = append(l.all, name)
			if glob.Match(l.glob, name) {
				l.lines = append(l.lines, "ioctl:"+name)
			}
		}
	}
}

// kernels lists those in files, and in the libraries that they are linked with.
func (l *listing) kernels(files []string) error {
	if len(files) == 0 {
		return fmt.Errorf("%s wants a program: nvtrace list '%s:%s' FILE..., or -- command", l.kind, l.kind, l.glob)
	}
	point := object.Point{Kind: object.KindEntry, Kernel: l.glob}
	seen := make(map[string]bool)
	done := make(map[string]bool)
	for len(files) > 0 {
		name := files[0]
		files = files[1:]
		if done[name] {
			continue
		}
		done[name] = true
		l.looked++
		kernels, err := kernelsIn(l.e, name)
		if err != nil {
			return err
		}
		files = append(files, LinkedWith(name)...)
		for _, k := range kernels {
			if seen[k] {
				continue
			}
			seen[k] = true
			l.all = append(l.all, fatbin.Demangle(k))
			if !point.Matches(k, false) {
				continue
			}
			line := l.kind + ":" + fatbin.Demangle(k)
			if l.verbose {
				line += "  " + name
			}
			l.lines = append(l.lines, line)
		}
	}
	slices.Sort(l.lines)
	return nil
}

// kernelsIn returns the mangled names of the kernels in a file: of its fat binaries, and of
// PTX that it holds as text.
func kernelsIn(e *cli.Env, name string) ([]string, error) {
	r, err := code.ListFile(e, name, &code.FatbinFlags{Opts: fatbin.Options{Everywhere: true}}, code.EntryFilter{AnyKind: true, AnyArch: true}, true)
	if err != nil && r == nil {
		return nil, err
	}
	var list []string
	for i := range r.Containers {
		for j := range r.Containers[i].Entries {
			for k := range r.Containers[i].Entries[j].Kernels {
				list = append(list, r.Containers[i].Entries[j].Kernels[k].Name)
			}
		}
	}
	if len(r.Containers) > 0 {
		return list, err
	}
	texts, err := ptxTexts(name)
	for i := range texts {
		list = append(list, texts[i].kernels...)
	}
	return list, err
}

// maxTextFile bounds the files in which PTX is looked for as text.
const maxTextFile = 64 << 20

// ptxText is PTX that a file holds as text, as a string of its program.
type ptxText struct {
	offset  int64
	text    []byte
	kernels []string
}

// ptxTexts returns the PTX with kernels that a file holds as text.
func ptxTexts(name string) (list []ptxText, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Size() > maxTextFile {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxTextFile))
	if err != nil {
		return nil, err
	}
	for at := 0; ; {
		i := bytes.Index(b[at:], []byte(".version "))
		if i < 0 {
			return list, nil
		}
		at += i
		text, _, _ := bytes.Cut(b[at:], []byte{0})
		if kernels := fatbin.ScanPTX(text).Entries; len(kernels) > 0 {
			list = append(list, ptxText{int64(at), text, kernels})
		}
		at += len(text)
	}
}

// libraryFolders are where the loader looks for libraries on most systems.
var libraryFolders = []string{
	"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
	"/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib", "/usr/local/cuda/lib64",
}

// LinkedWith returns the libraries that a file is linked with, as the loader would find
// them, but those of the system that hold no GPU code.
func LinkedWith(name string) (list []string) {
	file, _, err := proc.OpenRegular(name)
	if err != nil {
		return nil
	}
	defer file.Close()
	f, err := dso.Read(file)
	if err != nil {
		return nil // no program: PTX, a fat binary
	}
	var folders []string
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		for _, p := range f.Strings(tag) {
			p = strings.NewReplacer("$ORIGIN", filepath.Dir(name), "${ORIGIN}", filepath.Dir(name)).Replace(p)
			folders = append(folders, filepath.SplitList(p)...)
		}
	}
	folders = append(append(folders, filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))...), libraryFolders...)
	for _, lib := range f.Strings(elf.DT_NEEDED) {
		if stem, _, _ := strings.Cut(lib, ".so"); slices.Contains(withoutCode, stem) {
			continue
		}
		for _, folder := range folders {
			if st, err := os.Stat(filepath.Join(folder, lib)); err == nil && st.Mode().IsRegular() {
				list = append(list, filepath.Join(folder, lib))
				break
			}
		}
	}
	return list
}

// withoutCode are libraries that most programs have and that hold no GPU code.
var withoutCode = []string{"libc", "libm", "libdl", "libpthread", "librt", "libgcc_s", "libstdc++", "ld-linux-x86-64", "libcuda"}
