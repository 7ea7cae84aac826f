package emu

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"nvtrace/ptx"
)

// What all files share is here: what a machine, a launch and a compiled function consist
// of. What is done with it is in files above, which do not use one another in circles.

// A Machine executes the kernels of modules that are loaded into it. It is safe
// for concurrent use; launches do not wait for one another.
type Machine struct {
	opts     Options
	dev      Device
	mem      Memory
	launches atomic.Uint64
	builders map[string]builder
	printfMu sync.Mutex
	atomicMu sync.Mutex // atomics of sizes that Go has none for

	sharedMu sync.Mutex
	shared   map[int][]byte // what blocks left in each multiprocessor's shared memory, with KeepShared; guarded by sharedMu
}

// Options configures a Machine. The zero value and nil are good for tests.
type Options struct {
	Memory     Memory        // the global address space; nil: a new Heap of Device.TotalMemory
	Device     Device        // what to pretend to be
	Printf     io.Writer     // gets the kernels' printf output; nil discards it
	Now        func() uint64 // %globaltimer in nanoseconds; nil: a deterministic model
	Workers    int           // blocks executed at the same time; 0: GOMAXPROCS; 1: deterministic
	StackLimit uint64        // bytes of local memory a thread; 0: 1 MiB
	MaxDepth   int           // nested calls; 0: 1024
	Budget     uint64        // thread instructions a launch may execute; 0: no limit
	KeepShared bool          // blocks find in shared memory what those before them on their multiprocessor left, as on a GPU; else zeros
}

// A Device describes the GPU that the machine pretends to be. Zero fields take
// the values of defaultDevice.
type Device struct {
	Name               string // for people
	Major, Minor       int    // compute capability
	SMs                int    // %nsmid
	MaxThreadsPerBlock int    // threads of one block
	MaxThreadsPerSM    int    // gives %nwarpid
	SharedPerBlock     uint64 // bytes, static and dynamic together
	ClockKHz           int    // for cuDeviceGetAttribute; the clock registers follow a model
	TotalMemory        uint64 // bytes, for cuDeviceTotalMem
}

// A Module is one or more PTX files that have been linked and whose variables
// live in a Machine's memory. It is safe for concurrent use.
type Module struct {
	machine   *Machine
	units     []*unit
	vars      map[string]symbol // visible over file borders
	funcs     map[string]*funcDef
	inner     map[innerKey]symbol
	named     map[string]Variable
	constBank Region
	constLen  uint64
	regions   []Region
	taken     []*funcDef
	inits     []initializer
	localLen  uint64 // module-scope .local variables

	mu      sync.Mutex
	kernels map[string]*Kernel
}

// A Kernel is a compiled kernel.
type Kernel struct {
	mod    *Module
	name   string
	prog   *program
	params []KernelParam
	reqTid Dim3 // .reqntid, zero if not written
	reqCta Dim3 // .reqnctapercluster, zero if not written
	maxTid Dim3 // .maxntid, zero if not written
}

// A KernelParam is a parameter of a kernel in its parameter buffer.
type KernelParam struct {
	Offset, Size uint64
	Type         ptx.Type // of the elements; ".b8" for structures
}

// A LaunchConfig says how to launch a kernel.
type LaunchConfig struct {
	Grid        Dim3      // blocks; zero components mean 1
	Block       Dim3      // threads of a block; zero components mean 1
	Cluster     Dim3      // blocks of a cluster; zero means what the kernel requires, or 1; must divide Grid
	SharedBytes uint32    // dynamic shared memory
	Params      []byte    // the parameter buffer, laid out as [Kernel.Params] says
	Cooperative bool      // all blocks run at the same time, so that they can wait for one another
	Budget      uint64    // thread instructions; 0: that of the machine
	EnvRegs     [4]uint32 // %envreg0 to %envreg3; a driver passes the address of a grid's barrier in 1 (high) and 2 (low)
	Race        *RaceLog  // gets the data races; nil: not looked for. Slow, one block at a time
	ID          uint64    // %gridid, from [Machine.NewID]; 0: one that no other launch has
}

// Stats says what a launch did.
type Stats struct {
	Threads            uint64 // of the grid
	Blocks             uint64 // of the grid
	ThreadInstructions uint64 // instructions counted once for each thread whose guard held
	WarpInstructions   uint64 // instructions counted once for each group of threads
	SharedBytes        uint64 // of a block
}

// A launch is one running grid.
type launch struct {
	machine    *Machine
	kernel     *Kernel
	prog       *program
	cfg        LaunchConfig
	params     []byte
	clusters   Dim3 // the grid in clusters
	id         uint64
	sharedLen  uint64 // shared memory of a block
	stackLimit uint64
	maxDepth   int
	budget     uint64
	explicit   bool // launched with clusters

	next  atomic.Uint64 // the next cluster to start
	count atomic.Uint64 // thread instructions so far
	warps atomic.Uint64 // warp instructions so far
	stop  atomic.Bool
	begun func() // the first warp of the grid had a turn

	mu  sync.Mutex
	err error
}

// A worker executes clusters, several in turn when they wait for others.
type worker struct {
	launch *launch
	ctx    context.Context
	cache  [cacheSlots]Region
	ticks  uint64 // warp instructions executed
	race   *raceState
	spare  []*cluster
}

// cacheSlots is the number of regions a worker remembers, by instruction, so
// that most accesses need no search.
const cacheSlots = 64

// A cluster is a group of blocks that run at the same time and share memory; a
// grid without clusters has clusters of one block.
type cluster struct {
	id      Dim3
	blocks  []*block
	barrier clusterBarrierState
	serial  uint64 // number of the cluster in the grid
}

// A clusterBarrierState is the barrier of a cluster.
type clusterBarrierState struct {
	phase   uint32
	arrived int
}

// A block is a thread block.
type block struct {
	cluster   *cluster
	id        Dim3 // %ctaid
	inCluster Dim3 // %cluster_ctaid
	rank      int
	sm        int
	shared    []byte
	warps     []*warp
	live      int
	bars      [numBarriers]barrier
	epoch     uint32 // barriers completed, for the race detector
}

// numBarriers is the number of named barriers of a block; the one after them
// stands for the cluster's.
const (
	numBarriers    = 16
	clusterBarrier = numBarriers
)

// A barrier is a named barrier of a block.
type barrier struct {
	arrived  [warpSize]uint32 // lanes of each warp
	expected int              // threads; 0: all of the block that have not exited
	used     bool
	ones     int // outcome of a reduction: lanes whose predicate held
	lanes    int // lanes that took part in the reduction
}

// A warp is 32 threads of a block.
type warp struct {
	// The current group's state, valid while a step or control runs.
	regs   []lanes
	preds  []uint32
	consts []lanes
	frame  *frame
	pc     int
	cur    int // index of the current group
	stop   int // the current group yields when its pc reaches this

	wk     *worker
	block  *block
	index  int // within the block
	groups []group
	live   uint32
	fuel   int // instructions until the slice ends
	fair   bool
	clock  uint64
	err    error
	lane   int // of err

	count      uint64 // thread instructions executed in this turn
	warpCount  uint64
	sliceStart uint64
	turns      uint64 // warp instructions of earlier turns

	local  []byte // 32 parts of stride bytes
	stride uint64
	free   map[*function][]*frame
	io     syncIO

	clusterPhase [warpSize]uint32 // phase of the cluster barrier that each lane arrived in
}

// warpSize is the number of threads in a warp.
const warpSize = 32

// lanes is one register of a warp: a 64-bit slot for each thread. A slot holds
// its value zero-extended from the register's width.
type lanes [warpSize]uint64

// A group is a set of lanes of a warp that are at the same instruction of the
// same frame. The lanes of a warp are partitioned into groups; threads that
// have diverged are in different groups, and groups that meet again merge.
type group struct {
	frame *frame
	pc    int
	mask  uint32
	state groupState
	stamp uint64 // when it last ran
	sync  *syncInst
	need  uint32 // groupSync: the membermask
	bar   int    // groupBarrier: the barrier, clusterBarrier for that of the cluster
	red   *barRed
}

type groupState uint8

const (
	groupReady   groupState = iota
	groupSync               // waits for other lanes of its warp
	groupBarrier            // waits at a barrier of its block or cluster
)

// A barRed says where a waiting group wants the barrier's reduction.
type barRed struct {
	op   string
	d, p int32
}

// A syncIO carries the operands and results of a warp-wide operation.
type syncIO struct {
	in    [3]lanes
	preds uint32 // the predicate operand
	m     uint32 // participating lanes
	out   lanes
	pout  uint32
}

// A syncInst is an instruction that the lanes of a membermask execute together.
type syncInst struct {
	key   string // what must agree: opcode and modifiers
	exec  func(io *syncIO)
	mask  int32 // operand with the membermask
	srcs  []int32
	pred  int32 // predicate operand, -1 for none
	not   bool
	d, p  int32 // destinations, -1 for none
	plain bool  // without .sync: the lanes that are here
}

// A frame is one activation of a function, shared by the lanes that called it
// together.
type frame struct {
	fn     *function
	regs   []lanes
	preds  []uint32
	carry  uint32 // condition code register, a bit a lane
	parent *frame
	call   *callSite
	retPC  int
	depth  int
	local  uint64 // start of its local memory
	top    uint64 // end of its local memory, alloca included
	lanes  int    // lanes inside it or inside what it called
}

// A callSite is a compiled call.
type callSite struct {
	fn      *function // nil for an indirect call
	address int32     // indirect: operand with the function's address
	builtin builtin   // a function of the driver's
	args    []argument
	rets    []argument
}

// An argument is where a call's operand is: in the caller's frame memory, in a
// register, or a constant.
type argument struct {
	off, size uint64
	slot      int32 // register or constant; noSlot for memory
	pred      int32 // predicate register, -1 for none
}

// A builtin is a function that the driver provides to device code; args are the
// lane's arguments.
type builtin func(w *warp, lane int, args []uint64) (uint64, error)

// A RaceLog collects the data races of the launches that are given it. It is safe
// for concurrent use.
//
// Two accesses to a byte race when different threads make them, at least one
// writes, at least one is a plain load or store, and nothing is known to order
// them. Threads of a block are ordered by the barriers of the block or cluster
// between the accesses (bar.sync, barrier.sync, barrier.cluster), threads of a warp
// also by any .sync instruction of the warp and by executing the same instruction
// one after the other. Not seen as ordering, so possibly reported although correct:
// flags passed by atomics or volatile accesses with fences, mbarriers, and orders
// between blocks made by them; accesses made after such a hand-over are reported
// once for each pair of instructions. Missed: races on paths that the launch did not
// take, races of asynchronous copies, and races hidden by a
// barrier of other threads, as one epoch counts for the whole block.
type RaceLog struct {
	mu    sync.Mutex
	races map[raceKey]*Race
}

// A Race is a pair of instructions that touched the same memory unordered; the
// threads and the address are those of the first time.
type Race struct {
	Kernel        string     // the launched kernel
	Space         ptx.Space  // global or shared
	Addr          uint64     // of the first byte; in shared memory the offset
	First, Second RaceAccess // in the order in which the machine made them
	Count         int        // how often this pair of instructions raced
}

// A RaceAccess is one side of a race.
type RaceAccess struct {
	Kind   string       // "read", "write", "strong read", "strong write", "atomic"
	Pos    ptx.Position // of the instruction
	Text   string       // the instruction
	Block  Dim3         // %ctaid
	Thread Dim3         // %tid
}

// raceState is the detector of one launch; its launches run on one worker.
type raceState struct {
	log    *RaceLog
	global map[uint64]*cell
	shared map[uint64]*cell // by block and offset
	block  uint64
}

type raceKey struct {
	first, second *inst
}

// A cell is what is known of one byte: the last write and the last reads by two
// different threads.
type cell struct {
	write touch
	reads [2]touch
}

// A touch is a past access to a byte.
type touch struct {
	block, thread Dim3
	blockID       uint64
	epoch         uint32
	warp          int
	warpEpoch     uint64
	kind          accessKind
	in            *inst
	fn            *function
	valid         bool
}

// An accessKind says how memory is touched.
type accessKind uint8

const (
	accessRead accessKind = iota
	accessWrite
	accessStrongRead // volatile, relaxed, acquire
	accessStrongWrite
	accessAtomic
)

// A program is a kernel with all that it can reach, compiled together: the
// layout of shared memory belongs to it.
type program struct {
	mod         *Module
	entry       *function
	funcs       map[*ptx.Func]*function
	byAddr      map[uint64]*function // targets of indirect calls
	shared      map[innerKey]uint64  // offset of each shared variable
	sharedLen   uint64               // static shared memory
	dynAlign    uint64               // alignment of dynamic shared memory
	dynBase     uint64               // where it begins
	usesDynamic bool
	params      []paramVar
	paramLen    uint64
	indirect    bool
	missing     []error // instructions that will fail when reached
}

// A function is the code of a PTX function, compiled for one kernel.
type function struct {
	name      string
	file      *ptx.File
	fn        *ptx.Func
	code      []inst
	consts    []lanes
	nregs     int
	npreds    int
	localSize uint64 // bytes of local memory in a frame, parameters included
	params    []paramVar
	rets      []paramVar
	entry     bool
}

// A paramVar is a parameter of a function in its frame's local memory.
type paramVar struct {
	off, size uint64
	reg       int32 // register parameter (.func (.reg .b32 o)): its slot, else -1
	pred      bool
}

// An inst is one compiled instruction.
type inst struct {
	run      step
	ctl      control // instead of run
	guard    int32   // predicate slot, -1 for none
	guardNot bool
	hidden   bool  // made by the compiler, not counted
	stmt     int32 // index of its statement in the file, for messages
}

// A step computes an instruction for the lanes in m, which is not empty.
type step func(w *warp, m uint32)

// A control is an instruction that may change who runs next: active are the
// lanes that reached it, m those among them for which its guard holds (maybe
// none). It moves the current group's pc, or splits or parks the group, and
// returns whether the current group just goes on.
type control func(w *warp, active, m uint32) bool

// A compiler compiles one function.
type compiler struct {
	prog   *program
	mod    *Module
	file   *ptx.File
	out    *function
	scope  *scope
	scopes map[int]*scope // by index of the StmtOpen
	tables map[string][]string
	consts map[uint64]int32
	npreds int
	nregs  int
	local  uint64
	stmt   int // index of the statement being compiled
}

// An insn is the instruction being compiled. Builders take the modifiers they
// understand; what is left over is reported, so that nothing is ignored.
type insn struct {
	*compiler
	st    *ptx.Stmt
	op    string
	mods  []string
	used  []bool
	args  []ptx.Operand
	types []ptx.Type // the type modifiers in order
	forms []ptx.Pos  // of operands whose signs, displacements or selectors were understood
}

// A builder compiles one kind of instruction.
type builder func(x *insn) error

// splitGeneric returns the space and offset of a generic address.
func splitGeneric(a uint64) (ptx.Space, uint64) {
	if a < sharedWindow {
		return ptx.SpaceGlobal, a
	}
	off := a & (windowSize - 1)
	switch a - off {
	case sharedWindow:
		return ptx.SpaceShared, off
	case localWindow:
		return ptx.SpaceLocal, off
	case constWindow:
		return ptx.SpaceConst, off
	case paramWindow:
		return ptx.SpaceParam, off
	}
	return ptx.SpaceGlobal, a
}
