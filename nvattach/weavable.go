package nvattach

import (
	"fmt"

	"nvtrace/fatbin"
)

// Weavable says why the machine code of a kernel can't get programs; nil if it can. What a
// program needs is another question.
func Weavable(editor *fatbin.CubinEditor, kernel string) error {
	m := &machine{editor: editor, arch: editor.Cubin().Arch, name: kernel}
	if m.analyze(); m.err != nil {
		return m.err
	}
	if s := m.kernel.Special; s != "" {
		return fmt.Errorf("the kernel begins or ends in an unusual way: %s", s)
	}
	return nil
}
