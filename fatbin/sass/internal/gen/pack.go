package main

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"nvtrace/fatbin/sass"
)

// pack writes the table: for each block of the facts the architectures, the
// opcode and what [sass] reads in table.go, compressed.
func pack(facts, scoreboards, out string) error {
	seen, err := readScoreboards(scoreboards)
	if err != nil {
		return err
	}
	_, blocks, err := readBlocks(facts)
	if err != nil {
		return err
	}
	var b []byte
	keys := slices.Sorted(maps.Keys(blocks))
	b = binary.AppendUvarint(b, uint64(len(keys)))
	for _, block := range keys {
		b = binary.AppendUvarint(b, uint64(len(blocks[block])))
		for _, a := range blocks[block] {
			b = binary.AppendUvarint(b, uint64(a))
		}
		if b, err = packBlock(b, block); err != nil {
			return fmt.Errorf("%s: %q: %w", facts, strings.SplitN(block, "\n", 2)[0], err)
		}
	}
	// What compilers let set scoreboards: an instruction that never does has a fixed
	// latency. What was not seen often keeps what nvdisasm accepts.
	var often []barKey
	for k, c := range seen {
		if c.all >= 100 {
			often = append(often, k)
		}
	}
	slices.SortFunc(often, func(x, y barKey) int {
		if x.arch != y.arch {
			return int(x.arch) - int(y.arch)
		}
		return int(x.op) - int(y.op)
	})
	b = binary.AppendUvarint(b, uint64(len(often)))
	for _, k := range often {
		flags := uint64(0)
		if seen[k].write > 0 {
			flags |= 1
		}
		if seen[k].write > 0 || seen[k].read > 0 {
			flags |= 2
		}
		b = binary.AppendUvarint(b, uint64(k.arch))
		b = binary.AppendUvarint(b, uint64(k.op))
		b = binary.AppendUvarint(b, flags)
	}
	var z bytes.Buffer
	w, err := flate.NewWriter(&z, flate.BestCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(b); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(out, z.Bytes(), 0o666)
}

// readScoreboards reads what bars writes.
func readScoreboards(file string) (map[barKey]barCount, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	out := make(map[barKey]barCount)
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var op uint16
		var arch int
		var c barCount
		if _, err := fmt.Sscanf(line, "%x %d seen %d write %d read %d", &op, &arch, &c.all, &c.write, &c.read); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", file, line, err)
		}
		out[barKey{sass.Arch(arch), op}] = c
	}
	return out, nil
}

func parseBits(s string) ([]int, error) {
	if s == "-" {
		return nil, nil
	}
	var out []int
	for part := range strings.SplitSeq(s, ",") {
		lo, hi, two := strings.Cut(part, "-")
		i, err := strconv.Atoi(lo)
		if err != nil {
			return nil, err
		}
		j := i
		if two {
			if j, err = strconv.Atoi(hi); err != nil {
				return nil, err
			}
		}
		for ; i <= j; i++ {
			out = append(out, i)
		}
	}
	return out, nil
}

func packBits(b []byte, s string) ([]byte, error) {
	bits, err := parseBits(s)
	if err != nil {
		return nil, err
	}
	b = binary.AppendUvarint(b, uint64(len(bits)))
	for _, p := range bits {
		b = append(b, byte(p))
	}
	return b, nil
}

var kinds = map[string]sass.RegKind{"R": sass.GPR, "UR": sass.UGPR, "P": sass.Pred, "UP": sass.UPred, "B": sass.Barrier}

func packBlock(b []byte, block string) ([]byte, error) {
	lines := strings.Split(strings.TrimSpace(block), "\n")
	f := strings.Fields(lines[0])
	if len(f) != 4 {
		return nil, fmt.Errorf("want opcode, name, guard and bars")
	}
	op, err := strconv.ParseUint(f[0], 16, 12)
	if err != nil {
		return nil, err
	}
	b = binary.AppendUvarint(b, op)
	b = binary.AppendUvarint(b, uint64(len(f[1])))
	b = append(b, f[1]...)
	b = append(b, byte(kinds[strings.TrimPrefix(f[2], "guard=")]))
	flags := byte(0)
	if strings.Contains(f[3], "w") {
		flags |= 1
	}
	if strings.Contains(strings.TrimPrefix(f[3], "bars="), "r") && strings.HasSuffix(f[3], "r") {
		flags |= 2
	}
	b = append(b, flags)
	key, ones, zeros := "-", "-", "-"
	var shapes []string
	for _, l := range lines[1:] {
		l = strings.TrimSpace(l)
		switch w := strings.Fields(l); w[0] {
		case "key":
			key = w[1]
		case "ones":
			ones, zeros = w[1], w[3]
		default:
			shapes = append(shapes, l)
		}
	}
	for _, s := range []string{key, ones, zeros} {
		if b, err = packBits(b, s); err != nil {
			return nil, err
		}
	}
	if shapes, err = completeShapes(key, shapes); err != nil {
		return nil, err
	}
	b = binary.AppendUvarint(b, uint64(len(shapes)))
	for _, l := range shapes {
		ops, vals, ok := strings.Cut(l, " = ")
		if !ok {
			return nil, fmt.Errorf("shape %q", l)
		}
		list := strings.Fields(ops)
		if ops == "none" {
			list = nil
		}
		b = binary.AppendUvarint(b, uint64(len(list)))
		for _, o := range list {
			if b, err = packOperand(b, o); err != nil {
				return nil, fmt.Errorf("%q: %w", o, err)
			}
		}
		parts := strings.Split(vals, ",")
		b = binary.AppendUvarint(b, uint64(len(parts)))
		last := uint64(0)
		for _, p := range parts {
			lo, hi, two := strings.Cut(p, "-")
			i, err := strconv.ParseUint(lo, 16, 64)
			if err != nil {
				return nil, err
			}
			j := i
			if two {
				if j, err = strconv.ParseUint(hi, 16, 64); err != nil {
					return nil, err
				}
			}
			b = binary.AppendUvarint(b, i-last)
			b = binary.AppendUvarint(b, j-i)
			last = j
		}
	}
	return b, nil
}

// packOperand packs "rw:R@16+8*2", or "r:P0*7" of a register that no field names.
func packOperand(b []byte, s string) ([]byte, error) {
	role, rest, ok := strings.Cut(s, ":")
	reg, count, ok2 := strings.Cut(rest, "*")
	if !ok || !ok2 {
		return nil, fmt.Errorf("want ROLE:FIELD*COUNT")
	}
	n, err := strconv.ParseUint(count, 10, 8)
	if err != nil {
		return nil, err
	}
	var flags byte
	if strings.Contains(role, "r") {
		flags |= 1
	}
	if strings.Contains(role, "w") {
		flags |= 2
	}
	name, at, field := strings.Cut(reg, "@")
	if n, ok := strings.CutSuffix(name, "~"); ok {
		name = n
		flags |= 4
	}
	var pos, length, fixed uint64
	if field {
		p, l, _ := strings.Cut(at, "+")
		if pos, err = strconv.ParseUint(p, 10, 8); err != nil {
			return nil, err
		}
		if length, err = strconv.ParseUint(l, 10, 8); err != nil {
			return nil, err
		}
	} else {
		name = strings.TrimRight(reg, "0123456789")
		if fixed, err = strconv.ParseUint(reg[len(name):], 10, 8); err != nil {
			return nil, err
		}
	}
	k, ok := kinds[name]
	if !ok {
		return nil, fmt.Errorf("kind %q", name)
	}
	return append(b, flags, byte(k), byte(pos), byte(length), byte(fixed), byte(n)), nil
}
