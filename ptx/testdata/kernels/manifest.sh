#!/bin/bash
# Writes MANIFEST.tsv: a line for each .ptx of this folder with its source, compiler, flags, target, checksum, and what the assemblers say.
# Assemblers come from PTXAS118 … PTXAS135 (see build.sh). One that is missing leaves "-".
set -u
cd "$(dirname "$0")" || exit 1

# number sm_90a -> 90
number() { local n=${1#sm_}; echo "${n%[a-z]}"; }

# assemble PTXAS LOW HIGH FILE TARGET: ok, "no" (it rejects the file), old (it does not know the target or the ISA version), -
assemble() {
	local ptxas=$1 low=$2 high=$3 file=$4 target=$5 n
	[ -n "$ptxas" ] || { echo -; return; }
	n=$(number "$target")
	if [ "$n" -lt "$low" ] || [ "$n" -gt "$high" ]; then
		# An older target assembles for the assembler's oldest chip.
		if [ "$n" -lt "$low" ] && [[ $target != *[a-z] ]]; then target=sm_$low; else echo old; return; fi
	fi
	local out
	if timeout 120 "$ptxas" -arch="$target" "$file" -o /dev/null >/dev/null 2>&1 || out=$(timeout 120 "$ptxas" -c -arch="$target" "$file" -o /dev/null 2>&1); then
		echo ok
	elif grep -q 'Unsupported .version\|is not defined for option' <<<"$out"; then
		echo old
	else
		echo no
	fi
}

{
	printf 'file\tsource\tcompiler\tflags\ttarget\tisa\tptxas11.8\tptxas12.4\tptxas12.9\tptxas13.0\tptxas13.5\tsha256\n'
	find . -name '*.ptx' | sed 's,^\./,,' | LC_ALL=C sort | while read -r f; do
		base=${f##*/}
		name=${base%%.*} rest=${base#*.}
		target=$(sed -n 's/^[ \t]*\.target[ \t]*\([a-z0-9_]*\).*/\1/p' "$f" | head -1)
		isa=$(sed -n 's/^[ \t]*\.version[ \t]*\([0-9.]*\).*/\1/p' "$f" | head -1)
		compiler=hand flags='' source=$f
		if [[ $f == triton/* ]]; then
			compiler="Triton $(sed 's/^triton\([0-9.]*\)\.sm.*/\1/' <<<"$rest")" source=src/triton/build.py
		elif [ "$rest" != ptx ]; then
			source=src/${f%/*}/$name.cu
			key=$(sed 's/\.sm_.*//' <<<"$rest")
			case $key in nvcc*) compiler="nvcc ${key#nvcc}" ;; nvrtc*) compiler="NVRTC ${key#nvrtc}" ;; clang*) compiler="clang ${key#clang}" ;; esac
			tag=$(sed 's/.*\.\(sm_[0-9a-z]*[^.]*\)\.ptx/\1/' <<<"$rest")
			while read -r _ _ tool arch fl; do
				[ "$tool" = "$key" ] && [ "$arch$(tr -d ' ' <<<"$fl" | sed 's/=true//g; s/=/-/g')" = "$tag" ] && flags=$fl
			done < <(grep '^// build:' "$source")
		fi
		printf '%s\t%s\t%s\t%s\t%s\t%s' "$f" "$source" "$compiler" "$flags" "$target" "$isa"
		printf '\t%s' "$(assemble "${PTXAS118-}" 35 90 "$f" "$target")" "$(assemble "${PTXAS124-}" 50 90 "$f" "$target")" "$(assemble "${PTXAS129-}" 50 121 "$f" "$target")" \
			"$(assemble "${PTXAS130-}" 75 121 "$f" "$target")" "$(assemble "${PTXAS135-}" 75 121 "$f" "$target")"
		printf '\t%s\n' "$(sha256sum "$f" | cut -d' ' -f1)"
	done
} >MANIFEST.tsv
