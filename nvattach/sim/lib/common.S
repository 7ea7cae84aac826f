// What all stubs jump to, with the index of the entry in eax: the arguments are
// saved as nvsim_call's struct frame has them.
	.text
	.globl nvsim_common
	.hidden nvsim_common
	.type nvsim_common, @function
nvsim_common:
	.cfi_startproc
	push %rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	mov %rsp, %rbp
	.cfi_def_cfa_register %rbp
	sub $112, %rsp
	and $-16, %rsp
	mov %rdi, 0(%rsp)
	mov %rsi, 8(%rsp)
	mov %rdx, 16(%rsp)
	mov %rcx, 24(%rsp)
	mov %r8, 32(%rsp)
	mov %r9, 40(%rsp)
	movq %xmm0, 48(%rsp)
	movq %xmm1, 56(%rsp)
	movq %xmm2, 64(%rsp)
	movq %xmm3, 72(%rsp)
	mov %eax, %eax
	mov %rax, 80(%rsp)
	lea 16(%rbp), %rcx
	mov %rcx, 88(%rsp)
	mov 8(%rbp), %rcx
	mov %rcx, 96(%rsp)
	mov %rsp, %rdi
	call nvsim_call
	leave
	.cfi_def_cfa %rsp, 8
	ret
	.cfi_endproc
	.size nvsim_common, .-nvsim_common
	.section .note.GNU-stack,"",@progbits
