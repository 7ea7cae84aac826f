package sass

import "strings"

// class groups instructions by what the analyses have to know.
type class uint8

const (
	classOther    class = iota
	classLoad           // reads memory into registers
	classStore          // reads registers into memory
	classAtomic         // both
	classMMA            // matrix instructions with fixed registers
	classWGMMA          // matrix instructions that use registers after they have issued
	classWait           // WARPGROUP.DEPBAR and its like, which wait for those
	classReconfig       // USETMAXREG
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
	case "WARPGROUP":
		return classWait
	case "USETMAXREG":
		return classReconfig
	}
	if strings.HasSuffix(name, "MMA") {
		return classMMA
	}
	return classOther
}
