package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/internal/need"
)

// section is one of an object that a test makes.
type section struct {
	name       string
	kind       elf.SectionType
	flags      elf.SectionFlag
	link, info uint32
	entry      uint64
	data       []byte
}

// makeObject writes an eBPF object with one program, and no map and no BTF; rel
// are the program's relocations (struct Elf64_Rel).
func makeObject(code, rel []byte) []byte {
	le := binary.LittleEndian
	names := []byte("\x00prog\x00")
	symbols := make([]byte, 24)
	symbols = le.AppendUint32(symbols, 1) // prog
	symbols = append(symbols, byte(elf.STB_GLOBAL)<<4|byte(elf.STT_FUNC), 0)
	symbols = le.AppendUint16(symbols, 1) // its section
	symbols = le.AppendUint64(symbols, 0)
	symbols = le.AppendUint64(symbols, uint64(len(code)))
	list := []section{
		{},
		{name: "cuda.entry/*", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, data: code},
		{name: ".symtab", kind: elf.SHT_SYMTAB, link: 3, info: 1, entry: 24, data: symbols},
		{name: ".strtab", kind: elf.SHT_STRTAB, data: names},
		{name: ".relcuda.entry/*", kind: elf.SHT_REL, link: 2, info: 1, entry: 16, data: rel},
		{name: ".shstrtab", kind: elf.SHT_STRTAB},
	}
	var strs, body, heads []byte
	var at []uint32
	for _, s := range list {
		at = append(at, uint32(len(strs)))
		strs = append(append(strs, s.name...), 0)
	}
	list[len(list)-1].data = strs
	const head = 64
	for i, s := range list {
		heads = le.AppendUint32(heads, at[i])
		heads = le.AppendUint32(heads, uint32(s.kind))
		for _, v := range []uint64{uint64(s.flags), 0, uint64(head + len(body)), uint64(len(s.data)), uint64(s.link) | uint64(s.info)<<32, 8, s.entry} {
			heads = le.AppendUint64(heads, v)
		}
		body = append(body, s.data...)
		body = append(body, make([]byte, -len(body)&7)...)
	}
	out := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	out = le.AppendUint16(out, uint16(elf.ET_REL))
	out = le.AppendUint16(out, uint16(elf.EM_BPF))
	out = le.AppendUint32(out, 1)
	for _, v := range []uint64{0, 0, uint64(head + len(body)), head << 32} {
		out = le.AppendUint64(out, v)
	}
	for _, v := range []int{0, 64, len(list), len(list) - 1} {
		out = le.AppendUint16(out, uint16(v))
	}
	return append(append(out, body...), heads...)
}

// machineBytes returns instructions of eBPF, 8 bytes each.
func machineBytes(insns ...uint64) []byte {
	var b []byte
	for _, in := range insns {
		b = binary.BigEndian.AppendUint64(b, in)
	}
	return b
}

const (
	insnZero = 0xb700000000000000 // r0 = 0
	insnExit = 0x9500000000000000
)

// TestHostileObjects: what can't be used is refused with one line before the
// program starts; what is harmless runs, and the program does what it does.
func TestHostileObjects(t *testing.T) {
	need.Tool(t, "gcc", "")
	dir := t.TempDir()
	app, nvtrace := filepath.Join(dir, "app"), filepath.Join(dir, "nvtrace")
	if b, err := exec.Command("gcc", "-O1", "-w", "-o", app, "../../nvattach/sim/testdata/drv_vectoradd.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, b)
	}
	buildNvtrace(t, nvtrace)
	count, err := os.ReadFile(countObject)
	if err != nil {
		t.Fatal(err)
	}
	const obj, own = "../../nvattach/testdata/obj/", "testdata/probes/"
	rel := make([]byte, 0, 16)
	rel = binary.LittleEndian.AppendUint64(rel, 0)
	rel = binary.LittleEndian.AppendUint64(rel, 1|999<<32) // R_BPF_64_64 of a symbol that is not there
	long := machineBytes(insnZero)
	for range 1 << 17 {
		long = append(long, machineBytes(0x0700000001000000)...) // r0 += 1
	}
	long = append(long, machineBytes(insnExit)...)

	for _, tt := range []struct {
		name   string
		object []byte   // or
		file   string   // a committed object
		flags  []string // further ones
		want   string   // on standard error
		runs   bool
	}{
		{name: "not there", file: "testdata/none.o", want: "none.o: no such file"},
		{name: "empty", object: []byte{}, want: "no ELF file"},
		{name: "text", object: []byte("eBPF"), want: "no ELF file"},
		{name: "truncated", object: count[:len(count)/2], want: "truncated?"},
		{name: "bad relocation", object: makeObject(machineBytes(0x1801000000000000, 0, insnZero, insnExit), rel), want: "relocation"},
		{name: "unknown helper", object: makeObject(machineBytes(0x850000000f270000, insnZero, insnExit), nil), want: "helper 9999"},
		{name: "beyond the stack", object: makeObject(machineBytes(0x7a0af8fd01000000, insnZero, insnExit), nil), want: "program prog: "},
		{name: "a jump nowhere", object: makeObject(machineBytes(0x0500ff7f00000000, insnZero, insnExit), nil), want: "program prog: "},
		{name: "1 MB of program", object: makeObject(long, nil), want: "program prog: "},
		{name: "a map that no memory holds", file: own + "vast.bpf.o", want: "map vast: "},
		{name: "a map that is not there", object: count, flags: []string{"--map", "none[0]=1"}, want: "there is no map none; there are threads"},
		{name: "a key that is not there", object: count, flags: []string{"--map", "threads[2]=1"}, want: "index 2 of 2"},
		{name: "a program that is not there", object: count, flags: []string{"--prog", "none", "--prog", "f[12]"}, want: "no program is called none or f[12]; there are "},
		{name: "the thread's end", file: obj + "leave.bpf.o", want: "--allow-exit allows it"},
		{name: "nowhere to put maps", object: count, flags: []string{"--maps", "none/maps.json"}, want: "none/maps.json: no such file"},

		{name: "the thread's end allowed", file: obj + "leave.bpf.o", flags: []string{"--allow-exit", "--kernel", "none"}, want: "no kernel that a program wants was loaded", runs: true},
		{name: "a kernel that is not there", object: count, flags: []string{"--kernel", "none"}, want: "no kernel that a program wants was loaded", runs: true},
		{name: "a kernel of its own", file: obj + "bpftime.bpf.o", want: "program cuda__square is not run: it is a kernel of its own; nvtrace attach --run cuda__square runs it", runs: true},
		{name: "a million entries", file: own + "million.bpf.o", want: "million (hash, 128 of 1000000 entries)", runs: true},
		{name: "a loop without end", file: own + "endless.bpf.o", flags: []string{"--fuel", "10"}, want: "20224 runs of endless were ended", runs: true},
		{name: "no program at all", object: makeObject(machineBytes(insnZero, insnExit), nil), want: "probed vectorAdd", runs: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := tt.file
			if file == "" {
				file = filepath.Join(t.TempDir(), "probe.o")
				if err := os.WriteFile(file, tt.object, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(need.Limit(t), nvtrace, slices.Concat([]string{"-q", "--sim", "--attach", file}, tt.flags, []string{"--", app})...)
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			err := cmd.Run()
			holds(t, errs.String(), tt.want)
			switch {
			case tt.runs && (err != nil || out.String() != "PASSED\n"):
				t.Errorf("%v: the program printed %q\n%s", err, out.String(), errs.String())
			case !tt.runs && (cmd.ProcessState.ExitCode() != cli.ExitFailed || out.Len() != 0 || strings.Count(errs.String(), "\n") != 1):
				t.Errorf("%v: the program printed %q\n%s", err, out.String(), errs.String())
			}
		})
	}
}

// complaint is a line about an object, or one about each of its two programs.
var complaint = regexp.MustCompile(`^nvtrace: [^\n]+\n(nvtrace: [^\n]+: program on_exit: [^\n]+\n)?$`)

// TestDamagedObjects: an object with any part of it damaged gives a plan or one
// line, and nothing else.
func TestDamagedObjects(t *testing.T) {
	count, err := os.ReadFile(countObject)
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.NewFile(bytes.NewReader(count))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "probe.o")
	try := func(what string, at int, data []byte) (refused bool) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		status, out, errs := attach(t, file)
		switch {
		case status == cli.ExitOK && errs == "" && strings.Contains(out, "program"):
		case status == cli.ExitFailed && out == "" && complaint.MatchString(errs):
			return true
		default:
			t.Errorf("%s at %d: status %d, %q, %q", what, at, status, out, errs)
		}
		return false
	}
	for n := 0; n < len(count); n += 97 {
		if !try("truncated", n, count[:n]) {
			t.Errorf("cut after %d bytes of %d: not refused", n, len(count))
		}
	}
	refused := 0
	for _, name := range []string{".BTF", ".BTF.ext", ".symtab", "cuda.entry/*", ".relcuda.entry/*"} {
		s := f.Section(name)
		if s == nil {
			t.Fatalf("no section %s", name)
		}
		for off := uint64(0); off+4 <= s.Size; off += 4 {
			for _, v := range []uint32{0, 0xffffffff, 0x7fffffff, 1 << 24} {
				b := slices.Clone(count)
				binary.LittleEndian.PutUint32(b[s.Offset+off:], v)
				if try(name, int(off), b) {
					refused++
				}
			}
			if testing.Short() {
				off += 60
			}
		}
	}
	if refused < 100 && !testing.Short() {
		t.Errorf("%d refused: the damage does not reach the reader", refused)
	}
}
