package probe

import (
	"bytes"
	"errors"
	"fmt"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/code"
	"nvtrace/fatbin"
	"nvtrace/fatbin/sass"
	"nvtrace/nvattach"
)

// machineCode tells of an image whose machine code got the programs.
func (d *dryRun) machineCode(image []byte, r *nvattach.Rewritten, arch fatbin.Arch, sites []nvattach.Site) error {
	was, err1 := cubinFor(image, arch)
	is, err2 := cubinFor(r.Image, arch)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	text := new(bytes.Buffer)
	for i := range r.Kernels {
		k := &r.Kernels[i]
		d.kernel(k, sites)
		a, err := was.Code(k.Name)
		if err != nil {
			return err
		}
		b, err := is.Code(k.Name)
		if err != nil {
			return err
		}
		d.change(takes(a), takes(b), arch)
		if d.f.out != "" && k.Sites() > 0 {
			if err := disassembleWoven(text, a, b, is.Cubin().Arch); err != nil {
				return err
			}
		}
	}
	return d.write(text.String(), "disassembly")
}

// cubinFor returns the machine code that a GPU takes of an image.
func cubinFor(image []byte, arch fatbin.Arch) (*fatbin.CubinEditor, error) {
	if fatbin.Sniff(image) != fatbin.FormatContainer {
		return nvattach.EditCode(image, arch)
	}
	c, _, err := fatbin.ParseContainer(image)
	if err != nil {
		return nil, err
	}
	i := nvattach.Prefers(c.Entries, fatbin.KindELF, arch)
	if i < 0 {
		return nil, fmt.Errorf("no machine code%s", forArch(arch))
	}
	data, err := c.Entries[i].Data(nil)
	if err != nil {
		return nil, err
	}
	return nvattach.EditCode(data, arch)
}

// takes are the resources that a cubin says of a kernel.
func takes(k *fatbin.KernelCode) *resources {
	return &resources{registers: k.Registers, stack: max(k.Frame, k.MinStack), shared: k.Shared, code: k.Size}
}

// disassembleWoven writes a kernel with programs; what is not as it was begins with +.
func disassembleWoven(w *bytes.Buffer, was, is *fatbin.KernelCode, arch fatbin.Arch) error {
	fn := sass.Func{Arch: sass.Arch(arch.SM), Name: is.Name, Code: sass.Words(is.Code), Registers: is.Registers}
	a, err := sass.Analyze(&fn)
	if err != nil {
		return err
	}
	old := sass.Words(was.Code)
	fmt.Fprintf(w, "%s %s: %d instructions, %d of them new, %d registers\n", fn.Arch, cli.Printable(is.Name), len(fn.Code), len(fn.Code)-len(old), is.Registers)
	var b []byte
	for i := range a.Insts {
		mark := byte(' ')
		if i >= len(old) || old[i] != fn.Code[i] {
			mark = '+'
		}
		if i > 0 && a.Blocks[a.BlockOf[i]].Start == i {
			w.WriteByte('\n')
		}
		b = code.AppendInst(append(b[:0], mark), a, i)
		w.Write(b)
	}
	return nil
}
