package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/nvattach/preload"
	"nvtrace/ptx"
	"nvtrace/ptx/emu"
)

// Options says what to simulate. The zero value and nil are good.
type Options struct {
	// GPU is the device that programs see; the zero value is the first of [GPUs].
	GPU GPU
	// Count is how many of them there are; 0 means 1.
	Count int
	// MemoryLimit bounds the memory that a program may allocate on all devices
	// together, in bytes. 0 means the device's memory, or three quarters of
	// what this machine has free, whichever is less.
	MemoryLimit uint64
	// Timeout is how long one kernel may run; 0 means no limit. A kernel that
	// runs longer fails with CUDA_ERROR_LAUNCH_TIMEOUT.
	Timeout time.Duration
	// Workers is how many blocks of a kernel run at the same time; 0 means as
	// many as there are processors, 1 makes runs repeatable to the instruction.
	Workers int
	// Memory gives access to a program's memory; nil uses process_vm_readv.
	Memory func(pid int) ProcessMemory
	// Hooks lets a caller watch and change what programs do; nil hooks do nothing.
	Hooks *Hooks
	// LibDir has the libraries to preload; "" writes the embedded ones to a
	// folder of its own.
	LibDir string
}

// Share has kernels of programs that come reach memory of this process, at an address that
// the programs have it at, too: to them it is registered already. Their %globaltimer is
// CLOCK_REALTIME then, as a GPU's nearly is, and not a model's.
func (s *Sim) Share(addr uint64, data []byte) {
	s.shared = append(s.shared, emu.Region{Base: addr, Data: data, Name: "maps of probes on the host"})
}

// ProcessMemory is the memory of a running program. Both return how many bytes
// they could copy, with an error if that is not all.
type ProcessMemory interface {
	ReadMem(addr uint64, buf []byte) (int, error)
	WriteMem(addr uint64, buf []byte) (int, error)
}

// Hooks are called on the goroutine of a program's call or of its stream. Image, Loaded,
// Instead and Replaced are called while the program's lock is held, which makes them one at a time for a
// program; Launch and Exit are not.
type Hooks struct {
	// Image is called for each image that a program loads, before anything is read
	// from it. What it returns is loaded instead; an error refuses the image
	// (CUDA_ERROR_INVALID_IMAGE).
	Image func(p *Process, im *Image) ([]byte, error)
	// Loaded is called when it is known what became of an image.
	Loaded func(p *Process, im *Image)
	// Launch is called when a kernel begins.
	Launch func(p *Process, l *Launch)
	// Instead is called when a launch of a kernel, or what it is to have of shared memory, is refused,
	// perhaps because its threads take more registers, or its blocks more shared memory, than there
	// are. It names a kernel of the same module that may take its place; "" for none.
	Instead func(p *Process, kernel string) string
	// Replaced is called when that was launched. shared says that it was not registers that there were
	// too few of.
	Replaced func(p *Process, kernel string, shared bool)
	// Exit is called when a program has ended and nothing of it runs any more; its
	// memory goes away when Exit returns.
	Exit func(p *Process)
}

// An Image is code that a program loads.
type Image struct {
	Call   string   // the entry that the program gave it to; images that were registered are loaded on first use
	Caller uint64   // where the call returns to
	TID    int      // the calling thread
	Addr   uint64   // where it is in the program's memory, 0 if it comes from a file
	File   string   // that the program named, "" if it comes from memory
	Data   []byte   // a container, cubin or PTX text; not to be changed
	Hash   [32]byte // SHA-256 of Data
	// Linked: it is relocatable device code in a wrapper's list, which a driver links
	// when it loads the program.
	Linked bool
	// Runs: there is PTX in it that the GPU runs. Without, it may still be one of
	// several that are linked, of which others have some.
	Runs bool

	// For [Hooks.Loaded].
	Replacement []byte // what Hooks.Image returned, nil if that was Data
	Handle      uint64 // the module or library; 0 if none came of it, or if it is a part for the linker
	Result      int    // the CUresult
}

// A Launch is a kernel that begins to run.
type Launch struct {
	Kernel      string   // as in its module
	Image       [32]byte // Image.Hash of the image that it comes from; of the first that were linked
	TID         int      // the thread that launched it; 0 if it is a node of a graph
	Grid, Block emu.Dim3
	Shared      uint32 // dynamic shared memory

	p   *Process
	of  *launch
	cfg *emu.LaunchConfig
	try *try
}

// A Sim serves programs. Make one with [New], give its Env to programs, let Serve
// run beside them.
//
// There is a goroutine for the listening socket (Serve), one for each connection, one that
// waits for the end of each program, and one for each operation in a stream. wg counts those of
// connections and of programs; the operations of a program are counted by Process.users.
//
// Locks are taken in the order Process.mu, Sim.mu, Arena.mu, and none is held while a program
// is asked for something, except that a program's own call holds Process.mu.
type Sim struct {
	opts Options
	gpu  GPU
	cat  *catalog
	own  *preload.Folder
	dir  string // of the socket, and of the libraries if they are ours
	libs string
	ln   *net.UnixListener

	shared []emu.Region // of this process, that kernels reach

	ids atomic.Uint64 // of sessions, streams and captures

	// mu guards what is below, which all programs share. It is held for short: parsing,
	// and whatever waits, happens without it.
	mu     sync.Mutex
	procs  map[int]*Process // by pid, those that are alive
	closed bool
	report Report
	files  map[[32]byte]*ptx.File // parsed PTX, by hash
	wg     sync.WaitGroup
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
