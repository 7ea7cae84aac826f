package look

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"nvtrace/ioctl/channels"
	"nvtrace/ptrace/proc"
)

// A Process is what nvtrace ps says of one.
type Process struct {
	channels.Report
	GPUs   []GPU  `json:"gpus,omitempty"`   // whose nodes its channels are on
	Cgroup string `json:"cgroup,omitempty"` // its control group, as the kernel has it
	In     string `json:"in,omitempty"`     // the pod, container, job or service that this is

	Memory []Memory `json:"memory,omitempty"` // that it has, by GPU; absent: not asked for, or not known
}

// Memory is how much memory of a GPU a process has, as the driver says.
type Memory struct {
	Minor int    `json:"minor"` // N of /dev/nvidiaN
	Bytes uint64 `json:"bytes"`
}

// A GPU is one that the driver has.
type GPU struct {
	Minor int    `json:"minor"` // N of /dev/nvidiaN
	UUID  string `json:"uuid,omitempty"`
	Name  string `json:"name,omitempty"`
}

// gpuFolder is where the driver says which GPUs there are.
const gpuFolder = "/proc/driver/nvidia/gpus"

// GPUs lists the machine's GPUs by their nodes, as far as the driver tells them here.
func GPUs() []GPU { return gpusIn(gpuFolder) }

func gpusIn(folder string) (list []GPU) {
	names, _ := filepath.Glob(folder + "/*/information") // the pattern is fine
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		g := GPU{Minor: -1}
		for line := range strings.Lines(string(b)) {
			key, value, _ := strings.Cut(line, ":")
			switch value = strings.TrimSpace(value); strings.TrimSpace(key) {
			case "Model":
				g.Name = value
			case "GPU UUID":
				g.UUID = value
			case "Device Minor":
				if n, err := strconv.Atoi(value); err == nil {
					g.Minor = n
				}
			}
		}
		if g.Minor >= 0 {
			list = append(list, g)
		}
	}
	slices.SortFunc(list, func(a, b GPU) int { return a.Minor - b.Minor })
	return list
}

// Describe adds to a report what is known of the process. gpus are those of the machine.
func Describe(r *channels.Report, gpus []GPU) Process {
	p := Process{Report: *r}
	p.Cgroup = cgroupOf(r.PID)
	p.In = inside(p.Cgroup)
	for i := range r.Channels {
		minor, err := strconv.Atoi(strings.TrimPrefix(r.Channels[i].Device, "/dev/nvidia"))
		if err != nil || slices.ContainsFunc(p.GPUs, func(g GPU) bool { return g.Minor == minor }) {
			continue
		}
		g := GPU{Minor: minor}
		if at := slices.IndexFunc(gpus, func(g GPU) bool { return g.Minor == minor }); at >= 0 {
			g = gpus[at]
		}
		p.GPUs = append(p.GPUs, g)
	}
	return p
}

// cgroupOf returns a process's control group: that of the second version, else the longest of the first.
func cgroupOf(pid int) (group string) {
	b, err := os.ReadFile(proc.Path(pid, "cgroup"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		// cgroups(7): number, controllers, path.
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) == 3 && len(f[2]) > len(group) && f[2] != "/" {
			group = f[2]
		}
	}
	return group
}

var (
	podID       = regexp.MustCompile(`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})`)
	containerID = regexp.MustCompile(`[0-9a-f]{64}`)
	slurmJob    = regexp.MustCompile(`/job_([0-9]+)(?:/step_([^/]+))?`)
)

// inside says what a control group is of: a pod of Kubernetes, a container, a job of Slurm, a service of systemd;
// "" if it is of none of these.
func inside(group string) string {
	if m := podID.FindStringSubmatch(group); m != nil {
		return "pod " + strings.ReplaceAll(m[1], "_", "-")
	}
	if m := slurmJob.FindStringSubmatch(group); m != nil {
		text := "job " + m[1]
		if m[2] != "" {
			text += "." + m[2]
		}
		return text
	}
	if id := containerID.FindString(group); id != "" {
		const short = 12 // as docker ps has it
		return "container " + id[:short]
	}
	for group := group; group != "/" && group != "" && group != "."; group = path.Dir(group) {
		// A user's own services and sessions are below user@.service, which says nothing.
		if base := path.Base(group); strings.HasSuffix(base, ".service") && !strings.HasPrefix(base, "user@") {
			return base
		}
	}
	return ""
}
