package gpu

import (
	gocontext "context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"nvtrace/ptrace"
	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/proc"
)

// Direct is a program of kprobe/__directly_run that is to run as a kernel of its own.
type Direct struct {
	Program     string
	Count       int
	Grid, Block [3]uint32
}

// DirectOptions say where and how.
type DirectOptions struct {
	Options
	// Env is the environment of the process that has the driver; nil is this one's,
	// with libcuda.so.1 preloaded.
	Env []string
}

// ErrNoDriver is in the chain of errors where there is no driver, or no GPU.
var ErrNoDriver = errors.New("no CUDA driver")

// RunDirect runs programs on the machine's first GPU, one after the other, in the
// process of a small program of the system's into which the driver is loaded: the
// driver runs in no process of ours. The session's context is kept when it returns.
func RunDirect(ctx gocontext.Context, jobs []Direct, o *DirectOptions) error {
	host, err := carrier()
	if err != nil {
		return err
	}
	env := o.Env
	if env == nil {
		env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LD_PRELOAD=") })
		env = append(env, "LD_PRELOAD=libcuda.so.1")
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	d := &direct{Tracer: New(&o.Options, directClass+1), jobs: jobs, err: errors.New("the program that carries the driver ended at once")}
	_, err = ptrace.Run(ctx, &ptrace.Options{
		Argv: []string{host}, Env: env, Stdin: null, Stdout: null, Stderr: null, Logger: o.Logger,
		// cat reads its standard input when the driver has been loaded.
		Rules: append(d.Rules(), ptrace.Rule{Names: []string{"read"}, Class: directClass, Args: []ptrace.ArgMatch{{Arg: 0, Value: 0}}}),
	}, d)
	d.Close()
	if err != nil {
		return err
	}
	return d.err
}

// directClass is the class of the call at which the driver is ready.
const directClass = 0x100

// carrier finds a program that the driver can be loaded into.
func carrier() (string, error) {
	for _, name := range []string{"cat", "/bin/cat", "/usr/bin/cat"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		file, err := os.Open(path)
		if err != nil {
			continue
		}
		f, err := dso.Read(file)
		linked := err == nil && len(f.Strings(elf.DT_NEEDED)) > 0
		_ = file.Close()
		if linked {
			return path, nil
		}
	}
	return "", errors.New("there is no cat that is linked with a C library, to load the driver into")
}

// direct handles the stops of the process that has the driver. That is cat, with the driver preloaded: when
// it reads its standard input, all libraries are there and nothing of the driver is under way. All work
// is one visit at that system call; then it reads the end of /dev/null, and ends.
type direct struct {
	*Tracer
	jobs  []Direct
	begun bool
	err   error // of the work, when it is over
}

// Enter implements [ptrace.Handler].
func (d *direct) Enter(t *ptrace.Task, s *ptrace.Syscall) ptrace.Verdict {
	if s.Class != directClass {
		return d.Tracer.Enter(t, s)
	}
	th := d.thread(t.TID)
	if d.begun || th == nil {
		return ptrace.Skip
	}
	d.begun = true
	p, err := d.enroll(th)
	if err != nil {
		d.err = err
		return ptrace.Skip
	}
	t.Hold()
	p.visit(th, func(v *visit) func(*ptrace.Task) {
		d.err = d.work(v)
		return nil
	})
	return ptrace.Skip
}

// work does all of it, while the process is held.
func (d *direct) work(v *visit) error {
	v.limit = 0 // what the program's kernels take
	if err := v.preloaded(); err != nil {
		return err
	}
	c, err := v.primary()
	if err != nil {
		return err
	}
	for i := range d.jobs {
		if err := d.job(v, c, &d.jobs[i]); err != nil {
			return fmt.Errorf("%s: %w", d.jobs[i].Program, err)
		}
	}
	return v.keep(c, true)
}

// preloaded finds the driver that was loaded into the process.
func (v *visit) preloaded() error {
	maps, err := proc.Maps(v.p.pid)
	if err != nil {
		return err
	}
	for i := range maps {
		if m := &maps[i]; m.Exec && IsDriver(m.Path) {
			if v.p.driver, err = openLibrary(v.p.pid, m); err != nil {
				return err
			}
			return nil
		}
	}
	return fmt.Errorf("libcuda.so.1 can't be loaded: %w", ErrNoDriver)
}

// primary makes the first device's primary context current, with maps.
func (v *visit) primary() (*context, error) {
	if err := v.run(call("cuInit", 0)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDriver, err)
	}
	dev, err := v.ask("cuDeviceGet", 0)
	if err != nil {
		return nil, err
	}
	handle, err := v.ask("cuDevicePrimaryCtxRetain", uint64(uint32(dev)))
	if err != nil {
		return nil, err
	}
	if err := v.run(call("cuCtxSetCurrent", handle)); err != nil {
		return nil, err
	}
	c, err := v.newContext(handle)
	if err != nil {
		return nil, err
	}
	v.p.contexts[handle] = c
	v.p.order = append(v.p.order, c)
	return c, nil
}

// job runs one program.
func (d *direct) job(v *visit, c *context, job *Direct) error {
	text, name, err := c.session.RunText(job.Program, c.arch.SM)
	if err != nil {
		return err
	}
	image := append([]byte(text), 0)
	if compile := d.compileFor(v.p.driver, c.arch, c.mem.addr); compile != nil {
		cubin, err := compile(text)
		if err != nil {
			return err
		}
		if cubin != nil {
			image = cubin
		}
	}
	at, err := v.space(uint64(len(image)))
	if err != nil {
		return err
	}
	if err := v.poke(at, image); err != nil {
		return err
	}
	module, err := v.ask("cuModuleLoadData", at)
	if err != nil {
		return err
	}
	if err := v.poke(v.stage(), append([]byte(name), 0)); err != nil {
		return err
	}
	f, err := v.ask("cuModuleGetFunction", module, v.stage())
	if err != nil {
		return err
	}
	g, b := job.Grid, job.Block
	launch := call("cuLaunchKernel", f, uint64(g[0]), uint64(g[1]), uint64(g[2]), uint64(b[0]), uint64(b[1]), uint64(b[2]), 0, 0, 0, 0)
	for n := job.Count; n > 0; n -= batch {
		steps := make([]step, 0, batch)
		for range min(n, batch) {
			steps = append(steps, launch)
		}
		if err := v.run(steps...); err != nil {
			return err
		}
	}
	return v.run(call("cuCtxSynchronize"), call("cuModuleUnload", module))
}
