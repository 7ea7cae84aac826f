#!/usr/bin/env bash
# apidiff.sh BASE APIDIFF: print what programs that import the public packages notice of the changes since commit
# BASE. It is a report: it fails only where it can't be made. APIDIFF is the tool as `go run` takes it.
set -euo pipefail
cd "$(dirname "$0")/../.."
packages="traces ioctl rm fatbin fatbin/sass ptx ptx/emu ptx/bpf"
dir=$(mktemp -d)
trap 'git worktree remove --force "$dir/base" 2>/dev/null || true; rm -rf "$dir"' EXIT
git worktree add --quiet --detach "$dir/base" "$1"
GOBIN=$dir go install "$2"
for p in $packages; do
  test -d "$dir/base/$p" || { echo "nvtrace/$p: new"; continue; }
  (cd "$dir/base" && "$dir/apidiff" -w "$dir/old" "nvtrace/$p")
  "$dir/apidiff" "$dir/old" "nvtrace/$p" > "$dir/changes"
  if test -s "$dir/changes"; then
    echo "nvtrace/$p:"
    sed 's/^/  /' "$dir/changes"
  else
    echo "nvtrace/$p: no changes"
  fi
done
