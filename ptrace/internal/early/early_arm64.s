#include "textflag.h"

// func getNoFile(r *Rlimit) int64
TEXT ·getNoFile(SB), NOSPLIT, $0-16
	MOVD $261, R8 // prlimit64
	MOVD $0, R0
	MOVD $7, R1   // RLIMIT_NOFILE
	MOVD $0, R2
	MOVD r+0(FP), R3
	SVC
	MOVD R0, ret+8(FP)
	RET

// func getg() unsafe.Pointer
TEXT ·getg(SB), NOSPLIT, $0-8
	MOVD g, ret+0(FP)
	RET

// func gettid() uint64
TEXT ·gettid(SB), NOSPLIT, $0-8
	MOVD $178, R8
	SVC
	MOVD R0, ret+0(FP)
	RET

// func sigmask(m *uint64) int64
TEXT ·sigmask(SB), NOSPLIT, $0-16
	MOVD $135, R8 // rt_sigprocmask
	MOVD $2, R0   // SIG_SETMASK
	MOVD $0, R1
	MOVD m+0(FP), R2
	MOVD $8, R3
	SVC
	MOVD R0, ret+8(FP)
	RET
