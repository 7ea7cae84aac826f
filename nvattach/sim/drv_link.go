package sim

import (
	"strings"

	"nvtrace/ptx"
)

// A linker is a CUlinkState: PTX is kept apart and linked when what Complete
// returns is loaded.
type linker struct {
	files []*ptx.File
	out   uint64 // where Complete put the image
}

// maxLinked bounds the inputs of a linker.
const maxLinked = 1 << 10

// drvLinks are functions of the linker (cuLink…).
func drvLinks() map[string]handler {
	create := func(c *call) result {
		if r := needsContext(c); r != success {
			return r
		}
		h := c.p.add(&linker{})
		if h == 0 {
			return errOutOfMemory
		}
		c.put64(c.arg(3), h)
		return success
	}
	add := withObject(0, func(c *call, l *linker) result {
		size := c.arg(3)
		if size == 0 || size > maxImage {
			return errInvalidValue
		}
		b := make([]byte, min(size, maxImage))
		if !c.read(c.arg(2), b) {
			return errInvalidValue
		}
		return c.addLinked(l, c.arg(2), b)
	})
	addFile := withObject(0, func(c *call, l *linker) result {
		files, r := c.fileArg(2)
		if r == success {
			l.files = append(l.files, files...)
		}
		return r
	})
	return map[string]handler{
		"cuLinkCreate": create, "cuLinkCreate_v2": create, "cuLinkAddData": add, "cuLinkAddData_v2": add,
		"cuLinkAddFile": addFile, "cuLinkAddFile_v2": addFile,
		"cuLinkComplete": withObject(0, (*call).completeLink),
		"cuLinkDestroy": withObject(0, func(c *call, l *linker) result {
			delete(c.p.objects, c.arg(0))
			if m := c.p.arena.at(l.out); l.out != 0 && m != nil {
				c.p.unmapHost(m)
				_ = c.p.arena.Free(l.out)
				delete(c.p.linked, l.out)
			}
			return success
		}),
	}
}

// addLinked adds an image to a linker.
func (c *call) addLinked(l *linker, addr uint64, b []byte) result {
	if len(l.files) >= maxLinked {
		return errOutOfMemory
	}
	files, r := c.choose(addr, "", b, false)
	if r == errNoBinary {
		c.p.sim.noBinary(c.p, b)
	}
	if r == success {
		l.files = append(l.files, files...)
	}
	return r
}

// completeLink gives the program an image. It is text, for those who look; when it
// is loaded, the files are linked.
func (c *call) completeLink(l *linker) result {
	if len(l.files) == 0 || l.out != 0 {
		return errInvalidValue
	}
	var text strings.Builder
	for _, f := range l.files {
		text.WriteString(strings.TrimRight(f.Src, "\x00"))
		text.WriteByte('\n')
	}
	m, err := c.p.arena.alloc(uint64(text.Len())+1, pageSize, "linked image", internalMemory)
	if err != nil {
		return memoryResult(err)
	}
	copy(m.Data, text.String())
	l.out = m.Base
	c.p.linked[m.Base] = l.files
	c.put64(c.arg(1), m.Base)
	c.maybe64(c.arg(2), uint64(len(m.Data)))
	return success
}
