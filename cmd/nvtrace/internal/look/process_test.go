package look

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestInside wants the pod, container, job or service of a control group.
func TestInside(t *testing.T) {
	id := "4f2a1c9e8b7d6a5f4e3d2c1b0a99887766554433221100ffeeddccbbaa998877"
	for group, want := range map[string]string{
		"": "", "/": "", "/user.slice/user-1000.slice/session-3.scope": "",
		"/user.slice/user-1000.slice/user@1000.service/app.slice/app-term.scope":                                                                    "",
		"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri-containerd-" + id + ".scope": "pod 0a1b2c3d-1111-2222-3333-444455556666",
		"/kubepods/besteffort/pod0a1b2c3d-1111-2222-3333-444455556666/" + id:                                                                        "pod 0a1b2c3d-1111-2222-3333-444455556666",
		"/system.slice/docker-" + id + ".scope":                                                                                                     "container 4f2a1c9e8b7d",
		"/system.slice/slurmstepd.scope/job_8123/step_0/user/task_0":                                                                                "job 8123.0",
		"/slurm/uid_1000/job_8123":             "job 8123",
		"/system.slice/triton.service":         "triton.service",
		"/system.slice/triton.service/workers": "triton.service",
	} {
		if got := inside(group); got != want {
			t.Errorf("%s: %q, want %q", group, got, want)
		}
	}
}

// TestGPUs reads what the driver says of its GPUs.
func TestGPUs(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"0000:05:00.0": "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 59\nGPU UUID: \t GPU-b\nDevice Minor: \t 1\n",
		"0000:04:00.0": "Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t GPU-a\nDevice Minor: \t 0\n",
		"0000:06:00.0": "Model: \t\t NVIDIA H100 80GB HBM3\n", // of another container
	} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "information"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := []GPU{{0, "GPU-a", "NVIDIA H100 80GB HBM3"}, {1, "GPU-b", "NVIDIA H100 80GB HBM3"}}
	if got := gpusIn(dir); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
