package view

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/code"
	"nvtrace/fatbin"
	"nvtrace/traces"
)

// modulesView is what the verb modules shows.
type modulesView struct {
	kernels      bool
	files        bool
	why, extract string
}

// write prints the report. missing says that the kernel that was asked for is in
// no image.
func (v *modulesView) write(w io.Writer, r *modulesReport) (missing bool, err error) {
	b := cli.NewPage(w)
	r.writeState(&b.Buffer)
	if v.why != "" {
		missing = !r.writeWhy(&b.Buffer, v)
		_, err := w.Write(b.Bytes())
		return missing, err
	}
	if err := cli.RenderTable(b, "", []string{
		"image", "format", ">size", "PTX for", "SASS for", ">kernels", ">launched", ">loads", ">failed", "function", "called by", "process", ">first", "handle",
	}, r.rows()); err != nil {
		return false, err
	}
	for _, m := range r.Images {
		if m.Missing != "" {
			fmt.Fprintf(b, "%.12s: %s\n", m.SHA256, cli.Printable(m.Missing))
		}
		for _, s := range m.Replaced {
			fmt.Fprintf(b, "%.12s: the driver was given %.12s instead\n", m.SHA256, s)
		}
	}
	if v.kernels {
		for _, m := range r.Images {
			if err := cli.RenderTable(b, fmt.Sprintf("%.12s", m.SHA256), []string{
				"code", ">regs", ">stack", ">shared", "params", "launched", "kernel",
			}, m.kernelRows()); err != nil {
				return false, err
			}
		}
	}
	if r.More > 0 {
		fmt.Fprintf(b, "… and %s of images that are not listed\n", cli.Counted(uint64(r.More), "load"))
	}
	if r.Captured != nil {
		fmt.Fprintf(b, "captured: %s\n", cli.Printable(r.Captured.String()))
	}
	for _, n := range r.Notes {
		(&Layout{rows: DefaultRows, all: "nvtrace report --rows 0 lists them"}).writeNote(b, "", n)
	}
	_, err = w.Write(b.Bytes())
	return false, err
}

// writeState says first what is not there.
func (r *modulesReport) writeState(b *bytes.Buffer) {
	switch {
	case len(r.Gaps) > 0:
		fmt.Fprintf(b, "INCOMPLETE: what escaped: %d\n", len(r.Gaps)+r.MoreGaps)
		for _, g := range r.Gaps {
			fmt.Fprintf(b, "  %s\n", cli.Printable(g))
		}
	case r.Captured == nil && len(r.Images) == 0:
		b.WriteString("no images: they were not captured, or the recording was cut off\n")
	case r.Captured == nil:
		b.WriteString("INCOMPLETE: capturing did not come to its end\n")
	case r.Captured.Mode == traces.CaptureInterposer:
		b.WriteString("INCOMPLETE: seen by the interposer alone; programs can load images past it (--interpose=only)\n")
	case !r.Complete:
		b.WriteString("INCOMPLETE: the recording is cut off, damaged or lacks events\n")
	case len(r.Images) == 0:
		b.WriteString("the programs gave the CUDA driver no code\n")
	}
}

func (r *modulesReport) rows() (rows [][]string) {
	for _, m := range r.Images {
		c := m.code()
		for i, l := range m.Loads {
			row := make([]string, 14)
			if i == 0 {
				row[0], row[1], row[2] = m.SHA256[:min(12, len(m.SHA256))], m.Format, cli.SizeText(uint64(m.Size))
				row[3], row[4] = archList(c.ptx), archList(c.sass)
				row[5], row[6] = cli.Count(uint64(len(c.kernels))), cli.Count(uint64(len(m.Launched)))
			}
			row[7], row[8] = strconv.Itoa(l.Count), ""
			if l.Failed > 0 {
				row[8] = strconv.Itoa(l.Failed)
				if l.Error != 0 {
					row[8] += fmt.Sprintf(" (error %d)", l.Error)
				}
			}
			row[9], row[10], row[11] = cli.Printable(l.Function), l.libraryName(), l.processName()
			row[12] = strconv.FormatFloat(float64(l.First)/1e9, 'f', 6, 64)
			if l.Handle != 0 {
				row[13] = fmt.Sprintf("%#x", l.Handle)
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// archList shortens "sm_100", "sm_90a" to "90a 100".
func archList(list []string) string {
	short := make([]string, len(list))
	for i, a := range list {
		short[i] = strings.TrimPrefix(a, "sm_")
	}
	slices.SortFunc(short, func(a, b string) int { // by number
		return cmp.Or(cmp.Compare(len(strings.TrimRight(a, "af")), len(strings.TrimRight(b, "af"))), strings.Compare(a, b))
	})
	return strings.Join(short, " ")
}

func (m *moduleImage) kernelRows() (rows [][]string) {
	for i := range m.Entries {
		en := &m.Entries[i]
		for j := range en.Kernels {
			k := &en.Kernels[j]
			row := []string{codeName(en), "", "", "", "", "", cli.Printable(k.Demangled)}
			if en.Kind == fatbin.KindELF.String() {
				row[1], row[2], row[3] = strconv.Itoa(k.Registers), cli.Count(uint64(k.Stack)), cli.Count(k.Shared)
				row[4] = fmt.Sprintf("%d: %d B", len(k.Params), k.ParamBytes)
			}
			if slices.Contains(m.Launched, k.Name) {
				row[5] = "yes"
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// codeName is "SASS sm_90a" or "PTX compute_90a".
func codeName(en *code.EntryReport) string {
	switch en.Kind {
	case fatbin.KindPTX.String():
		return "PTX " + strings.Replace(en.Arch, "sm_", "compute_", 1)
	case fatbin.KindELF.String():
		return "SASS " + en.Arch
	}
	return en.Kind + " " + en.Arch
}
