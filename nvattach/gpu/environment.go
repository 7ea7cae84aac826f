package gpu

import (
	"strings"

	"nvtrace/nvattach"
)

// forces and forbids are the variables by which the driver is made to compile PTX where an image has
// machine code, too, or not to compile it at all.
var (
	forces  = []string{"CUDA_FORCE_PTX_JIT", "CUDA_FORCE_JIT"}
	forbids = []string{"CUDA_DISABLE_PTX_JIT", "CUDA_DISABLE_JIT"}
)

// jitOf says what the driver takes of images in a process with an environment. Other variables
// (CUDA_MODULE_LOADING, CUDA_MODULE_DATA_LOADING, CUDA_LAUNCH_BLOCKING, CUDA_CACHE_*) do not
// change what is taken, only when.
func jitOf(env []string) (j nvattach.JIT) {
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		if value == "" || strings.Trim(value, "0") == "" {
			continue
		}
		for _, n := range forces {
			if name == n {
				j.Forced = n
			}
		}
		for _, n := range forbids {
			if name == n {
				j.Forbidden = n
			}
		}
	}
	return j
}
