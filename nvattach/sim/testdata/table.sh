#!/bin/bash
# Runs the programs beside it without and with probes, and prints a table: table.sh
# NVTRACE [FLAG...], e.g. table.sh ./nvtrace --sim. Columns: the program; whether its
# result is right alone, and with probes; threads that entered and left kernels; loads,
# stores, atomics and reductions. "-": it depends on chance (a program that spins), or
# nothing says so (one whose kernel fails). The same programs must give the same table
# on every GPU, real (with --machine-code=false, since compilers merge accesses) or simulated; table.want is that.
nvtrace=$(realpath "${1:?usage: table.sh NVTRACE [FLAG...]}") || exit 2
shift
cd "$(dirname "$0")" || exit 2
probes=(--attach count.bpf.o --attach memory.bpf.o)
alone=()
for f in "$@"; do # the simulated GPU is needed without probes, too
	case $f in --sim*) alone=("$nvtrace" -q "$f" --) ;; esac
done
maps=$(mktemp)
trap 'rm -f "$maps"' EXIT
verdict() { # STATUS FILE
	if [ "$1" = 0 ] && grep -q -E 'PASSED|FAILED AS EXPECTED|: ok$' "$2"; then echo ok; else echo FAIL; fi
}
bad=0
printf '%-20s %-5s %-6s %8s %8s %8s %8s %8s\n' program alone probed entered left loads stores atomics
for p in *; do
	case $p in *.*) continue ;; esac
	[ -f "$p" ] && [ -x "$p" ] || continue
	timeout 120 "${alone[@]}" "./$p" >"$maps" 2>&1
	a=$(verdict $? "$maps")
	[ "$a" = ok ] || sed "s/^/  $p: /" "$maps" >&2
	timeout 120 "$nvtrace" -q "$@" "${probes[@]}" -- "./$p" >"$maps" 2>&1
	b=$(verdict $? "$maps")
	[ "$b" = ok ] || sed "s/^/  $p, probed: /" "$maps" >&2
	case $p in
	fail_assert | fail_illegal | drv_errors) counts='- - - - -' ;;
	*) counts=$(awk -v spins="$p" '
		function number(key) { match($0, key " = [0-9]+"); return substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) }
		/^[a-z_]+ \(/ { map = $1 }
		map == "threads" && /\[0\] = / { entered += $3 }
		map == "threads" && /\[1\] = / { left += $3 }
		/kind = NVTRACE_LOAD/ { loads += number("accesses") }
		/kind = NVTRACE_STORE/ { stores += number("accesses") }
		/kind = NVTRACE_(ATOMIC|RED)/ { atomics += number("accesses") }
		END {
			loads += 0; stores += 0; atomics += 0
			if (spins ~ /^cooperative/) loads = stores = atomics = "-"
			if (spins ~ /^streams/) loads = "-"
			print entered + 0, left + 0, loads, stores, atomics
		}' "$maps") ;;
	esac
	# shellcheck disable=SC2086
	printf '%-20s %-5s %-6s %8s %8s %8s %8s %8s\n' "$p" $a $b $counts
	[ "$a$b" = okok ] || bad=1
done
exit $bad
