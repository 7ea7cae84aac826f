#!/bin/bash
# Builds all test programs for a machine with a GPU: build.sh OUT CUDA, where CUDA is
# a toolkit as deps.sh makes it. Afterwards OUT/run.sh runs them all there, with
# OUT/lib beside it, and says which did not pass.
set -euo pipefail
out=${1:?usage: build.sh OUT CUDA}
cuda=${2:?usage: build.sh OUT CUDA}
src=$(dirname "$0")
arch=(-gencode arch=compute_75,code=compute_75 -gencode arch=compute_90,code=sm_90)
mkdir -p "$out/lib"
cp -L "$cuda/lib/libcudart.so.13" "$out/lib/"
for f in "$src"/*.cu; do
	name=$(basename "$f" .cu)
	case $name in rdc_*) continue ;; esac
	"$cuda/bin/nvcc" "${arch[@]}" -cudart none -c -o "$out/$name.o" "$f"
	g++ -o "$out/$name" "$out/$name.o" "$out/lib/libcudart.so.13" -lpthread -Wl,-rpath,'$ORIGIN/lib'
	rm "$out/$name.o"
done
for n in a b; do
	"$cuda/bin/nvcc" "${arch[@]}" -rdc=true -cudart none -c -o "$out/rdc_$n.o" "$src/rdc_$n.cu"
done
"$cuda/bin/nvcc" "${arch[@]}" -dlink -L"$cuda/lib" -o "$out/rdc_l.o" "$out/rdc_a.o" "$out/rdc_b.o" -lcudadevrt
g++ -o "$out/rdc" "$out"/rdc_[abl].o "$out/lib/libcudart.so.13" "$cuda/lib/libcudadevrt.a" -lpthread -Wl,-rpath,'$ORIGIN/lib'
rm "$out"/rdc_[abl].o
for f in "$src"/drv_*.c; do
	gcc -O1 -o "$out/$(basename "$f" .c)" "$f" -ldl -Wno-unused-variable
done
cat >"$out/run.sh" <<'R'
#!/bin/bash
# Runs the programs beside it: run.sh [PREFIX...], e.g. run.sh nvtrace --.
cd "$(dirname "$0")"
bad=0
for p in *; do
	[ -x "$p" ] && [ -f "$p" ] && [ "$p" != run.sh ] || continue
	o=$(timeout 120 "$@" "./$p" 2>&1)
	if [ $? = 0 ] && grep -q -E 'PASSED|FAILED AS EXPECTED' <<<"$o"; then echo "ok   $p"; else echo "FAIL $p: $o"; bad=1; fi
done
exit $bad
R
chmod +x "$out/run.sh"
