// Package build makes libnvtrace.so from its sources.
package build

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// sources returns what the shim is made of, ascending by name.
func sources(dir string) ([]string, error) {
	var files []string
	for _, pattern := range []string{"*.c", "*.h", "*.S"} {
		m, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		files = append(files, m...)
	}
	slices.Sort(files)
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: no sources", dir)
	}
	return files, nil
}

// Stamp returns a line for each source of the shim in dir with its hash: the
// built file was made from these.
func Stamp(dir string) (string, error) {
	files, err := sources(dir)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(data), filepath.Base(name))
	}
	return b.String(), nil
}

// Shim builds the sources in dir into out, with gcc.
//
// Nothing of the C library is linked or named: the file runs on any glibc.
// -mgeneral-regs-only keeps the wrapped calls' vector registers as they are, and
// -fno-builtin the compiler from calling a memcpy that is not there.
func Shim(dir, out string) error {
	files, err := sources(dir)
	if err != nil {
		return err
	}
	args := []string{
		"-std=gnu11", "-O2", "-g0", "-fPIC", "-shared", "-nostdlib", "-ffreestanding", "-fno-builtin",
		"-fvisibility=hidden", "-fno-stack-protector", "-fno-strict-aliasing", "-fno-tree-loop-distribute-patterns",
		"-mgeneral-regs-only", "-ftls-model=initial-exec", "-fno-ident", "-fcf-protection=none",
		"-Wall", "-Wextra", "-Werror",
		"-Wl,-soname,libnvtrace.so", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,noexecstack", "-Wl,--hash-style=both",
		"-Wl,--build-id=none", "-Wl,--eh-frame-hdr", "-Wl,-s", "-o", out,
	}
	for _, name := range files {
		if !strings.HasSuffix(name, ".h") {
			args = append(args, name)
		}
	}
	if msg, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("gcc: %w\n%s", err, msg)
	}
	return nil
}
