package gpu

import (
	"testing"

	"nvtrace/nvattach"
)

// TestJITOf has what the driver is documented to go by.
func TestJITOf(t *testing.T) {
	for _, c := range []struct {
		env  []string
		want nvattach.JIT
	}{
		{nil, nvattach.JIT{}},
		{[]string{"CUDA_FORCE_PTX_JIT=1"}, nvattach.JIT{Forced: "CUDA_FORCE_PTX_JIT"}},
		{[]string{"A=b", "CUDA_FORCE_JIT=1"}, nvattach.JIT{Forced: "CUDA_FORCE_JIT"}},
		{[]string{"CUDA_FORCE_PTX_JIT=0"}, nvattach.JIT{}},
		{[]string{"CUDA_FORCE_PTX_JIT="}, nvattach.JIT{}},
		{[]string{"CUDA_DISABLE_PTX_JIT=1"}, nvattach.JIT{Forbidden: "CUDA_DISABLE_PTX_JIT"}},
		{[]string{"CUDA_DISABLE_JIT=1", "CUDA_FORCE_JIT=1"}, nvattach.JIT{Forced: "CUDA_FORCE_JIT", Forbidden: "CUDA_DISABLE_JIT"}},
		{[]string{"CUDA_MODULE_LOADING=EAGER", "CUDA_MODULE_DATA_LOADING=LAZY", "CUDA_LAUNCH_BLOCKING=1", "CUDA_CACHE_DISABLE=1"}, nvattach.JIT{}},
	} {
		if got := jitOf(c.env); got != c.want {
			t.Errorf("%q: %+v, want %+v", c.env, got, c.want)
		}
	}
}
