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

// func getg() unsafe.Pointer
TEXT ·getg(SB), NOSPLIT, $0-8
	MOVQ (TLS), AX
	MOVQ AX, ret+0(FP)
	RET

// func gettid() uint64
TEXT ·gettid(SB), NOSPLIT, $0-8
	MOVQ $186, AX
	SYSCALL
	MOVQ AX, ret+0(FP)
	RET

// func sigmask(m *uint64) int64
TEXT ·sigmask(SB), NOSPLIT, $0-16
	MOVQ $14, AX // rt_sigprocmask
	MOVQ $2, DI  // SIG_SETMASK
	XORL SI, SI
	MOVQ m+0(FP), DX
	MOVQ $8, R10
	SYSCALL
	MOVQ AX, ret+8(FP)
	RET
