#!/bin/sh
# Tests the runner against fakecuda.c: descriptions, generators, results, every way to fail, unpacking. Needs cc, base64, cmp.
set -eu
cd "$(dirname "$0")"
t=$(mktemp -d)
trap 'rm -rf "$t"' EXIT
cc -O2 -Wall -Wextra -o "$t/gpurun" ../gpurun.c ../vec.c -ldl
cc -O2 -shared -fPIC -o "$t/libcuda.so.1" fakecuda.c
mkdir "$t/v" "$t/w"
echo '.version 8.0' >"$t/v/ok.ptx"
echo 'syntax error' >"$t/v/bad.ptx"
vec() { # NAME PTX KERNEL LINES...
	n=$1 p=$2 k=$3; shift 3
	{ echo "# $n"; printf 'ptx %s\nkernel %s\ngrid 1 1 1\nblock 32 1 1\n' "$p" "$k"; printf '%s\n' "$@"; } >"$t/v/$n.vec"
}
copy() { # NAME TYPE COUNT BYTES PATTERN
	vec "$1" ok.ptx copy "buffer in $2 $3 $5" "buffer out $2 $3 zero" "param buffer out 0" "param buffer in 0" "param u32 $4" "output out exact"
}
copy a_seq u16 4 8 'seq 65534 1'
copy a_rand u64 2 16 'rand 0'
copy a_list u8 6 6 'list 2 0x41 66 -1'
copy a_range f32 2 8 'range 5 -3 -3'
copy a_unif f64 2 16 'uniform 1 2.5 2.5'
copy a_spec f16 3 6 'special 1'
vec b_bad bad.ptx copy 'buffer out u8 1 zero' 'param buffer out 0' 'output out exact'
vec c_crash ok.ptx crash 'buffer out u8 1 zero' 'output out exact'
vec d_fault ok.ptx fault 'buffer out u8 1 zero' 'output out exact'
vec e_hang ok.ptx hang 'buffer out u8 1 zero' 'output out exact'
vec f_missing ok.ptx missing 'buffer out u8 1 zero' 'output out exact'
vec g_count ok.ptx count 'buffer out u32 1 zero' 'param buffer out 0' 'output out exact'
vec h_symbol ok.ptx copy 'symbol tab u8 64 keep' 'buffer in u8 1 fill 9' 'buffer out u8 1 zero' 'param buffer out 0' 'param buffer in 0' 'param u32 1' 'output tab exact' 'output out exact'
vec i_words ok.ptx copy 'buffer out u8 1 zero 5' 'output out exact'
vec i_late ok.ptx late 'buffer out u8 1 zero' 'output out exact'
copy j_last u32 1 4 'fill 0xdeadbeef'
"$t/gpurun" -lib "$t/libcuda.so.1" -timeout 2 -o "$t/r" "$t"/v/*.vec 2>"$t/log"
echo 'old' >"$t/w/e_hang.want"
"$t/gpurun" -unpack "$t/r" "$t/w" 2>"$t/log2"

bad=0 checks=0
expect() { # FILE BUFFER HEX
	checks=$((checks + 1))
	got=$(sed -n "/^output $2 /,/^output\|^end/p" "$t/w/$1.want" | grep -v '^output\|^end' | base64 -d | od -An -v -tx1 | tr -d ' \n')
	[ "$got" = "$3" ] || { echo "$1 $2: $got, want $3"; bad=$((bad + 1)); }
}
says() { # FILE TEXT
	checks=$((checks + 1))
	grep -q -- "$2" "$1" || { echo "$1 lacks: $2"; cat "$1"; bad=$((bad + 1)); }
}
expect a_seq out feffffff00000100
expect a_rand out afcd1d7b39a820e2f465b9a16a9e786e # e220a8397b1dcdaf 6e789e6aa1b965f4
expect a_list out 41414242ffff
expect a_range out 000040c0000040c0
expect a_unif out 00000000000004400000000000000440
expect a_spec out 00000080003c
expect h_symbol out 09
expect h_symbol tab "$(printf '07%.0s' $(seq 64))"
expect i_late out 00
expect j_last out efbeadde
for f in b_bad g_count c_crash d_fault e_hang f_missing i_words; do
	checks=$((checks + 1))
	[ ! -e "$t/w/$f.want" ] || { echo "$f.want exists"; bad=$((bad + 1)); }
done
says "$t/log" 'b_bad: load: error 218'
says "$t/log" 'line 7; fatal : Parsing error'
says "$t/log" 'c_crash: the child ended'
says "$t/log" 'd_fault: run: error 700 CUDA_ERROR_ILLEGAL_ADDRESS'
says "$t/log" 'e_hang: no end after 2 s'
says "$t/log" 'f_missing: missing: error 500'
says "$t/log" 'g_count: out: two runs differ at byte 0'
says "$t/log" 'i_late: run: error 700'
says "$t/log" 'i_words.vec:6: missing, bad or left-over words'
says "$t/log" '16 vectors: 10 ran, 6 failed, 2 not stable'
says "$t/w/DEVICE" 'gpu Fake 0'
says "$t/w/DEVICE" 'capability 9.0'
echo "$((checks - bad)) passed, $bad failed"
[ "$bad" = 0 ]
