package gpu

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"nvtrace/fatbin"
	"nvtrace/nvattach"
	"nvtrace/ptrace/proc"
)

// images are the fat binaries in the files that a program has mapped: what it can have
// loaded before anybody watched. Which kernels a file has is found out once.
type images struct {
	// closed has the reading of a large program's files, which takes seconds, end early.
	closed atomic.Bool

	mu    sync.RWMutex // of readers of files alone, which may be many
	seen  map[proc.FileKey]bool
	files []*fatbin.File
	found map[string][]*fatbin.Container // by the mangled name of a kernel
	err   error                          // a file that could not be read

	memory []*fatbin.Container // images from memory that were not looked through
	given  map[string]bool     // those that were, or are to be, by SHA-256
	bytes  int                 // of them
}

// errNoImage: a kernel is in no file that its program has mapped.
var errNoImage = errors.New("its code was loaded from memory before nvtrace attached, and is in no file that the program has mapped")

// errClosed: nvtrace detached before a program's files had been read.
var errClosed = errors.New("nvtrace detached before the program's files with GPU code had been read")

// read looks through the files of a process that it has not seen, for a GPU's architecture.
func (im *images) read(pid int, arch fatbin.Arch) {
	if im.seen == nil {
		im.seen, im.found = make(map[proc.FileKey]bool), make(map[string][]*fatbin.Container)
	}
	for _, c := range im.memory {
		for _, n := range kernelsOf(c, arch) {
			im.found[n] = append(im.found[n], c)
		}
	}
	im.memory = nil
	maps, err := proc.Maps(pid)
	if err != nil {
		im.err = err
		return
	}
	for i := range maps {
		m := &maps[i]
		if im.closed.Load() {
			return
		}
		if m.Inode == 0 || !m.Exec {
			continue
		}
		fd, key, err := proc.OpenMapped(pid, m)
		if err != nil || im.seen[key] {
			if err == nil {
				fd.Close()
			}
			continue
		}
		im.seen[key] = true
		f, err := fatbin.Open("/proc/self/fd/"+strconv.Itoa(int(fd.Fd())), nil)
		fd.Close()
		if err != nil {
			im.err = err
			continue
		}
		im.files = append(im.files, f)
		var list []*fatbin.Container
		err = f.Guard(func() error {
			for c, err := range f.Containers() {
				if err == nil && c != nil { // what is damaged was loaded by nobody
					list = append(list, c)
				}
			}
			return nil
		})
		if err = errors.Join(err, im.list(f, list, arch)); err != nil {
			im.err = err
		}
	}
}

// maxCollected bounds the images from memory that are kept of a process.
const maxCollected = 1 << 30

// add takes an image that a process gives to the driver from memory.
func (im *images) add(sum string, data []byte) {
	im.mu.Lock()
	defer im.mu.Unlock()
	if im.given[sum] || im.bytes+len(data) > maxCollected {
		return
	}
	if im.given == nil {
		im.given = make(map[string]bool)
	}
	im.given[sum] = true
	im.bytes += len(data)
	for c, err := range fatbin.NewFile("image", data, nil).Containers() {
		if err == nil && c != nil { // else the driver refuses it, too
			im.memory = append(im.memory, c)
		}
	}
}

// list notes the kernels of a file's containers that a GPU can take. They are read by all
// processors, since decompressing and reading those of a large library takes seconds.
func (im *images) list(f *fatbin.File, containers []*fatbin.Container, arch fatbin.Arch) error {
	names := make([][]string, len(containers))
	errs := make([]error, min(runtime.GOMAXPROCS(0), len(containers)))
	var next atomic.Int64
	var work sync.WaitGroup
	for w := range errs {
		work.Go(func() {
			errs[w] = f.Guard(func() error {
				for i := int(next.Add(1)) - 1; i < len(containers) && !im.closed.Load(); i = int(next.Add(1)) - 1 {
					names[i] = kernelsOf(containers[i], arch)
				}
				return nil
			})
		})
	}
	work.Wait()
	for i, c := range containers {
		for _, n := range names[i] {
			im.found[n] = append(im.found[n], c)
		}
	}
	return errors.Join(errs...)
}

// kernelsOf names the kernels of a container that a GPU can take.
func kernelsOf(c *fatbin.Container, arch fatbin.Arch) (names []string) {
	if i := nvattach.Prefers(c.Entries, fatbin.KindELF, arch); i >= 0 {
		if cubin := cubinOf(c, i); cubin != nil {
			for j := range cubin.Kernels {
				names = append(names, cubin.Kernels[j].Name)
			}
		}
		return names
	}
	if i := nvattach.Prefers(c.Entries, fatbin.KindPTX, arch); i >= 0 {
		if data, err := c.Entries[i].Data(nil); err == nil {
			return fatbin.ScanPTX(data).Entries
		}
	}
	return nil
}

// cubinOf reads entry i of a container, nil if it is no cubin that can be read.
func cubinOf(c *fatbin.Container, i int) *fatbin.Cubin {
	data, err := c.Entries[i].Data(nil)
	if err != nil {
		return nil
	}
	cubin, err := fatbin.ParseCubin(data)
	if err != nil {
		return nil
	}
	return cubin
}

// shape is what the driver says of a kernel, by which its code is told from that of another one
// of its name.
type shape struct {
	registers int // of a thread; 0: it does not say
	params    []fatbin.Param
	known     bool // params are
}

// of reports whether a kernel in a file can be it.
func (s *shape) of(k *fatbin.Kernel) bool {
	if s.registers != 0 && k.Registers != 0 && s.registers != k.Registers {
		return false
	}
	return !s.known || slices.EqualFunc(s.params, k.Params, func(a, b fatbin.Param) bool { return a.Offset == b.Offset && a.Size == b.Size })
}

// find returns the image with a kernel of that shape. Of several with the same code any will do.
func (im *images) find(pid int, kernel string, arch fatbin.Arch, s *shape) (image []byte, err error) {
	im.mu.Lock()
	im.read(pid, arch) // what was mapped since may have another kernel of the name
	im.mu.Unlock()
	im.mu.RLock()
	defer im.mu.RUnlock()
	if im.closed.Load() {
		return nil, errClosed
	}
	list := im.found[kernel]
	if len(list) == 0 {
		if im.err != nil {
			return nil, fmt.Errorf("%w; one file could not be read: %w", errNoImage, im.err)
		}
		return nil, errNoImage
	}
	var any fatbin.File // of all, what is read by one that has shrunk is an error
	err = any.Guard(func() error { image, err = chooseImage(list, kernel, arch, s); return err })
	return image, err
}

// chooseImage is find among containers.
func chooseImage(list []*fatbin.Container, kernel string, arch fatbin.Arch, s *shape) ([]byte, error) {
	var codes [][]byte
	var chosen []*fatbin.Container
	for _, c := range list {
		data, k := codeOf(c, kernel, arch)
		if data == nil || k != nil && !s.of(k) {
			continue
		}
		if !slices.ContainsFunc(codes, func(o []byte) bool { return bytes.Equal(o, data) }) {
			codes, chosen = append(codes, data), append(chosen, c)
		}
	}
	switch len(chosen) {
	case 0:
		return nil, errors.New("the kernel of that name in the program's files is another one, with other registers or parameters")
	case 1:
		return only(chosen[0], arch), nil
	}
	return nil, fmt.Errorf("%d images in the program's files have different kernels of that name, and it can't be told which one was loaded", len(chosen))
}

// only returns a container's image, with nothing but what a GPU can take: that of a library may
// hold ten times as much.
func only(c *fatbin.Container, arch fatbin.Arch) []byte {
	var part fatbin.Container
	for _, kind := range []fatbin.Kind{fatbin.KindELF, fatbin.KindPTX} {
		if i := nvattach.Prefers(c.Entries, kind, arch); i >= 0 {
			part.Entries = append(part.Entries, c.Entries[i])
		}
	}
	return part.Append(nil)
}

// codeOf returns a kernel's code in a container, and what the file says of it; nil for PTX.
func codeOf(c *fatbin.Container, kernel string, arch fatbin.Arch) ([]byte, *fatbin.Kernel) {
	if i := nvattach.Prefers(c.Entries, fatbin.KindELF, arch); i >= 0 {
		data, err := c.Entries[i].Data(nil)
		if err != nil {
			return nil, nil
		}
		e, err := fatbin.NewCubinEditor(data, nil)
		if err != nil {
			return nil, nil
		}
		code, err := e.Code(kernel)
		if err != nil {
			return nil, nil
		}
		all := e.Cubin().Kernels
		at := slices.IndexFunc(all, func(k fatbin.Kernel) bool { return k.Name == kernel })
		return code.Code, &all[at]
	}
	if i := nvattach.Prefers(c.Entries, fatbin.KindPTX, arch); i >= 0 {
		if data, err := c.Entries[i].Data(nil); err == nil {
			return data, nil
		}
	}
	return nil, nil
}

// close gives the files back as soon as nobody looks at them.
func (im *images) close() {
	im.closed.Store(true)
	im.mu.Lock()
	defer im.mu.Unlock()
	for _, f := range im.files {
		_ = f.Close() // only read
	}
	im.files, im.found, im.seen, im.memory, im.given, im.bytes = nil, nil, nil, nil, nil, 0
}
