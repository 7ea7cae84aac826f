// Package emit writes PTX ([Code]) for what programs in kernels do with maps and with the threads
// of their warp: lookups, updates, records, atomic changes, reads of the program's memory. It knows
// where maps lie, by package mapmem, and nothing of the programs and modules that the code is for.
package emit
