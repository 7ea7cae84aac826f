package script

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"nvtrace/nvattach"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
)

// FuzzCompile: whatever the text, there is an error that says where, or a program that
// the checker accepts, and that can be shown.
func FuzzCompile(f *testing.F) {
	mistakes, err := os.ReadFile("testdata/mistakes.txt")
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(mistakes)) {
		if text, ok := strings.CutPrefix(line, "> "); ok {
			f.Add(strings.TrimSpace(text))
		}
	}
	for _, text := range []string{
		"#!/usr/bin/env nvtrace\nconfig = { max_map_keys = 10 }\nBEGIN { @x = 1; @y[1, \"a\"] = 2; printf(\"%d %s\\n\", 3, \"b\"); }",
		"ioctl:*, api:cu* /pid > 3/ { @[name, tid] = hist(nsecs); $x = name == \"a\" ? 1 : 2; @s[$x]++; print(@s); } launch:k* { @k[kernel, stream] = name; } apiret:* /failed/ { @f[status, retval] = max(duration); delete(@k[\"a\", 1]); } END { if (@f[\"a\", 1] > 3) { clear(@f); } }",
		"mem:*, kernret:k /tid.x % 2 == 0 && (smid / 2 > 1 || !pid)/ { $a = addr0; unroll(3) { $a++; } while ($a) { $a--; break; } }",
		"mem:* { @[kind, space, site, opcode] = hist(size); @l[source] = lhist(value, -10, 10, 5); @ = stats(-value); delete(@s[1]); @s[1] = nsecs; }",
		"kernel:func:f, func:g* { @[arg0, device, rand] = count(); } insn:a::b*:ld.global* { @x |= insn << 3 ? ~line : -block; } END { print(@x, 3, 2); clear(@x); zero(@x); if (@x) { return; } else if (1) { @z = @x + 1; } }",
		"kernel:* { @a[tid] = 1; if (@a[tid] == 1) { printf(\"%-5s|%05d|%x%%\\n\", kernel, tid, 0xff); @m = min(1e3); @n = max(10ms); @v = avg(1_000); return; } }",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Compile("-e", text)
		if err != nil {
			if _, ours := errors.AsType[*Error](err); !ours {
				t.Fatalf("%v", err)
			}
			_ = err.Error()
			return
		}
		p.Sites = func() []nvattach.Site { return nil }
		_, settings, err := p.Begin()
		if err != nil {
			t.Fatal(err)
		}
		_ = p.Show(nil, true)
		r, _ := p.NewRunner()
		for _, e := range someEvents {
			_ = r.Event(&e)
		}
		_ = r.End()
		if p.Object == nil {
			return
		}
		plan, err := nvattach.NewPlan([]*object.Object{p.Object}, nil)
		if err != nil {
			t.Fatalf("%s\n%v", text, err)
		}
		maps, err := plan.NewMaps(&mapmem.MapOptions{SMs: 1})
		if err != nil {
			return // too large, as it says
		}
		if maps.Size() > 1<<24 {
			return
		}
		mem := &mapmem.Buffer{Base: 1 << 32, Data: make([]byte, maps.Size())}
		if err := errors.Join(maps.Place(mem.Base), maps.Init(mem, 0, 0)); err != nil {
			t.Fatal(err)
		}
		for _, s := range settings {
			if err := maps.Apply(mem, s, nil); err != nil && !errors.Is(err, mapmem.ErrFull) {
				t.Fatal(err)
			}
		}
		var tables []*mapmem.Table
		for _, m := range maps.All {
			if x, err := maps.Read(mem, m); err == nil && !m.Def.Ring() {
				tables = append(tables, x)
			}
		}
		_ = p.Show(tables, true)
	})
}

// FuzzMemory: whatever the traced program has written into the memory of maps, they are read, shown and
// walked through.
func FuzzMemory(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed, uint8(255), false)
		f.Add(seed, uint8(40), true)
	}
	f.Fuzz(func(t *testing.T, seed uint64, share uint8, fours bool) {
		p, err := Compile("-e", `config = { max_map_keys = 64 } uprobe:a:f { @c = count(); @s = sum(arg0); @n = min(arg0); @x = max(arg0);
			@a = avg(arg0); @t = stats(arg0); @h = hist(arg0); @l = lhist(arg0, -10, 90, 10); @last = arg0; @or |= arg0; @u = ustack;
			@kc[tid] = count(); @kn[tid] = min(arg0); @ka[tid, arg1] = avg(arg0); @kt[tid] = stats(arg0); @kh[tid] = hist(arg0);
			@kl[tid] = lhist(arg0, 0, 100, 1); @kk[ustack] = count(); @kv[arg0] = arg1; printf("%d %d\n", arg0, tid); }
			END { print(@kh, 3, 2); for ($k : @kv) { printf("%d %5d\n", $k.0 / $k.1, $k.1 << $k.0); } zero(@kh); print(@kt, 1, 5); }`)
		if err != nil {
			t.Fatal(err)
		}
		p.Sites = func() []nvattach.Site { return nil }
		plan, err := nvattach.NewPlan([]*object.Object{p.Object}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var data []byte
		maps, mem, err := plan.NewHostMaps(&mapmem.MapOptions{}, func(size uint64) ([]byte, error) {
			data = make([]byte, size)
			return data, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		var readers []*mapmem.Reader
		for _, m := range maps.All {
			if m.Def.Ring() {
				readers = append(readers, maps.NewReader(m))
			}
		}
		rng := rand.New(rand.NewPCG(seed, 0))
		odd := []uint64{0, 1, 4, 63, 1 << 31, 1<<32 - 1, 1 << 32, 1 << 63, 1<<63 - 1, ^uint64(0)}
		for i := 0; i+8 <= len(data); i += 8 {
			if word := data[i : i+8]; uint8(rng.Uint32()) <= share && (!fours || word[0] == 4) {
				v := rng.Uint64()
				if v&3 != 0 {
					v = odd[v>>2%uint64(len(odd))]
				}
				binary.LittleEndian.PutUint64(word, v)
			}
		}
		for _, r := range readers {
			_ = r.Drain(mem, true, func(r mapmem.Record) { _ = p.Record(r.Data) }) // an error says what is wrong
		}
		var tables []*mapmem.Table
		for _, m := range maps.All {
			if x, err := maps.Read(mem, m); err == nil && !m.Def.Ring() {
				tables = append(tables, x)
				_ = x.AppendJSON(nil, nil)
			}
		}
		const most = 8 << 20 // bytes of text
		for _, end := range []bool{false, true} {
			if n := len(shownOf(p.Show(tables, end))); n > most {
				t.Errorf("%d bytes are shown", n)
			}
		}
	})
}
