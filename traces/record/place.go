package record

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"nvtrace/ptrace/proc"
	"nvtrace/traces"
)

// rankVars are the environment variables by which launchers tell a process which of
// several it is, with those that say of how many and in which job.
var rankVars = []string{
	// torchrun, and what follows its convention (DeepSpeed, Accelerate, Lightning)
	"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK",
	// Open MPI, PMIx, MPICH and Intel MPI, MVAPICH
	"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
	"PMIX_RANK", "PMIX_NAMESPACE",
	"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
	"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
	// Cray PALS and ALPS, IBM JSM, Flux
	"PALS_RANKID", "PALS_LOCAL_RANKID", "ALPS_APP_PE", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE",
	"FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_JOB_ID",
	// Slurm, PBS, LSF
	"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_STEP_ID",
	"PBS_JOBID", "LSB_JOBID",
}

// Rank returns the rank that a recording's header tells, and whether it tells one.
func Rank(h *traces.Header) (string, bool) {
	for _, name := range proc.RankVars() {
		if v := h.Rank[name]; v != "" {
			return v, true
		}
	}
	return "", false
}

// maxRankVar bounds the value of a variable that goes into a header.
const maxRankVar = 256

// rankOf picks the variables of launchers from an environment; nil if there are none.
func rankOf(environ []string) map[string]string {
	var vars map[string]string
	for _, s := range environ {
		name, value, ok := strings.Cut(s, "=")
		if !ok || value == "" || len(value) > maxRankVar || !slices.Contains(rankVars, name) {
			continue
		}
		if vars == nil {
			vars = make(map[string]string)
		}
		vars[name] = value
	}
	return vars
}

// What the ids of containers look like: 64 hexadecimal digits (Docker, Podman, containerd,
// CRI-O), on AWS Fargate 32 and a number; LXC has names.
var (
	cgroupID = regexp.MustCompile(`[0-9a-f]{64}|[0-9a-f]{32}-[0-9]{6,}`)
	lxcName  = regexp.MustCompile(`/lxc(?:\.payload\.|/)([^/]+)`)
	mountID  = regexp.MustCompile(`/(?:containers|overlay-containers|sandboxes)/([0-9a-f]{64})/`)
)

// Container returns the id of the container that a process runs in, "" if none is known;
// 0 is this process.
func Container(pid int) string {
	if pid == 0 {
		return containerOf("/proc/self")
	}
	return containerOf("/proc/" + strconv.Itoa(pid))
}

// containerOf returns the id of the container that a process runs in, by its folder in
// /proc: from its control group, or, where a namespace hides that, from the files that
// container runtimes mount over /etc.
func containerOf(folder string) string {
	b, _ := os.ReadFile(filepath.Join(folder, "cgroup")) // none: no id
	for line := range bytes.Lines(b) {
		path := string(bytes.TrimSpace(line))
		if ids := cgroupID.FindAllString(path, -1); ids != nil {
			return ids[len(ids)-1] // the innermost
		}
		if m := lxcName.FindStringSubmatch(path); m != nil {
			return m[1]
		}
	}
	b, _ = os.ReadFile(filepath.Join(folder, "mountinfo"))
	for line := range bytes.Lines(b) {
		// proc_pid_mountinfo(5): id, parent, device, root, mount point, …
		f := strings.Fields(string(line))
		if len(f) < 5 || f[4] != "/etc/hostname" && f[4] != "/etc/hosts" && f[4] != "/etc/resolv.conf" {
			continue
		}
		if m := mountID.FindStringSubmatch(f[3]); m != nil {
			return m[1]
		}
	}
	return ""
}
