// Package mapmem knows how maps lie in the memory of a GPU or of the host ([Maps]): how large
// they are, where each value, key and record is, how the host reads, changes and shows them ([Table],
// [Reader], [Printer]), and what else lies beside them: counters, the process's numbers, clocks, the
// table of memory that kernels may read.
//
// It knows nothing of the programs that use maps. Whoever drives it gives a [Memory].
package mapmem
