package proc

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// procmapQuery is struct procmap_query of linux/fs.h.
type procmapQuery struct {
	size, flags, addr       uint64
	start, end, vmaFlags    uint64
	pageSize, offset, inode uint64
	major, minor            uint32
	nameSize, buildIDSize   uint32
	name, buildID           uint64
}

// Of linux/fs.h.
const (
	ioctlProcmapQuery = 0xc0686611 // PROCMAP_QUERY: _IOWR('f', 17, struct procmap_query)
	vmaReadable       = 1 << 0
	vmaWritable       = 1 << 1
	vmaExecutable     = 1 << 2
	vmaShared         = 1 << 3
)

// queryMap asks for the mapping of an address; f is an open /proc/PID/maps. The
// error is ENOENT where nothing is mapped, ENOTTY where the kernel can't be asked.
func queryMap(f *os.File, addr uint64, m *Mapping) error {
	var name [unix.PathMax]byte
	q := procmapQuery{size: uint64(unsafe.Sizeof(procmapQuery{})), addr: addr, nameSize: uint32(len(name))}
	q.name = uint64(uintptr(unsafe.Pointer(&name[0])))
	_, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), ioctlProcmapQuery, uintptr(unsafe.Pointer(&q)))
	runtime.KeepAlive(&name)
	if e != 0 {
		return e
	}
	*m = Mapping{
		Start: q.start, End: q.end, Offset: q.offset, Inode: q.inode, Dev: unix.Mkdev(q.major, q.minor),
		Read: q.vmaFlags&vmaReadable != 0, Write: q.vmaFlags&vmaWritable != 0, Exec: q.vmaFlags&vmaExecutable != 0,
		Private: q.vmaFlags&vmaShared == 0,
	}
	if n := int(q.nameSize); n > 0 && n <= len(name) {
		m.Path = unix.ByteSliceToString(name[:n])
	}
	return nil
}
