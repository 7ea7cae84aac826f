package capture

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
	"nvtrace/traces"
)

// FeedOptions say what to record of images, and where to.
type FeedOptions struct {
	Mode   string // of [traces.Captured]
	Origin string // of [traces.Image]
	// Emit takes events, on any goroutine; their times are CLOCK_MONOTONIC in ns. An
	// event is valid during the call only.
	Emit func(ev *traces.Event)
	// Store and Files are as in [Options].
	Store *Store
	Files bool
}

// Feed captures what others see by themselves: the simulated GPU, which is what images are
// given to, and the interposer where nothing is traced. Its methods may be called on any
// goroutine.
type Feed struct {
	o FeedOptions

	mu       sync.Mutex
	author   author
	met      map[string]traces.Image // by hash
	stored   map[string]bool         // by hash: they are in the store, or can't be put there
	launched map[Launch]bool
	gaps     []string
}

// NewFeed makes a Feed.
func NewFeed(o *FeedOptions) *Feed {
	return &Feed{
		o: *o, author: author{emit: o.Emit, images: make(map[string]bool)},
		met: make(map[string]traces.Image), stored: make(map[string]bool), launched: make(map[Launch]bool),
	}
}

// Load is an image that a loader was given.
type Load struct {
	PID, TID int
	Time     int64  // CLOCK_MONOTONIC in ns; 0: now
	Function string // the loader
	Args     [6]uint64
	Result   int32  // a CUresult
	Library  string // that called it; "": see Caller
	Caller   uint64 // where the call returns to; 0: not known
	Addr     uint64 // where the image is in the program's memory; 0: not known

	Image    traces.Image           // but for Origin and Replaced
	Data     func() ([]byte, error) // reads it
	Replaced []byte                 // what was loaded in its place, nil if that was it
}

// Loaded records an image.
func (f *Feed) Loaded(l *Load) {
	im := l.Image
	im.Origin = f.o.Origin
	if l.Replaced != nil {
		im.Replaced = hashOf(l.Replaced)
	}
	ev := traces.Event{
		PID: int32(l.PID), TID: int32(l.TID), Time: l.Time, FD: -1, Name: l.Function, Path: l.Library, Args: l.Args, Ret: int64(l.Result), Image: &im,
	}
	if ev.Time == 0 {
		ev.Time = ptrace.Now()
	}
	if l.Addr != 0 || l.Caller != 0 {
		locate(&ev, l)
	}
	err := f.keep(l, &im)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.gap(fmt.Sprintf("image %.12s of process %d could not be kept: %v", im.SHA256, l.PID, err))
	}
	if _, ok := f.met[im.SHA256]; !ok {
		f.met[im.SHA256] = im
	}
	f.author.load()
	f.author.image(&ev)
}

// keep puts an image into the store, once.
func (f *Feed) keep(l *Load, im *traces.Image) error {
	if f.o.Store == nil || im.File != "" && !f.o.Files {
		return nil
	}
	f.mu.Lock()
	known := f.stored[im.SHA256]
	f.stored[im.SHA256] = true
	f.mu.Unlock()
	if known {
		return nil
	}
	data, err := l.Data()
	if err == nil {
		_, err = f.o.Store.Put(data)
	}
	return err
}

// locate finds out which file an image lies in, and which one called the loader.
func locate(ev *traces.Event, l *Load) {
	maps := proc.NewView(l.PID) // none if it is gone
	defer maps.Close()
	if m := maps.At(l.Addr); m != nil && filepath.IsAbs(m.Path) && l.inFile(m) {
		ev.Image.File, ev.Image.Offset = m.Path, int64(l.Addr-m.Start+m.Offset)
		ev.Path = m.Path // a guess: functions that are hooked return to the hook
	}
	if lib := libraryAt(maps, l.Caller); lib != "" {
		ev.Path = lib
	}
}

// inFile reports whether a mapping's file has the image where it shows it in memory.
func (l *Load) inFile(m *proc.Mapping) bool {
	b, err := l.Data()
	if err != nil || len(b) == 0 || !m.Contains(l.Addr, uint64(len(b))) {
		return false
	}
	file, _, err := proc.OpenMapped(l.PID, m)
	if err != nil {
		return false
	}
	defer file.Close()
	got := make([]byte, len(b))
	n, _ := file.ReadAt(got, int64(l.Addr-m.Start+m.Offset))
	return n == len(got) && bytes.Equal(got, b)
}

// Launch names a kernel that was launched, and what it is from.
type Launch struct {
	PID    int
	Kernel string // mangled
	SHA256 string // of its image
}

// Launched records the first of the same launches. tid is the thread that made it; 0: none.
func (f *Feed) Launched(l Launch, tid int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.launched[l] {
		return
	}
	f.launched[l] = true
	if tid == 0 {
		tid = l.PID
	}
	ev := traces.Event{PID: int32(l.PID), TID: int32(tid), Time: ptrace.Now(), FD: -1, Name: l.Kernel}
	if im, ok := f.met[l.SHA256]; ok {
		ev.Image = &traces.Image{SHA256: im.SHA256, Size: im.Size, Format: im.Format}
	}
	f.author.kernel(&ev)
}

// Gap says what escaped. The same is said once.
func (f *Feed) Gap(text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gap(text)
}

func (f *Feed) gap(text string) {
	if len(f.gaps) < maxSaid && !slices.Contains(f.gaps, text) {
		f.gaps = append(f.gaps, text)
	}
}

// Finish records the gaps, and what capturing came to. It must be called once, when nothing
// more comes.
func (f *Feed) Finish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, text := range f.gaps {
		f.o.Emit(&traces.Event{Kind: traces.KindGap, Time: ptrace.Now(), FD: -1, Text: text})
	}
	f.author.captured(f.o.Mode, ptrace.Now(), len(f.gaps))
}

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
