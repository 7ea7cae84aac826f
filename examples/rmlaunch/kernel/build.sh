#!/bin/sh
# Makes the cubins of this folder from vectoradd.ptx. PTXAS is ptxas of CUDA 13.0 (make deps-ptxas fetches one).
set -eu
cd "$(dirname "$0")"
for arch in 75 80 86 89 90 100 120; do
	"${PTXAS:-../../../.cache/ptxas/nvidia/cu13/bin/ptxas}" -arch=sm_$arch -o sm_$arch.cubin vectoradd.ptx
done
