#!/bin/bash
# Builds all test programs, for the simulated GPU and for machines with a real one:
# build.sh OUT CUDA, where CUDA is a toolkit as deps.sh makes it. What is newer than its
# source stays as it is. Afterwards OUT/run.sh runs them all, with OUT/lib beside it, and
# says which did not pass; OUT/table.sh also counts what probes see.
set -euo pipefail
out=${1:?usage: build.sh OUT CUDA}
cuda=${2:?usage: build.sh OUT CUDA}
src=$(dirname "$0")
nvcc=("$cuda/bin/nvcc" -gencode arch=compute_75,code=compute_75 -gencode arch=compute_90,code=sm_90)
shared=("$out/lib/libcudart.so.13" -lpthread '-Wl,-rpath,$ORIGIN/lib')
mkdir -p "$out/lib"
cp -L "$cuda/lib/libcudart.so.13" "$out/lib/"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# stale NAME SOURCE... tells whether a program must be built, and names it then.
stale() {
	local name=$1 f
	shift
	for f in "$@" "$src"/*.h "$0"; do
		[ "$out/$name" -nt "$f" ] && continue
		echo "building $name"
		return 0
	done
	return 1
}

for f in "$src"/*.cu; do
	name=$(basename "$f" .cu)
	case $name in rdc_*) continue ;; esac
	stale "$name" "$f" || continue
	"${nvcc[@]}" -cudart none -c -o "$tmp/o" "$f"
	case $name in
	vectoradd | globals | streams | fork | samples) # also with the runtime in the program
		g++ -o "$out/${name}_static" "$tmp/o" "$cuda/lib/libcudart_static.a" -ldl -lrt -lpthread
		;;
	esac
	g++ -o "$out/$name" "$tmp/o" "${shared[@]}"
done
if stale rdc "$src"/rdc_?.cu; then
	# PTX alone: the driver links it when it is loaded.
	nvcc=("$cuda/bin/nvcc" -gencode arch=compute_75,code=compute_75)
	for n in a b; do
		"${nvcc[@]}" -rdc=true -cudart none -c -o "$tmp/rdc_$n.o" "$src/rdc_$n.cu"
	done
	"${nvcc[@]}" -dlink -L"$cuda/lib" -o "$tmp/rdc_l.o" "$tmp/rdc_a.o" "$tmp/rdc_b.o" -lcudadevrt
	g++ -o "$out/rdc" "$tmp"/rdc_[abl].o "$cuda/lib/libcudadevrt.a" "${shared[@]}"
fi
for f in "$src"/drv_*.c "$src/../../../examples/cuda/vectoradd_driver.c"; do
	name=$(basename "$f" .c)
	stale "$name" "$f" || continue
	gcc -O1 -o "$out/$name" "$f" -ldl -Wno-unused-variable
done
cp "$src/run.sh" "$src/table.sh" "$src/../../../examples/probes/"{count,memory}.bpf.o "$out/"
