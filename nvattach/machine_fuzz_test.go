package nvattach

import (
	"os"
	"sync"
	"testing"

	"nvtrace/fatbin"
)

// FuzzMachineCode puts programs into any cubin. What comes of it is a cubin in which every
// kernel is accounted for.
func FuzzMachineCode(f *testing.F) {
	for _, name := range []string{"kernels.13.0.sm_90a.cubin", "kernels.12.4.sm_90a.cubin"} {
		image, err := os.ReadFile("../fatbin/testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(image)
	}
	compile := compileBody(f, "sm_90")
	plan, maps := placedPlan(f, testObject(f, "example_count"))
	var mu sync.Mutex
	compiled := make(map[string][]byte)
	f.Fuzz(func(t *testing.T, image []byte) {
		c, err := fatbin.ParseCubin(image)
		if err != nil || len(c.Kernels) > 16 || c.Arch.SM != 90 {
			return
		}
		for i := range c.Kernels {
			if c.Kernels[i].Size > 1<<15 || len(c.Kernels[i].Params) > 64 {
				return // it takes too long
			}
		}
		out, err := plan.Rewrite(image, maps, &RewriteOptions{Arch: fatbin.Arch{SM: 90, Suffix: 'a'}, Twins: TwinsAll, CompileBody: func(text string) ([]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			if b := compiled[text]; b != nil {
				return b, nil
			}
			b, err := compile(text)
			compiled[text] = b
			return b, err
		}})
		if err != nil {
			return
		}
		told := make(map[string]bool)
		for _, k := range out.Kernels {
			told[k.Name] = true
		}
		for _, u := range out.Unprobed {
			told[u.Kernel] = true
		}
		for _, name := range kernelNames(c) {
			if !told[name] {
				t.Fatalf("nothing is said of %q", name)
			}
		}
		if !out.Changed {
			return
		}
		if _, err := fatbin.ParseCubin(out.Image); err != nil {
			t.Fatal(err)
		}
	})
}
