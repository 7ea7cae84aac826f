package code

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/fatbin"
)

// fatbinReport is a file's GPU code, as printed.
type fatbinReport struct {
	File       string            `json:"file"`
	Format     string            `json:"format"`
	Bytes      int64             `json:"bytes"`
	Containers []containerReport `json:"containers"`
	Errors     []string          `json:"errors,omitempty"`
}

type containerReport struct {
	Offset  int64         `json:"offset"` // -1: the file is a bare cubin or PTX
	Member  string        `json:"member,omitempty"`
	Section string        `json:"section,omitempty"`
	Tail    string        `json:"tail,omitempty"` // hexadecimal
	Entries []EntryReport `json:"entries"`
}

// EntryReport is an entry of a fat binary, for JSON and tables.
type EntryReport struct {
	Number      int            `json:"number"` // in the container, from 1
	Offset      int64          `json:"offset"` // in the container
	Kind        string         `json:"kind"`
	Arch        string         `json:"arch"`
	Version     string         `json:"version"`
	Compression string         `json:"compression"`
	Stored      int64          `json:"stored_bytes"`
	Size        uint64         `json:"content_bytes"`
	Flags       uint64         `json:"flags"`
	FlagNames   string         `json:"flag_names"`
	Ident       string         `json:"ident,omitempty"`
	Options     string         `json:"options,omitempty"`
	Attrs       string         `json:"attributes,omitempty"` // hexadecimal
	Toolkit     string         `json:"toolkit,omitempty"`
	Relocatable bool           `json:"relocatable,omitempty"`
	Kernels     []KernelReport `json:"kernels,omitempty"`
	Error       string         `json:"error,omitempty"`
}

// KernelReport is a kernel of an entry.
type KernelReport struct {
	Name       string        `json:"name"` // mangled
	Demangled  string        `json:"demangled"`
	Code       uint64        `json:"code_bytes,omitempty"`
	Registers  int           `json:"registers,omitempty"`
	Stack      int           `json:"stack_bytes,omitempty"`
	Shared     uint64        `json:"shared_bytes,omitempty"`
	Barriers   int           `json:"barriers,omitempty"`
	MaxThreads []uint32      `json:"max_threads,omitempty"`
	Cluster    []uint32      `json:"cluster,omitempty"`
	ParamBytes int           `json:"param_bytes,omitempty"`
	Params     []paramReport `json:"params,omitempty"`
}

type paramReport struct {
	Offset int `json:"offset"`
	Size   int `json:"size"`
}

func fatbinList(e *cli.Env, args []string) int {
	var ff FatbinFlags
	var asJSON cli.OptString
	var kernels bool
	fs := cli.NewFlagSet(e, "fatbin ls", "[flags] FILE...")
	ff.register(fs)
	asJSON.RegisterJSON(fs)
	fs.BoolVar(&kernels, "kernels", false, "list the kernels too, which decompresses the entries")
	fs.BoolVar(&kernels, "k", false, "short for --kernels")
	if status, ok := cli.Parse(fs, args); !ok {
		return status
	}
	if err := e.Inputs(fs.Args()); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	sel, err := ff.filter()
	if err != nil {
		return e.Fail(cli.ExitUsage, "%v", err)
	}
	if fs.NArg() == 0 {
		return e.Fail(cli.ExitUsage, "fatbin ls wants a file: nvtrace fatbin ls FILE, an executable or library with GPU code")
	}
	status := cli.ExitOK
	reports := []*fatbinReport{}
	for _, name := range fs.Args() {
		r, err := ListFile(e, name, &ff, sel, kernels)
		if err != nil {
			e.Notice("%v", err)
			status = cli.ExitFailed
		}
		if r == nil {
			continue
		}
		for _, msg := range r.Errors {
			e.Notice("%s", msg)
			status = cli.ExitFailed
		}
		if asJSON.Given {
			reports = append(reports, r)
		} else if err := r.print(e, kernels); err != nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
	}
	if asJSON.Given {
		if err := e.WriteJSON(e.Stdout, asJSON.Value, reports); err != nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
	}
	return status
}

// ListFile reads a file's containers. With an error comes what was read before.
func ListFile(e *cli.Env, name string, ff *FatbinFlags, sel EntryFilter, kernels bool) (*fatbinReport, error) {
	e.Reads(name)
	f, o, err := ff.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := KnownFormat(f, o.Everywhere, searchAny); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	r := &fatbinReport{File: name, Format: f.Format().String(), Bytes: f.Size(), Containers: []containerReport{}}
	work := inspection{file: f, opts: o}
	err = f.Guard(func() error {
		for c, err := range f.Containers() {
			if err != nil {
				r.Errors = append(r.Errors, err.Error())
			}
			if c == nil {
				continue
			}
			cr := containerReport{Offset: c.Offset, Member: c.Member, Section: c.Section, Tail: hex.EncodeToString(c.Tail), Entries: []EntryReport{}}
			for i := range c.Entries {
				if en := &c.Entries[i]; sel.match(en) {
					cr.Entries = append(cr.Entries, NewEntryReport(i+1, en))
					work.entries = append(work.entries, en)
				}
			}
			r.Containers = append(r.Containers, cr)
		}
		return nil
	})
	if kernels && err == nil {
		for i := range r.Containers {
			for j := range r.Containers[i].Entries {
				work.reports = append(work.reports, &r.Containers[i].Entries[j])
			}
		}
		err = work.run(cli.NewProgress(e, name, int64(len(work.entries)), "entries"))
		for i, rep := range work.reports {
			if rep.Error != "" {
				r.Errors = append(r.Errors, fmt.Sprintf("%s: %s for %s at +0x%x of its container: %s", name, rep.Kind, rep.Arch, work.entries[i].Offset(), rep.Error))
			}
		}
	}
	return r, err
}

// NewEntryReport describes an entry, as far as it can be read.
func NewEntryReport(number int, en *fatbin.Entry) EntryReport {
	major, minor := en.Version()
	return EntryReport{
		Number: number, Offset: en.Offset(), Kind: en.Kind().String(), Arch: en.Arch().String(),
		Version: fmt.Sprintf("%d.%d", major, minor), Compression: en.Compression().String(),
		Stored: en.StoredSize(), Size: en.Size(), Flags: uint64(en.Flags()), FlagNames: en.Flags().String(),
		Ident: en.Ident(), Options: en.Options(), Attrs: hex.EncodeToString(en.Attrs()),
	}
}

// inspection decompresses entries on all cores and looks for their kernels.
type inspection struct {
	file    *fatbin.File
	opts    *fatbin.Options
	entries []*fatbin.Entry
	reports []*EntryReport // of the same entries
	kernels atomic.Int64   // that are listed
}

// MaxKernels returns how many kernels of a file are listed: names take little room
// once they are compressed.
func MaxKernels(size int64) int64 { return 1<<16 + size/64 }

// run returns when all is done; p counts entries.
func (w *inspection) run(p *cli.Progress) error {
	workers := min(runtime.GOMAXPROCS(0), len(w.entries))
	errs := make([]error, workers)
	var next atomic.Int64
	var mu sync.Mutex // guards p
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			// Each goroutine reads the mapping, so each has a guard.
			errs[i] = w.file.Guard(func() error {
				x := fatbin.NewInflater(w.opts)
				defer x.Close()
				for n := next.Add(1) - 1; n < int64(len(w.entries)); n = next.Add(1) - 1 {
					r := w.reports[n]
					r.Inspect(x, w.entries[n])
					if limit := MaxKernels(w.file.Size()); w.kernels.Add(int64(len(r.Kernels))) > limit && len(r.Kernels) > 0 {
						r.Error = fmt.Sprintf("%d kernels, which are not listed: the file has more than %d", len(r.Kernels), limit)
						r.Kernels = nil
					}
					mu.Lock()
					p.At(n)
					mu.Unlock()
				}
				return nil
			})
		})
	}
	wg.Wait()
	p.Clear()
	return errors.Join(errs...)
}

// Inspect finds an entry's kernels.
func (r *EntryReport) Inspect(x *fatbin.Inflater, en *fatbin.Entry) {
	data, err := x.Data(en)
	switch {
	case errors.Is(err, fatbin.ErrOpaque):
		return // as it should be
	case err != nil:
		r.Error = err.Error() + contentHint(err)
		return
	}
	switch en.Kind() {
	case fatbin.KindPTX:
		for _, name := range fatbin.ScanPTX(data).Entries {
			r.Kernels = append(r.Kernels, KernelReport{Name: name, Demangled: fatbin.Demangle(name)})
		}
	case fatbin.KindELF:
		c, err := fatbin.ParseCubin(data)
		if err != nil {
			r.Error = err.Error()
		}
		if c != nil {
			r.Toolkit, r.Relocatable = c.Toolkit, c.Relocatable
			for i := range c.Kernels {
				r.Kernels = append(r.Kernels, newKernelReport(&c.Kernels[i]))
			}
		}
	}
}

func newKernelReport(k *fatbin.Kernel) KernelReport {
	r := KernelReport{
		Name: k.Name, Demangled: fatbin.Demangle(k.Name), Code: k.Size, Registers: k.Registers,
		Stack: max(k.Frame, k.MinStack), Shared: k.Shared, Barriers: k.Barriers, ParamBytes: k.ParamBytes,
	}
	if k.MaxThreads != [3]uint32{} {
		r.MaxThreads = k.MaxThreads[:]
	}
	if k.ReqThreads != [3]uint32{} {
		r.MaxThreads = k.ReqThreads[:]
	}
	if k.Cluster != [3]uint32{} {
		r.Cluster = k.Cluster[:]
	}
	for _, p := range k.Params {
		r.Params = append(r.Params, paramReport{p.Offset, p.Size})
	}
	return r
}

// print draws the tables of a file.
func (r *fatbinReport) print(e *cli.Env, kernels bool) error {
	var rows, kernelRows [][]string
	var stored, size uint64
	for i := range r.Containers {
		c := &r.Containers[i]
		for j := range c.Entries {
			en := &c.Entries[j]
			stored += uint64(en.Stored)
			size += en.Size
			id := fmt.Sprintf("%d.%d", i+1, en.Number)
			rows = append(rows, []string{
				id, place(c), en.Kind, en.Arch, en.Version, strconv.FormatInt(en.Stored, 10), strconv.FormatUint(en.Size, 10),
				en.Compression, otherFlags(en.Flags), strings.TrimSpace(en.Ident + " " + en.Options),
			})
			for _, k := range en.Kernels {
				kernelRows = append(kernelRows, k.row(id, en))
			}
		}
	}
	title := fmt.Sprintf("%s: %s; containers: %d, entries: %d, stored: %s, content: %s", cli.Printable(r.File), r.Format,
		len(r.Containers), len(rows), cli.SizeText(stored), cli.SizeText(size))
	if len(rows) == 0 {
		_, err := fmt.Fprintln(e.Stdout, title)
		return err
	}
	header := []string{"entry", "where", "kind", "arch", "version", ">stored", ">content", "compression", "flags", "ident, options"}
	if err := alignRows(e.Stdout, title, header, rows); err != nil || !kernels {
		return err
	}
	if len(kernelRows) == 0 {
		_, err := fmt.Fprintln(e.Stdout, "no kernels")
		return err
	}
	header = []string{"entry", "arch", ">code", ">regs", ">stack", ">shared", ">barriers", "threads", ">params", "kernel"}
	return alignRows(e.Stdout, fmt.Sprintf("%d kernels", len(kernelRows)), header, kernelRows)
}

// row is a kernel's; PTX says nothing of what a compiler decides.
func (k *KernelReport) row(id string, en *EntryReport) []string {
	if en.Kind == fatbin.KindPTX.String() {
		return []string{id, en.Arch + " ptx", "", "", "", "", "", "", "", cli.Printable(k.Demangled)}
	}
	threads := ""
	if len(k.MaxThreads) == 3 {
		threads = strings.TrimSuffix(strings.TrimSuffix(fmt.Sprintf("%d,%d,%d", k.MaxThreads[0], k.MaxThreads[1], k.MaxThreads[2]), ",1"), ",1")
	}
	return []string{
		id, en.Arch, strconv.FormatUint(k.Code, 10), strconv.Itoa(k.Registers), strconv.Itoa(k.Stack),
		strconv.FormatUint(k.Shared, 10), strconv.Itoa(k.Barriers), threads,
		fmt.Sprintf("%d: %d B", len(k.Params), k.ParamBytes), cli.Printable(k.Demangled),
	}
}

// place says where a container is.
func place(c *containerReport) string {
	switch {
	case c.Offset < 0:
		return "the file"
	case c.Member != "":
		return fmt.Sprintf("%s+0x%x", cli.Printable(c.Member), c.Offset)
	case c.Section != "":
		return fmt.Sprintf("%s 0x%x", cli.Printable(c.Section), c.Offset)
	}
	return fmt.Sprintf("0x%x", c.Offset)
}

// otherFlags leaves out what has a column, or is so everywhere.
func otherFlags(f uint64) string {
	usual := fatbin.Flag64Bit | fatbin.FlagLinux | fatbin.FlagLZ4 | fatbin.FlagZstd | fatbin.FlagArch | fatbin.FlagFamily
	return (fatbin.Flags(f) &^ usual).String()
}

// alignRows draws what renderTable does. A library has tens of thousands of
// entries, for which that takes twenty times as long.
func alignRows(w io.Writer, title string, header []string, rows [][]string) error {
	widths := make([]int, len(header))
	for i, h := range header {
		widths[i] = len(strings.TrimPrefix(h, ">"))
	}
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	out := bufio.NewWriterSize(w, 64<<10)
	out.WriteString(title)
	var line []byte
	put := func(row []string) {
		line = append(line[:0], "\n "...)
		for i, cell := range row {
			blanks := widths[i] - utf8.RuneCountInString(cell)
			line = append(line, ' ')
			if strings.HasPrefix(header[i], ">") {
				line, blanks = append(line, strings.Repeat(" ", blanks)...), 0
			}
			line = append(line, cell...)
			line = append(line, strings.Repeat(" ", blanks+1)...)
		}
		out.Write(bytes.TrimRight(line, " "))
	}
	names := make([]string, len(header))
	for i, h := range header {
		names[i] = strings.TrimPrefix(h, ">")
	}
	put(names)
	for _, row := range rows {
		put(row)
	}
	out.WriteString("\n")
	return out.Flush()
}
