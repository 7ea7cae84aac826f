// Package proc reads what /proc says of a process: its memory, and the files in it.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Mapping is a line of /proc/PID/maps.
type Mapping struct {
	Start, End  uint64 // addresses; End is behind the last byte
	Offset      uint64 // in the file, in bytes
	Read, Write bool
	Exec        bool
	Private     bool
	Dev, Inode  uint64 // of the file; 0: no file
	// Path is the file as the program's mount namespace has it, with " (deleted)" behind
	// it if it is gone; or a name like "[heap]"; or "".
	Path string
}

// Contains reports whether a range lies in the mapping.
func (m *Mapping) Contains(addr, size uint64) bool {
	return addr >= m.Start && addr < m.End && size <= m.End-addr
}

// Addr returns where the mapping has size bytes from an offset of its file on; false if it does
// not have them all.
func (m *Mapping) Addr(offset, size uint64) (uint64, bool) {
	addr := m.Start + (offset - m.Offset)
	return addr, offset >= m.Offset && addr >= m.Start && m.Contains(addr, size)
}

// Immutable reports whether the program can't write to the mapping, nor to the
// file through it.
func (m *Mapping) Immutable() bool { return m.Inode != 0 && m.Private && m.Read && !m.Write }

// Access returns what the program may do with the memory: "rw-".
func (m *Mapping) Access() string {
	b := []byte("---")
	for i, may := range []bool{m.Read, m.Write, m.Exec} {
		if may {
			b[i] = "rwx"[i]
		}
	}
	return string(b)
}

// Maps returns the mappings of a process in ascending order.
func Maps(pid int) ([]Mapping, error) {
	b, err := os.ReadFile(Path(pid, "maps"))
	if err != nil {
		return nil, err
	}
	return ParseMaps(b), nil
}

// ParseMaps reads the lines that it understands, in the format of proc_pid_maps(5):
// "start-end perms offset major:minor inode path".
func ParseMaps(b []byte) []Mapping {
	var list []Mapping
	for line := range bytes.Lines(b) {
		f := strings.SplitN(strings.TrimSuffix(string(line), "\n"), " ", 6)
		if len(f) < 5 || len(f[1]) < 4 {
			continue
		}
		from, to, _ := strings.Cut(f[0], "-")
		major, minor, _ := strings.Cut(f[3], ":")
		m := Mapping{Read: f[1][0] == 'r', Write: f[1][1] == 'w', Exec: f[1][2] == 'x', Private: f[1][3] == 'p'}
		var errs [6]error
		var maj, mnr uint64
		m.Start, errs[0] = strconv.ParseUint(from, 16, 64)
		m.End, errs[1] = strconv.ParseUint(to, 16, 64)
		m.Offset, errs[2] = strconv.ParseUint(f[2], 16, 64)
		maj, errs[3] = strconv.ParseUint(major, 16, 32)
		mnr, errs[4] = strconv.ParseUint(minor, 16, 32)
		m.Inode, errs[5] = strconv.ParseUint(f[4], 10, 64)
		if errs != [6]error{} || m.End <= m.Start {
			continue
		}
		m.Dev = unix.Mkdev(uint32(maj), uint32(mnr))
		if len(f) == 6 {
			m.Path = strings.TrimLeft(f[5], " ")
		}
		list = append(list, m)
	}
	return list
}

// At returns the mapping that an address lies in; nil: none.
func At(maps []Mapping, addr uint64) *Mapping {
	for i := range maps {
		if addr >= maps[i].Start && addr < maps[i].End {
			return &maps[i]
		}
	}
	return nil
}

// A View answers what lies at addresses of a process that is stopped. The kernel
// is asked address by address, where it can be (Linux 6.11): a large program has
// thousands of mappings. Close ends it.
type View struct {
	pid    int
	f      *os.File // of /proc/PID/maps; nil: not open
	list   []Mapping
	listed bool // list holds all
	found  Mapping
}

// NewView makes a View of a process.
func NewView(pid int) *View {
	v := &View{pid: pid}
	if f, err := os.Open(Path(pid, "maps")); err == nil {
		v.f = f
	}
	return v
}

// Close ends the view.
func (v *View) Close() {
	if v.f != nil {
		v.f.Close()
	}
}

// At returns the mapping that an address lies in, until the next call; nil: none
// is known.
func (v *View) At(addr uint64) *Mapping {
	if !v.listed && v.f != nil {
		switch err := queryMap(v.f, addr, &v.found); {
		case err == nil:
			return &v.found
		case errors.Is(err, unix.ENOENT):
			return nil
		}
	}
	if !v.listed {
		v.list, _ = Maps(v.pid) // none, if it died
		v.listed = true
	}
	return At(v.list, addr)
}

// A FileKey tells files apart, and states of a file.
type FileKey struct {
	Dev, Inode   uint64
	Size         int64 // bytes
	Mtime, Ctime int64 // ns
}

// KeyOf returns the key of a file.
func KeyOf(st *unix.Stat_t) FileKey {
	return FileKey{st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()}
}

// OpenMapped opens the file behind a mapping of a process, under the name that
// the process knows it by, and makes sure that it is the one, where the mapping has an
// inode.
func OpenMapped(pid int, m *Mapping) (*os.File, FileKey, error) {
	names := []string{
		fmt.Sprintf("/proc/%d/map_files/%x-%x", pid, m.Start, m.End), // needs privileges; the only way to deleted files
		fmt.Sprintf("/proc/%d/root%s", pid, m.Path),
	}
	var first error
	for _, name := range names {
		f, key, err := OpenRegular(name)
		if err == nil {
			if m.Inode == 0 || key.Inode == m.Inode {
				return f, key, nil
			}
			f.Close()
			err = fmt.Errorf("%s is another file now", m.Path)
		}
		if first == nil {
			first = err
		}
	}
	return nil, FileKey{}, first
}

// ErrNotRegular says what can't be read like a file: a folder, a pipe, a device.
var ErrNotRegular = errors.New("not a regular file")

// OpenRegular opens a regular file for reading. It never waits, as a pipe would
// make it.
func OpenRegular(name string) (*os.File, FileKey, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, FileKey{}, &os.PathError{Op: "open", Path: name, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, FileKey{}, &os.PathError{Op: "open", Path: name, Err: ErrNotRegular}
	}
	return os.NewFile(uintptr(fd), name), KeyOf(&st), nil
}
