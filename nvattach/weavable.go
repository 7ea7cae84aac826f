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
		return fmt.Errorf("the kernel begins or ends in a way of its own: %s", s)
	}
	return nil
}

// EditCode opens machine code that a GPU is to run for a change. Cubins for sm_100 and later
// hold the code in a second form (Mercury), of which a driver makes code for other GPUs of
// the family. For the very GPU that the first form is for, the second one is dropped; for
// others such a cubin can't be changed.
func EditCode(cubin []byte, gpu fatbin.Arch) (*fatbin.CubinEditor, error) {
	c, err := fatbin.ParseCubin(cubin)
	if err != nil {
		return nil, err
	}
	return fatbin.NewCubinEditor(cubin, &fatbin.CubinEditOptions{DropMercury: c.Arch.SM == gpu.SM})
}
