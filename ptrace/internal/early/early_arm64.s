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
