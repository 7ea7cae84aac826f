# Functions, each with one reason for which its first instructions must stay, or none. Named labels are only those
# that the test asks for.
	.text
	.macro begin name
	.globl \name
	.type \name,@function
\name:
	.endm
	.macro finish name
	.size \name,.-\name
	.skip 300,0xcc		# out of reach of short branches
	.endm

begin free			# nothing
	push %rbp
	mov %rsp,%rbp
	mov $1,%eax
	pop %rbp
	ret
finish free

begin short			# padding follows
	xor %eax,%eax
	ret
	.size short,.-short
	.nops 8
	.skip 300,0xcc

begin pad			# a landing pad follows, which nothing names
	xor %eax,%eax
	ret
	.size pad,.-pad
	endbr64
	ret
	.skip 300,0xcc

begin beside			# a symbol follows
	xor %eax,%eax
	ret
	.size beside,.-beside
begin next
	.nops 8
	ret
finish next

begin far			# a long jump leads to +2
	xor %eax,%eax
1:	inc %eax
	inc %eax
	ret
finish far
begin jumper
	mov $3,%eax
	jmp far+2
finish jumper

begin loop			# a short jump leads to +2
	xor %eax,%eax
1:	inc %eax
	dec %edi
	jnz 1b
	ret
finish loop

begin taken			# an instruction takes the address of +2
	xor %eax,%eax
2:	inc %eax
	inc %eax
	ret
finish taken
begin taker
	lea taken+2(%rip),%rax
	jmp *%rax
finish taker

begin stored			# a relocation puts the address of +2 into data
	xor %eax,%eax
3:	inc %eax
	inc %eax
	ret
finish stored

begin cased			# a table of distances leads to +2
	xor %eax,%eax
4:	inc %eax
	inc %eax
	ret
finish cased
begin switch
	lea table(%rip),%rdx
	movslq (%rdx,%rdi,4),%rax
	add %rdx,%rax
	jmp *%rax
finish switch

begin computed			# it jumps to nobody knows where
	mov %edi,%eax
	nop
	nop
	nop
	lea computed(%rip),%rdx
	shl $2,%rax
	add %rdx,%rax
	jmp *%rax
finish computed

begin pointer			# it jumps to what lies in memory
	mov %edi,%eax
	nop
	nop
	nop
	mov 8(%rdi),%rax
	jmp *%rax
finish pointer

	.section .rodata
	.balign 4
table:	.long 4b-table, switch-table
	.data
	.balign 8
	.quad 3b
	.section .note.GNU-stack,"",@progbits
