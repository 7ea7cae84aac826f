#!/bin/bash
# Runs the programs beside it: run.sh [PREFIX...], e.g. run.sh nvtrace --.
cd "$(dirname "$0")"
bad=0
for p in *; do
	case $p in *.*) continue ;; esac
	[ -f "$p" ] && [ -x "$p" ] || continue
	o=$(timeout 120 "$@" "./$p" 2>&1)
	if [ $? = 0 ] && grep -q -E 'PASSED|FAILED AS EXPECTED|: ok$' <<<"$o"; then echo "ok   $p"; else echo "FAIL $p: $o"; bad=1; fi
done
exit $bad
