package capture

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const pageSize = 4096

// mapping is a line of /proc/PID/maps.
type mapping struct {
	start, end  uint64
	off         uint64 // in the file
	read, write bool
	exec        bool
	private     bool
	dev, ino    uint64 // 0: no file
	path        string
}

// contains reports whether a range lies in the mapping.
func (m *mapping) contains(addr, size uint64) bool {
	return addr >= m.start && addr < m.end && size <= m.end-addr
}

// immutable reports whether the program can't write to the mapping, nor to the
// file through it.
func (m *mapping) immutable() bool { return m.ino != 0 && m.private && m.read && !m.write }

// readMaps returns the mappings of a process in ascending order.
func readMaps(pid int) ([]mapping, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/maps")
	if err != nil {
		return nil, err
	}
	return parseMaps(b), nil
}

// parseMaps reads the lines that it understands. proc_pid_maps(5):
// "start-end perms offset major:minor inode path".
func parseMaps(b []byte) []mapping {
	var list []mapping
	for line := range bytes.Lines(b) {
		f := strings.SplitN(strings.TrimSuffix(string(line), "\n"), " ", 6)
		if len(f) < 5 || len(f[1]) < 4 {
			continue
		}
		from, to, _ := strings.Cut(f[0], "-")
		major, minor, _ := strings.Cut(f[3], ":")
		m := mapping{read: f[1][0] == 'r', write: f[1][1] == 'w', exec: f[1][2] == 'x', private: f[1][3] == 'p'}
		var errs [6]error
		var maj, mnr uint64
		m.start, errs[0] = strconv.ParseUint(from, 16, 64)
		m.end, errs[1] = strconv.ParseUint(to, 16, 64)
		m.off, errs[2] = strconv.ParseUint(f[2], 16, 64)
		maj, errs[3] = strconv.ParseUint(major, 16, 32)
		mnr, errs[4] = strconv.ParseUint(minor, 16, 32)
		m.ino, errs[5] = strconv.ParseUint(f[4], 10, 64)
		if errs != [6]error{} || m.end <= m.start {
			continue
		}
		m.dev = unix.Mkdev(uint32(maj), uint32(mnr))
		if len(f) == 6 {
			m.path = strings.TrimLeft(f[5], " ")
		}
		list = append(list, m)
	}
	return list
}

// mapAt returns the mapping that an address lies in; nil: none.
func mapAt(maps []mapping, addr uint64) *mapping {
	for i := range maps {
		if addr >= maps[i].start && addr < maps[i].end {
			return &maps[i]
		}
	}
	return nil
}

// mapView answers what lies at addresses of a process that is stopped. The kernel
// is asked address by address, where it can be (Linux 6.11): a large program has
// thousands of mappings. close ends it.
type mapView struct {
	pid    int
	f      *os.File // of /proc/PID/maps; nil: not open
	list   []mapping
	listed bool // list holds all
	found  mapping
}

func viewMaps(pid int) *mapView {
	v := &mapView{pid: pid}
	if f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/maps"); err == nil {
		v.f = f
	}
	return v
}

func (v *mapView) close() {
	if v.f != nil {
		v.f.Close()
	}
}

// at returns the mapping that an address lies in, until the next call; nil: none
// is known.
func (v *mapView) at(addr uint64) *mapping {
	if !v.listed && v.f != nil {
		switch err := queryMap(v.f, addr, &v.found); {
		case err == nil:
			return &v.found
		case errors.Is(err, unix.ENOENT):
			return nil
		}
	}
	if !v.listed {
		v.list, _ = readMaps(v.pid) // none, if it died
		v.listed = true
	}
	return mapAt(v.list, addr)
}

// fileKey tells files apart, and states of a file.
type fileKey struct {
	dev, ino     uint64
	size         int64
	mtime, ctime int64 // ns
}

func keyOf(st *unix.Stat_t) fileKey {
	return fileKey{st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()}
}

// openMapped opens the file behind a mapping of a process, under the name that
// the process knows it by, and makes sure that it is the one.
func openMapped(pid int, m *mapping) (*os.File, fileKey, error) {
	names := []string{
		fmt.Sprintf("/proc/%d/map_files/%x-%x", pid, m.start, m.end), // needs privileges; the only way to deleted files
		fmt.Sprintf("/proc/%d/root%s", pid, m.path),
	}
	var first error
	for _, name := range names {
		f, err := openRegular(name)
		if err == nil {
			var st unix.Stat_t
			if err = unix.Fstat(int(f.Fd()), &st); err == nil && st.Ino == m.ino {
				return f, keyOf(&st), nil
			}
			f.Close()
			if err == nil {
				err = fmt.Errorf("%s is another file now", m.path)
			}
		}
		if first == nil {
			first = err
		}
	}
	return nil, fileKey{}, first
}

// errNotRegular says what an image can't be read from: a folder, a pipe, a device.
var errNotRegular = errors.New("not a regular file")

// openRegular opens a regular file for reading. It never waits, as a pipe would
// make it.
func openRegular(name string) (*os.File, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, &os.PathError{Op: "open", Path: name, Err: errNotRegular}
	}
	return os.NewFile(uintptr(fd), name), nil
}
