package ptrace

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// seccompData is struct seccomp_data of linux/seccomp.h.
func seccompData(c *Syscall) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(c.Nr))
	b = binary.LittleEndian.AppendUint32(b, c.Arch)
	b = binary.LittleEndian.AppendUint64(b, c.IP)
	for _, a := range c.Args {
		b = binary.LittleEndian.AppendUint64(b, a)
	}
	return b
}

// run interprets p as the kernel does, with the checks of seccomp_check_filter.
func (p Program) run(t testing.TB, data []byte) uint32 {
	t.Helper()
	var acc uint32
	for pc := 0; pc < len(p); pc++ {
		switch in := p[pc]; in.Code {
		case 0x20:
			if in.K&3 != 0 || int(in.K)+4 > len(data) {
				t.Fatalf("%d: load at %d", pc, in.K)
			}
			acc = binary.LittleEndian.Uint32(data[in.K:])
		case 0x54:
			acc &= in.K
		case 0x05:
			pc += int(in.K)
		case 0x15:
			pc += jump(acc == in.K, in)
		case 0x25:
			pc += jump(acc > in.K, in)
		case 0x35:
			pc += jump(acc >= in.K, in)
		case 0x06:
			return in.K
		default:
			t.Fatalf("%d: opcode %#x", pc, in.Code)
		}
	}
	t.Fatal("fell off the end")
	return 0
}

func jump(cond bool, in Insn) int {
	if cond {
		return int(in.Jt)
	}
	return int(in.Jf)
}

const (
	allow = unix.SECCOMP_RET_ALLOW
	trace = unix.SECCOMP_RET_TRACE
)

// deviceRules have every shape that a user of the package is known to need.
func deviceRules() []Rule {
	ioctl := []string{"ioctl"}
	return []Rule{
		{Names: ioctl, Class: 1, Compat: true, Args: []ArgMatch{{Arg: 1, Mask: 0xff00, Value: 'F' << 8, Low: true}}},
		{Names: ioctl, Class: 2, Args: []ArgMatch{{Arg: 1, Op: LessEqual, Value: 0xff, Low: true}}},
		{Names: ioctl, Class: 2, Args: []ArgMatch{{Arg: 1, Value: 0x30000001, Low: true}}},
		{Names: []string{"openat", "openat2", "open", "creat"}, Class: 3},
		{Names: []string{"mmap"}, Class: 4, Args: []ArgMatch{{Arg: 4, Op: NotEqual, Value: 0xffffffff, Low: true}}},
		{Names: []string{"munmap"}, Class: 5, Args: []ArgMatch{{Arg: 0, Op: LessEqual, Value: 0x7_0000_0000}}},
		{Names: []string{"lseek"}, Class: 6, Args: []ArgMatch{{Arg: 1, Value: 0x1_0000_0002}, {Arg: 2, Op: NotEqual, Value: 0x1_0000_0000}}},
		{Names: []string{"fcntl"}, Class: 7, Args: []ArgMatch{{Arg: 1, Mask: 0xffff_0000_0000_00ff, Value: 0xab00_0000_0000_0003}}},
	}
}

// nrOf returns the native number of a call.
func nrOf(t testing.TB, name string) uint64 {
	t.Helper()
	c, _ := callsNamed(name, false)
	if len(c) != 1 {
		t.Skipf("no native %s here", name)
	}
	return uint64(c[0].nr)
}

// TestCompileNumbers: of any number of calls each gets its class, and no other.
func TestCompileNumbers(t *testing.T) {
	const most, highest = 70, 600
	for n := 1; n <= most; n++ {
		class := map[uint32]uint16{}
		var rules []Rule
		for len(rules) < n {
			if nr := rand.Uint32N(highest); class[nr] == 0 {
				class[nr] = uint16(len(rules) + 1)
				rules = append(rules, Rule{Nrs: []uint32{nr}, Class: class[nr]})
			}
		}
		p, err := Compile(rules, ActionTrace)
		if err != nil {
			t.Fatal(err)
		}
		for nr := range uint32(highest) {
			want := uint32(allow)
			if c, ok := class[nr]; ok {
				want = trace | uint32(c)
			}
			if got := p.run(t, seccompData(&Syscall{Arch: nativeArch, Nr: uint64(nr)})); got != want {
				t.Fatalf("of %d calls, %d: filter gives %#x, want %#x", n, nr, got, want)
			}
		}
	}
}

// TestCompileRuns: calls of few classes, in runs and alone, as they are where programs run at all calls.
func TestCompileRuns(t *testing.T) {
	const highest = 400
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		var class [highest]uint16
		var rules []Rule
		for nr, c := 0, uint16(0); nr < highest; nr++ {
			if rnd.IntN(1+nr%30) == 0 {
				c = uint16(rnd.IntN(4))
			}
			if class[nr] = c; c != 0 {
				rules = append(rules, Rule{Nrs: []uint32{uint32(nr)}, Class: c})
			}
		}
		rnd.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
		p, err := Compile(rules, ActionTrace)
		if err != nil {
			t.Fatal(err)
		}
		for nr, c := range class {
			if got := p.run(t, seccompData(&Syscall{Arch: nativeArch, Nr: uint64(nr)})); got != verdictOf(c, c != 0) {
				t.Fatalf("%d: filter gives %#x, class is %d", nr, got, c)
			}
		}
	}
}

// TestCompileAll: rules for all calls of all ABIs, and further ones for some, make a small filter.
func TestCompileAll(t *testing.T) {
	var names []string
	for _, list := range [][]string{nativeNames[:], compatNames[:], x32Names[:]} {
		for _, name := range list {
			if name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	rules := append(deviceRules(), Rule{Names: names, Class: 9, Compat: true})
	internal := slices.Clip(append(internalRules(&Options{}), reservedRules([]Span{{0x70000000, 0x71400000}, {0x550000000000, 0x552000000000}})...))
	p, err := compile(append(internal, rules...), ActionTrace, true)
	if err != nil {
		t.Fatal(err)
	}
	if len(p) > 1000 {
		t.Errorf("%d instructions", len(p))
	}
	m, err := newMatcher(append(internal, rules...))
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []uint32{nativeArch, compatArch} {
		for _, bits := range []uint64{0, x32Bit} {
			for nr := range uint64(700) {
				c := Syscall{Arch: arch, Nr: nr | bits, Args: [6]uint64{99, 99, 99, 99, 99, 99}}
				class, ok := m.match(&c)
				if got := p.run(t, seccompData(&c)); got != verdictOf(class, ok) {
					t.Fatalf("%#x %#x: filter gives %#x, matcher %d %t", arch, c.Nr, got, class, ok)
				}
			}
		}
	}
}

func TestCompile(t *testing.T) {
	p, err := Compile(deviceRules(), ActionTrace)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMatcher(deviceRules())
	if err != nil {
		t.Fatal(err)
	}
	type args = [6]uint64
	native := func(name string, a ...uint64) Syscall {
		c := Syscall{Arch: nativeArch, Nr: nrOf(t, name)}
		copy(c.Args[:], a)
		return c
	}
	compat := Syscall{Arch: compatArch, Nr: 54, Args: args{3, 0xc020462a}}
	for _, c := range []struct {
		what string
		call Syscall
		want uint32
	}{
		{"type F", native("ioctl", 3, 0xc020462a), trace | 1},
		{"type F, rubbish above", native("ioctl", 3, 0xdead_c020462a), trace | 1},
		{"type T", native("ioctl", 3, 0x5401), allow},
		{"small request", native("ioctl", 3, 0xff), trace | 2},
		{"above it", native("ioctl", 3, 0x100), allow},
		{"one request", native("ioctl", 3, 0x30000001), trace | 2},
		{"next to it", native("ioctl", 3, 0x30000002), allow},
		{"openat", native("openat"), trace | 3},
		{"openat2", native("openat2"), trace | 3},
		{"getpid", native("getpid"), allow},
		{"mmap of a file", native("mmap", 0, 1, 2, 3, 4), trace | 4},
		{"anonymous mmap", native("mmap", 0, 1, 2, 3, ^uint64(0)), allow},
		{"anonymous mmap, int -1", native("mmap", 0, 1, 2, 3, 0xffffffff), allow},
		{"64-bit below", native("munmap", 0x6_ffff_ffff), trace | 5},
		{"64-bit equal", native("munmap", 0x7_0000_0000), trace | 5},
		{"64-bit above in the low half", native("munmap", 0x7_0000_0001), allow},
		{"64-bit above in the high half", native("munmap", 0x8_0000_0000), allow},
		{"both conditions", native("lseek", 0, 0x1_0000_0002, 5), trace | 6},
		{"first fails high", native("lseek", 0, 0x2_0000_0002, 5), allow},
		{"first fails low", native("lseek", 0, 0x1_0000_0003, 5), allow},
		{"second fails", native("lseek", 0, 0x1_0000_0002, 0x1_0000_0000), allow},
		{"second holds by the low half", native("lseek", 0, 0x1_0000_0002, 0x1_0000_0001), trace | 6},
		{"mask", native("fcntl", 0, 0xab00_1234_5678_ff03), trace | 7},
		{"mask, high differs", native("fcntl", 0, 0xab01_1234_5678_ff03), allow},
		{"compat", compat, trace | 1},
		{"compat, other type", Syscall{Arch: compatArch, Nr: 54, Args: args{3, 0x5401}}, allow},
		{"compat rule without Compat", Syscall{Arch: compatArch, Nr: 54, Args: args{3, 1}}, allow},
		{"foreign machine", Syscall{Arch: 0x1234, Nr: nrOf(t, "openat")}, allow},
	} {
		if got := p.run(t, seccompData(&c.call)); got != c.want {
			t.Errorf("%s: filter gives %#x, want %#x", c.what, got, c.want)
		}
		class, ok := m.match(&c.call)
		if got := verdictOf(class, ok); got != c.want {
			t.Errorf("%s: matcher gives %#x, want %#x", c.what, got, c.want)
		}
	}
}

func verdictOf(class uint16, ok bool) uint32 {
	if !ok {
		return allow
	}
	return trace | uint32(class)
}

func TestCompileX32(t *testing.T) {
	if !hasX32 {
		t.Skip("no x32 on this architecture")
	}
	p, err := Compile(deviceRules(), ActionTrace)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		nr   uint64
		cmd  uint64
		want uint32
	}{
		{0x40000000 | 514, 0xc020462a, trace | 1},
		{0x40000000 | 514, 0x5401, allow},
		{0x40000000 | 16, 0xc020462a, allow}, // not an x32 call: the kernel refuses it
		{514, 0xc020462a, allow},
	} {
		d := Syscall{Arch: nativeArch, Nr: c.nr, Args: [6]uint64{0, c.cmd}}
		if got := p.run(t, seccompData(&d)); got != c.want {
			t.Errorf("%#x %#x: %#x, want %#x", c.nr, c.cmd, got, c.want)
		}
	}
}

// TestCompileRandom compares the filter with the matcher on rules and calls
// that nobody thought of.
func TestCompileRandom(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	small := func() uint64 { // few values, in both halves, so that comparisons are often equal
		return rnd.Uint64N(4)<<32 | rnd.Uint64N(4)
	}
	for range 300 {
		rules := make([]Rule, 1+rnd.IntN(40))
		for i := range rules {
			r := Rule{Nrs: []uint32{rnd.Uint32N(6), rnd.Uint32N(6)}, Class: uint16(i)}
			for range rnd.IntN(4) {
				a := ArgMatch{Arg: rnd.IntN(6), Op: Op(rnd.IntN(4)), Value: small(), Low: rnd.IntN(2) == 0}
				if rnd.IntN(2) == 0 {
					a.Mask = small()
				}
				r.Args = append(r.Args, a)
			}
			rules[i] = r
		}
		p, err := Compile(rules, ActionTrace)
		if err != nil {
			t.Fatal(err)
		}
		m, err := newMatcher(rules)
		if err != nil {
			t.Fatal(err)
		}
		for range 200 {
			c := Syscall{Arch: nativeArch, Nr: rnd.Uint64N(7)}
			for i := range c.Args {
				c.Args[i] = small()
			}
			class, ok := m.match(&c)
			if got, want := p.run(t, seccompData(&c)), verdictOf(class, ok); got != want {
				t.Fatalf("%+v: filter %#x, matcher %#x\nrules %+v", c, got, want, rules)
			}
			if got := p.allows(c.Nr, c.Args[:]...); got == ok {
				t.Fatalf("%+v: allowed %t, matched %t\nrules %+v", c, got, ok, rules)
			}
			if k := rnd.IntN(6); ok && p.allows(c.Nr, c.Args[:k]...) {
				t.Fatalf("%+v: allowed whatever is behind %d arguments, but this one is not\nrules %+v", c, k, rules)
			}
		}
	}
}

func TestCompileErrors(t *testing.T) {
	many := make([]Rule, 3000)
	for i := range many {
		many[i] = Rule{Nrs: []uint32{uint32(i)}, Class: uint16(i)}
	}
	for _, c := range []struct {
		rules []Rule
		want  string
	}{
		{[]Rule{{}}, "names no system call"},
		{[]Rule{{Names: []string{"ioctrl"}}}, `no system call is named "ioctrl"`},
		{[]Rule{{Names: []string{""}}}, `no system call is named ""`},
		{[]Rule{{Nrs: []uint32{1}, Args: []ArgMatch{{Arg: 6}}}}, "argument 6"},
		{[]Rule{{Nrs: []uint32{1}, Args: []ArgMatch{{Op: 9}}}}, "unknown comparison 9"},
		{[]Rule{{Nrs: []uint32{1}, Args: make([]ArgMatch, 17)}}, "17 conditions"},
		{[]Rule{{Nrs: []uint32{1}, Class: ClassInternal}}, "taken"},
		{many, "at most 4096"},
	} {
		if _, err := Compile(c.rules, ActionTrace); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
}

func TestCompileActions(t *testing.T) {
	for a, want := range map[Action]uint32{
		ActionTrace:  unix.SECCOMP_RET_TRACE | 9,
		ActionNotify: unix.SECCOMP_RET_USER_NOTIF | 9,
		ActionErrno:  unix.SECCOMP_RET_ERRNO | 9,
	} {
		p, err := Compile([]Rule{{Names: []string{"getpid"}, Class: 9}}, a)
		if err != nil {
			t.Fatal(err)
		}
		c := Syscall{Arch: nativeArch, Nr: nrOf(t, "getpid")}
		if got := p.run(t, seccompData(&c)); got != want {
			t.Errorf("%#x: %#x, want %#x", uint32(a), got, want)
		}
	}
}

func TestSyscallName(t *testing.T) {
	for _, c := range []struct {
		arch uint32
		nr   uint64
		want string
	}{
		{nativeArch, nrOf(t, "ioctl"), "ioctl"},
		{compatArch, 54, "ioctl"},
		{nativeArch, 9999, ""},
		{nativeArch, 1 << 40, ""},
		{0x1234, 1, ""},
	} {
		if got := SyscallName(c.arch, c.nr); got != c.want {
			t.Errorf("%#x %d: %q, want %q", c.arch, c.nr, got, c.want)
		}
	}
	if hasX32 {
		for nr, want := range map[uint64]string{x32Bit | 514: "ioctl", x32Bit | 3: "close", x32Bit | 547: "pwritev2", x32Bit | 548: ""} {
			if got := SyscallName(nativeArch, nr); got != want {
				t.Errorf("x32 %#x: %q, want %q", nr, got, want)
			}
		}
	}
}
