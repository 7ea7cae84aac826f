package agent

import (
	"debug/elf"
	"encoding/binary"
	"os"
	"testing"

	"golang.org/x/arch/x86/x86asm"
)

// decode lists the instructions of code that lies at an address: what each is,
// and where it goes or what it refers to, if that is relative.
func decode(t testing.TB, code []byte, at uint64) (list []x86asm.Inst, targets []uint64) {
	for len(code) > 0 {
		in, err := decodeInsn(code)
		if err != nil {
			t.Fatalf("moved code at %#x: % x: %v", at, code, err)
		}
		target := uint64(0)
		if to, ok := branchTarget(&in, at); ok {
			target = to
		} else if in.PCRel != 0 {
			for _, a := range in.Args {
				if m, ok := a.(x86asm.Mem); ok && m.Base == x86asm.RIP {
					target = at + uint64(in.Len) + uint64(int64(int32(m.Disp))) // which is not sign-extended
				}
			}
		}
		list, targets = append(list, in), append(targets, target)
		code, at = code[in.Len:], at+uint64(in.Len)
	}
	return list, targets
}

// checkMove moves the beginning of a function and compares what both do.
func checkMove(t testing.TB, code []byte, from, to uint64) bool {
	m, err := moveCode(code, from, to, jumpLen)
	if err != nil {
		return false
	}
	if m.n < jumpLen || m.n > jumpLen+16 {
		t.Fatalf("% x: %d bytes moved", code[:16], m.n)
	}
	last := len(m.code)
	if m.call {
		last = checkCall(t, code, &m, from, to)
	}
	now, targets := decode(t, m.code[:last], to)
	n := 0
	at := from
	for i := range now {
		was, err := decodeInsn(code[n:])
		if err != nil {
			t.Fatal(err)
		}
		old, oldTargets := decode(t, code[n:n+was.Len], at)
		if old[0].Op != now[i].Op || oldTargets[0] != targets[i] {
			t.Fatalf("% x: %v to %#x became %v to %#x", code[:16], old[0], oldTargets[0], now[i], targets[i])
		}
		n += was.Len
		at += uint64(was.Len)
	}
	return true
}

// checkCall checks the call that moved code ends with, which has become a push of what it
// returned to and a jump, and returns where that is.
func checkCall(t testing.TB, code []byte, m *moved, from, to uint64) int {
	n := 0 // of the call in code
	for {
		in, err := decodeInsn(code[n:])
		if err != nil {
			t.Fatal(err)
		}
		if n+in.Len == m.n {
			break
		}
		n += in.Len
	}
	back := binary.LittleEndian.Uint64(m.code[len(m.code)-8:])
	was, wasTo := decode(t, code[n:m.n], from+uint64(n))
	last := len(m.code) - 8 - 6 - jumpLen
	if was[0].PCRel == 0 || wasTo[0] == 0 || code[n] != 0xe8 {
		last = len(m.code) - 8 - 6 - was[0].Len
	}
	now, nowTo := decode(t, m.code[last:len(m.code)-8], to+uint64(last))
	if len(now) != 2 || now[0].Op != x86asm.PUSH || now[1].Op != x86asm.JMP || nowTo[0] != to+uint64(len(m.code)-8) || nowTo[1] != wasTo[0] || back != from+uint64(m.n) {
		t.Fatalf("% x: %v to %#x became %v to %#x, back to %#x", code[:16], was, wasTo, now, nowTo, back)
	}
	return last
}

// TestMovedCalls: calls of all kinds.
func TestMovedCalls(t *testing.T) {
	pad := func(b ...byte) []byte { return append(b, make([]byte, 32)...) }
	for _, code := range [][]byte{
		pad(0xe8, 1, 2, 3, 4), pad(0x53, 0xe8, 1, 2, 3, 4), pad(0xff, 0x15, 1, 2, 3, 4), pad(0x53, 0x53, 0x53, 0xff, 0xd0), pad(0x53, 0x53, 0x41, 0xff, 0xd3),
		pad(0x53, 0x53, 0xff, 0x53, 0x10), pad(0x41, 0xff, 0x94, 0xc8, 1, 2, 3, 0),
	} {
		if !checkMove(t, code, 0x40_0000, 0x4000_0000) {
			t.Errorf("% x is not moved", code[:8])
		}
	}
	for _, code := range [][]byte{
		pad(0xe8, 0, 0, 0, 0), pad(0xff, 0x54, 0x24, 0x10, 0x90), pad(0xff, 0xd0, 0x90, 0x90, 0x90), pad(0x53, 0x53, 0x64, 0xff, 0x10),
	} {
		if m, err := moveCode(code, 0x40_0000, 0x4000_0000, jumpLen); err == nil {
			t.Errorf("% x became % x", code[:8], m.code)
		}
	}
}

// TestMoveCode moves the beginnings of all functions of this machine's C library.
func TestMoveCode(t *testing.T) {
	var f *elf.File
	for _, name := range []string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6", "/usr/lib/libc.so.6"} {
		if _, err := os.Stat(name); err == nil {
			if f, err = elf.Open(name); err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			break
		}
	}
	if f == nil || f.Machine != elf.EM_X86_64 {
		t.Skip("no C library for x86-64 here")
	}
	text := f.Section(".text")
	code, err := text.Data()
	if err != nil {
		t.Fatal(err)
	}
	syms, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	moved, all := 0, 0
	for _, s := range syms {
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Value < text.Addr || s.Value+32 > text.Addr+uint64(len(code)) {
			continue
		}
		all++
		if checkMove(t, code[s.Value-text.Addr:], s.Value, s.Value+0x4000_0000) {
			moved++
		}
		// Out of reach, nothing that is relative can be moved; it must not be wrong.
		checkMove(t, code[s.Value-text.Addr:], s.Value, s.Value+0x7fff_0000_0000)
	}
	if all < 500 || moved < all*9/10 {
		t.Errorf("%d of %d functions moved", moved, all)
	}
	t.Logf("%d of %d functions moved", moved, all)
}

// TestFindMov: the shapes of an ioctl that are known, and what is none.
func TestFindMov(t *testing.T) {
	pad := func(b ...byte) []byte {
		code := make([]byte, len5+between+2)
		for i := range code {
			code[i] = 0x90
		}
		copy(code[len(code)-len(b):], b)
		return code
	}
	for _, c := range []struct {
		code []byte
		back int // from the end; 0: none
	}{
		{pad(0xb8, 16, 0, 0, 0, 0x0f, 0x05), 7},
		{pad(0xb8, 16, 0, 0, 0, 0x48, 0x89, 0xfe, 0x0f, 0x05), 10},   // mov %rdi,%rsi
		{pad(0xb8, 16, 0, 0, 0, 0x89, 0xc8, 0x0f, 0x05), 0},          // mov %ecx,%eax
		{pad(0xb8, 16, 0, 0, 0, 0xeb, 0x00, 0x0f, 0x05), 0},          // a jump
		{pad(0xb8, 17, 0, 0, 0, 0x0f, 0x05), 0},                      // another call
		{pad(0xb8, 16, 0, 0, 0, 0x0f, 0x34), 0},                      // sysenter
		{pad(0xb8, 16, 0, 0, 0, 0x48, 0xff, 0xc0, 0x0f, 0x05), 0},    // inc %rax
		{pad(0x6a, 16, 0x58, 0x90, 0x90, 0x90, 0x90, 0x0f, 0x05), 0}, // push; pop
	} {
		at, err := findMov(c.code, movNumber(16))
		if err == nil != (c.back != 0) || err == nil && at != len(c.code)-c.back {
			t.Errorf("% x: found at %d, %v", c.code, at, err)
		}
	}
}

// FuzzMoveCode: whatever the code is, moving it does not panic, and what is moved
// does the same.
func FuzzMoveCode(f *testing.F) {
	f.Add([]byte{0x55, 0x48, 0x89, 0xe5, 0x41, 0x57, 0x90, 0x90}, uint64(0x1000))
	f.Add([]byte{0x74, 0x05, 0xe8, 1, 2, 3, 4, 0xc3}, uint64(1)<<33)
	f.Add([]byte{0x48, 0x8b, 0x05, 1, 2, 3, 4, 0xc3}, uint64(0x7000))
	f.Add([]byte{0x90, 0x90, 0x90, 0x90, 0x90, 0xeb, 0xfa}, uint64(0x7000))
	f.Add([]byte{0x90, 0x90, 0x90, 0x90, 0x90, 0xe8, 0xf7, 0xff, 0xff, 0xff}, uint64(0x7000))
	f.Add([]byte{0x90, 0x90, 0x90, 0x90, 0x90, 0xe2, 0xfb}, uint64(0x7000))
	f.Add([]byte{0x90, 0x90, 0x90, 0x90, 0x66, 0xe9, 0xf9, 0xff}, uint64(0x7000))
	f.Add([]byte{0x90, 0x90, 0x90, 0x90, 0x06, 0x0f, 0x84, 0xf6, 0xff, 0xff, 0xff}, uint64(0x7000))
	f.Fuzz(func(t *testing.T, code []byte, to uint64) {
		code = append(code, make([]byte, 32)...)
		const from = 0x10000
		m, err := moveCode(code, from, to, jumpLen)
		if err == nil && len(m.code) > 128 {
			t.Fatalf("% x became % x", code, m.code)
		}
		_, _ = findMov(append(make([]byte, between+len5), code[:2]...), movNumber(16))
	})
}

// TestMoveShort: functions that are shorter than a jump are moved where padding follows, as
// compilers write it, and nothing else.
func TestMoveShort(t *testing.T) {
	long := []byte{0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x0f, 0x1f, 0x40, 0}
	for _, c := range []struct {
		name string
		code []byte
		ok   bool
	}{
		{"ret, long nop", append([]byte{0xc3}, long...), true},
		{"xor, ret, long nop", append([]byte{0x31, 0xc0, 0xc3}, long...), true},
		{"ret, traps", []byte{0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc}, true},
		{"ret, another function", []byte{0xc3, 0x31, 0xc0, 0xc3, 0x90, 0x90}, false},
		{"ret, nop, another function", []byte{0xc3, 0x0f, 0x1f, 0x00, 0x31, 0xc0, 0xc3}, false},
		{"ret, the end", []byte{0xc3, 0x90, 0x90}, false},
	} {
		m, err := moveCode(c.code, 0x1000, 0x2000, jumpLen)
		if ok := err == nil; ok != c.ok {
			t.Errorf("%s: %v", c.name, err)
		} else if ok && (!m.ends || m.n != jumpLen) {
			t.Errorf("%s: %+v", c.name, m)
		}
	}
}
