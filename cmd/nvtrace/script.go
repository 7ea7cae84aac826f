package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"nvtrace/nvattach"
	"nvtrace/nvattach/script"
)

// scriptFlags are a program in nvtrace's own language for probes.
type scriptFlags struct {
	texts   stringList // of -e
	file    string     // of --script
	program *script.Program
	began   []script.Shown
}

func (f *scriptFlags) register(fs *flag.FlagSet) {
	fs.StringVar(&f.file, "script", "", "run the program for probes in `FILE`, as -e 'PROGRAM' does")
}

// given reports whether there is a program.
func (f *scriptFlags) given() bool { return len(f.texts) > 0 || f.file != "" }

// isProgram reports whether the value of -e is a program: filters have no braces.
func isProgram(s string) bool { return strings.ContainsRune(s, '{') }

// maxScript bounds what is read of a file.
const maxScript = 1 << 20

// compile compiles the program, if there is one, and returns what its maps begin with.
func (f *scriptFlags) compile(e *env) ([]nvattach.Setting, error) {
	name, text := "-e", strings.Join(f.texts, "\n")
	switch {
	case !f.given():
		return nil, nil
	case f.file != "":
		e.reads(f.file)
		in, err := os.Open(f.file)
		if err != nil {
			return nil, err
		}
		defer in.Close()
		b, err := io.ReadAll(io.LimitReader(in, maxScript))
		if err != nil {
			return nil, err
		}
		name, text = f.file, string(b)+"\n"+text
	}
	p, err := script.Compile(name, text)
	if err != nil {
		return nil, err
	}
	if p.Object == nil {
		return nil, fmt.Errorf("%s: there is no probe in a kernel, such as kernel:*", name)
	}
	began, settings, err := p.Begin()
	f.program, f.began = p, began
	return settings, err
}

// object returns what goes into kernels, nil if there is nothing.
func (f *scriptFlags) object() *nvattach.Object {
	if f.program == nil {
		return nil
	}
	return f.program.Object
}

// planned tells the program where its probes are.
func (f *scriptFlags) planned(plan *nvattach.Plan) {
	if f.program != nil {
		f.program.Sites = plan.Sites
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
