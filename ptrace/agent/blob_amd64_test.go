package agent

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"nvtrace/internal/gen/built"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent/internal/blob"
)

const blobSource = "internal/blob/src"

// TestBlobStamp: the committed code is made from the committed source.
func TestBlobStamp(t *testing.T) {
	stamp, err := blob.Stamp(blobSource)
	if err != nil {
		t.Fatal(err)
	}
	if stamp != blobStamp {
		t.Error("internal/blob/src has changed: go generate ./ptrace/agent")
	}
	if sum := fmt.Sprintf("%x", sha256.Sum256(slices.Concat(blobCode, blobProgram))); sum != blobSum {
		t.Errorf("the code has the hash %s, and %s was made of the source", sum, blobSum)
	}
}

// TestBlobRoom: the code leaves room for what is written behind it.
func TestBlobRoom(t *testing.T) {
	if room := callStubAddr - baseAddr; len(blobCode) > room || len(ptrace.CallStub) > nameAddr-callStubAddr {
		t.Errorf("%d bytes of code, and %d behind it; there is room for %d and %d", len(blobCode), len(ptrace.CallStub), room, nameAddr-callStubAddr)
	}
}

// TestBlobReproducible: the committed code is what the source makes.
func TestBlobReproducible(t *testing.T) {
	if tools := built.Tools(); tools != blobTools {
		t.Skipf("made with %s, here is %s", blobTools, tools)
	}
	b, err := blob.Build(blobSource)
	if err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(b.Symbols, func(name string, _ uint64) bool { return !slices.Contains(blob.AllNames(), name) })
	if !bytes.Equal(b.Code, blobCode) || !bytes.Equal(b.Program, blobProgram) || !maps.Equal(b.Symbols, blobSymbols) || !slices.Equal(b.Layout, blobLayout) {
		t.Errorf("%d bytes are made, %d are committed, and they or their symbols differ", len(b.Code), len(blobCode))
	}
}

// TestBlobRebuilt: this machine's compiler makes code from the source that does
// the same. Its system calls lie where they must.
func TestBlobRebuilt(t *testing.T) {
	bin := compile(t, "testdata/hooks.c") // skips without a compiler
	b, err := blob.Build(blobSource)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(b.Layout, layout()) {
		t.Errorf("layout %#x", b.Layout)
	}
	for _, code := range [][]byte{b.Code, blobCode} {
		var at []int
		for i := range len(code) - 1 {
			if code[i] == 0x0f && code[i+1] == 0x05 {
				at = append(at, i)
			}
		}
		if len(at) != 5 || at[2] >= 4096 || at[3] < 4096 { // sys_in, sys_own, call_entry; sys_out, sys_bell
			t.Errorf("system calls at %#x", at)
		}
	}
	tr := newTracer(t)
	tr.a.blob = newProgram(b.Code, b.Symbols)
	tr.hooks(&Hook{Name: "fib"})
	if out := tr.run(bin, "fib"); out != "fib 987\n" {
		t.Error(out)
	}
	if calls, returns, _ := tr.nesting(); calls != 3193 || returns != calls {
		t.Errorf("%d calls, %d returns", calls, returns)
	}
}

// TestBlobFree: the code has no registers but the general ones.
func TestBlobFree(t *testing.T) {
	if _, err := exec.LookPath("objdump"); err != nil {
		t.Skip("needs objdump")
	}
	for _, name := range []string{"zblob_amd64.bin", "zhelpers_amd64.bin"} {
		out, err := exec.Command("objdump", "-D", "-b", "binary", "-m", "i386:x86-64", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, reg := range []string{"%xmm", "%ymm", "%zmm", "%mm", "%st"} {
			if strings.Contains(string(out), reg+"0") || strings.Contains(string(out), reg+"(") {
				t.Errorf("%s uses %s", name, reg)
			}
		}
	}
}
