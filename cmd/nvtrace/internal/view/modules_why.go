package view

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/code"
	"nvtrace/fatbin"
	"nvtrace/fatbin/sass"
	"nvtrace/ioctl"
	"nvtrace/nvattach"
	"nvtrace/nvattach/gpu"
	"nvtrace/traces"
)

// gpuArchs returns the architectures that there are GPUs of.
func gpuArchs() (list []uint32) {
	for _, a := range sass.Architectures() {
		if a.HasGPUs() {
			list = append(list, uint32(a))
		}
	}
	return list
}

// computeArchs are the architectures of which it is known as soon as a process makes an
// object of a compute class (the driver's src/common/sdk/nvidia/inc/class). Others share
// theirs.
var computeArchs = map[string]uint32{
	"VOLTA_COMPUTE_A": 70, "TURING_COMPUTE_A": 75, "AMPERE_COMPUTE_A": 80, "ADA_COMPUTE_A": 89, "HOPPER_COMPUTE_A": 90,
}

// seesGPU notes the GPU's architecture where a call tells it.
func (r *modulesReport) seesGPU(c *ioctl.Call) {
	if c.Class == nil || c.New == 0 || c.Failed() {
		return
	}
	if sm := computeArchs[c.Class.Name]; sm != 0 && !slices.Contains(r.gpus, sm) {
		r.gpus = append(r.gpus, sm)
	}
}

// A driverChoice is what the driver takes of an image on some GPUs.
type driverChoice struct {
	GPUs []string `json:"gpus"`
	SASS string   `json:"sass,omitempty"` // whose machine code; "": it has none for them
	PTX  string   `json:"ptx,omitempty"`  // which PTX could be compiled

	sm      uint32 // of the first
	machine int    // index of the entry with machine code in the image, -1: none
	text    int
}

// choices says what the driver takes of a container on GPUs; first is the index of its
// first entry in the image. GPUs that can't load it are left out.
func choices(c *fatbin.Container, first int, gpus []uint32) []driverChoice {
	var list []driverChoice
	for _, sm := range gpus {
		arch := fatbin.Arch{SM: sm}
		if sm >= 90 {
			arch.Suffix = 'a' // a GPU runs what is for it alone
		}
		ch := driverChoice{sm: sm, machine: -1, text: -1}
		if i := nvattach.Prefers(c.Entries, fatbin.KindELF, arch); i >= 0 {
			ch.machine, ch.SASS = first+i, c.Entries[i].Arch().String()
		}
		if i := nvattach.Prefers(c.Entries, fatbin.KindPTX, arch); i >= 0 {
			ch.text, ch.PTX = first+i, strings.Replace(c.Entries[i].Arch().String(), "sm_", "compute_", 1)
		}
		if ch.machine < 0 && ch.text < 0 {
			continue
		}
		name := fmt.Sprintf("sm_%d", sm)
		if n := len(list); n > 0 && list[n-1].machine == ch.machine && list[n-1].text == ch.text && (ch.machine < 0 || alike(&c.Entries[ch.machine-first], list[n-1].sm, sm)) {
			list[n-1].GPUs = append(list[n-1].GPUs, name)
			continue
		}
		ch.GPUs = []string{name}
		list = append(list, ch)
	}
	return list
}

// alike reports whether machine code can be probed on one GPU as on another: with the same
// flags, and, where there may be a second form of it, for both or neither it is the code
// for the very GPU.
func alike(e *fatbin.Entry, a, b uint32) bool {
	sm := e.Arch().SM
	return untested(a) == untested(b) && (sm < 100 || (sm == a) == (sm == b))
}

// untested reports whether probes go into the machine code of a GPU only if asked to.
func untested(sm uint32) bool {
	return gpu.TestedMachineCode.Without(fatbin.Arch{SM: sm}) != ""
}

// writeWhy explains the kernels that a word means; false if there are none.
func (r *modulesReport) writeWhy(b *bytes.Buffer, v *modulesView) bool {
	found, unread := false, 0
	for _, m := range r.Images {
		if !m.readable {
			unread++
		}
		var names []string
		kernels := make(map[string]*code.KernelReport)
		for i := range m.Entries {
			for j := range m.Entries[i].Kernels {
				k := &m.Entries[i].Kernels[j]
				if matchKernel(v.why, k) && kernels[k.Name] == nil {
					kernels[k.Name] = k
					names = append(names, k.Name)
				}
			}
		}
		if len(names) == 0 {
			continue
		}
		found = true
		var refused map[machineKernel]string
		if !r.simulated() {
			refused = m.refused(r, names)
		}
		for _, name := range names {
			m.writeKernel(b, r, kernels[name], refused)
		}
	}
	if !found {
		fmt.Fprintf(b, "no image has a kernel that %q means; images: %d", cli.Printable(v.why), len(r.Images))
		if unread > 0 {
			fmt.Fprintf(b, ", not readable: %d", unread)
		}
		b.WriteByte('\n')
	}
	return found
}

// A machineKernel is a kernel in an entry with machine code that GPUs take.
type machineKernel struct {
	entry  int
	sm     uint32
	kernel string
}

// refused says why kernels of the image can't be probed in the machine code that the
// driver takes.
func (m *moduleImage) refused(r *modulesReport, names []string) map[machineKernel]string {
	why := make(map[machineKernel]string)
	taken := make(map[int][]uint32) // on which GPUs
	for i := range m.Takes {
		t := &m.Takes[i]
		taken[t.machine] = append(taken[t.machine], t.sm)
	}
	_ = m.read(r, func(data []byte) error { // what can't be read is said elsewhere
		first := 0
		for c, err := range fatbin.NewFile(m.SHA256, data, nil).Containers() {
			if c == nil || err != nil {
				continue
			}
			for i := range c.Entries {
				for _, sm := range taken[first+i] {
					entryRefused(&c.Entries[i], machineKernel{entry: first + i, sm: sm}, names, why)
				}
			}
			first += len(c.Entries)
		}
		return nil
	})
	return why
}

// entryRefused is refused for one entry.
func entryRefused(en *fatbin.Entry, key machineKernel, names []string, why map[machineKernel]string) {
	var editor *fatbin.CubinEditor
	code, err := en.Data(nil)
	if err == nil {
		editor, err = nvattach.EditCode(code, fatbin.Arch{SM: key.sm})
	}
	for _, name := range names {
		failed := err
		if failed == nil {
			failed = nvattach.Weavable(editor, name)
		}
		if failed != nil {
			key.kernel = name
			why[key] = failed.Error()
		}
	}
}

// has reports whether a kernel is in an entry of the image.
func (m *moduleImage) has(entry int, kernel string) bool {
	return entry >= 0 && slices.ContainsFunc(m.Entries[entry].Kernels, func(k code.KernelReport) bool { return k.Name == kernel })
}

// simulated reports whether the driver was that of the simulated GPU, which runs PTX alone.
func (r *modulesReport) simulated() bool {
	return r.Captured != nil && r.Captured.Mode == traces.CaptureSimulator
}

// writeKernel explains one kernel of an image.
func (m *moduleImage) writeKernel(b *bytes.Buffer, r *modulesReport, k *code.KernelReport, refused map[machineKernel]string) {
	fmt.Fprintf(b, "%s\n", cli.Printable(k.Demangled))
	if k.Demangled != k.Name {
		fmt.Fprintf(b, "  symbol: %s\n", cli.Printable(k.Name))
	}
	fmt.Fprintf(b, "  image: %.12s, %s, %s\n", m.SHA256, m.Format, cli.SizeText(uint64(m.Size)))
	if len(m.Takes) == 0 {
		b.WriteString("  no GPU that is looked at can load it\n")
	}
	for i := range m.Takes {
		t := &m.Takes[i]
		if r.simulated() {
			if m.has(t.text, k.Name) {
				fmt.Fprintf(b, "  the simulated GPU runs the PTX for %s: probes go there\n", cli.Printable(t.PTX))
			}
			break
		}
		fmt.Fprintf(b, "  on %s: %s\n", strings.Join(t.GPUs, ", "), cli.Printable(m.way(t, k.Name, refused)))
	}
	for _, l := range m.Loads {
		fmt.Fprintf(b, "  loaded by %s through %s, in process %s", l.libraryName(), cli.Printable(l.Function), l.processName())
		if l.Count > 1 {
			fmt.Fprintf(b, ", %d times", l.Count)
		}
		if l.Failed == l.Count {
			fmt.Fprintf(b, "; the driver refused it (error %d)", l.Error)
		}
		b.WriteByte('\n')
	}
	if slices.Contains(m.Launched, k.Name) {
		b.WriteString("  launched\n")
	}
}

// way says which code of a kernel the driver takes on a GPU, and where probes go.
func (m *moduleImage) way(t *driverChoice, kernel string, refused map[machineKernel]string) string {
	machine, text := m.has(t.machine, kernel), m.has(t.text, kernel)
	why := refused[machineKernel{t.machine, t.sm, kernel}]
	switch {
	case t.machine < 0 && text:
		return "the driver compiles the PTX for " + t.PTX + ": probes go there"
	case !machine && !text:
		return "the driver takes code without this kernel"
	case !machine:
		return "the driver takes the machine code for " + t.SASS + ", which lacks this kernel"
	case why != "" && text:
		return fmt.Sprintf("the driver takes the machine code for %s, which can't be probed (%s): probes go into the PTX for %s in its place", t.SASS, why, t.PTX)
	case why != "":
		return fmt.Sprintf("the driver takes the machine code for %s, there is no PTX: it can't be probed: %s", t.SASS, why)
	case text && untested(t.sm):
		return fmt.Sprintf("the driver takes the machine code for %s: probes go into the PTX for %s in its place, with --untested-arch there", t.SASS, t.PTX)
	case text:
		return fmt.Sprintf("the driver takes the machine code for %s: probes go there, with --machine-code=false into the PTX for %s in its place", t.SASS, t.PTX)
	case untested(t.sm):
		return fmt.Sprintf("the driver takes the machine code for %s, there is no PTX: probes go there with --untested-arch", t.SASS)
	}
	return fmt.Sprintf("the driver takes the machine code for %s, there is no PTX: probes go there", t.SASS)
}
