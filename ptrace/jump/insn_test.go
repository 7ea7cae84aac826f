package jump

import (
	"debug/elf"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"nvtrace/internal/need"
)

// TestDecode compares where instructions end with what objdump says, in libraries full of vector code.
func TestDecode(t *testing.T) {
	need.Tool(t, "objdump", "")
	for _, path := range libraries(t) {
		f, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		text := f.Section(".text")
		code, err := text.Data()
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("objdump", "-d", "-w", "-z", "-j", ".text", path).Output()
		if err != nil {
			t.Fatal(err)
		}
		n, bad := 0, 0
		for line := range strings.Lines(string(out)) {
			f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
			if len(f) < 3 || strings.Contains(f[2], "(bad)") || f[2] == "" || strings.HasPrefix(f[2], ".byte") {
				continue
			}
			addr, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(f[0], ":")), 16, 64)
			if err != nil {
				continue
			}
			size := len(strings.Fields(f[1]))
			// objdump shows prefixes that nothing follows by themselves, and a wait with what follows; where
			// branches have 2 bytes, it is about AMD's processors; and "mov %cr0" is never about memory. From 2.42 on
			// it reads REX2, which APX has: in tables between functions, as no program has it yet.
			raw := code[addr-text.Addr:]
			if rex2(raw) || prefixesOnly(raw[:size]) || raw[0] == 0x9b || strings.HasPrefix(f[2], "jmpw") || raw[0] == 0x0f && raw[1]&^3 == 0x20 {
				continue
			}
			in, ok := decode(raw)
			n++
			if !ok || in.len != size {
				if bad++; bad < 20 {
					t.Errorf("%s: %s: %d bytes, %v", path, strings.TrimSpace(line), in.len, ok)
				}
			}
		}
		t.Logf("%s: %d instructions, %d are told otherwise", path, n, bad)
	}
}

func rex2(code []byte) bool {
	for len(code) > 1 && isPrefix(code[0]) {
		code = code[1:]
	}
	return code[0] == 0xd5
}

func prefixesOnly(code []byte) bool {
	for _, c := range code {
		if !isPrefix(c) {
			return false
		}
	}
	return true
}

// libraries are some of this machine's.
func libraries(t testing.TB) (list []string) {
	t.Helper()
	for _, name := range []string{"libc.so.6", "libm.so.6", "libcrypto.so.3", "libstdc++.so.6"} {
		for _, dir := range []string{"/lib/x86_64-linux-gnu/", "/lib64/", "/usr/lib/"} {
			if _, err := os.Stat(dir + name); err == nil {
				list = append(list, dir+name)
				break
			}
		}
	}
	if len(list) == 0 {
		t.Skip("no libraries for x86-64 here")
	}
	return list
}
