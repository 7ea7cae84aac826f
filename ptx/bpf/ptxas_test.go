package bpf

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"

	"nvtrace/internal/need"
	"nvtrace/ptx"
)

// ptxas returns the path of NVIDIA's assembler: $NVTRACE_PTXAS, or ptxas in PATH.
func ptxas(tb testing.TB) string {
	tb.Helper()
	return need.Tool(tb, "ptxas", "NVTRACE_PTXAS")
}

// assemble returns what ptxas -v says of src.
func assemble(tb testing.TB, as, src, arch string) string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "k.ptx")
	if err := os.WriteFile(file, []byte(src), 0o600); err != nil {
		tb.Fatal(err)
	}
	out, err := exec.CommandContext(tb.Context(), as, "-v", "-arch="+arch, file, "-o", os.DevNull).CombinedOutput()
	if err != nil {
		tb.Fatalf("%v\n%s\n%s", err, out, src)
	}
	return string(out)
}

// TestPtxas: the assembler accepts random programs.
func TestPtxas(t *testing.T) {
	as := ptxas(t)
	batches := 8
	if testing.Short() {
		batches = 1
	}
	for b := range batches {
		_, _, src, _ := batch(t, uint64(500_000+b*20), 20)
		assemble(t, as, src, "sm_90")
	}
}

var usage = regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill stores.*\n.*Used (\d+) registers`)

// used returns stack bytes and registers of a kernel as ptxas has compiled it.
func used(tb testing.TB, out string) (stack, registers int) {
	tb.Helper()
	m := usage.FindStringSubmatch(out)
	if m == nil {
		tb.Fatalf("no usage in %q", out)
	}
	stack, _ = strconv.Atoi(m[1])
	registers, _ = strconv.Atoi(m[3])
	return stack, registers
}

// typical are programs as people write them, with the registers that they may
// cost a small kernel.
func typical() map[string]asm.Instructions {
	lookup := func(key int64) asm.Instructions {
		return asm.Instructions{
			asm.StoreImm(asm.R10, -4, key, asm.Word), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, mapArray), asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "end"),
		}
	}
	end := asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return()}
	return map[string]asm.Instructions{
		"atomic counter": slices.Concat(lookup(0), asm.Instructions{asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0)}, end),
		"fetched, but not looked at": slices.Concat(lookup(1), asm.Instructions{
			asm.Mov.Imm(asm.R1, 1), asm.FetchAdd.Mem(asm.R0, asm.R1, asm.DWord, 0),
		}, end),
		"plain increment": slices.Concat(lookup(2), asm.Instructions{
			asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord), asm.Add.Imm(asm.R1, 1), asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord),
		}, end),
		"global data": {
			direct(asm.R1, mapData, 8), asm.Mov.Imm(asm.R2, 1), asm.AddAtomic.Mem(asm.R1, asm.R2, asm.DWord, 0), asm.Mov.Imm(asm.R0, 0), asm.Return(),
		},
		"update from the stack": {
			asm.StoreImm(asm.R10, -4, 3, asm.Word), asm.StoreMem(asm.R10, -16, asm.R1, asm.DWord), asm.LoadMem(asm.R3, asm.R1, 0, asm.DWord),
			asm.StoreMem(asm.R10, -24, asm.R3, asm.DWord),
			asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -4), asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, -24), asm.Mov.Imm(asm.R4, 0),
			asm.LoadMapPtr(asm.R1, mapArray), asm.FnMapUpdateElem.Call(), asm.Mov.Imm(asm.R0, 0), asm.Return(),
		},
	}
}

// TestTypicalCosts: typical programs need no local memory, few registers, and
// add with red.
func TestTypicalCosts(t *testing.T) {
	as := ptxas(t)
	for name, ins := range typical() {
		w := newWorld(0)
		v, err := Verify(&Program{Name: name, Insns: ins}, w.env)
		if err != nil {
			t.Fatal(err)
		}
		site := w.site()
		site.Result, site.Failed = nil, nil
		code, err := v.Emit(site)
		if err != nil {
			t.Fatal(err)
		}
		stack, registers := used(t, assemble(t, as, module(1, code), "sm_90"))
		if stack != 0 || registers > 10 || v.Report().LocalBytes != 0 || v.Report().Checks != 0 || v.Report().Branches != 0 {
			t.Errorf("%s: %d bytes of stack, %d registers, %+v\n%s", name, stack, registers, v.Report(), code)
		}
		if strings.Contains(code, "atom.") || strings.Contains(name, "counter") != strings.Contains(code, "red.") && !strings.Contains(name, "data") && !strings.Contains(name, "fetched") {
			t.Errorf("%s:\n%s", name, code)
		}
		t.Logf("%s: %d registers", name, registers)
	}
}

// TestOldTargets: the code fits modules for old targets.
func TestOldTargets(t *testing.T) {
	as := ptxas(t)
	ins := slices.Clone(typical()["atomic counter"])
	ins = slices.Insert(ins, len(ins)-2, asm.Mov.Imm(asm.R2, 5), asm.Xchg.Mem(asm.R0, asm.R2, asm.DWord, 0),
		asm.LoadAcquire(asm.R1, asm.R0, asm.DWord, 0), asm.StoreRelease(asm.R0, asm.R1, asm.DWord, 0))
	for _, c := range []struct {
		version ptx.Version
		sm      uint16
		want    []string
	}{
		{ptx.Version{Major: 4, Minor: 2}, 52, []string{"red.global.add.u64", "atom.global.exch.b64", "membar.gl", "ld.volatile.global.u64"}},
		{ptx.Version{Major: 6, Minor: 4}, 75, []string{"red.relaxed.gpu.global.add.u64", "atom.acq_rel.gpu.global.exch.b64", "ld.acquire.gpu.global.u64"}},
		{ptx.Version{Major: 8, Minor: 0}, 90, []string{"red.relaxed.gpu.global.add.u64", "st.release.gpu.global.u64"}},
	} {
		w := newWorld(0)
		w.env.Helpers[1].NeverNull = nil // so that there is a branch
		v, err := Verify(&Program{Name: "old", Insns: ins}, w.env)
		if err != nil {
			t.Fatal(err)
		}
		site := w.site()
		site.Version, site.Target, site.Reconverge = c.version, ptx.Target{SM: c.sm}, true
		code, err := v.Emit(site)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if !strings.Contains(code, want) {
				t.Errorf("PTX %v for sm_%d has no %s\n%s", c.version, c.sm, want, code)
			}
		}
		if got := strings.Contains(code, "bar.warp.sync"); got != (c.sm >= 70) {
			t.Errorf("sm_%d: bar.warp.sync: %v", c.sm, got)
		}
		if c.sm < 75 {
			continue // ptxas 13 does not compile for it
		}
		src := strings.Replace(module(1, code), ".version 8.0\n.target sm_90", fmt.Sprintf(".version %v\n.target sm_%d", c.version, c.sm), 1)
		assemble(t, as, src, fmt.Sprintf("sm_%d", c.sm))
	}
}
