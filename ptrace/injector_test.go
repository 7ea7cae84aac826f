package ptrace

import (
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReserved: each call that may change what lies in a reserved range stops, and those that programs make as a
// matter of course do not.
func TestReserved(t *testing.T) {
	spans := []Span{{0x70000000, 0x71400000}, {0x550000000000, 0x552000000000}}
	rules := reservedRules(spans)
	p, err := compile(rules, ActionTrace, true)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMatcher(rules)
	if err != nil {
		t.Fatal(err)
	}
	stops := func(name string, args ...uint64) bool {
		c := Syscall{Arch: nativeArch, Nr: nrOf(t, name)}
		copy(c.Args[:], args)
		_, ok := m.match(&c)
		if got := p.run(t, seccompData(&c)) != allow; got != ok {
			t.Fatalf("%s %#x: filter %t, matcher %t", name, args, got, ok)
		}
		return ok
	}
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 20_000 {
		s := spans[rnd.IntN(2)]
		addr, size := rnd.Uint64N(s.End)&^0xfff, uint64(1)<<rnd.IntN(46)+rnd.Uint64N(8)*4096
		if rnd.IntN(2) == 0 {
			addr = (s.First - size + rnd.Uint64N(1<<rnd.IntN(40))) &^ 0xfff
		}
		if addr >= s.End || addr+size <= s.First {
			continue
		}
		for _, name := range []string{"munmap", "mprotect", "pkey_mprotect", "madvise", "mremap"} {
			if !stops(name, addr, size, unix.MADV_DONTNEED) {
				t.Errorf("%s of %#x at %#x does not stop", name, size, addr)
			}
		}
		for _, advice := range []uint64{unix.MADV_DONTFORK, unix.MADV_WIPEONFORK, unix.MADV_DONTNEED_LOCKED, unix.MADV_GUARD_INSTALL} {
			if !stops("madvise", addr, size, advice) {
				t.Errorf("madvise %d of %#x at %#x does not stop", advice, size, addr)
			}
		}
		if inside := addr >= s.First; stops("shmat", 1, addr, shmRemap) != inside || stops("shmat", 1, addr, 0) {
			t.Errorf("shmat at %#x", addr)
		}
		if !stops("mmap", addr, size, 3, unix.MAP_FIXED|unix.MAP_PRIVATE) || !stops("mremap", 0x7f0000000000, 4096, size, unix.MREMAP_FIXED|unix.MREMAP_MAYMOVE, addr) {
			t.Errorf("mapping %#x at %#x does not stop", size, addr)
		}
		if stops("mmap", addr, size, 3, unix.MAP_PRIVATE) || stops("mmap", addr, size, 3, unix.MAP_FIXED_NOREPLACE) {
			t.Errorf("mapping %#x where the kernel chooses stops", size)
		}
	}
	for _, at := range []uint64{0xc000000000, 0x555555554000, 0x5a0000000000, 0x602000000000, 0x7f1234567000, 0x7fffffff0000} {
		if stops("mmap", at, 64<<20, 3, unix.MAP_FIXED) || stops("munmap", at, 64<<20) || stops("mprotect", at, 4096) || stops("madvise", at, 1<<30, unix.MADV_DONTNEED) {
			t.Errorf("calls at %#x stop", at)
		}
	}
}
