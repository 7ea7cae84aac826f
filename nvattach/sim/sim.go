package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/nvattach/preload"
	"nvtrace/ptx"
	"nvtrace/ptx/emu"
)

// Share has kernels of programs that come reach memory of this process, at an address that
// the programs have it at, too: to them it is registered already. Their %globaltimer is
// CLOCK_REALTIME then, as a GPU's nearly is, and not a model's.
func (s *Sim) Share(addr uint64, data []byte) {
	s.shared = append(s.shared, emu.Region{Base: addr, Data: data, Name: "maps of probes on the host"})
}

// New prepares a simulation: its socket and libraries lie in a private folder
// until [Sim.Close].
func New(o *Options) (*Sim, error) {
	s := &Sim{cat: newCatalog(), procs: map[int]*Process{}, files: map[[32]byte]*ptx.File{}}
	if o != nil {
		s.opts = *o
	}
	if s.gpu = s.opts.GPU; s.gpu == (GPU{}) {
		s.gpu = GPUs()[0]
	}
	s.opts.Count = min(max(s.opts.Count, 1), 16)
	if s.opts.MemoryLimit == 0 {
		s.opts.MemoryLimit = min(s.gpu.Memory*uint64(s.opts.Count), freeMemory()/4*3)
	}
	s.report = newReport(&s.gpu, s.opts.Count)
	if err := s.place(); err != nil {
		return nil, fmt.Errorf("simulated GPU: %w", err)
	}
	return s, nil
}

// place prepares the simulation in the first folder whose files programs can map
// as code, and in which there is room.
func (s *Sim) place() error {
	if err := preload.Place(preload.Folders(), s.placeIn); err != nil {
		return fmt.Errorf("no folder for its libraries (set TMPDIR): %w", err)
	}
	return nil
}

// placeIn prepares the simulation in a folder of its own in dir.
func (s *Sim) placeIn(dir string) error {
	own, err := preload.NewFolder(dir, "nvtrace-sim-")
	if err != nil {
		return err
	}
	s.own, s.dir, s.libs = own, own.Path, s.opts.LibDir
	if err := s.prepare(); err != nil {
		_ = own.Remove()
		return err
	}
	return nil
}

// prepare writes the libraries and opens the socket.
func (s *Sim) prepare() error {
	if s.libs == "" {
		s.libs = s.dir
		for i, name := range libraryNames {
			b, err := library(i)
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(s.dir, name), b, 0o755); err != nil {
				return err
			}
		}
	}
	// For programs that open the libraries by the names that linkers use.
	for link, name := range map[string]string{"libcuda.so": libraryNames[libCUDA], "libcudart.so": libraryNames[libCudart13]} {
		if err := os.Symlink(filepath.Join(s.libs, name), filepath.Join(s.dir, link)); err != nil {
			return err
		}
	}
	// The socket is connected by its path, and sockaddr_un has room for 108 bytes of it, with
	// the NUL. An abstract name would have no such limit, but belongs to a network namespace,
	// which a program in a container may not share.
	path := filepath.Join(s.dir, "s")
	if len(path) > 107 {
		return fmt.Errorf("the path of the socket, %q, is too long for one; set TMPDIR to a shorter one", path)
	}
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return err
	}
	s.ln = ln
	return nil
}

// freeMemory returns the bytes of memory that the machine has available.
func freeMemory() uint64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err == nil {
		for line := range strings.Lines(string(b)) {
			var kb uint64
			if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kb); n == 1 {
				return max(kb<<10, 1<<28)
			}
		}
	}
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) == nil {
		return max(si.Freeram*uint64(si.Unit), 1<<28)
	}
	return 4 << 30
}

// Env returns env with what a program needs to find the simulated GPU: LD_PRELOAD
// and LD_LIBRARY_PATH, each before what is in it already, and NVTRACE_SIM, the socket.
func (s *Sim) Env(env []string) []string {
	var libs []string
	for _, name := range libraryNames {
		libs = append(libs, filepath.Join(s.libs, name))
	}
	path := []string{s.dir}
	var out []string
	for _, e := range preload.Env(env, libs, func(string) bool { return false }) {
		name, value, _ := strings.Cut(e, "=")
		switch {
		case name == "NVTRACE_SIM":
		case name != "LD_LIBRARY_PATH":
			out = append(out, e)
		case value != "":
			path = append(path, value)
		}
	}
	return append(out, "LD_LIBRARY_PATH="+strings.Join(path, ":"), "NVTRACE_SIM="+filepath.Join(s.dir, "s"))
}

// Serve answers programs until ctx ends or the simulation is closed. Kernels that
// still run when ctx ends are stopped.
//
// Where this process has no descriptor left, a program that connects is accepted with one that is
// kept for that, and closed at once: its calls return CUDA_ERROR_NOT_INITIALIZED then, where it
// would otherwise wait for an answer for ever.
func (s *Sim) Serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, s.shut)
	defer stop()
	spare, _ := os.Open(os.DevNull) // given up to refuse a program
	defer func() { _ = spare.Close() }()
	raw, err := s.ln.SyscallConn()
	if err != nil {
		return fmt.Errorf("simulated GPU: %w", err)
	}
	for {
		c, err := s.ln.AcceptUnix()
		switch {
		case err == nil:
			s.wg.Go(func() { s.serve(c) })
			continue
		case errors.Is(err, net.ErrClosed):
			s.wg.Wait()
			return nil
		}
		// A program that connects would wait for ever if nobody went on accepting.
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			_ = spare.Close()
			if cerr := raw.Control(func(fd uintptr) { // there may be none: the kernel looks for a descriptor first
				var n int
				if n, _, err = unix.Accept4(int(fd), unix.SOCK_CLOEXEC); err == nil {
					err = unix.Close(n)
					s.hint("no descriptor was left for a program, which runs without the simulated GPU: raise the limit (ulimit -n)")
				}
			}); cerr != nil {
				err = cerr
			}
			spare, _ = os.Open(os.DevNull)
			if err == nil {
				continue
			}
		} else {
			s.hint(fmt.Sprintf("a program could not be served: %v", err))
		}
		time.Sleep(10 * time.Millisecond) // until others give back what the kernel lacks
	}
}

// shut ends everything that is served. It does not wait: each program's goroutine gives
// back what it has.
func (s *Sim) shut() {
	s.mu.Lock()
	s.closed = true
	procs := make([]*Process, 0, len(s.procs))
	for _, p := range s.procs {
		procs = append(procs, p)
	}
	s.mu.Unlock()
	_ = s.ln.Close()
	for _, p := range procs {
		p.kill()
	}
}

// Close ends the service and removes the folder.
func (s *Sim) Close() error {
	s.shut()
	s.wg.Wait()
	return s.own.Remove()
}

// Processes returns the programs that are being served.
func (s *Sim) Processes() []*Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*Process, 0, len(s.procs))
	for _, p := range s.procs {
		out = append(out, p)
	}
	return out
}

// goneWithin is how long the end of a run waits for programs to leave: their kernels are being
// stopped.
const goneWithin = 10 * time.Second

// AwaitGone waits until no program is served, for ten seconds at most.
func (s *Sim) AwaitGone() {
	for end := time.Now().Add(goneWithin); len(s.Processes()) > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}
