// Where the agent keeps what, in a traced process. The Go side has the same
// numbers in layout.go; a test compares them by the table `layout` below.
//
// There are three kinds of memory. Private memory is copied by a fork; what may not be used in a
// child then is wiped (MADV_WIPEONFORK), or a child is kept from it by GATE. Shared memory
// (struct shared to the rings' end) is one mapping of the process and the supervisor, which a child
// does not have (MADV_DONTFORK). The memory of programs and of their maps is one mapping of
// all processes. Only the supervisor writes tables; the agent writes slots, rings, and what it counts.

typedef unsigned long u64;
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

#define BASE 0x70000000ul      // code; its first page is the exempt one
#define CONF_ADDR 0x7000a000ul // struct conf
#define CALL_STUB (CONF_ADDR - 32) // ptrace.CallStub
#define CALL_RETURN 0xca10ul // ptrace.CallReturn: the program does not make a call that returns to one of these
#define PATHS_ADDR 0x7000b000ul // struct path[NPATHS]
#define KEYS_ADDR 0x7000c000ul // struct key[NKEYS]
#define GATE_ADDR 0x7002c000ul // a page with one number, zero in a forked child: whether there are rings
#define STUBS_ADDR 0x7002d000ul // u64[NSTUBS]: where stubs return to
#define PAGES_ADDR 0x7002f000ul // u64[NPAGES]: 1 + number of a page that can be read
#define CALLS_ADDR 0x70033000ul // u64[NCALLS]: programs at system calls, by number
#define PLAN_ADDR 0x70034000ul // two struct plan
#define HOOK_ADDR 0x70100000ul // struct hook[NHOOKS]
#define ONCE_ADDR 0x70500000ul // sets of seen arguments
#define SLOT_ADDR 0x70600000ul // struct slot[NSLOTS]
#define END_ADDR 0x71400000ul // of all that lies low
#define PROGRAM_ADDR 0x550400000000ul // code and data of programs, which only the supervisor writes
#define RETS_ADDR 0x550300000000ul // struct rets[NSLOTS + 1]: private; the last is for threads without a slot
#define FILES_ADDR 0x550310000000ul // struct files: private
#define SHARED_ADDR 0x550000000000ul // struct shared; from here to the rings' end memory is shared with the supervisor
#define COUNT_ADDR 0x550000060000ul // struct count[NCOUNTS], in the same mapping as struct shared
#define RING_ADDR 0x550000100000ul // NSLOTS rings: what a thread records while the supervisor is busy elsewhere
#define TIMES_ADDR 0x550200000000ul // struct times, struct timer[NSLOTS]: private, zero in a forked child

#define NSLOTS 1792u
#define NKEYS 8192u
#define NSTUBS 256u
#define NPAGES 2048u
#define NCALLS 512u
#define NHOOKS 16384u
#define NFDS 16384u
#define RING_SIZE 0x100000u
#define NONCE 4096u // arguments in a set: 1 << (64 - 52), see seen()

// What is the same for all threads, private: a forked child has a copy.
struct conf {
	u64 stops; // the supervisor stops at all calls, and wants none made without it
	u64 clock; // the vdso's clock_gettime
	u64 plan;  // address of the struct plan in force
	u64 dead;  // twice the number of the supervisor; 1 more: it is gone, or does not answer
	u64 slots; // how many slots were ever used
	u64 paths; // how many struct path there are; 0: all opens are the supervisor's
	u64 maps;  // mappings of devices are recorded; 0: they are the supervisor's
	u64 files; // so are calls that open, duplicate and close them
	u64 cpu;   // the vdso's getcpu
	u64 times; // the memory of struct times is there
	u64 scale; // ns of a tick of the processor's counter, << 32; 0: it can't be used
	u64 own;   // where the supervisor's own calls of functions have their stack, OWN_SIZE bytes; 0: nowhere
	u64 bell;  // number of the call by which the supervisor is called; negative as an int: none can be made
	u64 silent; // a filter of the program's own forbids calls of ours: see sys_own
};

// Paths that begin with prefix and have part in them, or, with base, in the
// beginning of their last name, are of interest.
struct path {
	u8 prefix[32], part[31]; // with their NULs
	u8 base;
};

#define NPATHS 16u
#define OWN_SIZE 0x400000ul

// Open addressing by the thread pointer. slot 0: empty; 1: was used.
struct key {
	u64 tp;
	u64 slot;
};

// A hooked call that has not returned.
struct open {
	u64 sp;  // where its return address lies; 0: free
	u64 ret; // what that was
	u64 hook;
	u64 begin; // by the clock; of a counted call COUNTED and the processor's counter, or COUNTED, CLOCKED and the clock; 0: the entry is being written
	union {
		struct {
			u64 addr, len;
		} out[4]; // of a recorded call
		struct {
			u64 count; // address of its struct count; 0: it is looked for at the return
			u64 how; // OPEN_*, and the time of what the thread recorded last, << OPEN_BITS
			u64 args[6]; // of OPEN_INNER
		};
	};
};

#define NOPEN 84u
#define COUNTED (1ul << 63)
#define CLOCKED (1ul << 62)
#define TIME (CLOCKED - 1)

// Of a counted call: its time is counted, too; it is recorded after all where it fails, or something is recorded
// within it (HOOK_INNER); the supervisor has recorded something within it; its time stands for TIMED_ONE calls.
#define OPEN_TIMED 1u
#define OPEN_INNER 2u
#define OPEN_TOUCHED 4u
#define OPEN_MANY 8u
#define OPEN_BITS 4u

// What a thread has, private.
struct slot {
	u64 ring; // 0: none
	u64 head; // address of its struct rhead
	u64 depth;
	u64 off; // nothing is recorded: another task with the same thread pointer lives
	u64 ids; // of the process, in the upper half, and of the thread
	u64 ticks, ahead, last; // see stamp
	struct open open[NOPEN];
};

// Head and tail of a ring lie in different lines of the cache, since each is written by another side.
struct rhead {
	u64 head; // bytes ever reserved, by the thread
	u64 pad[7];
	u64 tail; // bytes ever consumed, by the supervisor
	u64 pad2[7];
};

#define NDEVICES 128u
#define NUNTIMED 4u // UNTIMED_*
#define OWNER_DIED 0x40000000u // FUTEX_OWNER_DIED

// What a process shares with the supervisor, beside the rings themselves.
struct shared {
	u64 armed;   // the next recorded call is to stop, as the supervisor sleeps
	u64 changes; // counts the changes to files
	u64 files;   // open files that were numbered
	u64 next;    // the supervisor's: of its list of robust futexes, in which owner is one
	u32 owner;   // its tracing thread; the kernel adds OWNER_DIED when that has ended
	u32 pad0;
	u64 pad[3];
	struct {
		u64 rdev, kind;	    // rdev 0: none from here on
	} devices[NDEVICES]; // that the supervisor knows
	u64 untimed[NUNTIMED]; // calls with HOOK_TIMED whose work is not timed, by why
	u64 pad1[248 - NUNTIMED];
	u8 kinds[NFDS]; // what descriptors are, as the plan counts kinds; 0: not for us
	u8 held[NFDS];  // whose the descriptor is: HELD_*
	u8 pad2[0x10000 - 4096 - 2 * NFDS];
	u32 file[NFDS]; // the number of the open file, of those that the agent has opened; or 0
	struct rhead rings[NSLOTS];
};

// How long memory is that a pointer in an ioctl's argument leads to.
#define LEN_NESTED 0xffff0000u  // + n: as the argument says, with further pointers, by nested[n]
#define LEN_EMPTY 0xfffffffdu   // free place in a table
#define LEN_CLAIMED 0xfffffffeu // as the argument says
#define LEN_SLOW 0xffffffffu    // leave it to the supervisor

// What the agent does about an ioctl with this request on a descriptor of this kind: a place in a hash
// table with open addressing. Everything is an offset in the argument; see Rule in plan.go.
struct rule {
	u32 request;
	u32 size; // bytes of the argument
	u8 kind;  // of descriptor; 0: free place
	u8 follow;
	u8 ptr, len; // offsets in the argument; len 0xff: none
	u8 select;   // offset of what the table is asked; 0xff: none
	u8 flags;    // offset of flags; 0xff: none
	u8 table;
	u8 null;   // offset of a pointer that must be null; 0xff: none
	u32 mask;  // of flags that want the supervisor
	u32 deflt; // length where the table has none
	u32 max;   // bytes
	u32 pad2;
};

#define NRULES 512u
#define NTABLES 3u
#define NENTRIES 2048u
#define NNESTED 64u
#define NPOINTERS 4u
#define NESTED_SIZE 64u
#define NESTED_MAX 16384u // bytes behind its pointers

// The rules for ioctls. There are two in memory, of which conf.plan says which is in force: the other
// one is written while threads read this one.
struct plan {
	struct rule rules[NRULES];
	struct {
		u32 value, len;
	} tables[NTABLES][NENTRIES];
	struct nested {
		u32 size, n; // bytes that the memory must have, at most NESTED_SIZE; pointers
		struct {
			u32 ptr, count, elem; // offsets of the pointer, and of how many elements of how many bytes
		} at[NPOINTERS];
	} nested[NNESTED];
};

// Descriptors that are of no device that the supervisor knows; of one; of one, and
// about to change.
enum { HELD_NOT, HELD_DEVICE, HELD_BUSY };

#define HOOK_RETURN 1u
#define HOOK_ONCE 2u
#define HOOK_STOP 4u
#define HOOK_BREAK 8u // of a hook that only stops: it does
#define HOOK_ON 16u   // calls are recorded
#define HOOK_PROBE 32u // calls run programs
#define HOOK_COUNT 64u // or counted, in struct count
#define HOOK_FAILED 128u // but for those with a result whose low half is not 0: their return is recorded, or with HOOK_INNER and without HOOK_COUNT they are

#define HOOK_TIMED 256u // what calls have the GPU do is timed, in struct timer
#define HOOK_WAITS 512u // when it returns, the GPU has done something
#define HOOK_PER_THREAD 1024u // without a stream, it is the thread's own
#define HOOK_ORDERS 16384u // it has its stream wait, and does nothing else there
#define HOOK_BEHIND 32768u // works that are not timed may be in front of it on its stream
#define HOOK_INNER 65536u // calls within another hooked call are counted by that, as long as nothing comes of them: see OPEN_INNER
#define HOOK_NEW 131072u // nothing is recorded; returns stop whose result is 0, and that leave a number where the first argument points to that is not in the set `once`
#define HOOK_EARLY 4096u // the GPU may be at it before the call returns
#define HOOK_ENDS 2048u // it ends the context that argument `stream` is, or any
#define HOOK_FAILS 8192u // returns with a result whose low half is not 0 stop

#define DEREF_STRING 1u
#define DEREF_IN 2u
#define DEREF_OUT 4u

// An argument in a set, and how many calls with it came after the first. With HOOK_NEW a number, and what the program
// is given instead.
struct seen {
	u64 v, n;
};

// Memory that an argument points to, at off behind it: len bytes at most, or as many units as argument
// lenarg - 1 says.
struct deref {
	u8 arg, flags, lenarg, pad;
	u32 off, len, unit;
};

// A hooked function. Its number is its place in the table, and what the stub at the function's beginning
// pushes.
struct hook {
	u64 orig; // the function's beginning, moved
	u64 once; // address of its set
	u32 flags;
	u8 words, nderef;
	u8 stream, streamat; // of a timed call: 1 + the argument that is the stream, 0: none; or, if streamat is not 0, points to what has it 8 * streamat bytes further
	struct deref deref[8];
	u64 spare[5]; // the supervisor's
	u64 probe;    // address of its struct probe; 0: none
	u64 entry;    // address of the function
	u64 subject;  // of a timed call: 1 + the argument that is kept, 0: none
	// Which calls stop: one in `every` (0 and 1: all). Of calls and returns, if pause is not 0, as many
	// as are so many ns apart in the mean, and those at once that would fit into burst ns.
	u64 every, pause, burst;
	long next; // when the next one would be due, had all come evenly
	u64 calls;
};

// Programs at a function. Those at the entry come first, then those at the return.
struct probe {
	u32 entries, returns;
	struct program {
		u64 code, table;
		u64 counts; // address of numbers: of runs that were ended by end 1, 2 ...; the first of those that could not be
		u64 on;	    // 0: it is not run
	} list[];
};

// What an entry of CALLS_ADDR is: the address of a struct probe, whose returns are the exits of
// the call, or 0, and who else wants the call.
#define CALL_ASKED 1u // the supervisor, too
#define CALL_CODE 2u  // the supervisor, if it is about memory that is to be executed
#define CALL_FLAGS 15ul

// What programs at system calls are given: struct trace_event_raw_sys_enter or, with ret for
// the first argument, _sys_exit.
struct call {
	u32 common, tid;
	u64 nr;
	u64 args[6];
};

// A call that programs wait for the return of.
struct ret {
	u64 sp; // where its return address lies; 0: free
	u64 ret;
	u64 hook;
	u64 pad;
};

#define NRETS 4088u

// Those of a thread.
struct rets {
	u64 depth;
	u64 described; // fde is there
	u8 fde[208];   // what tells unwinders where calls in the list return to
	u64 none[4];   // an entry in front of the first, always 0
	struct ret list[NRETS];
};

// A file's code, and its table for unwinding: of functions, ascending, where each begins and where it
// is described, as 4 bytes each that are relative to base.
struct file {
	u64 start, end; // of code that is mapped
	u64 base;
	u64 index, count;
};

#define NFILES 2048u
#define NROWS 1024u

// How registers of a caller are found: the low two bits of struct row's at.
enum { AT_SAME, AT_FRAME, AT_BP, AT_LOST };

// What holds at an instruction, as it was found.
struct row {
	u64 pc; // 0: the place is free
	u32 seq; // odd: it is being written
	u32 files; // the low half of files.seq
	u8 cfa; // CFA_*
	u8 reg; // of CFA_REG and CFA_AT
	u8 pad[2];
	int off;
	int at[7]; // rbx, rbp, r12 to r15, where it returns to; the rest is the distance
	int pad2;
};

enum { CFA_NONE, CFA_REG, CFA_AT, CFA_PLT, CFA_SIGNAL, CFA_LAST };

// What stacks are followed by.
struct files {
	u64 seq; // counts changes; odd: the supervisor makes one
	u64 n;
	u64 pad[6];
	struct file list[NFILES]; // ascending
	struct row rows[NROWS];
};

// The registers as programs see them: struct pt_regs of the kernel.
struct pt_regs {
	u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};

// What a run of programs knows.
struct run {
	struct pt_regs *regs; // of a function
	u64 func;  // address of the function
	u64 value; // what it shall return, if that is overridden
	u64 overridden;
	u64 ids; // 0: not looked for
	u64 entered; // at a function's entry: its return address is on top of the stack
};

// A map as helpers know it. What it holds is in memory that programs share; this is not,
// since nobody but the supervisor may write to it.
struct map {
	u32 kind, key, value, entries; // bytes of a key and of a value
	u64 base, stride;
	u64 copy, cpus;			     // bytes from CPU to CPU, 0: there is one value for all
	u64 slots, homes, at, keyoff, slotsize, values; // of a hash
	u64 stable;			     // of a hash: no program deletes keys
	u64 lru;			     // of a hash: it makes room by itself
	u64 lpm;			     // of a trie: where the bits are of the prefixes' lengths that it has
	u64 units, largest;		     // of a ring
	u64 refused;			     // address of the number of what found no room
	u64 busy;			     // address of the number of what gave up waiting
};

enum { MAP_HASH = 1, MAP_ARRAY, MAP_RING, MAP_QUEUE, MAP_STACK, MAP_BLOOM, MAP_TRIE };

#define NCOUNTS 4096u
#define NBUCKETS 22u
#define TIMED_ONE 16u // beyond so many calls one in as many is timed, and stands for them

// What is counted of a thread's calls of a function, with HOOK_INNER of those within calls of another one. Only
// that thread changes it, but for the key.
struct count {
	u64 key; // thread id << 32 | number of the hook that it is within + 1 << 16 | number of the hook + 1; 0: free
	u64 calls;
	u64 time;   // in those that have returned, ns
	u64 nonzero; // of those that have returned, with a result whose low half is not 0
	u64 returned;
	u32 bucket[NBUCKETS]; // of these by time: 0 below 32 ns, i below 32 << i, the last without end
};

#define NGPUS 16u
#define NREFS 8u
#define NWORKS 2048u
#define NTURNS 256u
#define NLASTS 64u

// An event of the driver's, behind what a call had the GPU do.
struct work {
	u64 state; // WORK_*
	u64 event;
	u64 context, stream;
	u64 hook, begin, ids; // of the call: when it began, and whose it is; begin 0: only when it ended matters, to what is behind it
	u64 from; // before which the GPU has not begun with it
	u64 left; // when the call returned
	u64 what; // an argument
	u64 refs; // number of the struct ref that is the latest
	u64 number; // of all works, in the order of their events
};

// A thread takes a work for a call (TAKEN), and leaves it when its event is recorded (LEFT); who reads the
// event's time makes it free again, with the event, for the next call.
enum { WORK_FREE, WORK_TAKEN, WORK_LEFT };

// Those of a thread, used one after another. Only it takes them; whoever has times.lock reads
// them, and frees them.
struct timer {
	u64 inside; // where the stack was when the agent called the driver; 0: it does not
	u64 sp;	    // where the return address of the call lies that is timed; 0: none is
	u64 stream, what, begin; // of that
	u64 first, next; // number of the oldest that is not read, and of the next to take
	u64 at;		 // of the next to look at, in between
	u64 last;	 // when this thread has read some
	u64 device;	 // whose context may be about to end
	struct work list[NWORKS];
};

// Streams with works, by a hash: as of which epoch of struct times.
struct turn {
	u64 stream, epoch;
};

// When the latest work on a stream ended that was read.
struct last {
	u64 context, stream, end;
};

// What a GPU has in a context.
struct gpu {
	u64 context; // 0: free
	u64 stream;  // for the events below
	u64 refs;    // how many there ever were
	u64 other;   // an event
	u64 tried;   // when the clocks were last compared
	u64 least[2]; // that a launch on an idle stream, and on a busy one, seemed to take
	struct ref {
		u64 event, at, margin; // when it was, by the host's clock, and by how much it may have been earlier or later
	} ref[NREFS];
};

// Why something is not timed; pending: it may yet be.
enum { UNTIMED_CAPTURED, UNTIMED_FULL, UNTIMED_FAILED, UNTIMED_PENDING };

// What is timed in the process. The functions are those of the CUDA driver that names say (times.c).
struct times {
	u64 on; // the functions are there
	u64 current, capturing, mode, create, destroy, record, query, elapsed, stream, state; // functions of the driver
	u64 lock;   // 1: a thread reads events
	u64 timers; // as many may be in use
	u64 works;  // how many there ever were
	u64 turn;   // which timer is looked at first
	u64 turns;  // which struct last is used next
	u64 epoch;  // how often the legacy default stream came to have works, behind those of other streams
	u64 others; // other streams have had works since
	struct turn turn_of[NTURNS];
	struct last last[NLASTS];
	struct gpu gpu[NGPUS];
};

#define SHORT_RECORD 64u // bytes of such a return

// A record. Its place in the ring is a multiple of 64, and so is its size.
struct record {
	u64 pos; // bytes reserved before it
	u8 state, kind, nseg, flags;
	u32 size;
	u64 begin, end;
	u64 ret;
	u64 hook;
	u64 caller;
	u64 sp;
	u64 args[6]; // a return that refers to no memory ends before
	u64 file; // number of the open file; 0: opened under the supervisor's eyes
	u64 rdev; // of a file that was opened; of one that was closed: when that ended
};

struct seg {
	u64 addr;
	u32 len, in, out; // bytes that it has; that were copied
	u32 inoff, outoff; // where, from the record's beginning; 0: not tried
	u32 pad;
};

enum { FILLING = 1, INCALL, DONE, ENDING, VOID };
enum { K_IOCTL = 1, K_CALL, K_RETURN, K_SYSCALL, K_TIME, K_PAD };
enum { F_NORETURN = 1, F_UNFINISHED = 2, F_ALONE = 4, F_OWN = 8 };

// Why the agent calls for the supervisor.
enum { TRAP_PROBE, TRAP_START, TRAP_SLOT, TRAP_FULL, TRAP_STOP, TRAP_CALL, TRAP_WAKE, TRAP_BREAK, TRAP_RETURN, TRAP_LOCK, TRAP_FAILED, TRAP_WHO };

// What TRAP_WHO is answered with.
struct who {
	u64 ids, user; // as the helpers have them
	u8 name[16];
};
#define TRAP_FD 0xffffffffu
#define TRAP_REQUEST 0x4e565452u
