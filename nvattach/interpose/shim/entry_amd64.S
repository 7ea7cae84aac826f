/*
 * Where the program's calls come in: a thunk for each wrapped function, and the
 * exported dl functions. All registers that can hold arguments are as they were
 * when the real function begins; vector registers are never touched.
 *
 * A call is passed on by a jump, so that the real function sees the caller's
 * return address, or made from here, with the arguments on the stack copied.
 * struct nvt_frame in nvt.h has the offsets.
 */
#define FRAME 320
#define F(off) (off - FRAME)(%rbp)

	.text

	.macro SAVE
	pushq %rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	movq %rsp, %rbp
	.cfi_def_cfa_register %rbp
	subq $FRAME, %rsp
	movq %rdi, F(0)
	movq %rsi, F(8)
	movq %rdx, F(16)
	movq %rcx, F(24)
	movq %r8, F(32)
	movq %r9, F(40)
	movq %rax, F(104)
	leaq 16(%rbp), %rax
	movq %rax, F(48)
	movq 8(%rbp), %rax
	movq %rax, F(56)
	movl %r11d, %r11d
	movq %r11, F(64)
	leaq -FRAME(%rbp), %rdi
	.endm

	.macro RESTORE
	movq F(0), %rdi
	movq F(8), %rsi
	movq F(16), %rdx
	movq F(24), %rcx
	movq F(32), %r8
	movq F(40), %r9
	movq F(72), %r11
	movq F(104), %rax
	.endm

	.macro PASS
	leave
	.cfi_remember_state
	.cfi_def_cfa %rsp, 8
	.cfi_restore %rbp
	jmp *%r11
	.cfi_restore_state
	.endm

	/* The thunks: 16 bytes each, so that an address gives the number. */
	.p2align 4
	.globl nvt_thunks
	.hidden nvt_thunks
nvt_thunks:
	.cfi_startproc
	.set i, 0
	.rept 1024
	.p2align 4
	endbr64
	movl $i, %r11d
	jmp nvt_common
	.set i, i + 1
	.endr
	.p2align 4
	.globl nvt_thunks_end
	.hidden nvt_thunks_end
nvt_thunks_end:
	.cfi_endproc

	.p2align 4
nvt_common:
	.cfi_startproc
	SAVE
	call nvt_enter
	movl %eax, %r10d
	RESTORE
	testl %r10d, %r10d
	jnz 1f
	PASS
1:	movq F(80), %r10 /* words on the stack, in the order they have there */
	testq %r10, %r10
	jz 3f
	leaq 1(%r10), %rax
	andq $-2, %rax
	shlq $3, %rax
	subq %rax, %rsp
	movq F(48), %rax
2:	movq -8(%rax,%r10,8), %r9
	movq %r9, -8(%rsp,%r10,8)
	decq %r10
	jnz 2b
	movq F(40), %r9
3:	movq F(104), %rax
	call *%r11
	movq %rax, F(88)
	leaq -FRAME(%rbp), %rsp
	leaq -FRAME(%rbp), %rdi
	call nvt_leave
	movq F(88), %rax
	leave
	.cfi_def_cfa %rsp, 8
	ret
	.cfi_endproc

	.macro DL name, kind
	.p2align 4
	.globl \name
	.type \name, @function
\name:
	.cfi_startproc
	endbr64
	movl $\kind, %r11d
	jmp nvt_dl
	.cfi_endproc
	.size \name, . - \name
	.endm

	DL dlsym, 0
	DL dlvsym, 1
	DL dlopen, 2
	DL dlmopen, 3
	DL dladdr, 4
	DL dladdr1, 5

	.p2align 4
nvt_dl:
	.cfi_startproc
	SAVE
	call nvt_dl_enter
	cmpl $1, %eax
	movl %eax, %r10d
	je 1f
	ja 2f
	RESTORE
	PASS
1:	RESTORE
	call *%r11
	jmp 4f
2:	cmpl $2, %r10d
	ja 5f
	/*
	 * The return address that the real function sees is a ret instruction of the
	 * caller's own library; that ret then comes here.
	 */
	RESTORE
	leaq 3f(%rip), %r10
	subq $8, %rsp
	pushq %r10
	pushq F(96)
	jmp *%r11
3:	addq $8, %rsp
4:	movq %rax, F(88)
	leaq -FRAME(%rbp), %rdi
	call nvt_dl_leave
5:	movq F(88), %rax
	leave
	.cfi_def_cfa %rsp, 8
	ret
	.cfi_endproc

	/*
	 * void __gmon_start__(void): what the C library's crti.o makes every library
	 * and program call, if it is defined, before its constructors.
	 */
	.p2align 4
	.globl __gmon_start__
	.type __gmon_start__, @function
__gmon_start__:
	.cfi_startproc
	endbr64
	movq (%rsp), %rdi
	jmp nvt_object_starts
	.cfi_endproc
	.size __gmon_start__, . - __gmon_start__

	.section .note.GNU-stack, "", @progbits
