package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"nvtrace/fatbin/sass"
)

// oracle asks nvdisasm (and ptxas for an empty kernel to put words into).
type oracle struct {
	nvdisasm, ptxas string
	dir             string
	carriers        map[sass.Arch][]byte
}

func newOracle(nvdisasm, ptxas string) (*oracle, error) {
	dir, err := os.MkdirTemp("", "sassgen")
	return &oracle{nvdisasm, ptxas, dir, make(map[sass.Arch][]byte)}, err
}

func (o *oracle) close() { os.RemoveAll(o.dir) }

// full is the architecture's variant with all instructions.
func full(a sass.Arch) string {
	if a >= 90 {
		return fmt.Sprintf("%da", a)
	}
	return strconv.Itoa(int(a))
}

const batch = 8000

// texts disassembles words, each for itself: "" stands for an illegal one.
func (o *oracle) texts(a sass.Arch, words []sass.Word) ([]string, error) {
	out, _, err := o.textsAt(a, words)
	return out, err
}

// textsAt is texts, with the addresses that the words had.
func (o *oracle) textsAt(a sass.Arch, words []sass.Word) ([]string, []uint64, error) {
	out, addrs := make([]string, len(words)), make([]uint64, len(words))
	for at := 0; at < len(words); at += 50000 {
		part := words[at:min(at+50000, len(words))]
		if err := o.textBatch(a, part, out[at:], addrs[at:]); err != nil {
			return nil, nil, err
		}
	}
	return out, addrs, nil
}

func (o *oracle) textBatch(a sass.Arch, words []sass.Word, out []string, addrs []uint64) error {
	index := make([]int, len(words))
	for i := range index {
		index[i] = i
	}
	for range 20 {
		if len(index) == 0 {
			return nil
		}
		var b []byte
		for _, i := range index {
			b = words[i].Append(b)
		}
		file := filepath.Join(o.dir, "raw.bin")
		if err := os.WriteFile(file, b, 0o666); err != nil {
			return err
		}
		cmd := exec.Command(o.nvdisasm, "-b", "SM"+full(a), file)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		stdout, err := cmd.Output()
		bad := make(map[int]bool)
		for line := range strings.Lines(stderr.String()) {
			if _, at, ok := strings.Cut(line, "at address 0x"); ok {
				n, err := strconv.ParseUint(strings.TrimSpace(at), 16, 64)
				if err != nil {
					return err
				}
				bad[int(n/16)] = true
			}
		}
		if len(bad) > 0 {
			var keep []int
			for j, i := range index {
				if !bad[j] {
					keep = append(keep, i)
				}
			}
			index = keep
			continue
		}
		if err != nil {
			return fmt.Errorf("nvdisasm: %w: %.300s", err, stderr.String())
		}
		for line := range strings.Lines(string(stdout)) {
			_, rest, ok := strings.Cut(line, "/*")
			addr, text, ok2 := strings.Cut(rest, "*/")
			if !ok || !ok2 {
				continue
			}
			n, err := strconv.ParseUint(addr, 16, 64)
			if err != nil {
				continue
			}
			text = strings.TrimSpace(text)
			out[index[n/16]] = strings.TrimSpace(strings.TrimSuffix(text, ";"))
			addrs[index[n/16]] = n
		}
		return nil
	}
	return fmt.Errorf("nvdisasm refuses words again and again")
}

// use is what nvdisasm's life ranges say of one instruction.
type use struct{ read, write sass.Set }

func (o *oracle) carrier(a sass.Arch) ([]byte, error) {
	if c := o.carriers[a]; c != nil {
		return c, nil
	}
	src, dst := filepath.Join(o.dir, "k.ptx"), filepath.Join(o.dir, "k.cubin")
	version := "9.0"
	if a == 107 {
		version = "9.4"
	}
	ptx := fmt.Sprintf(".version %s\n.target sm_%s\n.address_size 64\n.visible .entry k() { ret; }\n", version, full(a))
	if err := os.WriteFile(src, []byte(ptx), 0o666); err != nil {
		return nil, err
	}
	if out, err := exec.Command(o.ptxas, "-arch", "sm_"+full(a), src, "-o", dst).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("ptxas: %w: %s", err, out)
	}
	c, err := os.ReadFile(dst)
	o.carriers[a] = c
	return c, err
}

// cubin puts words into the empty kernel.
func (o *oracle) cubin(a sass.Arch, words []sass.Word) ([]byte, error) {
	c, err := o.carrier(a)
	if err != nil {
		return nil, err
	}
	b := bytes.Clone(c)
	le := binary.LittleEndian
	shoff, shn, shstr := le.Uint64(b[40:]), int(le.Uint16(b[60:])), int(le.Uint16(b[62:]))
	sh := func(i int) []byte { return b[shoff+uint64(i)*64:][:64] }
	names := le.Uint64(sh(shstr)[24:])
	name := func(i int) string {
		s := b[names+uint64(le.Uint32(sh(i))):]
		return string(s[:bytes.IndexByte(s, 0)])
	}
	for len(b)%128 != 0 {
		b = append(b, 0)
	}
	off := len(b)
	for _, w := range words {
		b = w.Append(b)
	}
	text := -1
	for i := range shn {
		if name(i) == ".text.k" {
			text = i
			le.PutUint64(sh(i)[24:], uint64(off))
			le.PutUint64(sh(i)[32:], uint64(len(words)*16))
		}
	}
	for i := range shn {
		if name(i) != ".symtab" {
			continue
		}
		tab := b[le.Uint64(sh(i)[24:]):][:le.Uint64(sh(i)[32:])]
		for ; len(tab) >= 24; tab = tab[24:] {
			if int(le.Uint16(tab[6:])) == text && tab[4]&15 == 2 {
				le.PutUint64(tab[16:], uint64(len(words)*16))
			}
		}
	}
	return b, nil
}

// uses asks for the life ranges of legal words, none of which transfers control.
func (o *oracle) uses(a sass.Arch, words []sass.Word) ([]use, error) {
	out := make([]use, 0, len(words))
	for at := 0; at < len(words); at += batch {
		part := words[at:min(at+batch, len(words))]
		img, err := o.cubin(a, append(slices.Clip(part), exitWord))
		if err != nil {
			return nil, err
		}
		file := filepath.Join(o.dir, "plr.cubin")
		if err := os.WriteFile(file, img, 0o666); err != nil {
			return nil, err
		}
		u, err := o.lifeRanges(file)
		if err != nil {
			return nil, err
		}
		if len(u[0].uses) < len(part) {
			return nil, fmt.Errorf("nvdisasm printed life ranges of %d instructions, want %d", len(u[0].uses), len(part))
		}
		out = append(out, u[0].uses[:len(part)]...)
	}
	return out, nil
}

var exitWord = sass.Word{Lo: 0x000000000000794d, Hi: 0x000fea0003800000}

type section struct {
	name string
	uses []use
	live []sass.Set // marked in any way at the instruction
	text []string
}

// lifeRanges runs nvdisasm on a cubin.
func (o *oracle) lifeRanges(file string) ([]section, error) {
	var stderr bytes.Buffer
	cmd := exec.Command(o.nvdisasm, "-c", "-plr", file)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("nvdisasm: %w: %.300s", err, stderr.String())
	}
	return parseLife(string(out))
}

type column struct {
	at   int
	kind sass.RegKind
	reg  uint8
}

func parseLife(text string) ([]section, error) {
	var secs []section
	var kinds []sass.RegKind
	var cols []column
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if _, name, ok := strings.Cut(line, ".section\t.text."); ok {
			name, _, _ = strings.Cut(name, ",")
			secs = append(secs, section{name: name})
			cols, kinds = nil, nil
			continue
		}
		head, life, ok := strings.Cut(line, "// |")
		if !ok || len(secs) == 0 {
			continue
		}
		switch {
		case strings.Contains(life, "GPR") || strings.Contains(life, "PRED"):
			kinds = kinds[:0]
			for part := range strings.SplitSeq(strings.TrimSuffix(life, "|"), "|") {
				k, ok := map[string]sass.RegKind{"GPR": sass.GPR, "PRED": sass.Pred, "UGPR": sass.UGPR, "UPRED": sass.UPred}[strings.TrimSpace(part)]
				if !ok {
					return nil, fmt.Errorf("life ranges of %q", part)
				}
				kinds = append(kinds, k)
			}
			continue
		case strings.Contains(life, "#"):
			cols = cols[:0]
			part := -1
			num := 0
			for i := 0; i < len(life); i++ {
				switch c := life[i]; {
				case c == '|':
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
		addr, ins, ok2 := strings.Cut(rest, "*/")
		if !ok || !ok2 || strings.HasPrefix(addr, " 0x") {
			continue
		}
		s := &secs[len(secs)-1]
		var u use
		var live sass.Set
		for _, c := range cols {
			if c.at >= len(life) {
				break
			}
			switch life[c.at] {
			case '^':
				u.write.Add(c.kind, c.reg, 1)
			case 'v':
				u.read.Add(c.kind, c.reg, 1)
			case 'x':
				u.read.Add(c.kind, c.reg, 1)
				u.write.Add(c.kind, c.reg, 1)
			case ' ':
				continue
			}
			live.Add(c.kind, c.reg, 1)
		}
		s.uses = append(s.uses, u)
		s.live = append(s.live, live)
		s.text = append(s.text, strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(ins), ";")))
	}
	return secs, nil
}
