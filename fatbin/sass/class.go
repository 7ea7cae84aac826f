package sass

import "strings"

// class groups instructions by what the analyses have to know.
type class uint8

const (
	classOther      class = iota
	classLoad             // reads memory into registers
	classStore            // reads registers into memory
	classAtomic           // both
	classMMA              // matrix instructions with fixed registers
	classWGMMA            // matrix instructions that use registers after they have issued
	classReconfig         // USETMAXREG
	classPredicates       // copies predicates from a register, by a mask
)

func classOf(name string) class {
	switch name {
	case "LD", "LDG", "LDS", "LDL", "LDSM", "LDGMC", "LDT", "LDTM", "LDC", "TEX", "TLD", "TLD4", "SULD", "LDTRAM":
		return classLoad
	case "ST", "STG", "STS", "STL", "STSM", "STT", "STTM", "SUST", "RED", "REDG", "REDS", "STAS", "REDAS":
		return classStore
	case "ATOM", "ATOMG", "ATOMS", "ATOMAS", "SUATOM", "SURED":
		return classAtomic
	case "HGMMA", "QGMMA", "IGMMA", "BGMMA":
		return classWGMMA
	case "R2P", "UR2UP":
		return classPredicates
	case "USETMAXREG":
		return classReconfig
	}
	if strings.HasSuffix(name, "MMA") {
		return classMMA
	}
	return classOther
}

// unit is the part of the machine that instructions without a fixed latency go to,
// in order: one that has done what a later one waits for has done it for the
// earlier ones too. 0 is none.
func unitOf(name string) uint8 {
	switch name {
	case "LDS", "STS", "LDSM", "STSM", "ATOMS", "SHFL":
		return 1
	case "LDG", "STG", "LD", "ST", "LDL", "STL", "ATOM", "ATOMG", "RED", "REDG", "LDGSTS", "SUST", "SULD", "REDUX":
		return 2
	case "I2F", "F2I", "F2F", "FRND", "MUFU", "POPC", "FLO", "BREV", "FCHK":
		return 3
	}
	return 0
}

// doubles are the instructions of the double precision unit, which keeps the order
// of its own.
func doubles(name string) bool {
	switch name {
	case "DADD", "DMUL", "DFMA", "DSETP", "DMNMX", "DMMA":
		return true
	}
	return false
}

// readsUniformEarly says that uniform registers are read as the instruction issues,
// even if the others are read later: all but what works on memory by descriptor.
func readsUniformEarly(name string) bool {
	for _, p := range elected {
		if strings.HasPrefix(name, p) {
			return false
		}
	}
	return true
}

// fixedMatrix reports whether the instruction is one of matrices that writes its results a fixed time
// after it has issued, of which no scoreboard tells.
func (i *Inst) fixedMatrix() bool {
	return i.Known() && i.op.class == classMMA && i.Word.Control().WriteBar >= unguarded
}

// Opcodes that the weaver looks for or makes.
const (
	opSTL = 0x387
	opLDL = 0x983
	opP2R = 0x803
)

// elected are prefixes of names of instructions that one lane issues with
// operands in uniform registers.
var elected = []string{"UTMA", "UBLK", "UTC", "UVIRT", "UCGA"}
