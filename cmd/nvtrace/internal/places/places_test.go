package places

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFind: each place is recognised by what it has, and nothing else is.
func TestFind(t *testing.T) {
	for _, tt := range []struct {
		name      string
		files     map[string]string
		env       map[string]string
		container string
		want      string // names, with commas
	}{
		{"a machine", map[string]string{
			"proc/version": "Linux version 6.8.0-45-generic (buildd@x) #45-Ubuntu SMP", "proc/self/status": "Seccomp:\t0\n",
			"proc/self/mounts": "/dev/sda1 / ext4 rw,relatime 0 0\n",
			"proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA H100 80GB HBM3\n",
		}, nil, "", ""},
		{"Docker", map[string]string{"proc/self/status": "Name:\tx\nSeccomp:\t2\n"}, nil, "docker", "filter"},
		{"a filter of one's own", map[string]string{"proc/self/status": "Seccomp:\t2\n"}, nil, "", ""},
		{"a pod", nil, map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes", "Kubernetes"},
		{"a pod without services", map[string]string{"var/run/secrets/kubernetes.io/serviceaccount/token": "x"}, nil, "", "Kubernetes"},
		{"a read-only root", map[string]string{"proc/self/mounts": "overlay / overlay ro,relatime,lowerdir=/x 0 0\n"}, nil, "docker", "read-only"},
		{"a read-only root with TMPDIR", map[string]string{"proc/self/mounts": "overlay / overlay ro 0 0\nshm /dev/shm tmpfs rw 0 0\n"}, map[string]string{"TMPDIR": "/dev/shm"}, "docker", ""},
		{"a read-only root with /tmp", map[string]string{"proc/self/mounts": "overlay / overlay ro 0 0\ntmpfs /tmp tmpfs rw,nosuid 0 0\n"}, nil, "docker", ""},
		{"gVisor", map[string]string{"proc/version": "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n"}, nil, "", "gVisor"},
		{"WSL2 by its kernel", map[string]string{"proc/version": "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@x)\n"}, nil, "", "WSL2"},
		{"WSL2 by its device", map[string]string{"dev/dxg": ""}, nil, "", "WSL2"},
		{"Hyper-V is no WSL2", map[string]string{"proc/version": "Linux version 6.1.0-microsoft-azure (root@x)\n"}, nil, "", ""},
		{"Jetson", map[string]string{"proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit\x00"}, nil, "", "Jetson"},
		{"Jetson in a container", map[string]string{"dev/nvhost-ctrl": ""}, nil, "docker", "Jetson"},
		{"Thor", map[string]string{"proc/device-tree/model": "NVIDIA Jetson AGX Thor Developer Kit\x00"}, nil, "", ""},
		{"MIG", map[string]string{"proc/driver/nvidia/capabilities/gpu0/mig/gi1/access": "", "proc/driver/nvidia/capabilities/gpu0/mig/gi2/access": ""}, nil, "", "MIG"},
		{"MIG in a container", nil, map[string]string{"NVIDIA_VISIBLE_DEVICES": "MIG-1234"}, "docker", "MIG"},
		{"MPS", map[string]string{"tmp/nvidia-mps/control": ""}, nil, "", "MPS"},
		{"MPS elsewhere", map[string]string{"run/mps/control": ""}, map[string]string{"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}, "", "MPS"},
		{"MPS that has ended", map[string]string{"tmp/nvidia-mps/log": ""}, nil, "", ""},
		{"vGPU", map[string]string{"proc/driver/nvidia/gpus/0000:02:00.0/information": "Model: \t\t NVIDIA A100-4-20C\n"}, nil, "", "vGPU"},
		{"an old vGPU", map[string]string{"proc/driver/nvidia/gpus/0000:02:00.0/information": "Model: \t\t GRID T4-16Q\n"}, nil, "", "vGPU"},
		{"no vGPU", map[string]string{"proc/driver/nvidia/gpus/0000:02:00.0/information": "Model: \t\t NVIDIA A100-SXM4-40GB\n"}, nil, "", ""},
		{"TDX", map[string]string{"dev/tdx_guest": ""}, nil, "", "confidential"},
		{"SEV", map[string]string{"dev/sev-guest": ""}, nil, "", "confidential"},
		{"Slurm in a container", nil, map[string]string{"SLURM_JOB_ID": "4711"}, "docker", "Slurm"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range tt.files {
				path := filepath.Join(root, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			var names []string
			for _, p := range Find(Machine{Root: root, Getenv: func(n string) string { return tt.env[n] }, Container: tt.container}) {
				names = append(names, p.Name)
				if p.Detail == "" || p.Note && p.Fix == "" {
					t.Errorf("%s does not say what to do: %+v", p.Name, p)
				}
			}
			if got := strings.Join(names, ","); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestPages: docs has a page for each place, which docs/where.md links to, with what doctor prints there.
func TestPages(t *testing.T) {
	const docs = "../../../../docs/"
	where, err := os.ReadFile(docs + "where.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		title, file string
		files, env  map[string]string // by which it is recognised
	}{
		{"Docker and Podman", "docker.md", map[string]string{"proc/self/status": "Seccomp:\t2\n", "proc/self/mounts": "overlay / overlay ro 0 0\n"}, nil},
		{"Kubernetes", "kubernetes.md", nil, map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1"}},
		{"ptrace_scope", "ptrace-scope.md", nil, nil}, // a line of doctor's own
		{"gVisor", "gvisor.md", map[string]string{"proc/version": "Linux version 4.4.0 " + gvisorVersion + "\n"}, nil},
		{"WSL2", "wsl2.md", map[string]string{"dev/dxg": ""}, nil},
		{"Jetson", "jetson.md", map[string]string{"dev/nvhost-ctrl": ""}, nil},
		{"MIG", "mig.md", map[string]string{"proc/driver/nvidia/capabilities/gpu0/mig/gi1/access": "", "proc/driver/nvidia/capabilities/gpu0/mig/gi2/access": ""}, nil},
		{"MPS", "mps.md", map[string]string{"tmp/nvidia-mps/control": ""}, nil},
		{"vGPU", "vgpu.md", map[string]string{"proc/driver/nvidia/gpus/0000:02:00.0/information": "Model: \t\t NVIDIA A100-4-20C\n"}, nil},
		{"Confidential computing", "confidential.md", map[string]string{"dev/tdx_guest": ""}, nil},
		{"Slurm", "slurm.md", nil, map[string]string{"SLURM_JOB_ID": "4711"}},
	} {
		if !strings.Contains(string(where), "| ["+tt.title+"]("+tt.file+") |") {
			t.Errorf("where.md has no row for %s", tt.title)
		}
		b, err := os.ReadFile(docs + tt.file)
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.HasPrefix(string(b), "# "+tt.title+"\n\nThis page says ") || !strings.Contains(string(b), "\n## What was tried\n") {
			t.Errorf("%s does not say what it is for, or what was tried", tt.file)
		}
		root := t.TempDir()
		for name, text := range tt.files {
			path := filepath.Join(root, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		found := Find(Machine{Root: root, Getenv: func(n string) string { return tt.env[n] }, Container: "docker"})
		if len(found) == 0 && tt.files != nil {
			t.Errorf("%s is not recognised", tt.title)
		}
		page := strings.Join(strings.Fields(string(b)), " ")
		for _, p := range found {
			want := "ok "
			if p.Note {
				want = "- "
			}
			if want += p.Name + " " + p.Detail; p.Fix != "" {
				want += " → " + p.Fix
			}
			if !strings.Contains(page, want) {
				t.Errorf("%s does not show what doctor prints: %s", tt.file, want)
			}
		}
	}
}
