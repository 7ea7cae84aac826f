// Command mklib builds the three libraries that package sim preloads into
// programs: the stubs for the names in lib/*.names, around lib/sim.c. It needs
// gcc. Run it in nvattach/sim:
//
//	go run ./internal/mklib          # gzipped, for go:embed, in lib; if the sources have changed
//	go run ./internal/mklib -raw DIR # as they are
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"nvtrace/internal/gen/built"
)

// A library is one of the files: its names, its soname, its number on the wire
// and the version node of its symbols, "" for none.
type library struct {
	names, soname string
	id            int
	node          string
}

func list() []library {
	return []library{
		{"cuda.names", "libcuda.so.1", 0, ""},
		{"cudart12.names", "libcudart.so.12", 1, "libcudart.so.12"},
		{"cudart13.names", "libcudart.so.13", 2, "libcudart.so.13"},
	}
}

// local are the entries that sim.c does itself, by its function's name.
func local() map[string]string {
	return map[string]string{"__cudaPushCallConfiguration": "nvsim_push", "__cudaPopCallConfiguration": "nvsim_pop"}
}

// text marks the index of an entry that returns a string. sim.c has the same.
const text = 1 << 16

// texts are these entries.
func texts() map[string]bool {
	return map[string]bool{"cudaGetErrorName": true, "cudaGetErrorString": true}
}

func main() {
	raw := flag.String("raw", "", "leave the libraries as they are, without gzip and stamp, in `DIR`")
	flag.Parse()
	if err := run(*raw); err != nil {
		fmt.Fprintln(os.Stderr, "mklib:", err)
		os.Exit(1)
	}
}

func run(raw string) error {
	if raw != "" {
		return libraries(func(soname string, b []byte) error {
			return os.WriteFile(filepath.Join(raw, soname), b, 0o644)
		})
	}
	sources := []string{"lib/*.c", "lib/*.S", "lib/*.names", "internal/mklib/main.go"}
	return built.Make("lib/zstamp.txt", sources, []string{"lib/*.gz"}, func() error {
		return libraries(func(soname string, b []byte) error {
			z, err := built.Gzip(b)
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join("lib", soname+".gz"), z, 0o644)
		})
	})
}

// libraries builds each library and gives it to store.
func libraries(store func(soname string, b []byte) error) error {
	tmp, err := os.MkdirTemp("", "mklib")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	for _, l := range list() {
		if err := build(&l, "lib", tmp); err != nil {
			return fmt.Errorf("%s: %w", l.soname, err)
		}
		b, err := os.ReadFile(filepath.Join(tmp, l.soname))
		if err != nil {
			return err
		}
		if err := store(l.soname, b); err != nil {
			return err
		}
	}
	return nil
}

// build makes dir/soname.
func build(l *library, src, dir string) error {
	text, err := os.ReadFile(filepath.Join(src, l.names))
	if err != nil {
		return err
	}
	stubs := filepath.Join(dir, "stubs.S")
	script := filepath.Join(dir, "exports.map")
	if err := os.WriteFile(stubs, assembly(l, strings.Fields(string(text))), 0o644); err != nil {
		return err
	}
	exports := "{ global: cu*; __cuda*; nvtrace_sim_stubs; nvtrace_sim_used; local: *; };\n"
	if err := os.WriteFile(script, []byte(strings.TrimSpace(l.node+" "+exports)+"\n"), 0o644); err != nil {
		return err
	}
	cmd := exec.Command("gcc",
		"-O2", "-fPIC", "-shared", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-fvisibility=hidden",
		"-fno-tree-loop-distribute-patterns", "-ftls-model=initial-exec", "-fcf-protection=branch", "-fno-asynchronous-unwind-tables",
		"-mno-avx", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror", "-Wa,--noexecstack",
		"-Wl,-soname,"+l.soname, "-Wl,--version-script,"+script, "-Wl,-z,now", "-Wl,-z,nodelete", "-Wl,-z,relro", "-Wl,--build-id=none", "-Wl,--hash-style=both", "-s",
		"-o", filepath.Join(dir, l.soname), filepath.Join(src, "sim.c"), filepath.Join(src, "common.S"), stubs)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// assembly writes the stubs, 16 bytes each. Their first instructions are such
// that a hook of the entry can move them elsewhere.
func assembly(l *library, names []string) []byte {
	var b bytes.Buffer
	b.WriteString("\t.text\n\t.balign 16\n\t.globl nvsim_stubs\n\t.hidden nvsim_stubs\nnvsim_stubs:\n")
	if l.id == 0 {
		b.WriteString("\t.globl nvtrace_sim_stubs\n\t.type nvtrace_sim_stubs, @function\nnvtrace_sim_stubs:\n")
	}
	for i, n := range names {
		target := "nvsim_common"
		if t, ok := local()[n]; ok {
			target = t
		}
		if texts()[n] {
			i |= text
		}
		fmt.Fprintf(&b, "\t.globl %s\n\t.type %s, @function\n%s:\n\tendbr64\n\tmov $%d, %%eax\n\tjmp %s\n\t.balign 16, 0xcc\n\t.size %s, 14\n", n, n, n, i, target, n)
	}
	if l.id == 0 {
		b.WriteString("\t.bss\n\t.balign 4\n\t.globl nvtrace_sim_used\n\t.type nvtrace_sim_used, @object\n\t.size nvtrace_sim_used, 4\nnvtrace_sim_used:\n\t.zero 4\n")
	}
	fmt.Fprintf(&b, "\t.section .rodata\n\t.balign 4\n\t.globl nvsim_lib\n\t.hidden nvsim_lib\nnvsim_lib:\n\t.long %d\n\t.size nvsim_lib, 4\n\t.section .note.GNU-stack,\"\",@progbits\n", l.id)
	return b.Bytes()
}
