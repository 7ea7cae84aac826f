package sass

import "strings"

// Reason says why an instruction can't be displaced by a jump to a probe; "" if
// it can.
type Reason string

// The reasons.
const (
	ReasonUnknown   Reason = "the instruction, or one beside it, is unknown"
	ReasonFlow      Reason = "it transfers control or makes threads meet"
	ReasonRelative  Reason = "it depends on where it stands"
	ReasonSync      Reason = "it synchronizes"
	ReasonListed    Reason = "the file lists its offset for the driver"
	ReasonMMA       Reason = "matrix instructions are using registers"
	ReasonElected   Reason = "one lane is elected to run it"
	ReasonReconfig  Reason = "it changes the number of registers"
	ReasonPadding   Reason = "it is behind the end of the function"
	ReasonUnreached Reason = "nothing leads to it"
)

// neverSites are instructions that must stay where they are.
var neverSites = map[string]Reason{
	"BAR": ReasonSync, "DEPBAR": ReasonSync, "YIELD": ReasonSync, "NANOSLEEP": ReasonSync, "MEMBAR": ReasonSync,
	"FENCE": ReasonSync, "ERRBAR": ReasonSync, "CGAERRBAR": ReasonSync, "UCGABAR_ARV": ReasonSync, "UCGABAR_WAIT": ReasonSync,
	"PREEXIT": ReasonSync, "ACQBULK": ReasonSync, "SYNCS": ReasonSync, "ARRIVES": ReasonSync, "LDGDEPBAR": ReasonSync,
	"WARPGROUP": ReasonSync, "WARPGROUPSET": ReasonSync, "BMOV": ReasonFlow, "BCLEAR": ReasonFlow, "B2R": ReasonSync, "R2B": ReasonSync,
	"CCTL": ReasonSync, "CCTLL": ReasonSync, "CCTLT": ReasonSync, "ELECT": ReasonElected, "VOTE": ReasonElected, "VOTEU": ReasonElected,
	"USETMAXREG": ReasonReconfig, "RPCMOV": ReasonFlow, "UTMACMDFLUSH": ReasonSync, "UTCBAR": ReasonSync, "UTCATOMSWS": ReasonSync,
}

// Sites says of each instruction whether a probe can take its place, the
// instruction itself running behind the probe. listed are the offsets that
// .nv.info names, in bytes.
func (a *Analysis) Sites(listed []uint32) []Reason {
	out := make([]Reason, len(a.Insts))
	reached := a.reached()
	for i := range a.Insts {
		out[i] = a.site(i)
		if out[i] == "" && !reached[a.BlockOf[i]] {
			out[i] = ReasonUnreached
		}
	}
	for _, off := range listed {
		if i := int(off / WordSize); i < len(out) && out[i] == "" {
			out[i] = ReasonListed
		}
	}
	end := len(out)
	for end > 0 && a.Insts[end-1].Word.Opcode() == opNOP {
		end--
		out[end] = ReasonPadding
	}
	return out
}

func (a *Analysis) site(i int) Reason {
	in := &a.Insts[i]
	for j := max(0, i-1); j <= min(len(a.Insts)-1, i+1); j++ {
		if !a.Insts[j].Known() {
			return ReasonUnknown
		}
	}
	if in.op.flow != FlowNext {
		return ReasonFlow
	}
	if in.pcRelative() {
		return ReasonRelative
	}
	if in.op.class == classWGMMA {
		return ReasonMMA
	}
	if r, ok := neverSites[in.op.name]; ok {
		return r
	}
	for _, p := range elected {
		if strings.HasPrefix(in.op.name, p) {
			return ReasonElected
		}
	}
	return ""
}

// reached marks the blocks that control can come to.
func (a *Analysis) reached() []bool {
	seen := make([]bool, len(a.Blocks))
	var work []int
	add := func(b int) {
		if !seen[b] {
			seen[b] = true
			work = append(work, b)
		}
	}
	anywhere := false
	for b := range a.Blocks {
		if a.Blocks[b].Entry {
			add(b)
		}
	}
	for len(work) > 0 {
		b := work[len(work)-1]
		work = work[:len(work)-1]
		blk := &a.Blocks[b]
		for _, s := range blk.Succ {
			add(s)
		}
		if f := a.Insts[blk.End-1].Flow(); f.Kind == FlowIndirect && blk.LeavesAnywhere && !anywhere {
			anywhere = true
			for b := range a.Blocks {
				add(b)
			}
		}
	}
	return seen
}
