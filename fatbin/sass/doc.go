// Package sass is the machine code of NVIDIA GPUs from sm_75 to sm_121: words
// of 128 bits, what each reads and writes, how control flows, which registers are
// live, and whether the control codes that the hardware relies on are kept.
//
// What an instruction does to registers comes from a table that a generator
// makes by asking ptxas and nvdisasm (facts/README.md says how), and so does how it is written. A word that the
// table lacks is carried as it is: [Decode] says false, and everything around it
// counts as in use.
//
// # Stability
//
// Programs may import what reads machine code: [Decode], [Inst], [Word], [Analyze]. Before version
// 1.0 names may still change; the changelog says which. [Weaver] is unstable: it is made for
// nvtrace's probes.
package sass
