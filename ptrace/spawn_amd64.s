//go:build !race

#include "textflag.h"

#define SYS_clone	56
#define CLONE_VM	0x100
#define SIGCHLD	17

// func cloneChild(stack uintptr, p *plan) (pid uintptr, e syscall.Errno)
TEXT ·cloneChild(SB), NOSPLIT, $0-32
	MOVQ	$(CLONE_VM | SIGCHLD), DI
	MOVQ	stack+0(FP), SI
	MOVQ	p+8(FP), R12
	XORL	DX, DX
	XORL	R10, R10
	XORL	R8, R8
	MOVL	$SYS_clone, AX
	SYSCALL
	TESTQ	AX, AX
	JEQ	child
	CMPQ	AX, $-4095
	JCC	failed
	MOVQ	AX, pid+16(FP)
	MOVQ	$0, e+24(FP)
	RET

failed:
	NEGQ	AX
	MOVQ	$-1, pid+16(FP)
	MOVQ	AX, e+24(FP)
	RET

child:
	SUBQ	$64, SP
	MOVQ	R12, 0(SP)
	CALL	·childMain(SB)
	INT	$3 // it does not return
