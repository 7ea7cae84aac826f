#!/bin/sh
# Makes the files of this folder; README.md says what each variable names.
set -eu
cd "$(dirname "$0")"
out=$PWD
# Line numbers and options name the folder that they were compiled in.
rm -rf /tmp/nvtrace-fatbin
cp -r src /tmp/nvtrace-fatbin
cd /tmp/nvtrace-fatbin
nvcc13="$NVCC13 -Wno-deprecated-gpu-targets"
nvcc11="$NVCC118 -Wno-deprecated-gpu-targets -allow-unsupported-compiler"

# Compression, as 13.0 and 11.8 do it.
for mode in none size speed balance; do
	$nvcc13 -arch=sm_80 -rdc=true -fatbin --compress-mode=$mode -Xfatbin -compress-all -o "$out/two.13.0.$mode.fatbin" two.cu
done
$nvcc11 -arch=sm_80 -fatbin -o "$out/kernels.11.8.fatbin" kernels.cu
$nvcc11 -arch=sm_80 -fatbin -G -Xfatbin -compress-all -o "$out/two.11.8.debug.fatbin" -rdc=true two.cu
# Architectures with suffixes, line numbers, LTO-IR.
$nvcc13 -gencode 'arch=compute_90a,code=[sm_90a,compute_90a]' -gencode arch=compute_100f,code=sm_100f -Xfatbin -compress-all \
	-lineinfo -fatbin -o "$out/kernels.13.0.fatbin" kernels.cu
$nvcc13 -gencode arch=compute_90a,code=lto_90a -rdc=true -fatbin -o "$out/two.13.0.lto.fatbin" two.cu
# Cubins of either ABI, and the containers of 12.4 and 12.9 around them.
tmp=$(mktemp -d)
$nvcc13 -arch=sm_90a -cubin -o "$out/kernels.13.0.sm_90a.cubin" kernels.cu
$nvcc13 -arch=sm_100f -cubin -o "$out/kernels.13.0.sm_100f.cubin" kernels.cu
$nvcc11 -arch=sm_80 -cubin -o "$out/kernels.11.8.sm_80.cubin" kernels.cu
$nvcc11 -arch=sm_90 -ptx -o "$tmp/k.ptx" kernels.cu
sed -i -e 's/^\.version .*/.version 8.0/' -e 's/^\.target .*/.target sm_90a/' "$tmp/k.ptx"
"$PTXAS124" -arch=sm_90a -o "$out/kernels.12.4.sm_90a.cubin" "$tmp/k.ptx"
gcc -o "$tmp/nvfat" nvfat.c -ldl 2>/dev/null
"$tmp/nvfat" "$NVFATBIN124" "$out/kernels.12.4.fatbin" 90a "$out/kernels.12.4.sm_90a.cubin" "$tmp/k.ptx" -64
"$tmp/nvfat" "$NVFATBIN129" "$out/kernels.12.9.fatbin" 90a "$out/kernels.12.4.sm_90a.cubin" "$tmp/k.ptx" -64 -compress-all
# Host files: relocatable device code in objects, an archive, a shared library.
for f in two lib; do
	$nvcc13 -gencode 'arch=compute_80,code=[sm_80,compute_80]' -rdc=true -Xcompiler -fPIC -c -o "$tmp/$f.o" $f.cu
done
$nvcc13 -gencode 'arch=compute_80,code=[sm_80,compute_80]' -Xcompiler -fPIC -dlink -o "$tmp/link.o" "$tmp/two.o" "$tmp/lib.o"
cp "$tmp/two.o" "$out/two.13.0.o"
rm -f "$out/libtwo.13.0.a"
(cd "$tmp" && ar rcD "$out/libtwo.13.0.a" two.o lib.o)
g++ -shared -nostdlib -o "$out/libtwo.13.0.so" "$tmp/two.o" "$tmp/lib.o" "$tmp/link.o"
rm -r "$tmp" /tmp/nvtrace-fatbin
