#include "textflag.h"

// What follows is a signal handler: signal in DI, siginfo in SI, context in DX. All
// registers are restored when it has returned.
TEXT ·onSignal(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
	MOVL 8(SI), AX // si_code
	CMPL AX, $0
	JLE  sent      // by a process
	MOVL DI, CX
	MOVQ ·faultSet(SB), AX
	BTQ  CX, AX
	JCS  fault

sent:
	MOVL ·sentPipe(SB), DI
	MOVQ $128, DX // sizeof(siginfo_t)
	MOVQ $1, AX   // write
	SYSCALL
	RET

fault: // of this process's own: Go's runtime deals with it
	MOVQ ·goHandler(SB), AX
	JMP  AX

// func onSignalPC() uintptr
TEXT ·onSignalPC(SB), NOSPLIT, $0-8
	LEAQ ·onSignal(SB), AX
	MOVQ AX, ret+0(FP)
	RET
