// Command gen compiles the library if its source has changed. It runs in the package's folder, and
// needs gcc. With -o FILE it writes the library there, and nothing else.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"

	"nvtrace/internal/gen/built"
)

func main() {
	out := flag.String("o", "", "compile to `FILE`, whatever has changed")
	flag.Parse()
	if err := run(*out); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(out string) error {
	if out != "" {
		return compile(out)
	}
	const made = "lib/zlibnvtrace-nvtx_amd64.so"
	return built.Make("lib/zstamp.txt", []string{"lib/*.c", "internal/gen/main.go"}, []string{made}, func() error { return compile(made) })
}

func compile(out string) error {
	cmd := exec.Command("gcc", "-std=gnu11", "-O2", "-g0", "-fPIC", "-shared", "-nostdlib", "-ffreestanding", "-fno-builtin",
		"-fvisibility=hidden", "-fno-stack-protector", "-fno-tree-loop-distribute-patterns", "-mgeneral-regs-only",
		"-fno-ident", "-fcf-protection=none", "-Wall", "-Wextra", "-Werror",
		"-Wl,-soname,libnvtrace-nvtx.so", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,noexecstack", "-Wl,--hash-style=both",
		"-Wl,--build-id=none", "-Wl,-Bsymbolic", "-Wl,-s", "-o", out, "lib/nvtx.c")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("gcc: %w\n%s", err, msg)
	}
	return nil
}
