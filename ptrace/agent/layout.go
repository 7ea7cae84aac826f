package agent

// Where things are in a traced process, and how they are laid out:
// internal/blob/src/layout.h has the same and says more. A test compares the two by a table that is
// compiled into the code (layout). What lies low, below 2 GiB, is reached by addresses of 32 bits, and what
// lies high is large; both are where programs and their libraries rarely map anything. Sanitizers do: from
// 0x550000000000 to where position-independent programs are loaded, from 0x555555554000 on, is a program's own
// memory for ThreadSanitizer and MemorySanitizer, and AddressSanitizer has its shadow and its heap elsewhere.
// Maps (nvattach.HostBase) and the simulated GPU's memory (nvattach/sim) lie there as well.
const (
	baseAddr  = 0x70000000
	confAddr  = 0x7000a000
	pathsAddr = 0x7000b000
	keysAddr  = 0x7000c000
	gateAddr  = 0x7002c000
	stubsAddr = 0x7002d000
	pagesAddr = 0x7002f000
	callsAddr = 0x70033000
	planAddr  = 0x70034000
	hookAddr  = 0x70100000
	onceAddr  = 0x70500000
	slotAddr  = 0x70600000
	endAddr   = 0x71400000

	programAddr = 0x550400000000
	retsAddr    = 0x550300000000
	filesAddr   = 0x550310000000
	timesAddr   = 0x550200000000
	sharedAddr  = 0x550000000000
	countAddr   = 0x550000060000
	ringAddr    = 0x550000100000

	maxSlots = 1792
	numKeys  = 8192
	maxHooks = 16384
	numStubs = 256
	numPages = 2048
	numCalls = 512
	maxFD    = 16384
	ringSize = 0x100000
	numOnce  = 4096
	maxOpen  = 84

	numCounts  = 4096
	numBuckets = 22
	countSize  = 40 + 4*numBuckets

	numRules   = 512
	numTables  = 3
	numEntries = 2048

	numNested   = 64
	maxPointers = 4
	maxNested   = 64
	nestedSize  = 8 + maxPointers*12

	maxDevices = 128
	maxPaths   = 16
	pathSize   = 64
	pathPart   = 32 // offset in struct path of part
	pathBase   = 63 // of base

	confSize   = 112
	keySize    = 16
	openSize   = 96
	slotSize   = 8128
	rheadSize  = 128
	sharedSize = sharedRings + maxSlots*rheadSize
	ruleSize   = 32
	planSize   = planNested + numNested*nestedSize
	planNested = numRules*ruleSize + numTables*numEntries*8 // offset in struct plan of nested
	derefSize  = 16
	hookSize   = 256
	recordSize = 128
	shortSize  = 64 // of a return that refers to no memory
	segSize    = 32
	seenSize   = 16
	timesSize  = 0x2610
	timerSize  = 0x30050

	retsSize    = 0x20000
	filesSize   = filesList + mostFiles*fileSize + 1024*56
	fileSize    = 40
	mostFiles   = 2048
	filesList   = 64 // offset in struct files of list
	programSize = 32
	mapSize     = 152
	textsAt     = 0x8000 // in the memory of programs: behind the helpers

	trapFD      = 0xffffffff
	trapRequest = 0x4e565452
)

// Offsets in struct conf.
const (
	confStops = 0
	confClock = 8
	confPlan  = 16
	confDead  = 24
	confSlots = 32
	confPaths = 40
	confMaps  = 48
	confFiles = 56
	confCPU   = 64
	confTimes = 72
	confScale = 80
	confOwn   = 88
	confBell  = 96
	confMute  = 104
	ownSize   = 4 << 20
)

// Offsets in struct slot.
const (
	slotRing  = 0
	slotHead  = 8
	slotDepth = 16
	slotOff   = 24
	slotIDs   = 32
	slotOpen  = 64
)

// Offsets in struct shared.
const (
	sharedArmed = 0
	sharedKinds = 4096
	sharedHeld  = 4096 + maxFD
	sharedFile  = 0x10000
	sharedRings = 0x20000

	sharedChanges = 8
	sharedNext    = 24
	sharedOwner   = 32
	sharedDevices = 64
	sharedUntimed = sharedDevices + maxDevices*16
	rheadTail     = 64
)

// Offsets in struct times.
const (
	timesOn     = 0
	timesDriver = 8 // the driver's functions, as driverFunctions has them
	timesTimers = 96
)

// The rings are mapped in pieces.
const (
	chunkSlots = 16
	chunkSize  = chunkSlots * ringSize
)

// Lengths in a plan.
const (
	lenNested  = 0xffff0000
	lenEmpty   = 0xfffffffd
	lenClaimed = 0xfffffffe
	lenSlow    = 0xffffffff
)

// Flags of hooks and of their derefs.
const (
	hookReturn = 1
	hookOnce   = 2
	hookStop   = 4
	hookBreak  = 8
	hookOn     = 16
	hookProbe  = 32
	hookCount  = 64
	hookFailed = 128
	hookTimed  = 256
	hookWaits  = 512
	hookThread = 1024
	hookEnds   = 2048
	hookEarly  = 4096
	hookFails  = 8192
	hookOrders = 16384
	hookBehind = 32768
	hookInner  = 65536
	hookNew    = 131072

	derefString = 1
	derefIn     = 2
	derefOut    = 4
)

// Flags of entries at callsAddr.
const (
	callAsked = 1
	callCode  = 2
)

// States of a record. It is filled, then there is the call, if it is of one; while it is ending, its
// thread reads the clock; and it is done. One that is not wanted after all is void.
const (
	stateFilling = 1 + iota // its time will be taken later
	stateInCall             // the same
	stateDone
	stateEnding // its time may have been taken
	stateVoid
)

// Kinds of records in a ring. A pad fills the room up to the ring's end, where the next record did not
// fit.
const (
	kindIoctl = 1 + iota
	kindCall
	kindReturn
	kindSyscall
	kindTime
	kindPad
)

// Flags of records.
const (
	flagNoReturn   = 1
	flagUnfinished = 2
	flagAlone      = 4
	flagOwn        = 8
)

// Offsets in struct record.
const (
	recPos    = 0
	recState  = 8
	recKind   = 9
	recNSeg   = 10
	recFlags  = 11
	recSize   = 12
	recBegin  = 16
	recEnd    = 24
	recRet    = 32
	recHook   = 40
	recCaller = 48
	recSP     = 56
	recArgs   = 64
	recFile   = 112
	recRdev   = 120
)

// Why the agent traps: the third argument of the call by which it does. It is an ioctl on a descriptor
// that there is none of, with trapRequest.
const (
	trapProbe = iota
	trapStart
	trapSlot
	trapFull
	trapStop
	trapCall
	trapWake
	trapBreak
	trapReturn
	trapLock
	trapFailed
	trapWho
)

// traps says what they are for.
var traps = [...]string{
	"to see who answers", "to begin", "a new thread", "a full ring", "a call that stops", "a call without a ring",
	"to end the rest", "a function's entry", "a function's return", "a lock that is held for long", "a call that has failed",
	"to ask who a thread is",
}

// substAddr is where the code finds the table's address, in memory that is the process's own.
const substAddr = confAddr + 0xa00
