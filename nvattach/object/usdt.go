package object

import (
	"debug/elf"
	"encoding/binary"
	"strings"

	"nvtrace/nvattach/helper"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// libbpf's functions for arguments of USDT probes (usdt.bpf.h) are part of each object that uses
// them. They look up how to find arguments in maps which libbpf fills when it attaches. Here their
// bodies are calls of helpers, which know the probe that a program runs at.
var usdtFunctions = map[string]int32{
	"bpf_usdt_arg": helper.USDTArg, "bpf_usdt_arg_cnt": helper.USDTCount, "bpf_usdt_cookie": helper.Cookie,
}

// usdtMaps begins the names of libbpf's maps.
const usdtMaps = "__bpf_usdt_"

// useUSDT replaces the bodies of libbpf's functions, and drops the maps that they alone use.
func useUSDT(spec *ebpf.CollectionSpec) {
	used := false
	for _, p := range spec.Programs {
		p.Instructions, used = withoutUSDT(p.Instructions, used)
	}
	for name := range spec.Maps {
		if used && strings.HasPrefix(name, usdtMaps) {
			delete(spec.Maps, name)
		}
	}
}

func withoutUSDT(insns asm.Instructions, used bool) (asm.Instructions, bool) {
	var out asm.Instructions
	inside := false
	for i := range insns {
		in := &insns[i]
		if name := in.Symbol(); name != "" {
			id, known := usdtFunctions[name]
			if inside = known; known {
				used = true
				out = append(out, asm.BuiltinFunc(id).Call().WithMetadata(in.Metadata), asm.Return())
			}
		}
		if !inside {
			out = append(out, *in)
		}
	}
	return out, used
}

// strongMaps makes the weak symbols of maps, as libbpf's header has them, like those of others, which
// the reader of objects wants.
func strongMaps(data []byte, f *elf.File) []byte {
	const entry, info, section = 24, 4, 6 // of struct Elf64_Sym
	maps := -1
	for i, s := range f.Sections {
		if s.Name == ".maps" {
			maps = i
		}
	}
	changed := false
	for _, s := range f.Sections {
		if s.Type != elf.SHT_SYMTAB {
			continue
		}
		for at := s.Offset; at+entry <= min(s.Offset+s.FileSize, uint64(len(data))); at += entry {
			b := data[at:]
			if int(binary.LittleEndian.Uint16(b[section:])) != maps || elf.ST_BIND(b[info]) != elf.STB_WEAK {
				continue
			}
			if !changed {
				data = append([]byte(nil), data...)
				b, changed = data[at:], true
			}
			b[info] = elf.ST_INFO(elf.STB_GLOBAL, elf.ST_TYPE(b[info]))
		}
	}
	return data
}
