package helper

import "nvtrace/ptx/bpf"

// Numbers of helpers, as the Linux kernel has them (linux/bpf.h).
const (
	MapLookup       = 1
	MapUpdate       = 2
	MapDelete       = 3
	ProbeRead       = 4
	Time            = 5
	Print           = 6
	Random          = 7
	Processor       = 8
	TailCall        = 12 // which is put in place of the call before a program is proven, as Loop is
	ProcessThread   = 14
	UserGroup       = 15
	Comm            = 16
	PerfOutput      = 25
	StackID         = 27
	ProbeWriteUser  = 36
	ProbeReadStr    = 45
	OverrideReturn  = 58
	Stack           = 67
	MapPush         = 87
	MapPop          = 88
	MapPeek         = 89
	ToSigned        = 105
	ToUnsigned      = 106
	ReadUser        = 112
	ReadKernel      = 113
	ReadUserStr     = 114
	ReadKernelStr   = 115
	BootTime        = 125
	RingOutput      = 130
	RingReserve     = 131
	RingSubmit      = 132
	RingDiscard     = 133
	RingQuery       = 134
	CoarseTime      = 160
	Format          = 165
	FuncIP          = 173
	Cookie          = 174
	VPrint          = 177
	Loop            = 181
	Compare         = 182
	FuncArg         = 183
	FuncRet         = 184
	FuncArgCount    = 185
	SetRetval       = 187
	MapLookupPerCPU = 195
)

// Numbers of bpftime's helpers.
const (
	Puts        = 501
	GlobalTimer = 502
	BlockIdx    = 503
	BlockDim    = 504
	ThreadIdx   = 505
	Membar      = 506
	Exit        = 507
	GridDim     = 508
	SMID        = 509
	WarpID      = 510
	LaneID      = 511
	Device      = 512
)

// Numbers of nvtrace's own helpers.
const (
	Log2       = 600
	Max        = 601
	Active     = 602
	Match      = 603
	First      = 604
	Popc       = 605
	Wavefronts = 606
	Launch     = 607
	Together   = 608
	Leader     = 609
	Ballot     = 610
	Any        = 611
	AllOf      = 612
	Shuffle    = 613
	Min        = 614
	SMax       = 615
	SMin       = 616
	Max32      = 617
	Min32      = 618
	USDTCount  = 619
	USDTArg    = 620
	SMax32     = 621
	SMin32     = 622
	MapValue   = 623
	Rank       = 630
)

// What several rows say.
const (
	docRead = "Reads memory at any address, as the program itself sees it; size must be a constant, in kernels of at most 128 bytes. " +
		"What can't be read is -EFAULT, and zeros are written: no read makes a kernel fail. In kernels that is everything except what the " +
		"program has allocated by cuMemAlloc, its pitched and its managed form (cudaMalloc, cudaMallocManaged), and has not freed."
	docReadStr = "The same up to a zero byte; returns the length with it."
	docExtreme = "In kernels the same of the lowest, of numbers with a sign, and of 32 bits. The first value of a lowest is what the map's value " +
		"is before: give it one, as 0 is the lowest of those without a sign. Bits are put together by __sync_fetch_and_or."
	docTime  = "Nanoseconds: in kernels the GPU's global timer, on the host the monotonic clock."
	docClock = "As ktime_get_ns, which is what this is here."
)

// table has the helpers in the header's order.
var table = []Helper{
	{
		Number: MapLookup, Name: "map_lookup_elem", In: All, Args: args(aMap, key), Ret: bpf.RetValue, Pure: true,
		C: "void *(*bpf_map_lookup_elem)(void *map, const void *key)", Doc: "The address of a key's value; NULL if there is none.",
		Group: "By their numbers in the Linux kernel.",
	},
	{Number: MapUpdate, Name: "map_update_elem", In: All, Args: args(aMap, key, value, scalar), C: "long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags)", Doc: "Sets a key's value."},
	{Number: MapDelete, Name: "map_delete_elem", In: All, Args: args(aMap, key), C: "long (*bpf_map_delete_elem)(void *map, const void *key)", Doc: "Deletes a key."},
	{Number: Time, Name: "ktime_get_ns", In: All, Pure: true, C: "__u64 (*bpf_ktime_get_ns)(void)", Doc: docTime},
	{
		Number: Print, Name: "trace_printk", In: All, Args: args(read(1), scalar, any0, any0, any0),
		C: "long (*bpf_trace_printk)(const char *fmt, __u32 fmt_size, ...)", Doc: "Prints; bpf_printk below is for it.",
	},
	{Number: Random, Name: "get_prandom_u32", In: All, C: "__u32 (*bpf_get_prandom_u32)(void)", Doc: "A random number of 32 bits, good for sampling."},
	{Number: Processor, Name: "get_smp_processor_id", In: All, Pure: true, C: "__u32 (*bpf_get_smp_processor_id)(void)", Doc: "The multiprocessor; on the host the CPU."},
	{Number: ProcessThread, Name: "get_current_pid_tgid", In: All, Pure: true, C: "__u64 (*bpf_get_current_pid_tgid)(void)", Doc: "The process, in the upper half, and its thread; in kernels that of the process twice."},
	{
		Number: PerfOutput, Name: "perf_event_output", In: All, Args: args(context, aMap, scalar, read(4), scalar),
		C: "long (*bpf_perf_event_output)(void *ctx, void *map, __u64 flags, void *data, __u64 size)", Doc: "Writes a record to a perf_event_array.",
	},
	{
		Number: RingOutput, Name: "ringbuf_output", In: All, Args: args(aMap, read(2), scalar, scalar),
		C: "long (*bpf_ringbuf_output)(void *ringbuf, void *data, __u64 size, __u64 flags)", Doc: "Writes a record to a ring buffer.",
	},
	{
		Number: RingReserve, Name: "ringbuf_reserve", In: All, Args: args(aMap, number, scalar), Ret: bpf.RetRecord,
		C: "void *(*bpf_ringbuf_reserve)(void *ringbuf, __u64 size, __u64 flags)", Doc: "Room for a record; NULL if there is none. It must be submitted or discarded on every path.",
	},
	{Number: RingSubmit, Name: "ringbuf_submit", In: All, Args: args(record, scalar), Ret: bpf.RetVoid, C: "void (*bpf_ringbuf_submit)(void *data, __u64 flags)", Doc: "Hands a reserved record over."},
	{Number: RingDiscard, Name: "ringbuf_discard", In: All, Args: args(record, scalar), Ret: bpf.RetVoid, C: "void (*bpf_ringbuf_discard)(void *data, __u64 flags)", Doc: "Drops a reserved record."},
	{Number: RingQuery, Name: "ringbuf_query", In: All, Args: args(aMap, number), C: "__u64 (*bpf_ringbuf_query)(void *ringbuf, __u64 flags)", Doc: "How full a ring buffer is, how large, and where it is read and written (BPF_RB_…)."},
	{
		Number: MapLookupPerCPU, Name: "map_lookup_percpu_elem", In: Kernel, Args: args(aMap, key, scalar), Ret: bpf.RetValue, Pure: true,
		C: "void *(*bpf_map_lookup_percpu_elem)(void *map, const void *key, __u32 cpu)", Doc: "The value that another multiprocessor has of a per-CPU map; NULL beyond the last.",
	},
	{
		Number: VPrint, Name: "trace_vprintk", In: All, Args: args(read(1), scalar, read(3), number),
		C: "long (*bpf_trace_vprintk)(const char *fmt, __u32 fmt_size, const void *data, __u32 data_len)", Doc: "Prints with arguments of 64 bits in memory.",
	},
	{
		Number: USDTArg, Name: "nvtrace_usdt_arg", In: Stop, Args: args(context, scalar, out64),
		C: "long (*nvtrace_usdt_arg)(void *ctx, __u64 n, __u64 *value)", Doc: "Argument n of a USDT probe: SEC(\"usdt/FILE:PROVIDER:PROBE\").",
	},
	{
		Number: FuncRet, Name: "get_func_ret", In: All, Args: args(context, out64), C: "long (*bpf_get_func_ret)(void *ctx, __u64 *value)",
		Doc: "What a function returned, up to 8 bytes of it: on the host, and in PTX where a program of cuda.exit/func:NAME runs; -EINVAL elsewhere.",
	},
	{
		Number: FuncArg, Name: "get_func_arg", In: All, Args: args(context, number, out64), HostArgs: args(context, scalar, out64),
		C: "long (*bpf_get_func_arg)(void *ctx, __u64 n, __u64 *value)", Doc: "Parameter n of the kernel or the function, up to 8 bytes of it. In kernels the upper half of n is an offset in 8 bytes, for structures.",
	},
	{Number: FuncArgCount, Name: "get_func_arg_cnt", In: Kernel, Args: args(context), Pure: true, C: "long (*bpf_get_func_arg_cnt)(void *ctx)", Doc: "How many parameters the kernel has."},

	{Number: ProbeRead, Name: "probe_read", In: All, Args: args(write(1), number, scalar), HostArgs: args(write(1), scalar, scalar), C: "long (*bpf_probe_read)(void *dst, __u32 size, const void *addr)", Doc: docRead, Group: "Memory of the program. Helpers for the user's and the kernel's are the same."},
	{Number: ReadUser, Name: "probe_read_user", In: All, Args: args(write(1), number, scalar), HostArgs: args(write(1), scalar, scalar), C: "long (*bpf_probe_read_user)(void *dst, __u32 size, const void *addr)", Doc: docRead},
	{Number: ReadKernel, Name: "probe_read_kernel", In: All, Args: args(write(1), number, scalar), HostArgs: args(write(1), scalar, scalar), C: "long (*bpf_probe_read_kernel)(void *dst, __u32 size, const void *addr)", Doc: docRead},
	{Number: ProbeReadStr, Name: "probe_read_str", In: All, Args: args(write(1), number, scalar), HostArgs: args(writeStr, scalar, scalar), C: "long (*bpf_probe_read_str)(void *dst, __u32 size, const void *addr)", Doc: docReadStr},
	{Number: ReadUserStr, Name: "probe_read_user_str", In: All, Args: args(write(1), number, scalar), HostArgs: args(writeStr, scalar, scalar), C: "long (*bpf_probe_read_user_str)(void *dst, __u32 size, const void *addr)", Doc: docReadStr},
	{Number: ReadKernelStr, Name: "probe_read_kernel_str", In: All, Args: args(write(1), number, scalar), HostArgs: args(writeStr, scalar, scalar), C: "long (*bpf_probe_read_kernel_str)(void *dst, __u32 size, const void *addr)", Doc: docReadStr},

	{
		Number: Log2, Name: "nvtrace_log2", In: All, Args: args(scalar), Pure: true, Max: 63, Uniform: true, C: "__u32 (*nvtrace_log2)(__u64 v)",
		Doc: "The position of the highest bit, 0 for 0: the entry of a log2 histogram for v. One instruction.", Group: "nvtrace's own.",
	},
	{
		Number: Max, Name: "nvtrace_max", In: All, Args: args(shared(8), scalar), Ret: bpf.RetVoid, C: "void (*nvtrace_max)(__u64 *p, __u64 n)",
		Doc: "A number in a map's value becomes n, if that is higher; they have no sign. For the lowest, keep the highest of ~n.",
	},
	{
		Number: MapValue, Name: "nvtrace_map_value", In: Kernel, Args: args(aMap, key), Ret: bpf.RetValue, C: "void *(*nvtrace_map_value)(void *map, const void *key)",
		Doc: "The address of a key's value, which is put there with zeros if there is none; NULL if there is no room. Where the key is made of constants and of what the context says " +
			"of the place (site, kind, size, space, insn, …) and values are only added to, it costs as much as an array's.",
	},
	{Number: Min, Name: "nvtrace_min", In: Kernel, Args: args(shared(8), scalar), Ret: bpf.RetVoid, C: "void (*nvtrace_min)(__u64 *p, __u64 n)", Doc: docExtreme},
	{Number: SMax, Name: "nvtrace_smax", In: Kernel, Args: args(shared(8), scalar), Ret: bpf.RetVoid, C: "void (*nvtrace_smax)(__s64 *p, __s64 n)", Doc: docExtreme},
	{Number: SMin, Name: "nvtrace_smin", In: Kernel, Args: args(shared(8), scalar), Ret: bpf.RetVoid, C: "void (*nvtrace_smin)(__s64 *p, __s64 n)", Doc: docExtreme},
	{Number: Max32, Name: "nvtrace_max32", In: Kernel, Args: args(shared(4), scalar), Ret: bpf.RetVoid, C: "void (*nvtrace_max32)(__u32 *p, __u32 n)", Doc: docExtreme},
	{Number: Min32, Name: "nvtrace_min32", In: Kernel, Args: args(shared(4), scalar), Ret: bpf.RetVoid, C: "void (*nvtrace_min32)(__u32 *p, __u32 n)", Doc: docExtreme},
	{Number: SMax32, Name: "nvtrace_smax32", In: Kernel, Args: args(shared(4), scalar), Ret: bpf.RetVoid, C: "void (*nvtrace_smax32)(__s32 *p, __s32 n)", Doc: docExtreme},
	{Number: SMin32, Name: "nvtrace_smin32", In: Kernel, Args: args(shared(4), scalar), Ret: bpf.RetVoid, C: "void (*nvtrace_smin32)(__s32 *p, __s32 n)", Doc: docExtreme},

	{
		Number: Active, Name: "nvtrace_activemask", In: Kernel, Pure: true, Max: 1<<32 - 1, C: "__u32 (*nvtrace_activemask)(void)", Doc: "The threads of the warp that run this now, as a mask.",
		Group: "What the threads of a warp do together. They see those threads of the warp that run them at that moment, and wait for no others. Before sm_70 each thread is alone.",
	},
	{Number: Match, Name: "nvtrace_match", In: Kernel, Args: args(scalar), Pure: true, Max: 1<<32 - 1, C: "__u32 (*nvtrace_match)(__u64 v)", Doc: "Those with the same v, as a mask."},
	{
		Number: First, Name: "nvtrace_first", In: Kernel, Args: args(scalar), Pure: true, Max: 1, C: "__u32 (*nvtrace_first)(__u64 v)",
		Doc: "1 in the lowest of those with the same v, 0 in the others. Added up over the warp, that is how many values there are: nvtrace_first(addr >> 5) counts the sectors of memory that an access touches.",
	},
	{Number: Popc, Name: "nvtrace_popc", In: All, Args: args(scalar), Pure: true, Max: 64, Uniform: true, C: "__u32 (*nvtrace_popc)(__u64 v)", Doc: "How many bits of v are 1."},
	{
		Number: Wavefronts, Name: "nvtrace_wavefronts", In: Kernel, Args: args(scalar, scalar), Pure: true, Max: 64, C: "__u32 (*nvtrace_wavefronts)(__u64 addr, __u32 size)",
		Doc: "In how many passes shared memory serves the warp, each of whose threads accesses size bytes at addr: 1 where no two of them want different words of a bank.",
	},

	{
		Number: Together, Name: "nvtrace_together", In: Kernel, Pure: true, Max: 1<<32 - 1, Collective: true, Common: true, C: "__u32 (*nvtrace_together)(void)", Doc: "A mask of them.",
		Group: "What all threads of a warp do that came to the site together. They wait for each other, so a program is refused in which not all of them may come to the call: one " +
			"behind a condition that may be different in them, or in a loop that they may leave one by one. Conditions on what is the same in all threads (constants, block, grid, " +
			"the place) are no such, nor are those on what all but the last two return. Before sm_70 each thread is alone.",
	},
	{Number: Ballot, Name: "nvtrace_ballot", In: Kernel, Args: args(scalar), Pure: true, Max: 1<<32 - 1, Collective: true, Common: true, C: "__u32 (*nvtrace_ballot)(__u64 v)", Doc: "A mask of those in which v is not 0."},
	{Number: Any, Name: "nvtrace_any", In: Kernel, Args: args(scalar), Pure: true, Max: 1, Collective: true, Common: true, C: "__u32 (*nvtrace_any)(__u64 v)", Doc: "1 if v is not 0 in one of them."},
	{Number: AllOf, Name: "nvtrace_all", In: Kernel, Args: args(scalar), Pure: true, Max: 1, Collective: true, Common: true, C: "__u32 (*nvtrace_all)(__u64 v)", Doc: "1 if v is not 0 in all of them."},
	{Number: Leader, Name: "nvtrace_leader", In: Kernel, Pure: true, Max: 1, Collective: true, C: "__u32 (*nvtrace_leader)(void)", Doc: "1 in the lowest thread."},
	{Number: Shuffle, Name: "nvtrace_shuffle", In: Kernel, Args: args(scalar, scalar), Pure: true, Collective: true, C: "__u64 (*nvtrace_shuffle)(__u64 v, __u32 lane)", Doc: "The v of the thread of that lane, 0 if it is not there."},

	{
		Number: Launch, Name: "nvtrace_launch_id", In: Kernel, Pure: true, C: "__u64 (*nvtrace_launch_id)(void)", Doc: "A number that all threads of a launch have, and those of no other in this context.",
		Group: "The launch and its process.",
	},
	{Number: Rank, Name: "nvtrace_rank", In: Kernel, Pure: true, C: "__s64 (*nvtrace_rank)(void)", Doc: "The rank that the launcher (mpirun, srun, torchrun) gave the process; -1: none."},
	{Number: Device, Name: "get_device_ordinal", In: Kernel, Pure: true, C: "__u64 (*nvtrace_device)(void)", Doc: "The ordinal of the GPU."},

	// Those of bpftime, whose own header declares them.
	{Number: Puts, Name: "ebpf_puts", In: Kernel, Args: args(text), Doc: "Prints a constant text and a newline."},
	{Number: GlobalTimer, Name: "get_globaltimer", In: Kernel, Pure: true, Doc: "Nanoseconds, the GPU's global timer."},
	{Number: BlockIdx, Name: "get_block_idx", In: Kernel, Args: args(out64, out64, out64), Uniform: true, Doc: "The thread's block in the grid, x, y and z."},
	{Number: BlockDim, Name: "get_block_dim", In: Kernel, Args: args(out64, out64, out64), Uniform: true, Doc: "Threads of a block."},
	{Number: ThreadIdx, Name: "get_thread_idx", In: Kernel, Args: args(out64, out64, out64), Doc: "The thread in its block."},
	{Number: Membar, Name: "gpu_membar", In: Kernel, Doc: "Orders memory for the whole system (membar.sys)."},
	{Number: Exit, Name: "cuda_exit", In: Kernel, Ret: bpf.RetNever, Doc: "Ends the kernel's thread; wants --allow-exit."},
	{Number: GridDim, Name: "get_grid_dim", In: Kernel, Args: args(out64, out64, out64), Uniform: true, Doc: "Blocks of the grid."},
	{Number: SMID, Name: "get_sm_id", In: Kernel, Pure: true, Doc: "The multiprocessor."},
	{Number: WarpID, Name: "get_warp_id", In: Kernel, Pure: true, Doc: "The slot of the warp on its multiprocessor; may change while a kernel runs."},
	{Number: LaneID, Name: "get_lane_id", In: Kernel, Pure: true, Doc: "The lane of the thread in its warp."},

	// Those of the host alone, which the kernel's own headers declare.
	{Number: UserGroup, Name: "get_current_uid_gid", In: Host, C: "__u64 (*bpf_get_current_uid_gid)(void)", Pure: true, Doc: "The group, in the upper half, and the user."},
	{Number: Comm, Name: "get_current_comm", In: Host, C: "long (*bpf_get_current_comm)(void *buf, __u32 size)", Args: args(write(1), scalar), Doc: "The thread's name."},
	{Number: StackID, Name: "get_stackid", In: Host, C: "long (*bpf_get_stackid)(void *ctx, void *map, __u64 flags)", Args: args(context, aMap, scalar), Doc: "The number of the thread's callers in a stack_trace map."},
	{
		// The agent has none: to ask the kernel whether memory can be written is a call that a
		// program's own filter may end it for. Programs with it run at stops.
		Number: ProbeWriteUser, Name: "probe_write_user", In: Stop, C: "long (*bpf_probe_write_user)(void *dst, const void *src, __u32 size)", Args: args(scalar, read(2), scalar), Doc: "Writes memory of the program.",
	},
	{Number: OverrideReturn, Name: "override_return", In: Host, C: "long (*bpf_override_return)(void *ctx, __u64 value)", Args: args(context, scalar), Doc: "Has the function or the call return that instead."},
	{Number: Stack, Name: "get_stack", In: Host, C: "long (*bpf_get_stack)(void *ctx, void *buf, __u32 size, __u64 flags)", Args: args(context, write(2), scalar, scalar), Doc: "Addresses of the thread's callers."},
	{Number: MapPush, Name: "map_push_elem", In: Host, C: "long (*bpf_map_push_elem)(void *map, const void *value, __u64 flags)", Args: args(aMap, value, scalar), Doc: "Puts a value into a queue, a stack or a bloom filter."},
	{Number: MapPop, Name: "map_pop_elem", In: Host, C: "long (*bpf_map_pop_elem)(void *map, void *value)", Args: args(aMap, bpf.ArgSpec{Kind: bpf.ArgWrite, Size: bpf.ValueBytes, Whole: true}), Doc: "Takes the next value of a queue or a stack."},
	{
		// A bloom filter is asked for what is there.
		Number: MapPeek, Name: "map_peek_elem", In: Host, C: "long (*bpf_map_peek_elem)(void *map, void *value)", Args: args(aMap, bpf.ArgSpec{Kind: bpf.ArgWrite, Size: bpf.ValueBytes, Reads: true}), Doc: "The next value of a queue or a stack; whether a bloom filter may have one.",
	},
	{Number: ToSigned, Name: "strtol", In: Host, C: "long (*bpf_strtol)(const char *buf, __u64 size, __u64 flags, long *value)", Args: args(read(1), scalar, scalar, out64), Doc: "Reads a number with a sign in text."},
	{Number: ToUnsigned, Name: "strtoul", In: Host, C: "long (*bpf_strtoul)(const char *buf, __u64 size, __u64 flags, unsigned long *value)", Args: args(read(1), scalar, scalar, out64), Doc: "Reads a number in text."},
	{Number: BootTime, Name: "ktime_get_ns", In: Host, Pure: true, Doc: docClock},
	{Number: CoarseTime, Name: "ktime_get_ns", In: Host, Pure: true, Doc: docClock},
	{Number: Format, Name: "snprintf", In: Host, C: "long (*bpf_snprintf)(char *str, __u32 size, const char *fmt, const __u64 *data, __u32 data_len)", Args: args(write(1), scalar, text, read(4), number), Doc: "Writes text, with arguments of 64 bits in memory."},
	{Number: FuncIP, Name: "get_func_ip", In: Host, C: "__u64 (*bpf_get_func_ip)(void *ctx)", Args: args(context), Pure: true, Doc: "The address of the function."},
	{Number: Cookie, Name: "get_attach_cookie", In: Host, C: "__u64 (*bpf_get_attach_cookie)(void *ctx)", Args: args(context), Pure: true, Doc: "The number that was given where the program was attached."},
	{Number: Compare, Name: "strncmp", In: Host, C: "long (*bpf_strncmp)(const char *s1, __u32 size, const char *s2)", Args: args(read(1), scalar, text), Doc: "Compares text with a constant one."},
	{Number: SetRetval, Name: "set_retval", In: Host, C: "long (*bpf_set_retval)(long value)", Args: args(scalar), Doc: "As override_return, without a context."},
	{Number: USDTCount, Name: "nvtrace_usdt_arg_cnt", In: Stop, C: "long (*nvtrace_usdt_arg_cnt)(void *ctx)", Args: args(context), Doc: "How many arguments a USDT probe has."},
}

// writeStr is memory behind whose NUL nothing is written.
var writeStr = bpf.ArgSpec{Kind: bpf.ArgWrite, SizeArg: 1}
