#include "textflag.h"

// The program's entry, before Go's: in less address space than Go's runtime reserves it
// would end with a dump of its own. The Makefile makes the linker take it (-E).
TEXT main·entry(SB), NOSPLIT|NOFRAME, $0
	SUBQ $16, SP
	MOVQ $97, AX // getrlimit
	MOVQ $9, DI // RLIMIT_AS
	MOVQ SP, SI
	SYSCALL
	MOVQ 0(SP), DX
	ADDQ $16, SP
	CMPQ AX, $0
	JNE go
	MOVQ $(1<<30), BX
	CMPQ DX, BX
	JCC go // unsigned >=
	MOVQ $1, AX // write
	MOVQ $2, DI
	LEAQ main·entryText(SB), SI
	MOVQ $141, DX // its length
	SYSCALL
	MOVQ $231, AX // exit_group
	MOVQ $125, DI
	SYSCALL
go:
	JMP _rt0_amd64_linux(SB)

DATA main·entryText+0(SB)/8, $"nvtrace:"
DATA main·entryText+8(SB)/8, $" less th"
DATA main·entryText+16(SB)/8, $"an 1 GiB"
DATA main·entryText+24(SB)/8, $" of addr"
DATA main·entryText+32(SB)/8, $"ess spac"
DATA main·entryText+40(SB)/8, $"e (ulimi"
DATA main·entryText+48(SB)/8, $"t -v): r"
DATA main·entryText+56(SB)/8, $"aise the"
DATA main·entryText+64(SB)/8, $" limit; "
DATA main·entryText+72(SB)/8, $"a progra"
DATA main·entryText+80(SB)/8, $"m can ha"
DATA main·entryText+88(SB)/8, $"ve its o"
DATA main·entryText+96(SB)/8, $"wn: nvtr"
DATA main·entryText+104(SB)/8, $"ace -- s"
DATA main·entryText+112(SB)/8, $"h -c 'ul"
DATA main·entryText+120(SB)/8, $"imit -v "
DATA main·entryText+128(SB)/8, $"N; exec "
DATA main·entryText+136(SB)/8, $"app'\n\x00\x00\x00"
GLOBL main·entryText(SB), RODATA|NOPTR, $144
