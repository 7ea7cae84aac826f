package capture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// NodeOptions say where [PrepareNodes] looks. The zero value means the machine's
// own; tests use others.
type NodeOptions struct {
	Root   string // what stands for "/"
	Helper string // "": /usr/bin/nvidia-modprobe below Root
}

// helperTime is how long the helper may take: it loads kernel modules.
const helperTime = 30 * time.Second

// PrepareNodes makes the device nodes that the CUDA driver wants, where they are
// missing, by NVIDIA's own helper. Without nvtrace the driver calls that itself;
// but it is setuid root, and a traced program can't give it these rights. Nothing
// happens where the helper does not exist or nothing is missing. It must be
// called before the program is started.
func PrepareNodes(ctx context.Context, o *NodeOptions) error {
	if o == nil {
		o = new(NodeOptions)
	}
	helper := o.Helper
	if helper == "" {
		helper = filepath.Join("/", o.Root, "usr/bin/nvidia-modprobe")
	}
	if _, err := os.Stat(helper); err != nil {
		return nil // containers have none: their nodes are made outside
	}
	run := func(args ...string) error {
		ctx, cancel := context.WithTimeout(ctx, helperTime)
		defer cancel()
		if b, err := exec.CommandContext(ctx, helper, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w %s", helper, strings.Join(args, " "), err, strings.TrimSpace(string(b)))
		}
		return nil
	}
	have := func(node string) bool {
		_, err := os.Stat(filepath.Join("/", o.Root, "dev", node))
		return err == nil
	}
	var errs []error
	if !have("nvidiactl") || !have("nvidia0") {
		errs = append(errs, run("-c", "0"))
	}
	if !have("nvidia-uvm") {
		errs = append(errs, run("-u", "-c", "0"))
	}
	for _, minor := range gpuMinors(filepath.Join("/", o.Root, "proc/driver/nvidia/gpus")) {
		if minor != 0 && !have("nvidia"+strconv.Itoa(minor)) {
			errs = append(errs, run("-c", strconv.Itoa(minor)))
		}
	}
	return errors.Join(errs...)
}

// gpuMinors reads the "Device Minor" of each GPU that the kernel driver has.
func gpuMinors(dir string) []int {
	files, _ := filepath.Glob(filepath.Join(dir, "*", "information")) // no driver: none
	var list []int
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			key, value, _ := strings.Cut(line, ":")
			if strings.TrimSpace(key) != "Device Minor" {
				continue
			}
			if n, err := strconv.Atoi(strings.TrimSpace(value)); err == nil {
				list = append(list, n)
			}
		}
	}
	return list
}
