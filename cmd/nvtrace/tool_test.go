package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/cmd/nvtrace/internal/run"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/nvattach/script"
)

// The launches of testdata/patterns.c.
var patternStrides = []int{1, 2, 4, 8, 16, 32}

// patternSectors is how many sectors of 32 bytes the warps of kernel strided touch.
func patternSectors() (requests, sectors int) {
	for _, stride := range patternStrides {
		for warp := range 4 * 128 / 32 {
			touched := map[int]bool{}
			for lane := range 32 {
				touched[4*stride*(32*warp+lane)/32] = true
			}
			requests, sectors = requests+1, sectors+len(touched)
		}
	}
	return requests, sectors
}

// patternPasses is how many passes the stores of kernel banks need that are size bytes
// wide: of the words that a part of a warp wants, each pass has one of each bank.
func patternPasses(size int) (requests, passes, worst int) {
	for _, stride := range patternStrides {
		for range 2 { // blocks, of two warps
			for warp := range 2 {
				sum := 0
				for part := 0; part < 32; part += min(32, 128/size) {
					banks := map[int]map[int]bool{}
					for lane := part; lane < part+min(32, 128/size); lane++ {
						at := (32*warp + lane) * stride % (16384 / size) * size
						for word := at / 4; word < (at+size)/4; word++ {
							if banks[word%32] == nil {
								banks[word%32] = map[int]bool{}
							}
							banks[word%32][word] = true
						}
					}
					most := 0
					for _, words := range banks {
						most = max(most, len(words))
					}
					sum += most
				}
				requests, passes, worst = requests+1, passes+sum, max(worst, sum)
			}
		}
	}
	return requests, passes, worst
}

// patternLoops is how often the loop of kernel uneven runs, for each of 12 threads of a
// block.
func patternLoops() (threads, loops int) {
	for block := range 6 {
		threads += 12
		loops += 12 * (100*block + 1)
	}
	return threads, loops
}

// patternLines is how often each line of 128 bytes is accessed, and by atomics.
func patternLines() (accesses, atomics map[int]int) {
	accesses, atomics = map[int]int{}, map[int]int{}
	for _, stride := range patternStrides {
		for i := range 512 {
			accesses[4*stride*i/128]++
		}
	}
	for block := range 6 {
		accesses[block%3] += 12
		atomics[block%3] += 12
	}
	return accesses, atomics
}

// wantOfTools are lines that each tool shows of testdata/patterns.c, as regular
// expressions in which a space stands for several.
func wantOfTools() map[string][]string {
	requests, sectors := patternSectors()
	threads, loops := patternLoops()
	lines, atomics := patternLines()
	want := map[string][]string{
		"coalesce": {
			fmt.Sprintf(`%d %d %d\.%02d %d%% strided, .*`, requests, sectors, sectors/requests, sectors*100/requests%100, requests*32*4*100/(sectors*32)),
			`18 18 1\.00 50% uneven, .*`,
		},
		"divergence": {
			fmt.Sprintf(`\d+%% %d uneven`, 576*(5+1)+threads*6+3*loops),
			`100% 33792 strided`, `100% 15360 banks`,
			fmt.Sprintf(`4 %d uneven, .*sub\.u32.*`, loops/4),
		},
		"hotlines": {fmt.Sprintf(`%d %d 0x[0-9a-f]+00`, lines[0], atomics[0])},
		"kernels":  {`6 24 3072 \d+ \d+ strided`, `6 12 768 \d+ \d+ banks`, `1 6 576 \d+ \d+ uneven`},
		"blocklat": {`@ns\[uneven\]: `},
		"imbalance": {
			`24 \d+ \d+ \d+ 100% \d+ strided`, `6 \d+ \d+ \d+ 1[5-9]\d% \d+ uneven`,
		},
		"opcodes": {
			`@\[strided, ld\.volatile\.global\.u32\]: 3072`, `@\[banks, st\.shared\.v2\.u64\]: 768`, fmt.Sprintf(`@\[uneven, sub\.u32\]: %d`, loops),
			fmt.Sprintf(`@\[uneven, bra\]: %d`, 576-threads+loops-threads),
		},
		"memhist": {
			`@accesses\[store, shared, 16\]: 768`, `@accesses\[load, global, 4\]: 3072`, fmt.Sprintf(`@accesses\[atomic, global, 4\]: %d`, threads),
			`@bytes\[store, shared\]: 21504`,
		},
		"launchlat": {`@launches\[strided\]: 6`, `@launches\[banks\]: 6`, `@launches\[uneven\]: 1`},
		"synccost":  {`1 \d+ \d+ \d+ cuCtxSynchronize`, `2 \d+ \d+ \d+ cuStreamSynchronize`, `3 \d+ \d+ \d+ cuMemcpyHtoD_v2`},
		"allocs": {
			`@allocations\[cuMemAlloc_v2, 4096\]: 2`, `@allocations\[cuMemAlloc_v2, 12288\]: 1`, `@frees\[cuMemFree_v2\]: 2`,
			`@allocations\[cuMemHostAlloc, 1048576\]: 1`, `@live\[\d+\]: 20480`, `@most\[\d+\]: 1077248`, `@bytes\[cuMemAlloc_v2\]: 1077248`,
		},
		"leaks": {
			`4096 \d+ 0x[0-9a-f]+ of process \d+, by cuMemAlloc_v2: main < .*`, `12288 \d+ 0x[0-9a-f]+ of process \d+, by cuMemAlloc_v2: main < .*`, `@by\[main < .*\]: 20480`,
			`20480 bytes in 3 allocations`, `@not_freed\[4096\]: 2`,
		},
		"h2d":      {`@bytes\[cuMemcpyHtoD_v2, pinned\]: 65536`, `@bytes\[cuMemcpyHtoD_v2, pageable\]: 1049576`, `\[64K, 128K\) 1 .*`, `\[1M, 2M\) 1 .*`},
		"jit":      {`1 \d+ \d+ cuModuleLoadData`, `@images\[ptx, cuModuleLoadData, .*patterns\]: 1`, `@bytes\[ptx\]: \d+`},
		"ioctltop": {`CALLS TOTAL us LONGEST us CALL`}, // the simulated GPU has no device; see TestToolOnRecording
		"failures": {`1 \d+ cuMemAlloc_v2, driver, CUDA_ERROR_OUT_OF_MEMORY`},
		"oom":      {`\d+ ms: process \d+: cuMemAlloc_v2 of 35184372088832 bytes: CUDA_ERROR_OUT_OF_MEMORY, with 1069056 bytes in 4 allocations`},
	}
	for size, op := range map[int]string{4: `st\.shared\.u32`, 8: `st\.shared\.u64`, 16: `st\.shared\.v2\.u64`} {
		requests, passes, worst := patternPasses(size)
		want["bankconflict"] = append(want["bankconflict"], fmt.Sprintf(`%d %d %d\.%02d %d banks, .*%s.*`, requests, passes, passes/requests, passes*100/requests%100, worst, op))
	}
	return want
}

// TestTools: what each tool shows of kernels that do what is known.
func TestTools(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("programs on the simulated GPU are of amd64")
	}
	dir := t.TempDir()
	nvtrace, patterns := filepath.Join(dir, "nvtrace"), filepath.Join(dir, "patterns")
	if !compileVictim(t, "testdata/patterns.c", patterns) {
		t.Skip("no gcc")
	}
	buildNvtrace(t, nvtrace)
	run := func(t *testing.T, args ...string) string {
		t.Helper()
		var stdout, stderr bytes.Buffer
		cmd := exec.Command(nvtrace, append(append([]string{"tool"}, args...), "--sim", "--", patterns)...)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil || stdout.String() != "PASSED\n" {
			t.Fatalf("%v: %s%s", err, &stdout, &stderr)
		}
		return stderr.String()
	}
	hold := func(t *testing.T, got, want string) {
		t.Helper()
		if !regexp.MustCompile(`(?m)^ *` + strings.ReplaceAll(want, " ", " +") + `$`).MatchString(strings.ReplaceAll(got, ": \n", ":  \n")) {
			t.Errorf("no line %s in\n%s", want, got)
		}
	}
	want := wantOfTools()
	for _, tool := range script.Tools() {
		t.Run(tool.Name, func(t *testing.T) {
			if len(want[tool.Name]) == 0 && tool.Name != "occupancy" {
				t.Fatal("it is not known what it must show")
			}
			got := run(t, tool.Name)
			for _, w := range want[tool.Name] {
				hold(t, got, w)
			}
			if tool.Name != "occupancy" {
				return
			}
			blocks, warps := 0, 0
			for line := range strings.Lines(got) {
				if f := strings.Fields(line); len(f) == 6 && f[0] != "SM" {
					blocks, warps = blocks+atoi(t, f[1]), warps+atoi(t, f[2])
				}
			}
			if blocks != 24+12+6 || warps != 24*4+12*2+6*3 {
				t.Errorf("%d blocks, %d warps in\n%s", blocks, warps, got)
			}
		})
	}
	t.Run("leaks between moments", func(t *testing.T) {
		const left = "20480 bytes in 3 allocations"
		got := run(t, "leaks", "1h", "2h")
		hold(t, got, `ended after \d+ ms, before the first moment, 3600000 ms: what follows was allocated from the start on, and not freed at the end`)
		hold(t, got, left)
		got = run(t, "leaks", "1us", "1h")
		hold(t, got, `ended after \d+ ms, before the second moment, 3600000 ms: what follows was not freed at the end`)
		hold(t, got, left)
		if got = run(t, "leaks", "1us", "2us"); strings.Contains(got, "ended after") {
			t.Error(got)
		}
		hold(t, got, `0 bytes in 0 allocations`)
	})
	t.Run("mapped", func(t *testing.T) {
		patterns = filepath.Join(dir, "mapped")
		if !compileVictim(t, "../../nvattach/sim/testdata/mapped.c", patterns) {
			t.Skip("no gcc")
		}
		got := run(t, "leaks")
		for _, w := range []string{
			`3072 \d+ 0x[0-9a-f]+ of process \d+, by cuMemAllocPitch_v2: main < .*`, `8192 \d+ 0x[0-9a-f]+ of process \d+, by cuMemHostAlloc: main < .*`,
			`2097152 \d+ 0x[0-9a-f]+ of process \d+, by cuMemCreate: main < .*`, `2108416 bytes in 3 allocations`,
		} {
			hold(t, got, w)
		}
		got = run(t, "allocs")
		for _, w := range []string{
			`@allocations\[cuMemCreate, 4194304\]: 1`, `@allocations\[cuMemCreate, 2097152\]: 3`, `@allocations\[cuMemAllocAsync, 4096\]: 1`, `@allocations\[cuMemAllocManaged, 12288\]: 1`,
			`@allocations\[cuMemHostAlloc, 8192\]: 1`, `@live\[\d+\]: 2100224`, `@most\[\d+\]: 6291456`, `@frees\[cuMemUnmap\]: 2`, `@frees\[cuMemRelease\]: 1`,
		} {
			hold(t, got, w)
		}
		hold(t, run(t, "oom"), `\d+ ms: process \d+: cuMemCreate of 1000 bytes: CUDA_ERROR_INVALID_VALUE, with 0 bytes in 0 allocations`)
	})
	t.Run("arrays", func(t *testing.T) {
		patterns = filepath.Join(dir, "arrays")
		if !compileVictim(t, "../../nvattach/sim/testdata/arrays.c", patterns) {
			t.Skip("no gcc")
		}
		got := run(t, "leaks")
		for _, w := range []string{
			`96000 \d+ 0x[0-9a-f]+ of process \d+, by cuArrayCreate_v2: main < .*`, `1364 \d+ 0x[0-9a-f]+ of process \d+, by cuMipmappedArrayCreate: main < .*`,
		} {
			hold(t, got, w)
		}
		got = run(t, "allocs")
		for _, w := range []string{
			`@allocations\[cuArrayCreate_v2, 96000\]: 1`, `@allocations\[cuArrayCreate_v2, 3200\]: 1`, `@allocations\[cuArray3DCreate_v2, 24000\]: 1`, `@allocations\[cuArray3DCreate_v2, 1200\]: 1`,
			`@allocations\[cuArray3DCreate_v2, 1536\]: 1`, `@allocations\[cuArray3DCreate_v2, 6000\]: 1`, `@allocations\[cuArray3DCreate_v2, 1024\]: 1`, `@allocations\[cuArray3DCreate_v2, 2048\]: 1`,
			`@allocations\[cuMipmappedArrayCreate, 1344\]: 1`, `@allocations\[cuMipmappedArrayCreate, 1364\]: 1`, `@frees\[cuArrayDestroy\]: 7`, `@frees\[cuMipmappedArrayDestroy\]: 1`,
		} {
			hold(t, got, w)
		}
		hold(t, run(t, "oom"), `\d+ ms: process \d+: cuArray3DCreate_v2 of 17592186044416 bytes: CUDA_ERROR_OUT_OF_MEMORY, with 97364 bytes in 2 allocations`)
	})
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Error(err)
	}
	return n
}

// TestToolOnRecording: what the tools for the host show of recordings, too.
func TestToolOnRecording(t *testing.T) {
	names, err := filepath.Glob("../../traces/corpus/*.nvt")
	if err != nil || len(names) == 0 {
		t.Fatal(err)
	}
	status, got, stderr := clitest.Run(t, view.LogVerb, "--tool", "ioctltop", names[0])
	if status != cli.ExitOK {
		t.Fatal(stderr)
	}
	status, other, stderr := clitest.Run(t, view.LogVerb, "-e", `ioctl:* { @ns[name, sub] = sum(duration); @n[name, sub] = count(); } END { for ($c : @ns) { printf("%d %d %s %s\n", @n[$c.0.0, $c.0.1], $c.1 / 1000, $c.0.0, $c.0.1); } clear(@n); clear(@ns); }`, names[0])
	if status != cli.ExitOK {
		t.Fatal(stderr)
	}
	lines := strings.Split(strings.TrimSpace(other), "\n")
	lines = lines[max(0, len(lines)-20):]
	table := strings.Split(strings.TrimSpace(got), "\n")[1:]
	if len(table) != len(lines) {
		t.Fatalf("%s\nbut\n%s", got, other)
	}
	for i := range table {
		if a, b := strings.Fields(table[i]), strings.Fields(lines[i]); !slices.Equal(slices.Delete(a, 2, 3), b) {
			t.Errorf("%v is not %v", a, b)
		}
	}
}

// TestToolMistakes: what is said of a tool that there is not.
func TestToolMistakes(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"oppcodes"}, `there is no tool "oppcodes"; did you mean opcodes?; nvtrace tool lists them`},
		{[]string{"kernels"}, "no command; type: nvtrace tool kernels -- command [args]"},
		{[]string{"leaks", "5s", "./app", "-x"}, `"./app": put -- before the command: nvtrace tool leaks 5s -- ./app -x`},
		{[]string{"leaks", "5s", "run.nvt"}, `"run.nvt": of a recording: nvtrace log --tool leaks,5s run.nvt`},
		{[]string{"leaks", "5", "60", "-p", "1"}, "leaks: 5 is a time: of what? write 5s for seconds"},
		{[]string{"--source"}, "tool --source wants the name of a tool"},
	} {
		_, _, stderr := clitest.Run(t, run.ToolVerb, tt.args...)
		if got := strings.TrimPrefix(strings.TrimSpace(stderr), "nvtrace: "); got != tt.want {
			t.Errorf("%v: %s", tt.args, got)
		}
	}
	status, out, _ := clitest.Run(t, run.ToolVerb, "--source", "opcodes")
	if status != cli.ExitOK || !strings.Contains(out, "insn:*") {
		t.Errorf("%d %s", status, out)
	}
	for _, tool := range script.Tools() {
		if tool.Doc == "" || strings.HasPrefix(tool.Doc, "//") {
			t.Errorf("%s has no purpose", tool.Name)
		}
	}
}
