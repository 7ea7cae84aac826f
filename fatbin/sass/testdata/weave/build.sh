#!/bin/sh
# Compiles the kernels and probes that the tests of package sass weave. NVCC and PTXAS
# name the tools; those of CUDA 13.0 wrote what is committed, and PTXAS107, of 13.5, that for sm_107.
set -eu
cd "$(dirname "$0")"
nvcc=${NVCC:-nvcc} ptxas=${PTXAS:-ptxas} ptxas107=${PTXAS107:-ptxas}
"$nvcc" -arch=sm_90 -cubin -o kernels.sm_90.cubin kernels.cu
"$nvcc" -arch=sm_90 -cubin -DTRUTH -o kernels.truth.sm_90.cubin kernels.cu
"$nvcc" -arch=sm_90 -cubin -DCALLS -o calls.sm_90.cubin kernels.cu
"$nvcc" -arch=sm_90 -cubin -DCALLS -DTRUTH -o calls.truth.sm_90.cubin kernels.cu
for sm in 75 80 86 88 89 90 100 103 107 110 120 121; do
	version=9.0 as=$ptxas
	[ $sm != 107 ] || version=9.4 as=$ptxas107
	for probe in count access address tally flush; do
		[ $probe$sm != access80 ] && [ $probe$sm != access86 ] && [ $probe$sm != access88 ] && [ $probe$sm != access89 ] || continue # as for sm_75
		sed "s/sm_75/sm_$sm/; s/version 7.8/version $version/" $probe.ptx >$probe.tmp
		"$as" -arch=sm_$sm --compile-as-tools-patch -o $probe.sm_$sm.cubin $probe.tmp
		rm $probe.tmp
	done
done
