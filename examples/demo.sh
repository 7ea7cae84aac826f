#!/usr/bin/env bash
# Shows nvtrace's main job on a machine without a GPU. vectorAdd runs on the
# simulated GPU with two probes in its kernel; a run of it that was recorded on an
# H200 is decoded; rminfo, a client of the driver, runs against a recording of its
# own.
set -euo pipefail
cd "$(dirname "$0")/.."
nvtrace=bin/nvtrace

bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\033[1m' plain=$'\033[0m'; fi

# show prints a command, and runs it.
show() {
	printf '\n%s$ %s%s\n' "$bold" "$*" "$plain"
	bash -o pipefail -c "$*" 2>&1
}

show "gcc -O2 -o bin/vectoradd examples/cuda/vectoradd_driver.c -ldl"
show "$nvtrace -q --sim --api --modules -o bin/sim.nvt" \
	"--attach examples/probes/count.bpf.o --attach examples/probes/memory.bpf.o -- bin/vectoradd"
show "$nvtrace log bin/sim.nvt | cut -c 1-160 | grep -v -e Free -e Get"
show "$nvtrace modules bin/sim.nvt"

show "$nvtrace report traces/corpus/vectoradd.nvt | sed -n 1,14p"
show "$nvtrace log -T -w 160 -e 'class=*CHANNEL*,*COMPUTE*' traces/corpus/vectoradd.nvt | sed -n 1,5p"

show "$nvtrace replay traces/corpus/rminfo.nvt -- bin/rminfo | tee bin/rminfo.out"
diff bin/rminfo.out traces/corpus/rminfo.out && echo "(the same as on the machine with the GPU)"
