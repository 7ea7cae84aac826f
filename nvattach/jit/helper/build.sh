#!/bin/sh
# Builds ptxjit for amd64 into the file named by $1.
set -eu
out=$(realpath -m "$1")
cd "$(dirname "$0")"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
# Stubs without symbol versions stand for the C library at link time.
printf 'void *dlopen(void){return 0;} void *dlsym(void){return 0;} void *dlerror(void){return 0;}' >"$tmp/dl.c"
printf 'int unused;' >"$tmp/c.c"
gcc -w -fno-builtin -shared -nostdlib -Wl,-soname,libdl.so.2 -o "$tmp/libdl.so" "$tmp/dl.c"
gcc -w -shared -nostdlib -Wl,-soname,libc.so.6 -o "$tmp/libc.so" "$tmp/c.c"
gcc -O2 -Wall -Wextra -Werror -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables -fPIE -pie -nostdlib -s \
	-Wl,--dynamic-linker=/lib64/ld-linux-x86-64.so.2 -Wl,--no-as-needed -Wl,-z,now -Wl,--build-id=none \
	-o "$out" ptxjit.c -L"$tmp" -ldl -lc
