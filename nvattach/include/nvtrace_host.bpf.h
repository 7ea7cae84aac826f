/*
 * For authors of programs that nvtrace runs on the host: at functions, system calls, USDT probes
 * and calls of CUDA's libraries. It has nvtrace_gpu.bpf.h, too, so that one file can have
 * programs for both.
 *
 *	SEC("uprobe/FILE:FUNCTION")    before a function; uretprobe/: where it returns
 *	SEC("usdt/FILE:PROVIDER:NAME") at a probe that a file was compiled with
 *	SEC("cuda.api/FUNCTION")       before a call of CUDA's libraries; cuda.apiret/: where it returns
 *	SEC("tracepoint/syscalls/sys_enter_NAME"), sys_exit_NAME    system calls
 *	SEC("tracepoint/raw_syscalls/sys_enter"), sys_exit          all of them
 *
 * Who includes vmlinux.h or libbpf's bpf_helpers.h has this in them, and needs no other header.
 */
#ifndef NVTRACE_HOST_BPF_H
#define NVTRACE_HOST_BPF_H

#include "nvtrace_gpu.bpf.h"

/* Types of maps that only the host has. */
enum {
	BPF_MAP_TYPE_STACK_TRACE = 7, /* for bpf_get_stackid */
	BPF_MAP_TYPE_LPM_TRIE = 11,   /* the longest prefix that matches */
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_QUEUE = 22,
	BPF_MAP_TYPE_STACK = 23,
	BPF_MAP_TYPE_BLOOM_FILTER = 30,
};

/* Flags of bpf_get_stack and bpf_get_stackid: there are no other stacks than the program's own. */
enum { BPF_F_USER_STACK = 1 << 8 };

/* uprobe, uretprobe, ureplace, usdt: the registers of x86-64, as the kernel has them. */
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};

#define PT_REGS_PARM1(ctx) ((ctx)->di)
#define PT_REGS_PARM2(ctx) ((ctx)->si)
#define PT_REGS_PARM3(ctx) ((ctx)->dx)
#define PT_REGS_PARM4(ctx) ((ctx)->cx)
#define PT_REGS_PARM5(ctx) ((ctx)->r8)
#define PT_REGS_PARM6(ctx) ((ctx)->r9)
#define PT_REGS_RC(ctx) ((ctx)->ax) /* what a function returns */
#define PT_REGS_SP(ctx) ((ctx)->sp)
#define PT_REGS_IP(ctx) ((ctx)->ip)

/* tracepoint/syscalls and tracepoint/raw_syscalls; the fields in front of id say nothing here. */
struct trace_event_raw_sys_enter {
	unsigned short common_type;
	unsigned char common_flags, common_preempt_count;
	int common_pid;
	long id; /* number of the system call */
	unsigned long args[6];
};

struct trace_event_raw_sys_exit {
	unsigned short common_type;
	unsigned char common_flags, common_preempt_count;
	int common_pid;
	long id;
	long ret;
};

/*
 * A program at a function with the function's parameters, up to six numbers or pointers; ctx
 * is the context.
 *
 *	SEC("uprobe/libc.so.6:malloc")
 *	int BPF_UPROBE(on_malloc, __u64 bytes)
 *	{
 *		...
 */
#define BPF_UPROBE(name, params...) __NVTRACE_AT(name, __NVTRACE_CAT(__NVTRACE_REGS, __NVTRACE_COUNT(params))(ctx), ##params)

/* The same where it returns: with no parameter, or one for what the function returned. */
#define BPF_URETPROBE(name, params...) __NVTRACE_AT(name, __NVTRACE_CAT(__NVTRACE_RET, __NVTRACE_COUNT(params))(ctx), ##params)

#define __NVTRACE_PASTE(list...) list
#define __NVTRACE_AT(name, args, params...)                                                        \
	name(struct pt_regs *ctx);                                                                 \
	static __always_inline int __at_##name(struct pt_regs *ctx, ##params);                     \
	int name(struct pt_regs *ctx)                                                              \
	{                                                                                          \
		_Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wint-conversion\"") \
		return __at_##name(__NVTRACE_PASTE args);                                          \
		_Pragma("GCC diagnostic pop")                                                      \
	}                                                                                          \
	static __always_inline int __at_##name(struct pt_regs *ctx, ##params)
#define __NVTRACE_REGS0(ctx) (ctx)
#define __NVTRACE_REGS1(ctx) (ctx, (void *)PT_REGS_PARM1(ctx))
#define __NVTRACE_REGS2(ctx) (ctx, (void *)PT_REGS_PARM1(ctx), (void *)PT_REGS_PARM2(ctx))
#define __NVTRACE_REGS3(ctx) (ctx, (void *)PT_REGS_PARM1(ctx), (void *)PT_REGS_PARM2(ctx), (void *)PT_REGS_PARM3(ctx))
#define __NVTRACE_REGS4(ctx)                                                                       \
	(ctx, (void *)PT_REGS_PARM1(ctx), (void *)PT_REGS_PARM2(ctx), (void *)PT_REGS_PARM3(ctx),  \
	 (void *)PT_REGS_PARM4(ctx))
#define __NVTRACE_REGS5(ctx)                                                                       \
	(ctx, (void *)PT_REGS_PARM1(ctx), (void *)PT_REGS_PARM2(ctx), (void *)PT_REGS_PARM3(ctx),  \
	 (void *)PT_REGS_PARM4(ctx), (void *)PT_REGS_PARM5(ctx))
#define __NVTRACE_REGS6(ctx)                                                                       \
	(ctx, (void *)PT_REGS_PARM1(ctx), (void *)PT_REGS_PARM2(ctx), (void *)PT_REGS_PARM3(ctx),  \
	 (void *)PT_REGS_PARM4(ctx), (void *)PT_REGS_PARM5(ctx), (void *)PT_REGS_PARM6(ctx))
#define __NVTRACE_RET0(ctx) (ctx)
#define __NVTRACE_RET1(ctx) (ctx, (void *)PT_REGS_RC(ctx))

/* Helpers. These lines are made of nvattach/helper: go test ./nvattach/helper -update */
/* The group, in the upper half, and the user. */
static __u64 (*bpf_get_current_uid_gid)(void) = (void *)15;
/* The thread's name. */
static long (*bpf_get_current_comm)(void *buf, __u32 size) = (void *)16;
/* The number of the thread's callers in a stack_trace map. */
static long (*bpf_get_stackid)(void *ctx, void *map, __u64 flags) = (void *)27;
/* Writes memory of the program. */
static long (*bpf_probe_write_user)(void *dst, const void *src, __u32 size) = (void *)36;
/* Has the function or the call return that instead. */
static long (*bpf_override_return)(void *ctx, __u64 value) = (void *)58;
/* Addresses of the thread's callers. */
static long (*bpf_get_stack)(void *ctx, void *buf, __u32 size, __u64 flags) = (void *)67;
/* Puts a value into a queue, a stack or a bloom filter. */
static long (*bpf_map_push_elem)(void *map, const void *value, __u64 flags) = (void *)87;
/* Takes the next value of a queue or a stack. */
static long (*bpf_map_pop_elem)(void *map, void *value) = (void *)88;
/* The next value of a queue or a stack; whether a bloom filter may have one. */
static long (*bpf_map_peek_elem)(void *map, void *value) = (void *)89;
/* Reads a number with a sign in text. */
static long (*bpf_strtol)(const char *buf, __u64 size, __u64 flags, long *value) = (void *)105;
/* Reads a number in text. */
static long (*bpf_strtoul)(const char *buf, __u64 size, __u64 flags, unsigned long *value) = (void *)106;
/* Writes text, with arguments of 64 bits in memory. */
static long (*bpf_snprintf)(char *str, __u32 size, const char *fmt, const __u64 *data, __u32 data_len) = (void *)165;
/* The address of the function. */
static __u64 (*bpf_get_func_ip)(void *ctx) = (void *)173;
/* The number that was given where the program was attached. */
static __u64 (*bpf_get_attach_cookie)(void *ctx) = (void *)174;
/* Compares text with a constant one. */
static long (*bpf_strncmp)(const char *s1, __u32 size, const char *s2) = (void *)182;
/* As override_return, without a context. */
static long (*bpf_set_retval)(long value) = (void *)187;

/* End of the helpers. */

#endif
