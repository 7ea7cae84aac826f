package capture

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/proc"
	"nvtrace/traces"
)

// Noted takes what the interposer saw. It may be called from any goroutine, up to
// the end of Options.Settle.
func (c *Capture) Noted(n Note) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.seen) < maxNotes {
		c.seen = append(c.seen, n)
	}
}

// maxNotes bounds what a hostile program may have us remember.
const maxNotes = 1 << 20

// pinFile remembers the state of the file behind a mapping, before an image in it
// is used; false if it can't be found any more.
func (c *Capture) pinFile(pid int, m *proc.Mapping) bool {
	id := fileID{m.Dev, m.Inode}
	f := c.pinned[id]
	if f == nil {
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/root%s", pid, m.Path), unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return false
		}
		f = &pinnedFile{path: m.Path, fd: fd}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Ino != m.Inode || len(c.pinned) >= maxPinned {
			unix.Close(fd)
			return false
		}
		f.key = proc.KeyOf(&st)
		c.pinned[id] = f
	}
	return !f.changed()
}

// maxPinned bounds the descriptors that this takes.
const maxPinned = 256

// changed reports whether the file was written since it was first seen.
func (f *pinnedFile) changed() bool {
	var st unix.Stat_t
	return unix.Fstat(f.fd, &st) != nil || proc.KeyOf(&st) != f.key
}

// Finish reconciles what the layers saw, and says what disagrees. It must be called
// once, when the program has ended and all that was recorded of it was delivered.
func (c *Capture) Finish() {
	if c.o.Settle != nil {
		c.o.Settle()
	}
	for _, p := range c.procs {
		c.giveUp(p)
	}
	for _, p := range c.pids {
		c.tellCounts(p, true)
	}
	c.checkFiles()
	c.mu.Lock()
	seen := c.seen
	c.mu.Unlock()
	if len(seen) >= maxNotes {
		c.gap(nil, "the interposer saw more than %d loads: they were not all compared", maxNotes)
	}
	for _, n := range seen {
		c.compareNote(n)
	}
	if len(c.gpu) > 0 {
		var list []string
		for _, path := range slices.Sorted(maps.Keys(c.gpu)) {
			list = append(list, fmt.Sprintf("%s (%d bytes)", path, c.gpu[path]))
		}
		c.note(nil, "%s%s", NoteFiles, strings.Join(list, ", "))
	}
	c.author.captured(traces.CaptureBreakpoints, c.now(), len(c.gaps))
}

// NoteFiles begins the note that lists the files with GPU code that were mapped.
const NoteFiles = "mapped files with GPU code: "

// oldNote begins the note that older recordings have in place of a KindCaptured.
const oldNote = "captured: "

// OldNote reads the note by which an older recording says what capturing came to. It
// returns nil for other notes.
func OldNote(text string) *traces.Captured {
	text, ok := strings.CutPrefix(text, oldNote)
	if !ok {
		return nil
	}
	if strings.HasPrefix(text, "by the interposer alone") { // it gave no numbers
		return &traces.Captured{Mode: traces.CaptureInterposer}
	}
	c := &traces.Captured{Mode: traces.CaptureBreakpoints}
	const begins = "images: %d, loads: %d, bytes: %d; "
	if n, err := fmt.Sscanf(text, begins+"drivers watched: %d, kernels launched: %d, gaps: %d",
		&c.Images, &c.Loads, &c.Bytes, &c.Drivers, &c.Kernels, &c.Gaps); err == nil && n == 6 {
		return c
	}
	c.Mode = traces.CaptureSimulator
	if n, err := fmt.Sscanf(text, begins+"kernels launched: %d; told by the simulated GPU, gaps: %d",
		&c.Images, &c.Loads, &c.Bytes, &c.Kernels, &c.Gaps); err == nil && n == 5 {
		return c
	}
	return nil
}

// Close waits for copies that are still being made when the program is gone.
func (c *Capture) Close() { c.work.Wait() }

// checkFiles makes sure that the files in which images were left are as they were.
func (c *Capture) checkFiles() {
	for _, id := range slices.SortedFunc(maps.Keys(c.pinned), func(a, b fileID) int { return cmp.Compare(a.ino, b.ino) }) {
		f := c.pinned[id]
		if f.changed() {
			c.gap(nil, "%s was written while the program used images in it", f.path)
		}
		unix.Close(f.fd)
	}
	clear(c.pinned)
}

// compareNote holds what the interposer saw against what this package did.
func (c *Capture) compareNote(n Note) {
	f, ok := c.funcs[n.Function]
	switch {
	case !ok:
	case f.act == actLaunch && c.o.Audit != AuditOff && n.Kernel != 0:
		if !c.started[kernelKey{n.PID, n.Kernel}] {
			c.gap(nil, "the interposer saw process %d launch the kernel with handle %#x by %s, and the audit did not", n.PID, n.Kernel, n.Function)
		}
	case f.act < actLinkEnd:
		key := Note{PID: n.PID, Function: n.Function, Image: n.Image} // in a container the thread is another number
		if c.hits[key] == 0 {
			c.gap(nil, "the interposer saw process %d load an image at %#x by %s, and the breakpoints did not", n.PID, n.Image, n.Function)
			return
		}
		c.hits[key]--
	}
}
