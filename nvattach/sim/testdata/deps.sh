#!/bin/bash
# Puts the parts of CUDA 13.0 that compile and link programs into a folder, from
# NVIDIA's wheels on PyPI: deps.sh DIR. Afterwards DIR/bin/nvcc runs, and DIR/lib has
# libcudart.so.13, libcudart_static.a and libcudadevrt.a. With a second folder, the
# runtime of CUDA 12.9 goes there.
set -euo pipefail
dir=${1:?usage: deps.sh DIR [DIR12]}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --no-deps --target "$tmp/13" nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 \
	nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
mkdir -p "$dir"
cp -a "$tmp/13/nvidia/cu13/." "$dir/"
if [ $# -gt 1 ]; then
	python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --no-deps --target "$tmp/12" nvidia-cuda-runtime-cu12==12.9.79
	mkdir -p "$2"
	cp -a "$tmp/12/nvidia/cuda_runtime/." "$2/"
fi
