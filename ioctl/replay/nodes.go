package replay

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"nvtrace/ptrace/proc"

	"golang.org/x/sys/unix"
)

// maxPath is the longest path that the kernel takes (PATH_MAX).
const maxPath = 4096

// memfdSize makes room behind a device file for any mapping: nvidia-uvm maps at
// offsets that are addresses. The pages exist only once they are touched.
const memfdSize = 1 << 46

// fileOf returns the device file behind a descriptor, nil if it is none.
func (s *server) fileOf(t *task, fd int32) *openFile {
	if fd < 0 || len(s.files) == 0 {
		return nil
	}
	var st unix.Stat_t
	if unix.Stat(proc.FD(t.tid, fd), &st) != nil {
		return nil
	}
	return s.files[inode{st.Dev, st.Ino}]
}

// readString reads a NUL-terminated path; ok is false if it can't be read.
func (t *task) readString(addr uint64) (string, bool) {
	var out []byte
	for len(out) < maxPath {
		// To the end of the page, behind which nothing may be mapped.
		chunk := make([]byte, min(256, 4096-int(addr&4095)))
		n, err := t.ReadMem(addr, chunk)
		if i := bytes.IndexByte(chunk[:n], 0); i >= 0 {
			return string(append(out, chunk[:i]...)), true
		}
		if err != nil {
			return "", false
		}
		out, addr = append(out, chunk...), addr+uint64(n)
	}
	return "", false
}

// pathCall is a call that names a file.
type pathCall struct {
	dir  int32 // descriptor that a relative path starts at
	path uint64
	buf  uint64 // of a result
	size uint64 // of buf
	mode uint64 // flags of an open
	fd   bool   // an empty path means dir itself
}

// decodePath takes a call's arguments apart; ok is false for a call that this
// package did not ask for.
func decodePath(name string, a [6]uint64, t *task) (c pathCall, ok bool) {
	c.dir = unix.AT_FDCWD
	at := func(dir uint64) int32 { return int32(uint32(dir)) }
	const emptyPath = unix.AT_EMPTY_PATH
	switch name {
	case "open":
		c.path, c.mode = a[0], a[1]
	case "creat", "access", "mknod", "chmod", "getxattr", "lgetxattr", "listxattr", "llistxattr":
		c.path = a[0]
	case "openat":
		c.dir, c.path, c.mode = at(a[0]), a[1], a[2]
	case "openat2":
		c.dir, c.path = at(a[0]), a[1]
		var how [8]byte // struct open_how begins with the flags
		if _, err := t.ReadMem(a[2], how[:]); err != nil {
			return c, false
		}
		c.mode = long(how[:], 0)
	case "stat", "lstat":
		c.path, c.buf = a[0], a[1]
	case "fstat":
		c.dir, c.buf, c.fd = at(a[0]), a[1], true
	case "newfstatat":
		c.dir, c.path, c.buf, c.fd = at(a[0]), a[1], a[2], a[3]&emptyPath != 0
	case "statx":
		c.dir, c.path, c.buf, c.fd = at(a[0]), a[1], a[4], a[2]&emptyPath != 0
	case "faccessat", "mknodat", "fchmodat":
		c.dir, c.path = at(a[0]), a[1]
	case "faccessat2":
		c.dir, c.path, c.fd = at(a[0]), a[1], a[3]&emptyPath != 0
	case "readlink":
		c.path, c.buf, c.size = a[0], a[1], a[2]
	case "readlinkat":
		c.dir, c.path, c.buf, c.size, c.fd = at(a[0]), a[1], a[2], a[3], true
	case "symlink":
		c.path = a[1]
	case "symlinkat":
		c.dir, c.path = at(a[1]), a[2]
	default:
		return c, false
	}
	return c, true
}

// path answers a call that names a file, if the file is a device's.
func (s *server) path(n *notification, t *task, name string) reply {
	c, ok := decodePath(name, n.args, t)
	if !ok {
		return reply{}
	}
	file := ""
	if c.path != 0 {
		if file, ok = t.readString(c.path); !ok {
			return reply{}
		}
	}
	if file == "" {
		if f := s.fileOf(t, c.dir); c.fd && f != nil && s.valid(n) {
			return s.onNode(t, name, &c, f.name, f.rdev)
		}
		return reply{}
	}
	if !mayConcern(file) {
		return reply{}
	}
	file = t.absolute(c.dir, file)
	if !s.valid(n) {
		return reply{}
	}
	if content, ok := s.virtual[file]; ok {
		return s.onVirtual(t, name, &c, file, content)
	}
	if f := s.descriptorPath(t, file); f != nil {
		switch name {
		case "readlink", "readlinkat":
			return t.putLink(&c, "/dev/"+f.name)
		case "stat", "newfstatat", "statx":
			return s.onNode(t, name, &c, f.name, f.rdev)
		}
		return reply{} // an open through it is an open of the same memfd
	}
	nd, isNode := s.nodeAt(file)
	if !isNode {
		return reply{}
	}
	if nd == nil && s.isDir(file) && strings.Contains(name, "stat") {
		return t.putStat(name, &c, unix.S_IFDIR|0o755, 0, 0)
	}
	if nd == nil {
		return s.missingNode(name, file)
	}
	if isOpen(name) {
		return s.open(nd, &c)
	}
	if strings.HasPrefix(name, "readlink") && strings.HasPrefix(file, "/dev/char/") {
		return t.putLink(&c, "../"+nd.name)
	}
	if name == "lstat" && strings.HasPrefix(file, "/dev/char/") {
		return reply{} // not worth a symbolic link's stat
	}
	return s.onNode(t, name, &c, nd.name, nd.rdev)
}

func isOpen(name string) bool {
	return strings.HasPrefix(name, "open") || name == "creat"
}

// mayConcern is a cheap look at a path, which may be relative.
func mayConcern(file string) bool {
	return strings.Contains(file, "nvidia") || strings.Contains(file, "195:") || strings.Contains(file, "/fd/") ||
		strings.HasPrefix(file, "/dev/") || strings.HasSuffix(file, "devices")
}

// absolute resolves a relative path, as far as it can be done without looking
// at symbolic links.
func (t *task) absolute(dir int32, file string) string {
	if strings.HasPrefix(file, "/") {
		return path.Clean(file)
	}
	link := proc.Path(t.tid, "cwd")
	if dir != unix.AT_FDCWD {
		link = proc.FD(t.tid, dir)
	}
	base, err := os.Readlink(link)
	if err != nil {
		return file
	}
	return path.Join(base, file)
}

// descriptorPath returns the device file that a path like /proc/self/fd/5 or
// /dev/fd/5 stands for, nil if it is none.
func (s *server) descriptorPath(t *task, file string) *openFile {
	dir, last := path.Split(file)
	fd, err := strconv.ParseInt(last, 10, 32)
	if err != nil {
		return nil
	}
	owner := t
	switch dir {
	case "/dev/fd/", "/proc/self/fd/", "/proc/thread-self/fd/":
	default:
		rest, ok := strings.CutPrefix(dir, "/proc/")
		pid, tail, _ := strings.Cut(rest, "/")
		id, err := strconv.Atoi(pid)
		if !ok || err != nil || tail != "fd/" {
			return nil
		}
		// The program's own number for it; in another pid namespace it is not ours.
		owner = &task{tid: id}
	}
	return s.fileOf(owner, int32(fd))
}

// nodeAt returns the recorded node at a path. isNode says whether the path is a
// device node's; nd is nil if the recorded program did not use it.
func (s *server) nodeAt(file string) (nd *node, isNode bool) {
	if numbers, ok := strings.CutPrefix(file, "/dev/char/"); ok {
		var major, minor uint32
		if n, err := fmt.Sscanf(numbers, "%d:%d", &major, &minor); n != 2 || err != nil {
			return nil, false
		}
		rdev := unix.Mkdev(major, minor)
		for _, nd := range s.rec.nodes {
			if nd.rdev == rdev {
				return nd, true
			}
		}
		return nil, major == nvidiaMajor
	}
	name, ok := strings.CutPrefix(file, "/dev/")
	if !ok {
		return nil, false
	}
	if nd := s.rec.nodes[name]; nd != nil {
		return nd, true
	}
	return nil, strings.HasPrefix(name, "nvidia")
}

// isDir reports whether recorded nodes lie below a path: /dev/nvidia-caps.
func (s *server) isDir(file string) bool {
	dir := strings.TrimPrefix(file, "/dev/") + "/"
	for name := range s.rec.nodes {
		if strings.HasPrefix(name, dir) {
			return true
		}
	}
	return false
}

// nvidiaMajor is the fixed major number of nvidiactl and the GPUs (nv.h).
const nvidiaMajor = 195

// missingNode answers a call on a node that the recording does not have: the
// machine's own, if it has one, must not be touched.
func (s *server) missingNode(name, file string) reply {
	r := answered(-int64(unix.ENOENT))
	if ret, ok := s.rec.refuse[file]; ok {
		return answered(ret) // the recorded machine refused it, too
	}
	if isOpen(name) {
		r.commit = func() {
			s.res.Missed++
			m := s.noteLine(name+" "+file, "not in the recording", false)
			if s.opts.OnMiss == MissAbort {
				s.abort = &MissError{m}
			}
		}
	}
	return r
}

// open answers an open of a recorded node with a file of its own.
func (s *server) open(nd *node, c *pathCall) reply {
	if c.mode&unix.O_DIRECTORY != 0 {
		return answered(-int64(unix.ENOTDIR))
	}
	fd, st, err := newMemfd("/dev/"+nd.name, nil)
	if err != nil {
		s.log.Warn("can't make a device file", "node", nd.name, "error", err)
		return answered(-int64(unix.ENOMEM))
	}
	r := reply{done: true, fd: fd, mode: uint32(c.mode & unix.O_CLOEXEC)}
	r.commit = func() {
		s.lastFile++
		f := &openFile{id: s.lastFile, name: nd.name, rdev: nd.rdev}
		if len(nd.files) > 0 { // a program that opens more often than the recorded one starts over
			f.rec = nd.files[nd.next%len(nd.files)]
			nd.next++
		}
		s.files[inode{st.Dev, st.Ino}] = f
		s.res.Opens++
	}
	return r
}

// newMemfd makes a file for the program. Without content it is sparse and larger
// than any mapping.
func newMemfd(name string, content []byte) (int, *unix.Stat_t, error) {
	if len(name) > 200 { // the kernel's limit is 249
		name = name[:200]
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return -1, nil, fmt.Errorf("memfd_create: %w", err)
	}
	st := new(unix.Stat_t)
	err = unix.Fstat(fd, st)
	if err == nil && content == nil {
		err = unix.Ftruncate(fd, memfdSize)
	}
	for off := 0; err == nil && off < len(content); {
		var n int
		n, err = unix.Pwrite(fd, content[off:], int64(off))
		off += n
	}
	if err != nil {
		unix.Close(fd)
		return -1, nil, fmt.Errorf("memfd %s: %w", name, err)
	}
	return fd, st, nil
}

// onNode answers a call that looks at a node.
func (s *server) onNode(t *task, name string, c *pathCall, node string, rdev uint64) reply {
	const mode = unix.S_IFCHR | 0o666
	switch name {
	case "stat", "lstat", "fstat", "newfstatat", "statx":
		return t.putStat(name, c, mode, rdev, 0)
	case "access", "faccessat", "faccessat2", "chmod", "fchmodat":
		return answered(0)
	case "readlink", "readlinkat":
		return answered(-int64(unix.EINVAL))
	case "getxattr", "lgetxattr":
		return answered(-int64(unix.ENODATA))
	case "listxattr", "llistxattr":
		return answered(0)
	case "mknod", "mknodat", "symlink", "symlinkat":
		return answered(-int64(unix.EEXIST))
	}
	return reply{}
}

// onVirtual answers a call on a file whose content the recording knows.
func (s *server) onVirtual(t *task, name string, c *pathCall, file string, content []byte) reply {
	const mode = unix.S_IFREG | 0o444
	switch {
	case isOpen(name):
		fd, _, err := newMemfd(file, content)
		if err != nil {
			s.log.Warn("can't make a file", "path", file, "error", err)
			return answered(-int64(unix.ENOMEM))
		}
		return reply{done: true, fd: fd, mode: uint32(c.mode & unix.O_CLOEXEC)}
	case strings.Contains(name, "stat"):
		return t.putStat(name, c, mode, 0, 0)
	case strings.Contains(name, "access"):
		return answered(0)
	case strings.HasPrefix(name, "readlink"):
		return answered(-int64(unix.EINVAL))
	}
	return reply{}
}

// putStat writes the result of one of the stat calls.
func (t *task) putStat(name string, c *pathCall, mode uint32, rdev uint64, size int64) reply {
	const blockSize = 4096
	var b []byte
	if name == "statx" {
		st := &unix.Statx_t{
			Mask: unix.STATX_BASIC_STATS, Blksize: blockSize, Nlink: 1, Mode: uint16(mode), Ino: rdev + 1, Size: uint64(size),
			Rdev_major: unix.Major(rdev), Rdev_minor: unix.Minor(rdev), Dev_minor: 5,
		}
		b = bytesOf(st)
	} else {
		st := &unix.Stat_t{Dev: 5, Ino: rdev + 1, Nlink: 1, Mode: mode, Rdev: rdev, Size: size, Blksize: blockSize}
		b = bytesOf(st)
	}
	if t.writeMem(c.buf, b) != nil {
		return answered(-int64(unix.EFAULT))
	}
	return answered(0)
}

// putLink writes the result of readlink, which has no NUL at its end.
func (t *task) putLink(c *pathCall, target string) reply {
	n := min(uint64(len(target)), c.size)
	if n == 0 {
		return answered(-int64(unix.EINVAL))
	}
	if t.writeMem(c.buf, []byte(target[:n])) != nil {
		return answered(-int64(unix.EFAULT))
	}
	return answered(int64(n))
}

// virtualFiles are the files that programs look for the driver in, as far as
// the recording's header knows what they say.
func (r *recording) virtualFiles() map[string][]byte {
	files := make(map[string][]byte)
	if v := r.header.Driver; v != "" {
		files["/proc/driver/nvidia/version"] = fmt.Appendf(nil, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Replay\n", v)
		files["/sys/module/nvidia/version"] = []byte(v + "\n")
	}
	if r.header.UVMMajor != 0 {
		if b := r.procDevices(); b != nil {
			files["/proc/devices"] = b
		}
	}
	return files
}

// procDevices is the machine's own /proc/devices with the recorded drivers in it.
func (r *recording) procDevices() []byte {
	b, err := os.ReadFile("/proc/devices")
	if err != nil {
		return nil
	}
	lines := strings.SplitAfter(string(b), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, "nvidia") })
	i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "Character") })
	ours := []string{fmt.Sprintf("%3d nvidia\n", nvidiaMajor), fmt.Sprintf("%3d nvidiactl\n", nvidiaMajor), fmt.Sprintf("%3d nvidia-uvm\n", r.header.UVMMajor)}
	return []byte(strings.Join(slices.Insert(lines, i+1, ours...), ""))
}
