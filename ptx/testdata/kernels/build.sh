#!/bin/bash
# Rebuilds the compiled PTX of this folder from src/ and writes MANIFEST.tsv.
#
#	build.sh [NAME...]      NAME: sources to build, for example basic/vecadd; default all
#
# Where the compilers are comes from the environment; a tool whose variable is empty is skipped and its files are left as they
# are. README.md says how to get each one.
#
#	NVCC13        folder of CUDA 13.0 (bin/nvcc, nvvm, include)
#	NVRTC118 NVRTC124 NVRTC129
#	              folders that hold cuda_nvrtc/lib and cuda_runtime/include of CUDA 11.8, 12.4, 12.9
#	NVRTC135      folder that holds lib and include of CUDA 13.5
#	CLANG14 CLANG19   clang of that major version
#	TRITON_PYTHON python with Triton 3.6.0
#	PTXAS118 PTXAS124 PTXAS129 PTXAS130 PTXAS135
#	              assemblers for the check column of the manifest
set -u
cd "$(dirname "$0")" || exit 1
here=$PWD
work=/tmp/nvtrace-kernels
rm -rf "$work" && mkdir -p "$work" || exit 1
cc -O1 -o "$work/nvrtcc" nvrtcc.c -ldl || exit 1
fail=0

# compile SOURCE TOOL ARCH OUTPUT FLAGS...: one .ptx; the source is compiled as ./NAME.cu in an empty folder, so that no path of
# this machine gets into line tables.
compile() {
	local src=$1 tool=$2 arch=$3 out=$4; shift 4
	local base=${src##*/} dir=$work/src lib
	rm -rf "$dir" && mkdir -p "$dir" && cp "$src" "$dir/$base"
	cd "$dir" || return 1
	case $tool in
	nvcc13.0)
		"$NVCC13/bin/nvcc" -ptx -arch="$arch" "$@" -o "$out" "$base" ;;
	nvrtc*)
		local so include
		case $tool in nvrtc11.8) lib=$NVRTC118 ;; nvrtc12.4) lib=$NVRTC124 ;; nvrtc12.9) lib=$NVRTC129 ;; *) lib=$NVRTC135 ;; esac
		include=$lib/cuda_runtime/include
		[ -d "$include" ] || include=$lib/include
		so=$(find "$lib" -name 'libnvrtc.so.*') || return 1
		"$work/nvrtcc" "$so" "$base" "$base" "$out" "--gpu-architecture=compute_${arch#sm_}" -std=c++17 --include-path="$include" "$@" ;;
	clang*)
		local cc=$CLANG19; [ "$tool" = clang14 ] && cc=$CLANG14
		"$cc" -x cuda --cuda-device-only --cuda-gpu-arch="$arch" -nocudainc -nocudalib -O2 -fdeclspec -std=c++17 -Wno-unused-value -Wno-unknown-cuda-version -Wno-writable-strings \
			-include "$here/clang_cuda.h" "$@" -S -o "$out" "$base" ;;
	esac
}

have() {
	case $1 in
	nvcc13.0) [ -n "${NVCC13-}" ] ;;
	nvrtc11.8) [ -n "${NVRTC118-}" ] ;;
	nvrtc12.4) [ -n "${NVRTC124-}" ] ;;
	nvrtc12.9) [ -n "${NVRTC129-}" ] ;;
	nvrtc13.5) [ -n "${NVRTC135-}" ] ;;
	clang14) [ -n "${CLANG14-}" ] ;;
	clang19) [ -n "${CLANG19-}" ] ;;
	*) echo "build.sh: unknown tool $1" >&2; exit 1 ;;
	esac
}

# Each source says how it is built: lines "// build: TOOL ARCH FLAGS...".
if [ $# -gt 0 ]; then sources=$(for n; do echo "src/$n.cu"; done); else sources=$(cd "$here" && find src -name '*.cu' | sort); fi
for src in $sources; do
	name=${src#src/}; name=${name%.cu}
	while read -r _ _ tool arch flags; do
		have "$tool" || continue
		tag=$(tr -d ' ' <<<"$flags" | sed 's/=true//g; s/=/-/g')
		out=$here/$name.$tool.$arch$tag.ptx
		mkdir -p "${out%/*}"
		# shellcheck disable=SC2086
		if ! (compile "$here/$src" "$tool" "$arch" "$out" $flags) >"$work/log" 2>&1; then
			echo "FAILED $out" >&2; head -5 "$work/log" >&2; fail=1; rm -f "$out"
		fi
	done < <(grep '^// build:' "$here/$src")
done
if [ $# -eq 0 ] && [ -n "${TRITON_PYTHON-}" ]; then
	mkdir -p triton
	"$TRITON_PYTHON" src/triton/build.py triton || fail=1
fi
if [ $# -eq 0 ]; then
	./manifest.sh || fail=1
fi
exit $fail
