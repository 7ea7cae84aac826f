package cprobe

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/nvattach/object"
)

// TestInit: a folder has all that it takes, is compiled without a warning by make and by
// nvtrace itself, and is not made where something would be overwritten.
func TestInit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "probe")
	files, err := Init(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"probe.bpf.c", "Makefile", "README.md", "compile_flags.txt", "include/nvtrace_gpu.bpf.h", "include/nvtrace_host.bpf.h"} {
		if !slices.Contains(files, want) {
			t.Errorf("there is no %s among %v", want, files)
		}
	}
	if _, err := Init(dir); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("once more: %v", err)
	}
	clang := needClang(t)
	cmd := exec.Command("make", "CFLAGS=-g -O2 -Wall -Werror", "CLANG="+clang)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("make: %v\n%s", err, out)
	} else if o, err := object.Open(filepath.Join(dir, "probe.bpf.o")); err != nil || len(o.Programs) != 1 || len(o.Host) != 1 {
		t.Errorf("%v, %+v", err, o)
	}
	object, warnings, err := Compile(filepath.Join(dir, "probe.bpf.c"), clang, []string{"-Wall"})
	if err != nil || warnings != "" || len(object) == 0 {
		t.Errorf("%v, %q, %d bytes", err, warnings, len(object))
	}
	flags, err := os.ReadFile(filepath.Join(dir, "compile_flags.txt"))
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(clang, append(strings.Fields(string(flags)), "-Werror", "-fsyntax-only", "probe.bpf.c")...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("with the flags for editors: %v\n%s", err, out)
	}
}

// TestCompile: sources find the headers of the system and nvtrace's, flags are passed on, and
// failures say where.
func TestCompile(t *testing.T) {
	if _, _, err := Compile("x.bpf.c", "/nonexistent/clang", nil); err == nil || !strings.Contains(err.Error(), "apt-get install clang") {
		t.Errorf("without clang: %v", err)
	}
	clang := needClang(t)
	file := filepath.Join(t.TempDir(), "x.bpf.c")
	for _, tt := range []struct {
		name, text string
		flags      []string
		err        string
	}{
		{"the host's contexts and helpers", hostSource, nil, ""},
		{"the architecture", "#ifndef __TARGET_ARCH_x86\n#ifndef __TARGET_ARCH_arm64\n#error none\n#endif\n#endif\n", nil, ""},
		{"the C library's headers", "#include <asm/types.h>\n#include <linux/types.h>\n__u32 x;\n", nil, ""},
		{"own flags", "int n = NUMBER;\n", []string{"-DNUMBER=7"}, ""},
		{"without them", "int n = NUMBER;\n", nil, "x.bpf.c:1:9: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if strings.Contains(tt.text, "asm/types.h") {
				if _, err := os.Stat("/usr/include/linux/types.h"); err != nil {
					t.Skip("no headers of Linux: apt-get install linux-libc-dev")
				}
			}
			if err := os.WriteFile(file, []byte(tt.text), 0o644); err != nil {
				t.Fatal(err)
			}
			_, said, err := Compile(file, clang, append([]string{"-Wall"}, tt.flags...))
			switch {
			case tt.err == "" && (err != nil || said != ""):
				t.Errorf("%v, %s", err, said)
			case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
				t.Errorf("%v, want %s", err, tt.err)
			}
		})
	}
}

// hostSource uses what docs/probes.md names for the host.
const hostSource = `#include "nvtrace_host.bpf.h"

struct { __uint(type, BPF_MAP_TYPE_STACK_TRACE); __uint(max_entries, 64); __type(key, __u32); __uint(value_size, 8 * 16); } stacks SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_QUEUE); __uint(max_entries, 64); __type(value, __u64); } queue SEC(".maps");

SEC("uprobe/libc.so.6:malloc") int BPF_UPROBE(on_malloc, __u64 bytes)
{
	char comm[16];
	bpf_get_current_comm(comm, sizeof(comm));
	bpf_map_push_elem(&queue, &bytes, BPF_ANY);
	bpf_printk("%s", comm);
	bpf_printk("%d %d %d %d", 1, bytes, bpf_get_stackid(ctx, &stacks, BPF_F_USER_STACK), PT_REGS_PARM1(ctx) == bytes);
	return bpf_strncmp(comm, sizeof(comm), "python");
}

SEC("uretprobe/libc.so.6:malloc") int BPF_URETPROBE(on_malloc_ret, void *at)
{
	return (__u64)at != PT_REGS_RC(ctx);
}

SEC("uprobe/libc.so.6:getenv") int BPF_UPROBE(on_getenv, const char *name)
{
	char text[4];
	if (bpf_probe_read_user_str(text, sizeof(text), name) == 4 && bpf_strncmp(text, 3, "FOO") == 0)
		bpf_override_return(ctx, 0);
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_openat") int on_open(struct trace_event_raw_sys_enter *ctx)
{
	char name[64], text[32];
	__u64 args[] = {ctx->args[1]};
	long n;
	bpf_probe_read_user_str(name, sizeof(name), (void *)ctx->args[1]);
	bpf_snprintf(text, sizeof(text), "%d", args, sizeof(args));
	bpf_strtol(name, sizeof(name), 0, &n);
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_openat") int on_opened(struct trace_event_raw_sys_exit *ctx) { return ctx->ret < 0; }
`

func needClang(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("clang")
	if err != nil {
		need.Missing(t, "clang", "no clang: apt-get install clang")
	}
	return path
}
