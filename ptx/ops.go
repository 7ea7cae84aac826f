package ptx

// An Op is a known opcode, the first word of an instruction ("ld", "add",
// "wgmma"). OpUnknown stands for every word that is not in the table; the
// instruction is kept all the same.
type Op uint8

// OpUnknown is the Op of an opcode that is not in the table.
const OpUnknown Op = 0
