package ptx

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestFoldOracle: constant expressions have the values that ptxas computes. It
// reads them back from the initialised data of the object.
func TestFoldOracle(t *testing.T) {
	as := ptxas(t)
	ops := []string{"+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "<", ">", "<=", ">=", "==", "!=", "&&", "||"}
	values := []string{"5", "-7", "3", "1", "0x8000000000000000", "18446744073709551609U", "7U", "-1"}
	var exprs []string
	for _, op := range ops {
		for _, a := range values {
			for _, b := range values {
				if (op == "<<" || op == ">>") && b != "3" && b != "1" && b != "7U" {
					continue // shifts by 64 and more are undefined
				}
				exprs = append(exprs, a+" "+op+" "+b)
			}
		}
	}
	for _, a := range values {
		exprs = append(exprs, "!"+"("+a+")", "~("+a+")", "-("+a+")", "+("+a+")", a+" ? 1 : 2", "(.s64)("+a+") < 0", "(.u64)("+a+") < 0", "("+a+" >> 1) < 0")
	}
	exprs = append(exprs, "1+2*3-4/2", "1<<4|2", "7-2-1", "0?2:1?4:5", "6 & 3 ^ 8", "1 < 2 == 1", "-7/2*2", "2+3<<1", "1|2&3", "~1+1", "!0+1", "-2*-3")
	src := ".version 7.0\n.target sm_75\n.address_size 64\n.visible .global .align 8 .b64 v[] = {\n" + strings.Join(exprs, ",\n") + "\n};\n"
	want := foldByPtxas(t, as, src, len(exprs))
	f := mustParse(t, "exprs", src)
	n := 0
	for i := range f.decls {
		for v := range f.InitValues(&f.Names(&f.decls[i])[0]) {
			if v.Kind != OperandInt || v.Bits != want[n] {
				t.Errorf("%s: %v %#x, ptxas %#x", exprs[n], v.Kind, v.Bits, want[n])
			}
			n++
		}
	}
	if n != len(exprs) {
		t.Errorf("%d values of %d", n, len(exprs))
	}
}

// foldByPtxas assembles src and returns the n words of its data.
func foldByPtxas(t *testing.T, as, src string, n int) []uint64 {
	t.Helper()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "x.ptx"), filepath.Join(dir, "x.o")
	if err := os.WriteFile(in, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	if msg, err := exec.Command(as, "-arch=sm_75", "-c", in, "-o", out).CombinedOutput(); err != nil {
		t.Fatalf("ptxas: %v\n%s", err, msg)
	}
	b, err := os.ReadFile(out)
	if err != nil || len(b) < 24 {
		t.Fatal("no object", err)
	}
	// Before CUDA 13 the file header's version is not ELF's, which debug/elf refuses.
	copy(b[20:24], []byte{1, 0, 0, 0})
	e, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	s := e.Section(".nv.global.init")
	if s == nil {
		t.Fatal("no initialised data in the object")
	}
	data, err := s.Data()
	if err != nil {
		t.Fatal(err)
	}
	words := make([]uint64, n)
	if err := binary.Read(bytes.NewReader(data), binary.LittleEndian, words); err != nil {
		t.Fatal(err)
	}
	return words
}
