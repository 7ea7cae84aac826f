package view

import (
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/rm"
)

// openCause says why a device node could not be opened, as far as Linux and the driver return an error for one
// reason only.
func openCause(path string, errno unix.Errno) rm.Cause {
	switch errno {
	case unix.EPERM:
		return rm.Cause{
			Kind: rm.CausePermission, Text: "the device cgroup does not permit this device",
			Advice: "in a container, after systemctl daemon-reload on the host: restart it, or name its devices (docker run --device=/dev/nvidia0 …)",
			Source: "Linux, security/device_cgroup.c",
		}
	case unix.EACCES:
		return rm.Cause{
			Kind: rm.CausePermission, Text: "the node's owner and mode do not permit this user, or its file system is mounted nodev",
			Advice: "ls -l " + path, Source: "Linux, fs/namei.c: may_open",
		}
	case unix.ENXIO:
		return rm.Cause{
			Kind: rm.CauseUnsupported, Text: "no driver has registered the node's device number",
			Advice: "load the driver: sudo nvidia-modprobe", Source: "Linux, fs/char_dev.c: chrdev_open",
		}
	case unix.ENODEV:
		return rm.Cause{Kind: rm.CauseHardware, Text: "the driver has no GPU of this number", Advice: "nvidia-smi -L lists them", Source: "nv.c: nvidia_open"}
	case unix.EIO:
		return rm.Cause{Kind: rm.CauseHardware, Text: "the driver could not start the GPU", Advice: "dmesg says why, in lines with NVRM", Source: "nv.c: nv_start_device"}
	case unix.ENOENT:
		if name, ok := strings.CutPrefix(path, "/dev/nvidia"); ok && (name == "ctl" || strings.Trim(name, "0123456789") == "") {
			return rm.Cause{
				Kind: rm.CauseUnsupported, Text: "there is no such node",
				Advice: "in a container: start it with its GPUs (docker run --gpus all …); elsewhere load the driver: sudo nvidia-modprobe -c 0", Source: "open(2)",
			}
		}
	}
	return rm.Cause{}
}
