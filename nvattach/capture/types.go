package capture

import "nvtrace/ptrace/proc"

// kernelKey names a launched kernel.
type kernelKey struct {
	pid    int
	handle uint64
}

// fileID names a file.
type fileID struct{ dev, ino uint64 }

// pinnedFile is a file that images were left in.
type pinnedFile struct {
	path string
	fd   int // names the file without opening it
	key  proc.FileKey
}

// Note is a call that the interposer saw: of a loader, or the first launch of a
// kernel.
type Note struct {
	PID, TID int
	Function string // that was called
	Image    uint64 // loaders: the image's or the path's address, as the program gave it
	Kernel   uint64 // launches: the handle
}
