package sim

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"nvtrace/nvattach/preload"
	"nvtrace/ptx"
	"nvtrace/ptx/emu"
)

// What the simulator keeps: of itself, of programs, of their contexts, streams, modules and
// graphs. These types refer to one another; what is done with them is in the other files.

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

// ProcessMemory is the memory of a running program. Both return how many bytes
// they could copy, with an error if that is not all.
type ProcessMemory interface {
	ReadMem(addr uint64, buf []byte) (int, error)
	WriteMem(addr uint64, buf []byte) (int, error)
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

// A Process is a program that is being served: one image of one process, from
// its first call to its exit or exec.
//
// It begins with the first connection (Sim.hello) and is known by its pid, the process's start
// time and the random number of its image (AT_RANDOM), since an exec keeps the first two. Calls
// come in over several connections (conn). It ends in three steps, in wait: the process is
// gone, or kill was called; connections are shut down, kernels are stopped, and users are
// waited for; then Hooks.Exit sees its memory for the last time, and the arena is unmapped.
type Process struct {
	sim     *Sim
	pid     int
	start   string // when the process began, as /proc has it
	random  uint64 // the image's AT_RANDOM, as the library told
	session uint64 // a number that a forked child tells, to find its parent
	mem     ProcessMemory
	arena   *Arena

	dead     chan struct{} // closed when the program is gone or is no longer served
	killOnce sync.Once
	users    sync.WaitGroup // connections and operations that use the arena
	pending  atomic.Int64   // operations in streams
	drained  chan struct{}  // gets a token when pending falls

	// Functions of the program that a stream is to call (cuLaunchHostFunc). They are answered by
	// a thread that the library starts for that; in a program that can't make one, by the
	// thread that waits for the stream.
	callbacks chan *hostCall
	helper    atomic.Bool // a thread for callbacks was asked for
	canThread atomic.Bool // the program can make one

	blocks struct { // CUDA_LAUNCH_BLOCKING, once it was looked for
		once sync.Once
		on   bool
	}

	connMu sync.Mutex // not mu, so that the end can't be held up by a call
	conns  map[*conn]bool

	// mu guards what is below. It is held during a call, except while the call
	// waits for streams: what was read before a wait has to be looked at again after it, since
	// another thread may have destroyed it.
	mu        sync.Mutex
	cur       *call              // that holds mu
	libs      [3]uint64          // where the stubs are
	objects   map[uint64]any     // by handle: *cudaContext, *module, *function, *stream, *event, *graph, …
	next      uint64             // handle; never one that was used before
	threads   map[uint64]*thread // by the library's id of them
	inDriver  int                // threads that call the driver for the runtime
	devices   []*device
	inited    bool
	poisoned  bool // forked from a process that used CUDA
	rt        runtimeState
	strings   map[string]uint64      // that were put into the program's memory, see text
	imageOf   map[*ptx.File][32]byte // the hash of the image that a file was picked from
	linked    map[uint64][]*ptx.File // by the image that a linker returned
	strTop    uint64                 // free part of the last page of strings
	strEnd    uint64
	printf    printfBuffer
	pool      pool              // the default one
	reserved  map[uint64]uint64 // addresses that the program maps memory at: their beginning, and how many
	physicals []*physical       // that memory
	channels  channels
	shared    [][]byte // memory of files that the program has mapped, for channels
	ctx       context.Context
	cancel    context.CancelFunc
}

// A conn is a connection: at most one call is in progress on it.
//
// The library has up to 512 (SLOTS), and a thread that calls takes one for the length of the
// call, mostly the same each time. The thread for callbacks keeps its own.
// While a call is in progress the roles can be turned round: a reply with another action than
// actReturn asks the calling thread for something (do), which answers with kindDone. So each side always
// knows whose turn it is, and no packet needs a number.
type conn struct {
	fd  int
	buf [requestSize + 8]byte
	out []byte
}

// A thread is a thread of a program, as CUDA sees it: what CUDA keeps in thread-local
// storage. Nobody says when a thread ends, so that at maxThreads any one is forgotten.
type thread struct {
	id      uint64
	stack   []*cudaContext // current context last
	lastErr result         // of the runtime
	device  int            // of the runtime
	mode    uint64         // capture mode
	in      *inDriver      // it is to call the driver for the runtime
}

// A call is a call of an entry by a program.
//
// The program's side (lib/sim.c) knows nothing of what an entry takes. It sends the registers
// in which the calling convention passes arguments, all of them, and the address of the stack;
// the handler picks what it needs by arg, in the order of the prototype's parameters of integer
// class, and by x those of floating point.
//
// Memory is read with process_vm_readv while the calling thread waits. Results are not written that
// way: up to replyData bytes travel with the answer and are stored by the library, so that most
// calls need no second system call, and a bad pointer faults in the thread that gave it, as it
// does with a driver.
type call struct {
	p     *Process
	th    *thread
	conn  *conn
	entry *entry
	lib   int
	req   *request
	more  []uint64 // arguments on the stack
	ret   uint64   // what to return instead of the result, if hasRet
	has   bool
	out   []byte // what the program's side is to store, as actReturn has it
	bad   bool   // an argument points to where the program has no memory

	given  *fatBinary // that is being loaded; nil: the call itself gives images
	images []*Image   // chosen from, and Hooks.Loaded not called yet
}

// A hostCall is a function of the program that a stream calls.
type hostCall struct {
	fn   uint64
	args [4]uint64
	done chan struct{}
}

// A catalog is all entries of the three libraries.
//
// lib/*.names has what each library exports, one name a line, and is also what the stubs of the
// libraries are made of (internal/mklib). On the wire an entry is its number in that list, so that
// both must be of the same build; the libraries are embedded for that.
type catalog struct {
	entries  [3][]entry
	index    [3]map[string]int
	versions map[string][]version // of the driver's functions, ascending
}

// An entry is an exported function of a library.
type entry struct {
	name    string
	fn      handler // nil: not implemented
	ptds    bool    // the variant whose default stream is the thread's
	runtime bool
}

// A handler executes an entry. It is called with the process locked.
type handler func(c *call) result

// A device is one simulated GPU as a program uses it. Its memory is a part of the program's
// arena: all devices of a program share one range of addresses, as under unified addressing.
type device struct {
	ordinal int
	machine *emu.Machine
	primary *cudaContext
	retains int
	flags   uint32
}

// A cudaContext is a CUcontext. Process.mu guards it, except failed, which the goroutines of
// operations set. A context that is destroyed stays in the hands of those who had it; they look at
// destroyed after each wait.
type cudaContext struct {
	dev       *device
	handle    uint64
	primary   bool
	destroyed bool
	flags     uint32
	legacy    *stream
	perThread map[uint64]*stream
	streams   map[*stream]bool
	limits    map[uint32]uint64
	modules   map[*module]bool
	// failed is the error that a kernel left behind, for good.
	failed atomic.Uint32
}

// A stream is a CUstream: a queue of which each operation waits for the one
// before. Streams that block also wait for the legacy stream's operations, and
// those for theirs.
//
// The queue is no list: an operation is a goroutine that waits for the ones before it, and a
// stream remembers the last.
type stream struct {
	ctx         *cudaContext
	handle      uint64
	id          uint64
	nonblocking bool
	isLegacy    bool
	prio        int32
	last        *operation
	cap         *capture
	capLast     []*node // with cap: what the next operation depends on

	channel *gpuChannel // in which its kernels are to be seen; nil: not yet, or with unseen never
	unseen  bool
}

// A work is what a node of a graph, or an operation of a stream, does. Beside the function
// there is what it was made of, by kind, for the calls that ask for a node's parameters or set
// them. A work is never changed: a node whose parameters are set gets another one.
type work struct {
	kind   nodeKind
	run    func(x *cudaContext) result
	kernel func(x *cudaContext, id uint64) result // run of a launch that is a node of a graph: it has that %gridid
	launch *launch
	copy   *copy2
	fill   *fill
	host   [2]uint64 // function and argument
	child  *graph
	nodes  []execNode // of a graph that is launched
}

// A capture records what streams are given in a graph instead of doing it.
//
// It begins with one stream, the origin. Another joins it by waiting for an event that was
// recorded in it, and must have been joined back, by an event in the other direction, when the
// capture of the origin ends: every node must be among what the origin's last ones depend on
// (endCapture). What can't be captured makes the capture invalid; the error that the program gets at
// the end says so.
type capture struct {
	g       *graph
	c       *Process
	origin  *stream
	id      uint64
	mode    uint32 // 0 global, 1 the thread's, 2 relaxed
	thread  uint64
	streams []*stream
	invalid bool
}

// An inDriver is a call of the runtime's while its thread is to make one of the driver's.
type inDriver struct {
	c     *call
	index uint32
	args  []uint64
	into  uint64
	run   func(args [6]uint64) result
	ran   bool
	r     result
}

// A module is a CUmodule: code in a context.
//
// What a program loads goes through these: image (bytes in its memory, or a file), choose (the
// hooks see it, and may give other bytes), pick (the PTX in it that this device runs), parse (shared by
// all programs), load (into a context: variables get memory). A kernel is compiled for the PTX
// machine when it is asked for first, so that one which can't be does not keep a module
// from loading.
type module struct {
	ctx       *cudaContext
	handle    uint64
	files     []*ptx.File
	emu       *emu.Module
	image     [32]byte // of the first file's image
	functions map[string]*function
}

// A codeLibrary is a CUlibrary: code that is loaded into each context on first use. It belongs to
// no context, and its kernels (CUkernel) stand for a function in whichever is current.
type codeLibrary struct {
	handle  uint64
	files   []*ptx.File
	modules map[*cudaContext]*module
	kernels map[string]*kernel
}

// A function is a CUfunction.
type function struct {
	handle uint64
	mod    *module
	k      *emu.Kernel
	name   string
	attrs  map[uint32]int32 // those that were set
	kern   *kernel          // it was got from, if any
}

// A kernel is a CUkernel.
type kernel struct {
	handle uint64
	lib    *codeLibrary
	name   string
	attrs  map[uint32]int32
}

// A fatBinary is a registered image; it is loaded on first use. nvcc makes a constructor for each
// source file, which calls __cudaRegisterFatBinary with the image, __cudaRegisterFunction for each kernel
// with the address of the stub that stands for it on the host, and __cudaRegisterVar for each variable.
type fatBinary struct {
	wrapper uint64
	caller  uint64 // who registered it
	lib     *codeLibrary
	managed []hostName
	ready   map[*cudaContext]bool // where managed variables have been announced
}

// A runtimeState is what a program has registered with the runtime: what nvcc's
// constructors do before main. It takes no context, and survives a fork.
type runtimeState struct {
	mu    sync.Mutex // for changes of the maps, and a fork that copies them; innermost
	next  uint64
	bins  map[uint64]*fatBinary
	funcs map[uint64]hostName // by the address of the host's stub
	vars  map[uint64]hostName // by the address of the host's variable
}

// A hostName is a kernel or variable as the program knows it.
type hostName struct {
	bin  *fatBinary
	name string
	ptr  uint64 // managed: where the program wants the address
}

// A graph is a CUgraph: nodes that know which others they come after. What runs is a graphExec,
// a copy, which changes to the graph do not reach.
type graph struct {
	handle uint64
	nodes  []*node
}

// A node is a CUgraphNode.
type node struct {
	handle uint64
	g      *graph
	w      *work
	deps   []*node
}

// A nodeKind is a CUgraphNodeType.
type nodeKind uint32

// An execNode is a node of a graphExec; deps are indices in its order.
type execNode struct {
	w       *work
	deps    []int
	disable bool
	id      uint64 // %gridid of a kernel, from the graph's first launch on
}

// A launch is a kernel launch as a program asks for it. Parameters are copied when the call is
// made, since the program may change them when it returns. A launch in a graph is replaced, not
// changed, when its parameters are set.
type launch struct {
	f           *function
	grid, block emu.Dim3
	cluster     emu.Dim3
	shared      uint32
	params      []byte
	cooperative bool
	tid         int // of the thread that launched it; 0 for a graph's
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

// A pool is a CUmemoryPool; memory comes from the arena all the same.
type pool struct{ threshold uint64 }

// physical is a CUmemGenericAllocationHandle: memory that programs map at addresses that they have
// reserved. It lives until it is released and mapped nowhere. It can be mapped at one place at a time, and
// is all zero at the next one.
type physical struct {
	size   uint64
	dev    int
	holds  int    // how often it is to be released
	at     uint64 // where it is mapped; 0: nowhere
	handle uint64
}
