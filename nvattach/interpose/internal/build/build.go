// Package build makes libnvtrace.so from its sources.
package build

import (
	"fmt"
	"os/exec"
	"path/filepath"
)

// Shim builds the sources in dir into out, with gcc.
//
// Nothing of the C library is linked or named: the file runs on any glibc.
// -mgeneral-regs-only keeps the wrapped calls' vector registers as they are, and
// -fno-builtin the compiler from calling a memcpy that is not there.
func Shim(dir, out string) error {
	args := []string{
		"-std=gnu11", "-O2", "-g0", "-fPIC", "-shared", "-nostdlib", "-ffreestanding", "-fno-builtin",
		"-fvisibility=hidden", "-fno-stack-protector", "-fno-strict-aliasing", "-fno-tree-loop-distribute-patterns",
		"-mgeneral-regs-only", "-ftls-model=initial-exec", "-fno-ident", "-fcf-protection=none",
		"-Wall", "-Wextra", "-Werror",
		"-Wl,-soname,libnvtrace.so", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,noexecstack", "-Wl,--hash-style=both",
		"-Wl,--build-id=none", "-Wl,--eh-frame-hdr", "-Wl,-s", "-o", out,
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.[cS]")) // ascending
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("%s: no sources", dir)
	}
	args = append(args, files...)
	if msg, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("gcc: %w\n%s", err, msg)
	}
	return nil
}
