// Package cudart finds the CUDA runtime in files that it is linked into statically, as nvcc does
// by default, and as most of NVIDIA's libraries are made: its functions are no symbols of
// theirs. Where a file has been stripped of all symbols, they are found by what is known of
// the static libraries of CUDA's releases: how long each function is, and a hash of its
// code but for what linkers change.
//
// The package knows code and sizes. It knows nothing of processes, nor of what the functions mean.
package cudart
