package nvattach

import (
	"fmt"
	"path"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/nvattach/object"
)

// A Site is one place that a program was put at.
type Site struct {
	Kernel  string // mangled name of the kernel or device function
	Program string
	Kind    object.Kind
	Insn    uint32 // instructions of the function before it
	Text    string // the instruction; "" for an entry and the end of a body
	File    string // of the source, "" if the module does not say
	Line    uint32 // 0 if the module does not say
}

// String says where the place is: "vadd, vadd.cu:12: ld.global.f32 %f1, [%rd6]", and
// without a source line after how many of the function's instructions.
func (s *Site) String() string {
	var b strings.Builder
	b.WriteString(fatbin.Demangle(s.Kernel))
	switch {
	case s.File != "" && s.Line > 0:
		fmt.Fprintf(&b, ", %s:%d", path.Base(s.File), s.Line)
	case s.Insn > 0 || s.Text != "":
		fmt.Fprintf(&b, ", instruction %d", s.Insn)
	}
	if s.Text == "" {
		fmt.Fprintf(&b, ", %s", s.Kind)
	} else {
		fmt.Fprintf(&b, ": %s", s.Text)
	}
	return b.String()
}

// A NumberedSite is a place whose number a program reads.
type NumberedSite struct {
	Number int // ctx->site
	Site
}
