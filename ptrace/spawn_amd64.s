#include "textflag.h"

#define SYS_clone	56
#define CLONE_VM	0x100
#define SIGCHLD	17

// func cloneChild(stack, main uintptr, p *plan) (pid uintptr, e syscall.Errno)
TEXT ·cloneChild(SB), NOSPLIT, $0-40
	MOVQ	$(CLONE_VM | SIGCHLD), DI
	MOVQ	stack+0(FP), SI
	MOVQ	main+8(FP), R12
	MOVQ	p+16(FP), R13
	XORL	DX, DX
	XORL	R10, R10
	XORL	R8, R8
	MOVL	$SYS_clone, AX
	SYSCALL
	TESTQ	AX, AX
	JEQ	child
	CMPQ	AX, $-4095
	JCC	failed
	MOVQ	AX, pid+24(FP)
	MOVQ	$0, e+32(FP)
	RET

failed:
	NEGQ	AX
	MOVQ	$-1, pid+24(FP)
	MOVQ	AX, e+32(FP)
	RET

child: // by Go's own convention: what goes between it and assembly's, the race detector wants to see
	SUBQ	$64, SP // for AX
	XORPS	X15, X15
	MOVQ	(TLS), R14
	MOVQ	R13, AX
	CALL	R12
	INT	$3 // it does not return
