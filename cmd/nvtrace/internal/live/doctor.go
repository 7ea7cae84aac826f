package live

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/code"
	"nvtrace/cmd/nvtrace/internal/places"
	"nvtrace/cmd/nvtrace/internal/probe"
	"nvtrace/fatbin"
	"nvtrace/nvattach/jit"
	"nvtrace/rm"
	"nvtrace/traces/record"
)

// finding is what doctor found out about one thing.
type finding struct {
	what   string
	state  state
	detail string
	fix    string // what to type, "" where there is nothing to do
}

type state uint8

const (
	stateOK   state = iota
	stateNote       // something does not work that not everybody needs
	stateBad        // tracing does not work
)

// checkup looks at a machine. Tests set another root, and what the kernel would say.
type checkup struct {
	root     string
	uid      int
	trace    func() error                         // tries to trace a program
	filters  func(action uint32) bool             // whether seccomp filters may have that action
	compiler func(libcuda string) (string, error) // finds the compiler library
	look     func(program string) (string, error) // finds a program
	writable func(path string) error              // tries to open a node
	getenv   func(name string) string
	home     string
	arch     string

	list                            []finding
	traces, driver, compiles, clang bool
	yama                            int // ptrace_scope; -1: there is no such limit
	ptraceCap                       bool
	libcuda                         string
}

// DoctorVerb says what works on this machine, and what to type for the rest.
func DoctorVerb(e *cli.Env, args, command []string) int {
	fs := cli.NewFlagSet(e, "doctor", "[FILE...] [-- command]")
	var asJSON cli.OptString
	asJSON.RegisterJSON(fs)
	files, status, ok := cli.ParseAnywhere(fs, args)
	if !ok {
		return status
	}
	if err := e.Inputs(files); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if len(command) > 0 {
		exe, err := exec.LookPath(command[0])
		if err != nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
		files = append(files, exe)
		files = append(files, probe.LinkedWith(exe)...)
	}
	home, _ := os.UserHomeDir() // "" has nothing installed
	c := &checkup{
		root: "/", uid: os.Geteuid(), trace: tryTrace, filters: seccompAction, compiler: jit.Find, look: exec.LookPath,
		writable: func(path string) error {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err == nil {
				err = f.Close()
			}
			return err
		},
		getenv: e.Getenv, home: home, arch: runtime.GOARCH,
	}
	c.all()
	if len(files) == 0 {
		files = c.installed()
	}
	c.code(e, files)
	if status := e.Answer(&asJSON, nil, c.report(), func() error {
		_, err := fmt.Fprint(e.Stdout, c.text())
		return err
	}); status != cli.ExitOK {
		return status
	}
	if !c.traces {
		return cli.ExitDiffers
	}
	return cli.ExitOK
}

func (c *checkup) add(what string, s state, detail, fix string) {
	c.list = append(c.list, finding{what, s, detail, fix})
}

func (c *checkup) read(name string) string {
	b, err := os.ReadFile(filepath.Join(c.root, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func (c *checkup) exists(name string) bool {
	_, err := os.Stat(filepath.Join(c.root, name))
	return err == nil
}

// all looks at everything but programs' code.
func (c *checkup) all() {
	c.tracing()
	c.filtering()
	c.container()
	c.kernelDriver()
	c.nodes()
	c.libraries()
	c.programs()
}

// tracing finds out whether programs can be traced, and running ones attached to.
func (c *checkup) tracing() {
	c.yama = -1
	if n, err := strconv.Atoi(c.read("proc/sys/kernel/yama/ptrace_scope")); err == nil {
		c.yama = n
	}
	const sysPtrace = 19 // linux/capability.h: CAP_SYS_PTRACE
	for line := range strings.Lines(c.read("proc/self/status")) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			c.ptraceCap = err == nil && n>>sysPtrace&1 == 1
		}
	}
	if err := c.trace(); err != nil {
		fix := "another tracer may hold this process (gdb, strace)"
		if c.yama == 3 {
			fix = "kernel.yama.ptrace_scope is 3: only a reboot without it allows tracing"
		} else if c.inContainer() != "" {
			fix = "start the container with --cap-add SYS_PTRACE, or --security-opt seccomp=unconfined"
		}
		c.add("tracing", stateBad, "programs can't be traced: "+err.Error(), fix)
		return
	}
	c.traces = true
	c.add("tracing", stateOK, "programs that nvtrace starts can be traced", "")
	switch {
	case c.ptraceCap:
		c.add("attaching", stateOK, "running programs can be attached to (CAP_SYS_PTRACE)", "")
	case c.yama <= 0:
		c.add("attaching", stateOK, "running programs of this user can be attached to", "")
	case c.yama == 1:
		c.add("attaching", stateNote, "running programs can't be attached to: kernel.yama.ptrace_scope is 1", "sudo nvtrace -p PID, or sudo sysctl kernel.yama.ptrace_scope=0")
	default:
		c.add("attaching", stateNote, fmt.Sprintf("running programs can't be attached to: kernel.yama.ptrace_scope is %d", c.yama), "sudo nvtrace -p PID")
	}
}

// filtering finds out about seccomp filters.
func (c *checkup) filtering() {
	switch {
	case !c.filters(seccompRetTrace):
		c.add("seccomp", stateNote, "no filters: every system call would stop", "nvtrace --seccomp=off -- command")
	case !c.filters(seccompRetUserNotif):
		c.add("seccomp", stateNote, "filters can be had, but no notifications: replay does not work", "Linux 5.14 or newer")
	default:
		c.add("seccomp", stateOK, "filters pick the calls to stop at", "")
	}
}

// inContainer names the container that this is in, "" for none.
func (c *checkup) inContainer() string {
	if c.root == "/" {
		if name := record.Container(0); name != "" {
			return name
		}
	}
	switch {
	case c.exists(".dockerenv"):
		return "docker"
	case c.exists("run/.containerenv"):
		return "podman"
	}
	return ""
}

func (c *checkup) container() {
	if name := c.inContainer(); name != "" {
		c.add("container", stateOK, "this is one: "+name, "")
	}
	for _, p := range places.Find(places.Machine{Root: c.root, Getenv: c.getenv, Container: c.inContainer()}) {
		s := stateOK
		if p.Note {
			s = stateNote
		}
		c.add(p.Name, s, p.Detail, p.Fix)
	}
}

var driverLine = regexp.MustCompile(`(?m)Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s`)

func (c *checkup) kernelDriver() {
	m := driverLine.FindStringSubmatch(c.read("proc/driver/nvidia/version") + " ")
	if m == nil {
		fix := "install NVIDIA's driver; until then: nvtrace --sim -- command"
		if c.inContainer() != "" {
			fix = "start the container with --gpus all (docker) or --device nvidia.com/gpu=all (podman); until then: nvtrace --sim -- command"
		}
		c.add("driver", stateNote, "there is none", fix)
		return
	}
	c.driver = true
	detail := cli.DriverText(m[1])
	if v, err := rm.ParseVersion(m[1]); err == nil && slices.Contains(rm.Versions(), v) {
		detail += ", whose calls are known"
	} else {
		detail += ", which is not in the tables: its calls are read by those of the nearest older one"
	}
	c.add("driver", stateOK, detail, "")
	gpus, _ := filepath.Glob(filepath.Join(c.root, "proc/driver/nvidia/gpus/*/information")) // the pattern is good
	var models []string
	for _, g := range gpus {
		b, err := os.ReadFile(g)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "Model:"); ok {
				models = append(models, strings.TrimSpace(v))
			}
		}
	}
	if len(models) > 0 {
		c.add("GPUs", stateOK, tally(models), "")
	} else {
		c.add("GPUs", stateNote, "the driver sees none", "nvidia-smi, and dmesg for what the driver says")
	}
}

// tally is a list in which what occurs several times is counted.
func tally(list []string) string {
	var out []string
	for i, s := range list {
		if slices.Index(list, s) < i {
			continue
		}
		n := 0
		for _, o := range list {
			if o == s {
				n++
			}
		}
		if n > 1 {
			s = fmt.Sprintf("%d x %s", n, s)
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func (c *checkup) nodes() {
	if !c.driver {
		return
	}
	var missing, closed []string
	gpus, _ := filepath.Glob(filepath.Join(c.root, "dev/nvidia[0-9]*")) // the pattern is good
	names := []string{"nvidiactl", "nvidia-uvm"}
	for _, g := range gpus {
		names = append(names, filepath.Base(g))
	}
	if len(gpus) == 0 {
		missing = append(missing, "nvidia0")
	}
	for _, name := range names {
		if !c.exists("dev/" + name) {
			missing = append(missing, name)
		} else if err := c.writable(filepath.Join(c.root, "dev", name)); errors.Is(err, os.ErrPermission) {
			closed = append(closed, name)
		}
	}
	switch {
	case len(missing) > 0:
		c.add("devices", stateNote, "missing below /dev: "+strings.Join(missing, ", "), "sudo nvidia-modprobe -u -c=0; in a container: --gpus all")
	case len(closed) > 0:
		c.add("devices", stateNote, "not open to this user: "+strings.Join(closed, ", "), "sudo chmod a+rw /dev/nvidia*, or become a member of their group")
	default:
		c.add("devices", stateOK, strings.Join(names, ", "), "")
	}
}

// driverFolders are where the driver's libraries are.
var driverFolders = []string{
	"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "usr/local/nvidia/lib64", "usr/lib/wsl/lib",
	"run/opengl-driver/lib", "usr/local/cuda/compat",
}

var libraryVersion = regexp.MustCompile(`\.so\.(\d+\.\d+(\.\d+)?)$`)

func (c *checkup) libraries() {
	for _, folder := range driverFolders {
		name := filepath.Join(c.root, folder, "libcuda.so.1")
		if _, err := os.Stat(name); err == nil {
			c.libcuda = name
			break
		}
	}
	switch {
	case c.libcuda == "" && c.driver:
		c.add("libcuda", stateNote, "libcuda.so.1 is in none of the system's folders", "install the driver's libraries; in a container: --gpus all with NVIDIA_DRIVER_CAPABILITIES=compute,utility")
	case c.libcuda != "":
		real, err := filepath.EvalSymlinks(c.libcuda)
		if err != nil {
			real = c.libcuda
		}
		detail := c.libcuda
		kernel := driverLine.FindStringSubmatch(c.read("proc/driver/nvidia/version") + " ")
		if m := libraryVersion.FindStringSubmatch(real); m != nil {
			detail += " of " + m[1]
			if kernel != nil && kernel[1] != m[1] && !strings.Contains(real, "compat") {
				c.add("libcuda", stateNote, detail+", but the kernel runs "+kernel[1], "sudo reboot, or unload the driver and load it again")
				break
			}
		}
		c.add("libcuda", stateOK, detail, "")
	}
	lib, err := c.compiler(c.libcuda)
	switch {
	case err == nil:
		c.compiles = true
		c.add("compiler", stateOK, lib, "")
	case c.driver:
		c.add("compiler", stateNote, "probes can't be compiled for a GPU: "+err.Error(), "install the driver's "+jit.LibraryName)
	}
}

func (c *checkup) programs() {
	if name, err := c.look("clang"); err == nil {
		c.clang = true
		c.add("clang", stateOK, name+", for --attach probe.bpf.c", "")
	} else {
		c.add("clang", stateNote, "none: --attach takes objects only, no probe.bpf.c", "apt-get install clang; one-liners (-e) need none")
	}
}

// installed returns libraries with GPU code of frameworks that are installed.
func (c *checkup) installed() (list []string) {
	bases := []string{
		"usr/lib/python3*/*-packages", "usr/lib/python3/dist-packages", "usr/local/lib/python3*/*-packages", "opt/conda/lib/python3*/site-packages",
		"opt/venv/lib/python3*/site-packages",
	}
	for i := range bases {
		bases[i] = filepath.Join(c.root, bases[i])
	}
	if c.home != "" {
		bases = append(bases, filepath.Join(c.home, ".local/lib/python3*/site-packages"))
	}
	for _, name := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
		if v := os.Getenv(name); v != "" && c.root == "/" {
			bases = append(bases, filepath.Join(v, "lib/python3*/site-packages"))
		}
	}
	patterns := []string{filepath.Join(c.root, "usr/local/cuda/lib64/libcublas*.so")}
	for _, b := range bases {
		for _, lib := range []string{
			"torch/lib/libtorch_cuda.so", "nvidia/*/lib/libcublas.so.*", "nvidia/*/lib/libcublasLt.so.*", "nvidia/*/lib/libnccl.so.*",
			"jaxlib/cuda/*.so", "cupy*/_core/*.so", "nvidia/cudnn/lib/libcudnn_*.so.*",
		} {
			patterns = append(patterns, filepath.Join(b, lib))
		}
	}
	const most = 24
	for _, p := range patterns {
		names, _ := filepath.Glob(p) // the patterns are good
		for _, name := range names {
			if len(list) < most && !slices.Contains(list, name) {
				list = append(list, name)
			}
		}
	}
	return list
}

// code says of which files the kernels can be probed.
func (c *checkup) code(e *cli.Env, files []string) {
	for _, name := range files {
		r, err := code.ListFile(e, name, new(code.FatbinFlags), code.EntryFilter{AnyKind: true, AnyArch: true}, false)
		if err != nil {
			c.add(filepath.Base(name), stateNote, err.Error(), "")
			continue
		}
		var ptx, machine []string
		images := 0
		for i := range r.Containers {
			for _, en := range r.Containers[i].Entries {
				list := &machine
				if en.Kind == fatbin.KindPTX.String() {
					list = &ptx
				}
				if images++; !slices.Contains(*list, en.Arch) {
					*list = append(*list, en.Arch)
				}
			}
		}
		detail := fmt.Sprintf("%s: PTX for %s, machine code for %s", cli.CountOf(images, "image"), orNone(ptx), orNone(machine))
		switch {
		case images == 0:
			continue
		case len(ptx) == 0:
			c.add(filepath.Base(name), stateNote, detail, "its kernels have no PTX: probes go into their machine code, on others than sm_90 with --untested-arch")
		default:
			c.add(filepath.Base(name), stateOK, detail, "")
		}
	}
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "nothing"
	}
	slices.Sort(list)
	return cli.SomeOf(list, 6)
}

// doctorReport is what doctor says, for programs.
type doctorReport struct {
	Findings []doctorFinding `json:"findings"`
	Works    []doctorWorks   `json:"works"`
}

type doctorFinding struct {
	What   string `json:"what"`
	State  string `json:"state"` // ok; note: not everybody needs it; bad: nothing can be traced
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"` // what to type
}

type doctorWorks struct {
	Command string `json:"command"`
	Works   bool   `json:"works"`
	Why     string `json:"why,omitempty"` // it does not
}

func (c *checkup) report() *doctorReport {
	r := &doctorReport{Findings: []doctorFinding{}}
	for _, f := range c.list {
		r.Findings = append(r.Findings, doctorFinding{f.what, []string{"ok", "note", "bad"}[f.state], f.detail, f.fix})
	}
	c.works(func(yes bool, what, why string) {
		command, _, _ := strings.Cut(what, "  ")
		if yes {
			why = ""
		}
		r.Works = append(r.Works, doctorWorks{command, yes, why})
	})
	return r
}

// text is what doctor says.
func (c *checkup) text() string {
	var b strings.Builder
	width := 10
	for _, f := range c.list {
		width = max(width, min(len(f.what), 24))
	}
	put := func(mark, what, text string) {
		head := fmt.Sprintf("%-4s %-*s  ", mark, width, what)
		indent := strings.Repeat(" ", len(head))
		if len(what) > width {
			b.WriteString(head + "\n")
			head = indent
		}
		for _, line := range cli.Wrap(cli.Printable(text), cli.HelpWidth-len(indent)) {
			b.WriteString(head + line + "\n")
			head = indent
		}
	}
	for _, f := range c.list {
		put([]string{"ok", "-", "NO"}[f.state], f.what, f.detail)
		if f.fix != "" {
			fmt.Fprintf(&b, "%*s→ %s\n", width+7, "", cli.Printable(f.fix)) // whole, to be copied
		}
	}
	b.WriteString("\nWhat works here:\n")
	works := func(yes bool, what, why string) {
		mark := "yes"
		if !yes {
			mark = "no"
			what += "  (" + why + ")"
		}
		fmt.Fprintf(&b, "  %-4s %s\n", mark, what)
	}
	c.works(works)
	return b.String()
}

// works names the commands, and whether they work.
func (c *checkup) works(say func(yes bool, what, why string)) {
	gpu := c.traces && c.driver
	why := "no driver"
	if !c.traces {
		why = "no tracing"
	}
	say(gpu, "nvtrace -- ./app                  what it does with the GPU", why)
	say(gpu && (c.yama <= 0 || c.ptraceCap), "nvtrace -p PID                    the same of a running program", firstOf(!gpu, why, "see attaching"))
	say(gpu && c.compiles, "nvtrace -e 'kernel:* { … }' -- ./app   probes in kernels", firstOf(!gpu, why, "no compiler library"))
	say(c.traces && c.arch == "amd64", "nvtrace --sim -- ./app            all that on a simulated GPU", firstOf(!c.traces, "no tracing", "x86-64 only"))
	say(true, "nvtrace report run.nvt            and the other verbs for recordings", "")
}

func firstOf(c bool, a, b string) string {
	if c {
		return a
	}
	return b
}

// tryTrace starts a program under ptrace, and lets it go.
func tryTrace() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	name, err := exec.LookPath("true")
	if err != nil {
		return err
	}
	cmd := exec.Command(name)
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(cmd.Process.Pid, &ws, 0, nil); err != nil {
		return err
	}
	if err := unix.PtraceDetach(cmd.Process.Pid); err != nil {
		_ = cmd.Process.Kill() // it is not traced, and ends in any case
		_ = cmd.Wait()
		return err
	}
	return cmd.Wait()
}

// Of linux/seccomp.h.
const (
	seccompGetActionAvail = 2
	seccompRetTrace       = 0x7ff00000
	seccompRetUserNotif   = 0x7fc00000
)
