package live

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// machineFiles are those of a machine with two GPUs, where all is as it should be.
var machineFiles = map[string]string{
	"proc/sys/kernel/yama/ptrace_scope":                      "0\n",
	"proc/self/status":                                       "Name:\tnvtrace\nCapEff:\t0000000000000000\n",
	"proc/driver/nvidia/version":                             "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.142  Release Build  (builder@host)  Mon\nGCC version:\n",
	"proc/driver/nvidia/gpus/0000:01:00.0/information":       "Model: \t\t NVIDIA H200\nIRQ: 1\n",
	"proc/driver/nvidia/gpus/0000:02:00.0/information":       "Model: \t\t NVIDIA H200\n",
	"dev/nvidiactl":                                          "",
	"dev/nvidia0":                                            "",
	"dev/nvidia1":                                            "",
	"dev/nvidia-uvm":                                         "",
	"usr/lib/x86_64-linux-gnu/libcuda.so.580.142":            "",
	"usr/lib/x86_64-linux-gnu/libnvidia-ptxjitcompiler.so.1": "",
}

// TestDoctor: what is said of machines on which something is missing.
func TestDoctor(t *testing.T) {
	denied := errors.New("operation not permitted")
	for _, tt := range []struct {
		name   string
		files  map[string]string // other contents; "-": the file is not there
		change func(c *checkup)
		want   []string // of the text
		not    string
	}{
		{"all is there", nil, nil, []string{
			"ok   driver      580.142 (CUDA 13.0), whose calls are known",
			"ok   GPUs        2 x NVIDIA H200",
			"ok   devices     nvidiactl, nvidia-uvm, nvidia0, nvidia1",
			"/libcuda.so.1 of 580.142",
			"ok   compiler    libnvidia-ptxjitcompiler.so.1",
			"  yes  nvtrace -- ./app", "  yes  nvtrace -p PID", "  yes  nvtrace -e",
		}, "→"},
		{"Ubuntu's default", map[string]string{"proc/sys/kernel/yama/ptrace_scope": "1\n"}, nil, []string{
			"-    attaching   running programs can't be attached to: kernel.yama.ptrace_scope\n                 is 1\n",
			"sudo sysctl kernel.yama.ptrace_scope=0", "  no   nvtrace -p PID", "  yes  nvtrace -- ./app",
		}, ""},
		{"root there", map[string]string{"proc/sys/kernel/yama/ptrace_scope": "1\n", "proc/self/status": "CapEff:\t000001ffffffffff\n"}, nil, []string{
			"running programs can be attached to (CAP_SYS_PTRACE)", "  yes  nvtrace -p PID",
		}, "→"},
		{"a container without ptrace", map[string]string{".dockerenv": ""}, func(c *checkup) { c.trace = func() error { return denied } }, []string{
			"NO   tracing     programs can't be traced: operation not permitted", "--cap-add SYS_PTRACE", "  no   nvtrace -- ./app", "(no tracing)",
		}, "attaching  "},
		{"no filters", nil, func(c *checkup) { c.filters = func(uint32) bool { return false } }, []string{"nvtrace --seccomp=off -- command"}, ""},
		{"an old kernel", nil, func(c *checkup) { c.filters = func(a uint32) bool { return a == seccompRetTrace } }, []string{"replay does not\n", "Linux 5.14"}, ""},
		{"no driver", map[string]string{"proc/driver/nvidia/version": "-"}, nil, []string{
			"-    driver      there is none", "nvtrace --sim -- command", "(no driver)",
		}, "devices"},
		{"another driver", map[string]string{"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  999.10.01  Mon\n"}, nil, []string{
			"999.10.01, which is not in the tables", "of 580.142, but the kernel runs 999.10.01", "sudo reboot",
		}, ""},
		{"nodes missing", map[string]string{"dev/nvidia-uvm": "-"}, nil, []string{"missing below /dev: nvidia-uvm", "sudo nvidia-modprobe -u -c=0"}, ""},
		{"nodes closed", nil, func(c *checkup) {
			c.writable = func(path string) error {
				if strings.HasSuffix(path, "nvidia1") {
					return os.ErrPermission
				}
				return nil
			}
		}, []string{"not open to this user: nvidia1"}, ""},
		{"no compiler", nil, func(c *checkup) {
			c.compiler = func(string) (string, error) { return "", errors.New("it was not found") }
		}, []string{"probes can't be compiled for a GPU: it was not found", "  no   nvtrace -e"}, ""},
		{"a pod on WSL2", map[string]string{"dev/dxg": "", "var/run/secrets/kubernetes.io/serviceaccount/token": ""}, nil, []string{
			"-    WSL2        this is WSL2: the GPU is behind /dev/dxg", "→ nvtrace --api -- ./app",
			"ok   Kubernetes  this is a pod", "→ kubectl debug -it POD",
		}, ""},
		{"no clang", nil, func(c *checkup) { c.look = func(string) (string, error) { return "", errors.New("no") } }, []string{"apt-get install clang"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			put := func(name, text string) {
				path := filepath.Join(root, name)
				if text == "-" {
					if err := os.Remove(path); err != nil {
						t.Fatal(err)
					}
					return
				}
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			for name, text := range machineFiles {
				put(name, text)
			}
			if err := os.Symlink("libcuda.so.580.142", filepath.Join(root, "usr/lib/x86_64-linux-gnu/libcuda.so.1")); err != nil {
				t.Fatal(err)
			}
			for name, text := range tt.files {
				put(name, text)
			}
			c := &checkup{
				root: root, uid: 1000, trace: func() error { return nil }, filters: func(uint32) bool { return true }, arch: "amd64",
				compiler: func(string) (string, error) { return "libnvidia-ptxjitcompiler.so.1", nil },
				look:     func(string) (string, error) { return "/usr/bin/clang", nil },
				writable: func(string) error { return nil },
				getenv:   func(string) string { return "" },
			}
			if tt.change != nil {
				tt.change(c)
			}
			c.all()
			got := strings.ReplaceAll(c.text(), root, "")
			for _, w := range tt.want {
				if plain := strings.Join(strings.Fields(w), " "); !strings.Contains(strings.Join(strings.Fields(got), " "), plain) {
					t.Errorf("no %q in\n%s", w, got)
				}
			}
			if tt.not != "" && strings.Contains(got, tt.not) {
				t.Errorf("%q in\n%s", tt.not, got)
			}
		})
	}
}
