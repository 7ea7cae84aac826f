// Package places recognises where a program runs: in a container, in a virtual machine, under
// a scheduler, or on a GPU that is shared. docs/where.md leads to a page for each.
package places

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// A Machine is what is looked at.
type Machine struct {
	Root      string // of the file system: "/"
	Getenv    func(name string) string
	Container string // the kind of container, "" for none
}

// A Place is something that changes how nvtrace is used.
type Place struct {
	Name   string // short, as doctor shows it
	Detail string // what it is, and what does not work there
	Fix    string // what to type, "" for nothing
	Note   bool   // something does not work there
}

// Find returns the places that a machine is.
func Find(m Machine) (list []Place) {
	for _, find := range []func(Machine) (Place, bool){gvisor, wsl, jetson, kubernetes, confined, readOnly, slurm, mig, mps, vgpu, confidential} {
		if p, ok := find(m); ok {
			list = append(list, p)
		}
	}
	return list
}

func (m Machine) path(name string) string { return filepath.Join(m.Root, name) }

func (m Machine) read(name string) string {
	b, err := os.ReadFile(m.path(name))
	if err != nil {
		return "" // what can't be read is not that place
	}
	return strings.TrimSpace(strings.TrimRight(string(b), "\x00"))
}

func (m Machine) exists(name string) bool {
	_, err := os.Stat(m.path(name))
	return err == nil
}

func (m Machine) glob(pattern string) []string {
	names, _ := filepath.Glob(m.path(pattern)) // the patterns are good
	return names
}

// gvisorVersion is in /proc/version of every sandbox of gVisor: pkg/sentry/kernel/version.go
// and syscalls/linux/linux64.go have it as a constant.
const gvisorVersion = "#1 SMP Sun Jan 10 15:06:54 PST 2016"

func gvisor(m Machine) (Place, bool) {
	return Place{
		Name: "gVisor", Note: true,
		Detail: "this is a gVisor sandbox: its kernel answers ptrace and ioctl itself, and nvtrace sees only what that kernel implements",
		Fix:    "trace from the host instead: sudo nvtrace -p $(pgrep -nf runsc-sandbox)",
	}, strings.Contains(m.read("proc/version"), gvisorVersion)
}

func wsl(m Machine) (Place, bool) {
	version := strings.ToLower(m.read("proc/version"))
	return Place{
		Name: "WSL2", Note: true,
		Detail: "this is WSL2: the GPU is behind /dev/dxg, so there are no driver ioctls to decode, and ps, where and sample find no channels",
		Fix:    "nvtrace --api -- ./app",
	}, m.exists("dev/dxg") || strings.Contains(version, "microsoft") && strings.Contains(version, "wsl2")
}

// jetson: those before Thor, which has the driver of servers.
func jetson(m Machine) (Place, bool) {
	model := m.read("proc/device-tree/model")
	return Place{
		Name: "Jetson", Note: true,
		Detail: "this is a Jetson: its GPU driver (nvgpu, /dev/nvhost-*) has other ioctls, which are not decoded",
		Fix:    "nvtrace report run.nvt works; record on a machine with a discrete GPU",
	}, m.exists("dev/nvhost-ctrl") || strings.Contains(model, "Jetson") && !strings.Contains(model, "Thor")
}

func kubernetes(m Machine) (Place, bool) {
	return Place{
		Name:   "Kubernetes",
		Detail: "this is a pod: processes of other containers need shareProcessNamespace, or an ephemeral container with a target",
		Fix:    "kubectl debug -it POD --image=IMAGE --target=CONTAINER --profile=sysadmin -- nvtrace where 1",
	}, m.Getenv("KUBERNETES_SERVICE_HOST") != "" || m.exists("var/run/secrets/kubernetes.io/serviceaccount")
}

// confined: a filter of the container's runtime.
func confined(m Machine) (Place, bool) {
	filtered := false
	for line := range strings.Lines(m.read("proc/self/status")) {
		if v, ok := strings.CutPrefix(line, "Seccomp:"); ok {
			filtered = strings.TrimSpace(v) == "2"
		}
	}
	return Place{
		Name:   "filter",
		Detail: "the container runtime has installed a seccomp filter; Docker's default permits ptrace on Linux 4.8 and newer",
	}, filtered && m.Container != ""
}

// readOnly: temporary files have no place where the root file system can't be written.
func readOnly(m Machine) (Place, bool) {
	dir := m.Getenv("TMPDIR")
	if dir == "" {
		dir = "/tmp"
	}
	// The folder's file system is the one that is mounted nearest above it, and last.
	var nearest string
	var closed bool
	for line := range strings.Lines(m.read("proc/self/mounts")) {
		f := strings.Fields(line)
		if len(f) < 4 || f[1] != "/" && dir != f[1] && !strings.HasPrefix(dir, f[1]+"/") {
			continue
		}
		if len(f[1]) >= len(nearest) {
			nearest, closed = f[1], strings.HasPrefix(f[3]+",", "ro,")
		}
	}
	return Place{
		Name: "read-only", Note: true,
		Detail: dir + " is on a read-only file system: nvtrace has no place for temporary files",
		Fix:    "docker run --tmpfs /tmp …, or TMPDIR=/dev/shm nvtrace …",
	}, closed
}

func slurm(m Machine) (Place, bool) {
	id := m.Getenv("SLURM_JOB_ID")
	return Place{
		Name:   "Slurm",
		Detail: "this is job " + id + " of Slurm; put nvtrace behind srun, so that each rank has one",
		Fix:    "srun nvtrace -q -o run.%r.nvt -- ./app",
	}, id != ""
}

func mig(m Machine) (Place, bool) {
	instances := m.glob("proc/driver/nvidia/capabilities/gpu*/mig/gi*")
	detail := "the GPU is divided (MIG)"
	if len(instances) > 0 {
		detail += ": " + strconv.Itoa(len(instances)) + " GPU instances"
	}
	visible := m.Getenv("NVIDIA_VISIBLE_DEVICES") + m.Getenv("CUDA_VISIBLE_DEVICES")
	return Place{
		Name:   "MIG",
		Detail: detail + "; a process sees one instance, and its figures are of that instance",
		Fix:    "nvidia-smi -L; CUDA_VISIBLE_DEVICES=MIG-… nvtrace -- ./app",
	}, len(instances) > 0 || strings.Contains(visible, "MIG-")
}

func mps(m Machine) (Place, bool) {
	dir := m.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	if dir == "" {
		dir = "/tmp/nvidia-mps"
	}
	return Place{
		Name: "MPS", Note: true,
		Detail: "an MPS daemon serves " + dir + ": its clients and its server have channels, and other users' are shown to root",
		Fix:    "sudo nvtrace ps; CUDA_MPS_PIPE_DIRECTORY=/nonexistent nvtrace -- ./app runs without MPS",
	}, m.exists(filepath.Join(dir, "control"))
}

// vgpuModel is a model as guests have it: "GRID T4-16Q", "NVIDIA A100-4-20C", "NVIDIA H100XM-80C".
var vgpuModel = regexp.MustCompile(`(?m)^Model:\s*(GRID \S+|NVIDIA \S+-\d+[ABCQ](?:ME)?)\s*$`)

func vgpu(m Machine) (Place, bool) {
	for _, file := range m.glob("proc/driver/nvidia/gpus/*/information") {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if model := vgpuModel.FindStringSubmatch(string(b)); model != nil {
			return Place{
				Name:   "vGPU",
				Detail: model[1] + " is a vGPU: the guest's ioctls are decoded; the host's driver, which does the work, is not seen",
			}, true
		}
	}
	return Place{}, false
}

func confidential(m Machine) (Place, bool) {
	for node, name := range map[string]string{"dev/tdx_guest": "Intel TDX", "dev/sev-guest": "AMD SEV-SNP"} {
		if m.exists(node) {
			return Place{
				Name: "confidential", Note: true,
				Detail: "this is a confidential virtual machine (" + name + "): if the GPU is in confidential mode too, copies are encrypted and go through the driver's own buffers, and channels can't be read from outside",
				Fix:    "nvidia-smi conf-compute -f",
			}, true
		}
	}
	return Place{}, false
}
