package view

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/code"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/fatbin"
	"nvtrace/nvattach/capture"
	"nvtrace/traces"
	"nvtrace/traces/glob"
)

// ModulesVerb lists the code images of a recording.
func ModulesVerb(e *cli.Env, args, command []string) int {
	var asJSON cli.OptString
	var v modulesView
	var required bool
	var arch string
	fl := cli.NewFlagSet(e, "modules", "[flags] run.nvt")
	asJSON.RegisterJSON(fl)
	fl.BoolVar(&v.kernels, "v", false, "list the kernels of each image")
	fl.StringVar(&v.extract, "extract", "", "write the images into `DIR`, which is made")
	fl.StringVar(&v.why, "why", "", "say where a `KERNEL` comes from, which code of it the driver takes, and whether that can be probed (a name, mangled or not, a part of one, or a pattern with *)")
	fl.StringVar(&arch, "arch", "", "say what the driver takes on a GPU of this `ARCH`, e.g. sm_90 (default: the recorded GPU's, or all)")
	fl.BoolVar(&v.files, "files", false, "read images that are not beside the recording from the files that it names; only for a recording that you trust")
	fl.BoolVar(&required, "require-complete", false, "exit with status 1 if something escaped, or nothing says that all was captured")
	name, status, ok := e.OneRecording(fl, args, command)
	if !ok {
		return status
	}
	var gpus []uint32
	if arch != "" {
		a, err := fatbin.ParseArch(arch)
		if err != nil {
			return e.Fail(cli.ExitUsage, "--arch: %v", err)
		}
		gpus = []uint32{a.SM}
	}
	r, damage := readModules(e, name, v.files, gpus)
	if r == nil {
		return e.Fail(cli.ExitFailed, "%v", damage)
	}
	extracted := true
	if v.extract != "" {
		var err error
		if extracted, err = r.extract(e, v.extract); err != nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
	}
	missing := false
	status = e.Answer(&asJSON, damage, r, func() (err error) {
		missing, err = v.write(e.Stdout, r)
		return err
	})
	if status == cli.ExitOK && (missing || !extracted || required && !r.Complete) {
		return cli.ExitDiffers
	}
	return status
}

// modulesReport is what a recording and its module store say of code images.
type modulesReport struct {
	// Complete: all images are here, see traces.Captured.
	Complete bool             `json:"complete"`
	Captured *traces.Captured `json:"captured"`            // what capturing came to; nil: it did not come to its end, or was off
	Gaps     []string         `json:"gaps"`                // what escaped
	MoreGaps int              `json:"more_gaps,omitempty"` // that are not among Gaps
	Notes    []string         `json:"notes"`               // of capturing
	Images   []*moduleImage   `json:"images"`
	More     int              `json:"more_images,omitempty"` // loads of others than those in Images

	gpus      []uint32 // architectures of the run's GPUs; none: not known
	recording string
	store     *capture.Store
	files     bool // images that the store lacks are read where the recording says that they lay
}

// moduleImage is a code image that the driver was given, once or more often.
type moduleImage struct {
	SHA256   string             `json:"sha256"`
	Format   string             `json:"format"`
	Size     int64              `json:"size"`
	Replaced []string           `json:"replaced,omitempty"` // hashes of what the driver was given instead
	Missing  string             `json:"missing,omitempty"`  // why its bytes can't be looked at
	Entries  []code.EntryReport `json:"entries"`
	// Takes says what the driver takes of the image on the run's GPUs, or, where these are
	// not known, on all.
	Takes    []driverChoice `json:"driver_takes"`
	Loads    []*moduleLoad  `json:"loads"`
	Launched []string       `json:"launched"` // kernels, mangled

	readable bool // its bytes are to be had
}

// moduleLoad is one way by which an image was loaded.
type moduleLoad struct {
	PID      int32  `json:"pid"`
	Process  string `json:"process"`  // the executable
	Library  string `json:"library"`  // that called
	Function string `json:"function"` // the loader
	Count    int    `json:"count"`
	Failed   int    `json:"failed"`         // of these, refused by the driver or never ended
	Error    int64  `json:"error"`          // the CUresult of the last that failed
	First    int64  `json:"first"`          // ns since the recording began
	Handle   uint64 `json:"handle"`         // of the first that worked
	File     string `json:"file,omitempty"` // where the bytes were
	Offset   int64  `json:"offset,omitempty"`
	Origin   string `json:"origin"` // who saw it
}

// What a recording may make the report hold; what is beyond that is counted.
const (
	maxImages    = 1 << 14
	maxTexts     = 1 << 12 // gaps; notes
	MaxTextBytes = 1 << 20 // of the gaps; of the notes
)

// readModules reads a recording and the images beside it. The report is nil if
// there is nothing to read; else the error says what is damaged. Without gpus, which are
// architectures, the recording's are looked for.
func readModules(e *cli.Env, name string, files bool, gpus []uint32) (*modulesReport, error) {
	rd, d, err := new(cli.ReadFlags).Open(e, name)
	if err != nil {
		return nil, err
	}
	defer rd.Close()
	g := &moduleGatherer{
		r:      &modulesReport{Gaps: []string{}, Notes: []string{}, Images: []*moduleImage{}, recording: name, files: files, gpus: gpus},
		images: make(map[string]*moduleImage), exes: make(map[int32]string), loads: make(map[loadKey]*moduleLoad), known: make(map[[3]string]bool),
	}
	feed := observe.NewFeed(d, g)
	feed.Undecoded = gpus != nil // calls tell what GPUs there are
	damage := cli.Each(rd, e.Notice, feed.Event)
	g.r.Complete = g.r.Captured.Complete() && len(g.r.Gaps) == 0 && g.r.More == 0 && !g.lost && rd.Complete() && damage == nil
	g.r.store, err = capture.OpenStore(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		damage = errors.Join(damage, err)
	}
	p := cli.NewProgress(e, name, int64(len(g.r.Images)), "images")
	for i, m := range g.r.Images {
		m.inspect(g.r)
		p.At(int64(i))
	}
	p.Clear()
	return g.r, damage
}

// moduleGatherer makes a report of events.
type moduleGatherer struct {
	r      *modulesReport
	images map[string]*moduleImage
	loads  map[loadKey]*moduleLoad
	known  map[[3]string]bool // what first has been asked for
	texts  int                // bytes of the gaps
	notes  int                // of the notes
	exes   map[int32]string   // executable of each process
	lost   bool               // events could not be recorded
}

// loadKey tells ways to load an image apart.
type loadKey struct {
	sum, library, function string
	pid                    int32
}

// Observe implements observe.Observer.
func (g *moduleGatherer) Observe(e *observe.Event) {
	ev := e.Event
	switch ev.Kind {
	case traces.KindIoctl:
		g.r.seesGPU(e.Call)
	case traces.KindExec:
		g.exes[ev.PID] = ev.Path
	case traces.KindFork:
		if ev.Flags&traces.FlagThread == 0 {
			g.exes[ev.Child] = g.exes[ev.PID]
		}
	case traces.KindGap:
		g.gap(ev.Text)
	case traces.KindLost:
		g.lost = true
	case traces.KindCaptured:
		if ev.Captured != nil {
			captured := *ev.Captured
			g.r.Captured = &captured
		}
	case traces.KindNote:
		if c := capture.OldNote(ev.Text); c != nil {
			g.r.Captured = c
		} else if strings.HasPrefix(ev.Text, capture.NoteFiles) {
			g.note(ev.Text)
		}
	case traces.KindImage:
		switch {
		case ev.Image == nil:
		case ev.Image.SHA256 == "":
			g.unknown(ev)
		default:
			g.load(ev)
		}
	case traces.KindKernel:
		if ev.Image != nil && ev.Name != "" {
			m := g.image(ev.Image)
			if m != nil && g.first(m.SHA256, "launched", ev.Name) {
				m.Launched = append(m.Launched, ev.Name)
			}
		}
	}
}

// gap notes what escaped.
func (g *moduleGatherer) gap(text string) {
	if g.texts += len(text); len(g.r.Gaps) >= maxTexts || g.texts > MaxTextBytes {
		g.r.MoreGaps++
		return
	}
	g.r.Gaps = append(g.r.Gaps, text)
}

// note keeps a remark about capturing.
func (g *moduleGatherer) note(text string) {
	if g.notes += len(text); len(g.r.Notes) < maxTexts && g.notes <= MaxTextBytes {
		g.r.Notes = append(g.r.Notes, text)
	}
}

// first says whether something is new for an image.
func (g *moduleGatherer) first(image, what, name string) bool {
	key := [3]string{image, what, name}
	if g.known[key] {
		return false
	}
	g.known[key] = true
	return true
}

func (g *moduleGatherer) image(i *traces.Image) *moduleImage {
	m := g.images[i.SHA256]
	if m == nil && len(g.r.Images) < maxImages {
		m = &moduleImage{SHA256: i.SHA256, Format: i.Format, Size: i.Size, Entries: []code.EntryReport{}, Takes: []driverChoice{}, Loads: []*moduleLoad{}, Launched: []string{}}
		g.images[i.SHA256] = m
		g.r.Images = append(g.r.Images, m)
	}
	return m
}

// unknown tells of an image whose format nobody knows: there are no bytes.
func (g *moduleGatherer) unknown(ev *traces.Event) {
	text := fmt.Sprintf("process %d gave %s an image of an unknown format, which was not captured", ev.PID, ev.Name)
	if ev.Ret != 0 {
		text += fmt.Sprintf("; the driver refused it (error %d)", ev.Ret)
	}
	if g.first("", "note", text) {
		g.note(text)
	}
}

func (g *moduleGatherer) load(ev *traces.Event) {
	m := g.image(ev.Image)
	if m == nil {
		g.r.More++
		return
	}
	if s := ev.Image.Replaced; s != "" && g.first(m.SHA256, "replaced", s) {
		m.Replaced = append(m.Replaced, s)
	}
	key := loadKey{m.SHA256, ev.Path, ev.Name, ev.PID}
	l := g.loads[key]
	if l == nil {
		l = &moduleLoad{
			PID: ev.PID, Process: g.exes[ev.PID], Library: ev.Path, Function: ev.Name, First: ev.Time,
			File: ev.Image.File, Offset: ev.Image.Offset, Origin: ev.Image.Origin,
		}
		g.loads[key] = l
		m.Loads = append(m.Loads, l)
	}
	l.Count++
	switch {
	case ev.Ret != 0 || ev.Flags&traces.FlagUnfinished != 0:
		l.Failed++
		l.Error = ev.Ret
	case l.Handle == 0:
		l.Handle = ev.Image.Handle
	}
}

// extract writes the images, named by their hash and what they are. Where not all can be
// written, it says why, and returns false.
func (r *modulesReport) extract(e *cli.Env, dir string) (all bool, err error) {
	if len(r.Images) == 0 {
		why := "the programs gave the CUDA driver no code"
		if r.Captured == nil {
			why = "images were not captured (nvtrace --modules -o run.nvt -- command captures them), or the recording was cut off"
		}
		e.Notice("%s: no image to extract: %s", r.recording, why)
		return false, nil
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return false, err
	}
	n := 0
	for _, m := range r.Images {
		name := filepath.Join(dir, m.file())
		var failed error
		err := m.read(r, func(data []byte) error {
			failed = e.WriteFile(name, data, cli.ModePrivate)
			return nil
		})
		switch {
		case failed != nil:
			return false, failed
		case err != nil:
			e.Notice("%.12s: %v", m.SHA256, err)
		default:
			n++
		}
	}
	if n == len(r.Images) {
		return true, nil
	}
	if r.store == nil {
		e.Notice("images are kept in the folder %s: it must be beside the recording", capture.StoreDir(r.recording))
	}
	e.Notice("%s: extracted %d of %d images", r.recording, n, len(r.Images))
	return false, nil
}

// file names the image: "0123456789abcdef.cubin".
func (m *moduleImage) file() string {
	ext := map[string]string{"fatbin": "fatbin", "cubin": "cubin", "ptx": "ptx", "archive": "a", "nvvm": "ltoir"}[m.Format]
	if ext == "" {
		ext = "bin"
	}
	return m.SHA256[:min(len(m.SHA256), 16)] + "." + ext
}

// matchKernel reports whether a kernel is meant by a word: a part of its name,
// mangled or not, or a pattern.
func matchKernel(word string, k *code.KernelReport) bool {
	for _, name := range []string{k.Name, k.Demangled} {
		if glob.Match(word, name) || !glob.Is(word) && strings.Contains(name, word) {
			return true
		}
	}
	return false
}

// processName names who loaded, in a few words.
func (l *moduleLoad) processName() string {
	name := filepath.Base(l.Process)
	if l.Process == "" {
		name = "?"
	}
	return fmt.Sprintf("%s %d", cli.Printable(name), l.PID)
}

// libraryName names the library that called the loader.
func (l *moduleLoad) libraryName() string {
	if l.Library == "" {
		return "?"
	}
	return cli.Printable(filepath.Base(l.Library))
}
