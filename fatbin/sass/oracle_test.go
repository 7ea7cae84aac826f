package sass

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"nvtrace/internal/need"
)

// disassemble returns nvdisasm's text of words, at offsets 0, 16 …
func disassemble(t testing.TB, a Arch, words []Word) []string {
	t.Helper()
	tool := need.Tool(t, "nvdisasm", "NVTRACE_NVDISASM")
	var b []byte
	for _, w := range words {
		b = w.Append(b)
	}
	file := filepath.Join(t.TempDir(), "code.bin")
	if err := os.WriteFile(file, b, 0o666); err != nil {
		t.Fatal(err)
	}
	suffix := ""
	if a >= 90 {
		suffix = "a"
	}
	var stderr bytes.Buffer
	cmd := exec.Command(tool, "-b", fmt.Sprintf("SM%d%s", a, suffix), file)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: nvdisasm: %v: %.500s", a, err, stderr.String())
	}
	text := make([]string, len(words))
	for line := range strings.Lines(string(out)) {
		_, rest, ok := strings.Cut(line, "/*")
		addr, ins, ok2 := strings.Cut(rest, "*/")
		n, err := strconv.ParseUint(addr, 16, 64)
		if ok && ok2 && err == nil && int(n/WordSize) < len(text) {
			text[n/WordSize] = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(ins), ";"))
		}
	}
	return text
}

func retTo(t *testing.T, a Arch, pair uint8, distance int64) Word {
	t.Helper()
	w, ok := RETRel(a, pair, distance)
	if !ok {
		t.Errorf("%s: no RET.REL by %d", a, distance)
	}
	return w
}

// What the encoders write is what nvdisasm reads, on each architecture.
func TestEncoders(t *testing.T) {
	for _, a := range archs() {
		type row struct {
			word Word
			want string
		}
		rows := []row{
			{NOP(), "NOP"},
			{exit(), "EXIT"},
			{exit().Guarded(3, true), "@!P3 EXIT"},
			{MOV(7, 200), "MOV R7, R200"},
			{MOV(7, RZ), "MOV R7, RZ"},
			{MOVImm(254, 0xdeadbeef), "MOV R254, 0xdeadbeef"},
			{MOVUR(9, 12), "MOV R9, UR12"},
			{P2R(5, 0x7f), "P2R R5, PR, RZ, 0x7f"},
			{R2P(5, 0x7f), "R2P PR, R5, 0x7f"},
			{LDC(a, 8, 0, 0x160, 4), "LDC R8, c[0x0][0x160]"},
			{retTo(t, a, 20, -16*11), "RET.REL.NODEC R20 0x0"},
			{LDC(a, 8, 3, 0x7ff8, 8), "LDC.64 R8, c[0x3][0x7ff8]"},
		}
		reconvergent, reliable := "", ""
		if a >= 100 {
			reconvergent, reliable = ".RECONVERGENT", ".RELIABLE"
		}
		rows = append(rows, row{BREAK(a, 3), "BREAK" + reliable + " B3"})
		rows = append(rows, row{BSYNC(a, 15), "BSYNC" + reconvergent + " B15"})
		for _, d := range []int64{0, 0x1230} {
			w, ok := BSSY(a, 9, d)
			if !ok {
				t.Errorf("%s: no BSSY by %d", a, d)
			}
			rows = append(rows, row{w, fmt.Sprintf("BSSY%s B9, %#x", reconvergent, int64(len(rows)+1)*WordSize+d)})
		}
		for _, d := range []int64{0, -16, 0x1230, -0x40} {
			at := int64(len(rows)+1) * WordSize
			if at+d < 0 {
				continue
			}
			w, ok := BRA(a, d)
			if !ok {
				t.Errorf("%s: no BRA by %d", a, d)
			}
			rows = append(rows, row{w, fmt.Sprintf("BRA %#x", at+d)})
		}
		var words []Word
		for _, r := range rows {
			words = append(words, r.word)
		}
		for i, text := range disassemble(t, a, words) {
			if text != rows[i].want {
				t.Errorf("%s: %v is %q, want %q", a, rows[i].word, text, rows[i].want)
			}
		}
		// Their registers are known too.
		for _, r := range rows {
			if in, ok := Decode(a, r.word); !ok {
				t.Errorf("%s: %s is unknown to the table", a, r.want)
			} else if in.Name() != strings.Fields(strings.TrimPrefix(r.want, "@!P3 "))[0] && !strings.HasPrefix(r.want, in.Name()) {
				t.Errorf("%s: %s is %s", a, r.want, in.Name())
			}
		}
	}
}

// lifeRange is a line of nvdisasm -plr.
type lifeRange struct {
	offset            int
	read, write, live Set
}

// lifeRanges runs nvdisasm -plr on a cubin, by section.
func lifeRanges(t testing.TB, file string) map[string][]lifeRange {
	t.Helper()
	all, err := askLifeRanges(t, file)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// askLifeRanges is lifeRanges for a cubin that nvdisasm may refuse.
func askLifeRanges(t testing.TB, file string) (map[string][]lifeRange, error) {
	t.Helper()
	tool := need.Tool(t, "nvdisasm", "NVTRACE_NVDISASM")
	var stderr bytes.Buffer
	cmd := exec.Command(tool, "-c", "-plr", file)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("nvdisasm %s: %w: %.200s", file, err, stderr.String())
	}
	return parseLifeRanges(out), nil
}

func parseLifeRanges(out []byte) map[string][]lifeRange {
	type column struct {
		at   int
		kind RegKind
		reg  uint8
	}
	kindOf := map[string]RegKind{"GPR": GPR, "PRED": Pred, "UGPR": UGPR, "UPRED": UPred}
	all := make(map[string][]lifeRange)
	var section string
	var kinds []RegKind
	var cols []column
	for line := range strings.Lines(string(out)) {
		line = strings.TrimRight(line, "\n")
		if _, name, ok := strings.Cut(line, ".section\t.text."); ok {
			name, _, _ = strings.Cut(name, ",")
			section, cols = ".text."+strings.Trim(name, `"`), nil
			continue
		}
		head, life, ok := strings.Cut(line, "// |")
		if !ok || section == "" {
			continue
		}
		switch {
		case strings.Contains(life, "GPR") || strings.Contains(life, "PRED"):
			kinds = nil
			for part := range strings.SplitSeq(strings.TrimSuffix(life, "|"), "|") {
				kinds = append(kinds, kindOf[strings.TrimSpace(part)])
			}
			continue
		case strings.Contains(life, "#"):
			cols = nil
			part, num := -1, 0
			for i, c := range []byte(life) {
				switch {
				case c == '#':
					part++
				case c >= '0' && c <= '9':
					num = num*10 + int(c-'0')
					if i+1 == len(life) || life[i+1] < '0' || life[i+1] > '9' {
						cols = append(cols, column{i, kinds[part], uint8(num)})
						num = 0
					}
				}
			}
			continue
		}
		_, rest, ok := strings.Cut(head, "/*")
		addr, _, ok2 := strings.Cut(rest, "*/")
		off, err := strconv.ParseUint(addr, 16, 64)
		if !ok || !ok2 || err != nil {
			continue
		}
		l := lifeRange{offset: int(off)}
		for _, c := range cols {
			if c.at >= len(life) {
				continue
			}
			switch life[c.at] {
			case '^':
				l.write.Add(c.kind, c.reg, 1)
			case 'v':
				l.read.Add(c.kind, c.reg, 1)
			case 'x':
				l.read.Add(c.kind, c.reg, 1)
				l.write.Add(c.kind, c.reg, 1)
			case ' ':
				continue
			}
			l.live.Add(c.kind, c.reg, 1)
		}
		all[section] = append(all[section], l)
	}
	return all
}

// cubins are the fixtures, and those in the folder that NVTRACE_CUBINS names.
func cubins(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.cubin")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cubins in testdata: %v", err)
	}
	if more := os.Getenv("NVTRACE_CUBINS"); more != "" {
		m, err := filepath.Glob(filepath.Join(more, "*.cubin"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, m...)
	}
	return files
}

// readCubin reads the sections with code of a cubin.
func readCubin(t testing.TB, file string) (Arch, map[string][]byte) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	flags := le.Uint32(data[48:])
	a := Arch(flags & 0xff)
	if data[8] >= 8 {
		a = Arch(flags >> 8 & 0xff)
	}
	shoff, n, str := le.Uint64(data[40:]), int(le.Uint16(data[60:])), int(le.Uint16(data[62:]))
	sh := func(i int) []byte { return data[shoff+uint64(i)*64:][:64] }
	names := data[le.Uint64(sh(str)[24:]):]
	out := make(map[string][]byte)
	for i := range n {
		name := names[le.Uint32(sh(i)):]
		s := string(name[:bytes.IndexByte(name, 0)])
		if le.Uint32(sh(i)[4:]) == 1 && strings.HasPrefix(s, ".text.") {
			out[s] = data[le.Uint64(sh(i)[24:]):][:le.Uint64(sh(i)[32:])]
		}
	}
	return a, out
}

// Registers that nvdisasm calls live are live for us, and what instructions do to
// registers is what it says.
func TestLifeRanges(t *testing.T) {
	for _, file := range cubins(t) {
		arch, secs := readCubin(t, file)
		life := lifeRanges(t, file)
		insts, more, wrong := 0, 0, 0
		for name, code := range secs {
			a, err := Analyze(&Func{Arch: arch, Name: name, Code: Words(code)})
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range life[name] {
				i := l.offset / WordSize
				if i >= len(a.Insts) {
					continue
				}
				insts++
				in := &a.Insts[i]
				if !in.Known() {
					continue
				}
				read, write := in.Uses()
				read.B, write.B = 0, 0
				// What is marked at an instruction is live before or behind it.
				live := a.LiveIn[i]
				live.Union(&a.LiveOut[i])
				live.Union(&write)
				missing := l.live
				missing.Minus(&live)
				// nvdisasm has the stack pointer live behind the end, puts what a callee
				// does at its call, and what a callee writes is live for it before. It
				// takes calls that are jumps for calls, too.
				missing.R[0] &^= 1 << stackPointer
				if a.localCalls || len(a.jumps) > 0 {
					missing = Set{}
				}
				if in.Flow().Kind == FlowCall {
					continue
				}
				noRead, noWrite := l.read, l.write
				noRead.Minus(&read)
				noWrite.Minus(&write)
				if !missing.Empty() || !noRead.Empty() || !noWrite.Empty() {
					if wrong++; wrong <= 10 {
						t.Errorf("%s %s %#x %v (%s): nvdisasm has live %s, reads %s, writes %s, which we lack", file, name, l.offset, in.Word, in.String(), missing.String(), noRead.String(), noWrite.String())
					}
				}
				live.B = 0
				if extra := live; extra != l.live {
					more++
				}
			}
		}
		t.Logf("%s: %d instructions, at %d of them more is live for us", file, insts, more)
	}
}
