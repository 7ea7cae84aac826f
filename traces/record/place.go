package record

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"nvtrace/traces"
	"nvtrace/traces/ranks"
)

// Rank returns the rank that a recording's header tells, and whether it tells one.
func Rank(h *traces.Header) (string, bool) {
	p := ranks.Of(h.Rank)
	if p.Rank == ranks.Unknown {
		return "", false
	}
	return strconv.Itoa(p.Rank), true
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
