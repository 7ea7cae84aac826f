#include "textflag.h"

// What follows is a signal handler: signal in R0, siginfo in R1, context in R2. All
// registers are restored when it has returned.
TEXT ·onSignal(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
	MOVW 8(R1), R3 // si_code
	CMPW $0, R3
	BLE  sent      // by a process
	MOVD ·faultSet(SB), R4
	LSR  R0, R4, R4
	TBNZ $0, R4, fault

sent:
	MOVW ·sentPipe(SB), R0
	MOVD $128, R2 // sizeof(siginfo_t)
	MOVD $64, R8  // write
	SVC
	RET

fault: // of this process's own: Go's runtime deals with it
	MOVD ·goHandler(SB), R4
	JMP  (R4)

// func onSignalPC() uintptr
TEXT ·onSignalPC(SB), NOSPLIT, $0-8
	MOVD $·onSignal(SB), R0
	MOVD R0, ret+0(FP)
	RET
