package fatbin

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/ianlancetaylor/demangle"

	"nvtrace/traces/escape"
)

// Demangle returns a C++ function's name as it is written in the source, with
// its parameters; names that are not mangled are returned as they are. What
// would be longer than 4 KiB is cut.
func Demangle(name string) string {
	return escape.String(demangle.Filter(name, demangle.NoClones, demangle.MaxLength(12)))
}

// DemangleShort is Demangle without parameters and arguments of templates, as the frames of a stack are
// shown: what calls what is seen without them, and with them a line can have thousands of letters.
func DemangleShort(name string) string {
	return escape.String(demangle.Filter(name, demangle.NoParams, demangle.NoTemplateParams, demangle.NoEnclosingParams, demangle.NoClones, demangle.MaxLength(12)))
}

// Namer names the files that a file's entries are extracted to, as cuobjdump
// does: "kernels.sm_90a.cubin" after the identifier, or "libfoo.3.sm_90a.cubin"
// after the file, with a count for each kind. Where cuobjdump would use a name
// twice (and write over the first file) a number keeps them apart, and where it
// leaves the 'f' of sm_100f out, it stays. A Namer is for one goroutine.
type Namer struct {
	stem  string
	count map[Kind]int
	used  map[string]int
}

// NewNamer returns a Namer for the entries of a file.
func NewNamer(file string) *Namer {
	return &Namer{stem: stem(file), count: make(map[Kind]int), used: make(map[string]int)}
}

// Next returns the name for the next entry, which has no folder in it. Call it
// for every entry in the file's order, also for those that are not extracted.
func (n *Namer) Next(c *Container, e *Entry) string {
	n.count[e.Kind()]++
	base := fmt.Sprintf("%s.%d", n.stem, n.count[e.Kind()])
	if ident := e.Ident(); ident != "" {
		base = stem(ident)
	} else if c != nil && c.Offset < 0 {
		base = n.stem // a file of its own
	}
	base += "." + e.Arch().String()
	name := base + extension(e)
	for n.used[name] > 0 {
		n.used[name]++
		name = fmt.Sprintf("%s.%d%s", base, n.used[name], extension(e))
	}
	n.used[name]++
	return name
}

// extension follows the kind; what is stored and can't be decompressed says so.
func extension(e *Entry) string {
	ext := fmt.Sprintf(".kind%d", uint16(e.Kind()))
	switch e.Kind() {
	case KindPTX:
		ext = ".ptx"
	case KindELF:
		ext = ".cubin"
	case KindLTOIR:
		ext = ".ltoir"
	}
	if e.Flags()&FlagScrambled != 0 {
		ext += ".scrambled"
	}
	return ext
}

// stem cuts folders and the extension from a name, and replaces what must not be
// in the name of a file: identifiers come from the image.
func stem(name string) string {
	name = filepath.Base(name)
	name = strings.TrimSuffix(name, filepath.Ext(name))
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '/' || r == '\\' || r == 0xfffd {
			return '_'
		}
		return r
	}, strings.ToValidUTF8(name, "_"))
	if name = strings.TrimLeft(name, "."); name == "" {
		name = "image"
	}
	if r := []rune(name); len(r) > 64 { // runes of 4 bytes and the rest fit in 255
		name = string(r[:48])
	}
	return name
}
