#include "textflag.h"

// func getNoFile(r *Rlimit) int64
TEXT ·getNoFile(SB), NOSPLIT, $0-16
	MOVQ $302, AX // prlimit64
	XORL DI, DI
	MOVQ $7, SI   // RLIMIT_NOFILE
	XORL DX, DX
	MOVQ r+0(FP), R10
	SYSCALL
	MOVQ AX, ret+8(FP)
	RET
