// Package cprobe is about probes written in C: it has clang compile them, and makes a folder
// to begin one in.
package cprobe

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"nvtrace/nvattach"
)

// ClangVar names the compiler for sources of probes.
const ClangVar = "NVTRACE_CLANG"

// baseFlags are those that make an eBPF object. -mcpu=v3 is known to every clang from 12 on.
var baseFlags = []string{"-g", "-O2", "-target", "bpf", "-mcpu=v3"}

// IsSource reports whether a name is that of a probe's source.
func IsSource(name string) bool { return strings.HasSuffix(name, ".c") }

// headers are what sources can include.
var headers = map[string]string{nvattach.HeaderName: nvattach.Header, nvattach.HostHeaderName: nvattach.HostHeader}

// targetFlags are those of loaders for libbpf: the macro by which bpf_tracing.h tells the
// registers, and the folder of the C library's headers, which clang looks for by its target.
func targetFlags() []string {
	macro, triple := "__TARGET_ARCH_x86", "x86_64-linux-gnu"
	if runtime.GOARCH == "arm64" {
		macro, triple = "__TARGET_ARCH_arm64", "aarch64-linux-gnu"
	}
	flags := []string{"-D" + macro}
	if dir := filepath.Join("/usr/include", triple); isDir(dir) {
		flags = append(flags, "-idirafter", dir)
	}
	return flags
}

func isDir(name string) bool {
	st, err := os.Stat(name)
	return err == nil && st.IsDir()
}

// Compile has clang make an object of a source. nvtrace's headers are in the include path.
// clang "" is the one in PATH; flags stand behind nvtrace's own. What clang warned of is
// returned, too.
func Compile(name, clang string, flags []string) (object []byte, warnings string, err error) {
	if clang == "" {
		clang = "clang"
	}
	path, err := exec.LookPath(clang)
	if err != nil {
		return nil, "", fmt.Errorf("%s: clang is needed to compile it, and was not found (apt-get install clang, or %s=PATH); on another machine: nvtrace attach --init DIR, and make there",
			name, ClangVar)
	}
	dir, err := os.MkdirTemp("", "nvtrace-clang-")
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for header, text := range headers {
		if err := os.WriteFile(filepath.Join(dir, header), []byte(text), 0o600); err != nil {
			return nil, "", err
		}
	}
	out := filepath.Join(dir, "probe.o")
	args := append(append([]string{}, baseFlags...), targetFlags()...)
	args = append(append(args, flags...), "-I", dir, "-c", name, "-o", out)
	cmd := exec.Command(path, args...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	text := func() string { return strings.TrimRight(said.String(), "\n") }
	if err := cmd.Run(); err != nil {
		return nil, "", fmt.Errorf("%s: %s: %w\n%s%s", name, clang, err, text(), hints(said.String()))
	}
	object, err = os.ReadFile(out)
	return object, text(), err
}

// advice is what to do about errors of clang's that say only what can't be, by what is in their text.
var advice = []struct{ said, todo string }{
	{`'__\w*[sd]f\w*' is not supported`, "eBPF has no floating-point numbers: calculate with integers"},
	{`'mem(set|cpy|cmp)' is not supported`, "only a constant size can be set, copied or compared: write a loop up to a constant"},
	{`no member named '(thread|block|grid|block_dim)' in 'struct nvtrace_`, "it is in t: ctx->t.thread.x"},
	{`no member named '\w+' in 'struct nvtrace_`, "nvtrace help probes lists the fields of each context"},
	{`undeclared identifier '(threadIdx|blockIdx|blockDim|gridDim)'`, "they are ctx->t.thread, ctx->t.block, ctx->t.block_dim and ctx->t.grid"},
	{`undeclared identifier 'BPF_MAP_TYPE_`, "maps of other types are for programs on the host: #include \"nvtrace_host.bpf.h\""},
	{`'nvtrace[\w./]*' file not found`, "the headers are nvtrace_gpu.bpf.h and nvtrace_host.bpf.h"},
	{`'vmlinux.h' file not found`, "programs see nothing of Linux: leave it out, and include nvtrace_host.bpf.h"},
	{`BPF stack limit`, "put large variables into a map, or into a global variable with __per_thread"},
	{`implicit declaration of function 'bpf_|undeclared function 'bpf_`, "nvtrace help probes lists the helpers"},
}

// hints says what to do about errors.
func hints(said string) string {
	var b strings.Builder
	for _, a := range advice {
		if regexp.MustCompile(a.said).MatchString(said) {
			b.WriteString("\n" + a.todo)
		}
	}
	return b.String()
}

//go:embed template
var template embed.FS

// Init makes a folder with a probe, what compiles it, and what editors want to know. Nothing
// that is there is overwritten. It returns the names of the files.
func Init(dir string) (files []string, err error) {
	contents := make(map[string]string)
	err = fs.WalkDir(template, "template", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := template.ReadFile(name)
		contents[strings.TrimPrefix(name, "template/")] = string(b)
		files = append(files, strings.TrimPrefix(name, "template/"))
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, name := range []string{nvattach.HeaderName, nvattach.HostHeaderName} {
		file := "include/" + name
		contents[file] = headers[name]
		files = append(files, file)
	}
	for _, name := range files {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return nil, fmt.Errorf("%s is there already; name a new folder", filepath.Join(dir, name))
		}
	}
	for i, name := range files {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), writeNew(file, contents[name])); err != nil {
			return files[:i], err
		}
	}
	return files, nil
}

func writeNew(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
