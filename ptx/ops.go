package ptx

import "fmt"

// An Op is a known opcode, the first word of an instruction ("ld", "add",
// "wgmma"). OpUnknown stands for every word that is not in the table; the
// instruction is kept all the same.
type Op uint8

// The opcodes of PTX ISA 1.0 to 9.3, §9.7 of its documents.
const (
	OpUnknown Op = iota
	OpAbs
	OpActivemask
	OpAdd
	OpAddc
	OpAlloca
	OpAnd
	OpApplypriority
	OpAtom
	OpBar
	OpBarrier
	OpBfe
	OpBfi
	OpBfind
	OpBmsk
	OpBra
	OpBrev
	OpBrkpt
	OpBrx
	OpCall
	OpClmad
	OpClusterlaunchcontrol
	OpClz
	OpCnot
	OpCopysign
	OpCos
	OpCp
	OpCreatepolicy
	OpCvt
	OpCvta
	OpDiscard
	OpDiv
	OpDp2a
	OpDp4a
	OpElect
	OpEx2
	OpExit
	OpFence
	OpFma
	OpFns
	OpGetctarank
	OpGriddepcontrol
	OpIsspacep
	OpIstypep
	OpLd
	OpLdmatrix
	OpLdu
	OpLg2
	OpLop3
	OpMad
	OpMad24
	OpMadc
	OpMapa
	OpMatch
	OpMax
	OpMbarrier
	OpMembar
	OpMin
	OpMma
	OpMov
	OpMovmatrix
	OpMul
	OpMul24
	OpMultimem
	OpNanosleep
	OpNeg
	OpNot
	OpOr
	OpPmevent
	OpPopc
	OpPrefetch
	OpPrefetchu
	OpPrmt
	OpRcp
	OpRed
	OpRedux
	OpRem
	OpRet
	OpRsqrt
	OpSad
	OpSelp
	OpSet
	OpSetmaxnreg
	OpSetp
	OpShf
	OpShfl
	OpShl
	OpShr
	OpSin
	OpSlct
	OpSqrt
	OpSt
	OpStackrestore
	OpStacksave
	OpStmatrix
	OpSub
	OpSubc
	OpSuld
	OpSuq
	OpSured
	OpSust
	OpSzext
	OpTanh
	OpTcgen05
	OpTensormap
	OpTestp
	OpTex
	OpTld4
	OpTrap
	OpTxq
	OpVabsdiff
	OpVabsdiff2
	OpVabsdiff4
	OpVadd
	OpVadd2
	OpVadd4
	OpVavrg2
	OpVavrg4
	OpVmad
	OpVmax
	OpVmax2
	OpVmax4
	OpVmin
	OpVmin2
	OpVmin4
	OpVote
	OpVset
	OpVset2
	OpVset4
	OpVshl
	OpVshr
	OpVsub
	OpVsub2
	OpVsub4
	OpWgmma
	OpWmma
	OpXor
	opCount
)

var opNames = [opCount]string{
	OpAbs:                  "abs",
	OpActivemask:           "activemask",
	OpAdd:                  "add",
	OpAddc:                 "addc",
	OpAlloca:               "alloca",
	OpAnd:                  "and",
	OpApplypriority:        "applypriority",
	OpAtom:                 "atom",
	OpBar:                  "bar",
	OpBarrier:              "barrier",
	OpBfe:                  "bfe",
	OpBfi:                  "bfi",
	OpBfind:                "bfind",
	OpBmsk:                 "bmsk",
	OpBra:                  "bra",
	OpBrev:                 "brev",
	OpBrkpt:                "brkpt",
	OpBrx:                  "brx",
	OpCall:                 "call",
	OpClmad:                "clmad",
	OpClusterlaunchcontrol: "clusterlaunchcontrol",
	OpClz:                  "clz",
	OpCnot:                 "cnot",
	OpCopysign:             "copysign",
	OpCos:                  "cos",
	OpCp:                   "cp",
	OpCreatepolicy:         "createpolicy",
	OpCvt:                  "cvt",
	OpCvta:                 "cvta",
	OpDiscard:              "discard",
	OpDiv:                  "div",
	OpDp2a:                 "dp2a",
	OpDp4a:                 "dp4a",
	OpElect:                "elect",
	OpEx2:                  "ex2",
	OpExit:                 "exit",
	OpFence:                "fence",
	OpFma:                  "fma",
	OpFns:                  "fns",
	OpGetctarank:           "getctarank",
	OpGriddepcontrol:       "griddepcontrol",
	OpIsspacep:             "isspacep",
	OpIstypep:              "istypep",
	OpLd:                   "ld",
	OpLdmatrix:             "ldmatrix",
	OpLdu:                  "ldu",
	OpLg2:                  "lg2",
	OpLop3:                 "lop3",
	OpMad:                  "mad",
	OpMad24:                "mad24",
	OpMadc:                 "madc",
	OpMapa:                 "mapa",
	OpMatch:                "match",
	OpMax:                  "max",
	OpMbarrier:             "mbarrier",
	OpMembar:               "membar",
	OpMin:                  "min",
	OpMma:                  "mma",
	OpMov:                  "mov",
	OpMovmatrix:            "movmatrix",
	OpMul:                  "mul",
	OpMul24:                "mul24",
	OpMultimem:             "multimem",
	OpNanosleep:            "nanosleep",
	OpNeg:                  "neg",
	OpNot:                  "not",
	OpOr:                   "or",
	OpPmevent:              "pmevent",
	OpPopc:                 "popc",
	OpPrefetch:             "prefetch",
	OpPrefetchu:            "prefetchu",
	OpPrmt:                 "prmt",
	OpRcp:                  "rcp",
	OpRed:                  "red",
	OpRedux:                "redux",
	OpRem:                  "rem",
	OpRet:                  "ret",
	OpRsqrt:                "rsqrt",
	OpSad:                  "sad",
	OpSelp:                 "selp",
	OpSet:                  "set",
	OpSetmaxnreg:           "setmaxnreg",
	OpSetp:                 "setp",
	OpShf:                  "shf",
	OpShfl:                 "shfl",
	OpShl:                  "shl",
	OpShr:                  "shr",
	OpSin:                  "sin",
	OpSlct:                 "slct",
	OpSqrt:                 "sqrt",
	OpSt:                   "st",
	OpStackrestore:         "stackrestore",
	OpStacksave:            "stacksave",
	OpStmatrix:             "stmatrix",
	OpSub:                  "sub",
	OpSubc:                 "subc",
	OpSuld:                 "suld",
	OpSuq:                  "suq",
	OpSured:                "sured",
	OpSust:                 "sust",
	OpSzext:                "szext",
	OpTanh:                 "tanh",
	OpTcgen05:              "tcgen05",
	OpTensormap:            "tensormap",
	OpTestp:                "testp",
	OpTex:                  "tex",
	OpTld4:                 "tld4",
	OpTrap:                 "trap",
	OpTxq:                  "txq",
	OpVabsdiff:             "vabsdiff",
	OpVabsdiff2:            "vabsdiff2",
	OpVabsdiff4:            "vabsdiff4",
	OpVadd:                 "vadd",
	OpVadd2:                "vadd2",
	OpVadd4:                "vadd4",
	OpVavrg2:               "vavrg2",
	OpVavrg4:               "vavrg4",
	OpVmad:                 "vmad",
	OpVmax:                 "vmax",
	OpVmax2:                "vmax2",
	OpVmax4:                "vmax4",
	OpVmin:                 "vmin",
	OpVmin2:                "vmin2",
	OpVmin4:                "vmin4",
	OpVote:                 "vote",
	OpVset:                 "vset",
	OpVset2:                "vset2",
	OpVset4:                "vset4",
	OpVshl:                 "vshl",
	OpVshr:                 "vshr",
	OpVsub:                 "vsub",
	OpVsub2:                "vsub2",
	OpVsub4:                "vsub4",
	OpWgmma:                "wgmma",
	OpWmma:                 "wmma",
	OpXor:                  "xor",
}

// String returns the opcode as PTX spells it; "?" for OpUnknown.
func (o Op) String() string {
	switch {
	case o == OpUnknown:
		return "?"
	case o < opCount:
		return opNames[o]
	}
	return fmt.Sprintf("Op(%d)", uint8(o))
}

// opSlots is the size of the opcode hash table: a power of two, sparse enough
// that a word rarely meets another.
const opSlots = 1024

// opTable finds the Op of a word by open addressing; parsing looks one up for
// every instruction and a map would be a tenth of its time.
var opTable = func() (t [opSlots]Op) {
	for o := OpUnknown + 1; o < opCount; o++ {
		h := opHash(opNames[o])
		for t[h] != OpUnknown {
			h = (h + 1) % opSlots
		}
		t[h] = o
	}
	return t
}()

func opHash(s string) uint32 {
	h := uint32(len(s))
	for i := range min(len(s), 5) {
		h = h*37 + uint32(s[i])
	}
	return (h ^ h>>10 ^ h>>20 + uint32(s[len(s)-1])) % opSlots
}

// opOf returns the Op of a word, OpUnknown when it has none.
func opOf(s string) Op {
	for h := opHash(s); ; h = (h + 1) % opSlots {
		o := opTable[h]
		if o == OpUnknown || opNames[o] == s {
			return o
		}
	}
}

// typeSlots is the size of the hash table of type words.
const typeSlots = 256

// typeTable finds the Type of a word, as opTable does.
var typeTable = func() (t [typeSlots]Type) {
	for ty := Pred; ty < typeCount; ty++ {
		h := typeHash(typeNames[ty])
		for t[h] != TypeNone {
			h = (h + 1) % typeSlots
		}
		t[h] = ty
	}
	return t
}()

// typeHash hashes a word of at least three bytes.
func typeHash(s string) uint32 {
	return (uint32(s[1])*7 + uint32(s[2])*31 + uint32(s[len(s)-1])*3 + uint32(len(s))*5) % typeSlots
}

// typeOf returns the Type that a word with its dot names, TypeNone for others.
func typeOf(word string) Type {
	if len(word) < 3 {
		return TypeNone
	}
	for h := typeHash(word); ; h = (h + 1) % typeSlots {
		if t := typeTable[h]; t == TypeNone || typeNames[t] == word {
			return t
		}
	}
}
