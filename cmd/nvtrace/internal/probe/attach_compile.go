package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/nvattach/jit"
	"nvtrace/nvattach/preload"
)

// resources are what a thread, or of shared memory a block, of a kernel takes.
type resources struct {
	registers int
	stack     int    // bytes of local memory in its frame
	spilled   int    // bytes stored and loaded for want of registers
	code      uint64 // bytes of instructions, 0: not asked for
	shared    uint64 // bytes of static shared memory
}

// A resourceCompiler compiles PTX and says what its kernels take, by their mangled
// names.
type resourceCompiler interface {
	resources(text, target string) (map[string]*resources, error)
	// body makes a cubin of a program that is to go into machine code.
	body(text, target string) ([]byte, error)
}

// toolsPatch has a compiler make what can be put into other code.
const toolsPatch = "--compile-as-tools-patch"

// openCompiler returns the compiler that the flags name, else the driver's.
func (f *DryFlags) openCompiler() (resourceCompiler, error) {
	if f.ptxas != "" {
		if f.jit != "" {
			return nil, errors.New("--ptxas and --jit exclude each other")
		}
		path, err := exec.LookPath(f.ptxas)
		if err != nil {
			return nil, fmt.Errorf("--ptxas: %w", err)
		}
		return ptxas(path), nil
	}
	path := f.jit
	if path == "" {
		var err error
		if path, err = jit.Find(""); err != nil {
			return nil, err
		}
	}
	c, err := jit.Open(path, nil)
	if err == nil {
		_, _, err = c.Version()
	}
	if err != nil {
		return nil, fmt.Errorf("--jit: %w", err)
	}
	return driverCompiler{c}, nil
}

// driverCompiler is the driver's own.
type driverCompiler struct{ c *jit.Compiler }

func (d driverCompiler) resources(text, target string) (map[string]*resources, error) {
	r, err := d.c.Compile(context.Background(), []byte(text), target, "--verbose")
	if err != nil {
		return nil, err
	}
	return kernelResources(r.Info, r.Cubin)
}

func (d driverCompiler) body(text, target string) ([]byte, error) {
	r, err := d.c.Compile(context.Background(), []byte(text), target, toolsPatch)
	if err != nil {
		return nil, err
	}
	return r.Cubin, nil
}

// ptxas is the path of the toolkit's assembler.
type ptxas string

func (p ptxas) resources(text, target string) (map[string]*resources, error) {
	info, cubin, err := p.run(text, target, "-v")
	if err != nil {
		return nil, err
	}
	return kernelResources(info, cubin)
}

func (p ptxas) body(text, target string) ([]byte, error) {
	_, cubin, err := p.run(text, target, toolsPatch)
	return cubin, err
}

// run returns what ptxas says and makes.
func (p ptxas) run(text, target, option string) (info string, cubin []byte, err error) {
	own, err := preload.NewFolder(os.TempDir(), "nvtrace-ptxas-")
	if err != nil {
		return "", nil, err
	}
	defer own.Remove()
	in, out := filepath.Join(own.Path, "module.ptx"), filepath.Join(own.Path, "module.cubin")
	if err := os.WriteFile(in, []byte(text), 0o600); err != nil {
		return "", nil, err
	}
	said, err := exec.Command(string(p), option, "-arch="+target, "-o", out, in).CombinedOutput()
	if err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(string(said)), "\n")
		return "", nil, fmt.Errorf("%s: %w: %s", string(p), err, first)
	}
	cubin, err = os.ReadFile(out)
	return string(said), cubin, err
}

// kernelResources takes from the compiler's own words what they say, and the rest
// from the cubin.
func kernelResources(info string, cubin []byte) (map[string]*resources, error) {
	list := parseResources(info)
	c, err := fatbin.ParseCubin(cubin)
	if err != nil {
		if len(list) > 0 {
			return list, nil
		}
		return nil, fmt.Errorf("the compiler's result: %w", err)
	}
	for i := range c.Kernels {
		k := &c.Kernels[i]
		r := list[k.Name]
		if r == nil {
			r = &resources{stack: k.Frame}
			list[k.Name] = r
		}
		r.registers, r.shared = max(r.registers, k.Registers), max(r.shared, k.Shared)
	}
	return list, nil
}

// parseResources reads what ptxas and the driver's compiler print about kernels:
//
//	Compiling entry function 'k' for 'sm_90'
//	Function properties for k
//	    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
//	Used 10 registers, used 0 barriers, 128 bytes smem
func parseResources(info string) map[string]*resources {
	list := make(map[string]*resources)
	var now, frame *resources // of the kernel, and of the function whose frame comes
	for line := range strings.Lines(info) {
		if m := compilingLine.FindStringSubmatch(line); m != nil {
			now = new(resources)
			list[m[1]] = now
		} else if m := functionLine.FindStringSubmatch(line); m != nil {
			frame = list[m[1]]
		} else if m := frameLine.FindStringSubmatch(line); m != nil && frame != nil {
			frame.stack, frame.spilled = number(m[1]), number(m[2])+number(m[3])
		} else if m := usedLine.FindStringSubmatch(line); m != nil && now != nil {
			now.registers = number(m[1])
			if m := sharedWord.FindStringSubmatch(line); m != nil {
				now.shared = uint64(number(m[1]))
			}
		}
	}
	return list
}

var (
	compilingLine = regexp.MustCompile(`Compiling entry function '([^']+)'`)
	functionLine  = regexp.MustCompile(`Function properties for (\S+)`)
	frameLine     = regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads`)
	usedLine      = regexp.MustCompile(`Used (\d+) registers`)
	sharedWord    = regexp.MustCompile(`(\d+) bytes smem`)
)

// number reads decimal digits; what is too large is 0.
func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return n
}
