#!/bin/bash
# Puts the parts of CUDA 13.0 that compile and link programs into a folder, from
# NVIDIA's wheels on PyPI: deps.sh DIR. Afterwards DIR/bin/nvcc runs, and DIR/lib has
# libcudart.so.13, libcudart_static.a and libcudadevrt.a. With a second folder, the
# runtime of CUDA 12.9 goes there.
set -euo pipefail
dir=${1:?usage: deps.sh DIR [DIR12]}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
here=$(dirname "$0")
get="python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --require-hashes --only-binary=:all: --no-deps"
$get --target "$tmp/13" -r "$here/cuda13.txt"
mkdir -p "$dir"
cp -a "$tmp/13/nvidia/cu13/." "$dir/"
if [ $# -gt 1 ]; then
	$get --target "$tmp/12" -r "$here/cuda12.txt"
	mkdir -p "$2"
	cp -a "$tmp/12/nvidia/cuda_runtime/." "$2/"
fi
