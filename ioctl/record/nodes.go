package record

import (
	"bufio"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/agent"
)

// nvidiaMajor is the character-device major of the GPUs, of nvidiactl and of
// nvidia-modeset (kernel-open/common/inc/nv.h: NV_MAJOR_DEVICE_NUMBER).
const nvidiaMajor = 195

// Minors of nvidiaMajor that are not a GPU
// (kernel-open/common/inc/nv.h: NV_MINOR_DEVICE_NUMBER_*).
const (
	minorModeset = 254
	minorControl = 255
)

// Nodes tells NVIDIA's device nodes from others, by device number: containers
// rename nodes, so the path alone proves nothing.
type Nodes struct {
	majors map[uint32]string // dynamic majors of /proc/devices with an nvidia name
}

// MachineNodes returns those of this machine, as they are now: to load a driver adds some.
func MachineNodes() *Nodes { return readNodes("/proc/devices") }

// readNodes reads the dynamic majors of NVIDIA's drivers from a file in the
// format of /proc/devices. A missing file is no error: the fixed major is
// known without it.
func readNodes(procDevices string) *Nodes {
	n := &Nodes{majors: make(map[uint32]string)}
	f, err := os.Open(procDevices)
	if err != nil {
		return n
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if strings.HasPrefix(sc.Text(), "Block devices") {
			break
		}
		major, name, ok := strings.Cut(strings.TrimSpace(sc.Text()), " ")
		if !ok || !strings.HasPrefix(name, "nvidia") {
			continue
		}
		if m, err := strconv.ParseUint(major, 10, 32); err == nil && m != nvidiaMajor {
			n.majors[uint32(m)] = name
		}
	}
	return n
}

// uvmMajor returns the major number of nvidia-uvm, 0 where it is not loaded.
func (n *Nodes) uvmMajor() uint32 {
	for m, name := range n.majors {
		if name == "nvidia-uvm" {
			return m
		}
	}
	return 0
}

// Name returns the name below /dev of the character device rdev, as the driver
// calls it; path is what the descriptor's link says and names the devices of a
// driver whose minors have no fixed meaning. ok is false for a device that is
// not NVIDIA's.
func (n *Nodes) Name(rdev uint64, path string) (name string, ok bool) {
	major, minor := unix.Major(rdev), unix.Minor(rdev)
	if major == nvidiaMajor {
		switch minor {
		case minorControl:
			return "nvidiactl", true
		case minorModeset:
			return "nvidia-modeset", true
		}
		return "nvidia" + strconv.FormatUint(uint64(minor), 10), true
	}
	driver, ok := n.majors[major]
	if !ok {
		return "", false
	}
	if driver == "nvidia-uvm" {
		// uvm_linux.h: minor 0 is the driver, minor 1 its tools interface.
		if minor == 1 {
			return "nvidia-uvm-tools", true
		}
		return driver, true
	}
	if base, found := strings.CutPrefix(path, "/dev/"); found && strings.HasPrefix(base, "nvidia") {
		return base, true
	}
	return driver + "#" + strconv.FormatUint(uint64(minor), 10), true
}

// nodePaths are the paths whose opening can yield one of NVIDIA's nodes. They are
// asked for every open of every traced process, so a miss must be cheap; what they
// let through is checked by device number afterwards. Libraries often lie in
// folders that are named after NVIDIA.
func nodePaths() []agent.Path {
	return []agent.Path{
		{Part: "nvidia", Base: true},
		{Prefix: "/dev/", Part: "nvidia"},
		{Part: "nvidia-caps"},
		{Prefix: "/dev/char/"},
		{Prefix: "/proc/", Part: "/fd/"},
		{Prefix: "/dev/fd/"},
	}
}

// anyPath makes Options.MayBeNode of paths.
func anyPath(list []agent.Path) func(path []byte) bool {
	return func(path []byte) bool {
		for i := range list {
			if list[i].Match(path) {
				return true
			}
		}
		return false
	}
}

var versionRE = regexp.MustCompile(`\b(\d{3,}\.\d+(?:\.\d+)?)\b`)

// driverVersion extracts the kernel module's version from a file in the format
// of /proc/driver/nvidia/version, "" where there is none.
func driverVersion(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(b), "\n")
	if m := versionRE.FindStringSubmatch(line); m != nil {
		return m[1]
	}
	return ""
}

// gpuUUIDs reads the UUIDs of the GPUs below a folder like /proc/driver/nvidia/gpus. The
// driver writes question marks for a GPU that nobody has used yet.
func gpuUUIDs(dir string) (list []string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*", "information")) // the pattern is good
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			name, value, _ := strings.Cut(line, ":")
			if value = strings.TrimSpace(value); strings.TrimSpace(name) == "GPU UUID" && value != "" && !strings.Contains(value, "?") {
				list = append(list, value)
			}
		}
	}
	return list
}
