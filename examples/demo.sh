#!/usr/bin/env bash
# Shows nvtrace's main job on a machine without a GPU: a run of vectorAdd that
# was recorded on an H200 is decoded, and rminfo, a client of the driver, runs
# against a recording of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
nvtrace=bin/nvtrace

bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\033[1m' plain=$'\033[0m'; fi

say() { printf '\n%s$ %s%s\n' "$bold" "$*" "$plain"; }

say "$nvtrace report traces/corpus/vectoradd.nvt"
$nvtrace report traces/corpus/vectoradd.nvt

say "$nvtrace log -T -w 200 -e 'class=*CHANNEL*,*COMPUTE*' traces/corpus/vectoradd.nvt | sed -n 1,5p"
$nvtrace log -T -w 200 -e 'class=*CHANNEL*,*COMPUTE*' traces/corpus/vectoradd.nvt | sed -n 1,5p

say "$nvtrace replay traces/corpus/rminfo.nvt -- bin/rminfo"
out=$($nvtrace replay traces/corpus/rminfo.nvt -- bin/rminfo)
echo "$out"
diff <(echo "$out") traces/corpus/rminfo.out && echo "(the same as on the machine with the GPU)"
