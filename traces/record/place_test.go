package record

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/traces"
)

func TestRank(t *testing.T) {
	if r, ok := Rank(&traces.Header{Rank: map[string]string{"SLURM_PROCID": "0", "RANK": "3"}}); r != "3" || !ok {
		t.Errorf("rank %q, %v", r, ok)
	}
	if r, ok := Rank(&traces.Header{Rank: map[string]string{"WORLD_SIZE": "8"}}); ok || r != "" {
		t.Errorf("rank %q of a size", r)
	}
}

func TestContainer(t *testing.T) {
	id, other := strings.Repeat("0a", 32), strings.Repeat("b1", 32)
	for _, tt := range []struct{ name, cgroup, mounts, want string }{
		{"none", "0::/user.slice/user-1000.slice/session-2.scope\n", "30 1 8:1 / / rw - ext4 /dev/sda1 rw\n", ""},
		{"Docker, cgroup 2", "0::/system.slice/docker-" + id + ".scope\n", "", id},
		{"Docker, cgroup 1", "12:devices:/docker/" + id + "\n1:name=systemd:/docker/" + id + "\n", "", id},
		{"Docker in Docker", "0::/docker/" + other + "/docker/" + id + "\n", "", id},
		{"Kubernetes", "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + id + ".scope\n", "", id},
		{"Fargate", "1:name=systemd:/ecs/" + id[:32] + "/" + id[:32] + "-1234567890\n", "", id[:32] + "-1234567890"},
		{"LXC", "0::/lxc.payload.web1/system.slice\n", "", "web1"},
		{"Docker with a namespace", "0::/\n", "700 690 0:50 / / rw - overlay overlay rw\n710 700 8:1 /var/lib/docker/containers/" + id + "/hostname /etc/hostname rw - ext4 /dev/sda1 rw\n", id},
		{"Podman with a namespace", "0::/\n", "710 700 0:40 /home/u/.local/share/containers/storage/overlay-containers/" + id + "/userdata/hosts /etc/hosts rw - btrfs /dev/sda1 rw\n", id},
		// The machine beneath sees what it mounts for its containers.
		{"the host", "0::/\n", "90 30 0:60 / /var/lib/docker/containers/" + id + "/mounts/shm rw - tmpfs shm rw\n", ""},
		{"damaged", "\xff\n:::\n", "1\n\n", ""},
	} {
		dir := t.TempDir()
		put(t, filepath.Join(dir, "cgroup"), tt.cgroup)
		put(t, filepath.Join(dir, "mountinfo"), tt.mounts)
		if got := containerOf(dir); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	if got := containerOf(t.TempDir()); got != "" {
		t.Errorf("of a process that is gone: %q", got)
	}
}

func put(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestNewHeader(t *testing.T) {
	t.Setenv("RANK", "4711")
	h := NewHeader([]string{"app"}, 0, "v1")
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	if h.Host != host || h.Boot != strings.TrimSpace(string(boot)) || h.Rank["RANK"] != "4711" || h.Tool != "v1" {
		t.Errorf("%+v", h)
	}
	// Of a running process, its own.
	h = NewHeader(nil, os.Getpid(), "v1")
	if h.Rank["RANK"] == "4711" {
		t.Errorf("the variables %q are not those that the process began with", h.Rank)
	}
}
