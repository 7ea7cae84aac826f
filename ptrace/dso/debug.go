package dso

import (
	"bytes"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"github.com/ulikunitz/xz/lzma"

	"nvtrace/ptrace/proc"
)

// maxDebugLink bounds .gnu_debuglink: a file's name, and its checksum.
const maxDebugLink = 1 << 12

// debugRoot is where distributions install separate debug files.
const debugRoot = "/usr/lib/debug"

// SymbolsOf returns what [File.Symbols] does, and of a file that was stripped of them those of its separate debug
// file: by its build ID or .gnu_debuglink, where debuggers look for it, or in debuginfod's cache; else those that it
// carries compressed, in .gnu_debugdata. path is the file's, as a process has it whose files root has: "" for this one's.
func (f *File) SymbolsOf(path, root string) ([]Symbol, error) {
	list, err := f.Symbols()
	if err != nil || len(list) > 0 {
		return list, err
	}
	id := f.BuildID()
	link, sum := f.debugLink()
	for _, name := range debugFiles(path, root, id, link) {
		if list := debugSymbols(name, id, sum); len(list) > 0 {
			return list, nil
		}
	}
	return f.carried(), nil
}

// Root returns the folder by which the files of a process are reached as it has them.
func Root(pid int) string { return proc.Path(pid, "root") }

// Bounds of .gnu_debugdata, as it is and unpacked.
const (
	maxPacked   = 32 << 20
	maxUnpacked = 128 << 20
)

// carried returns the symbols of the file that lies compressed in .gnu_debugdata, nil of none that can be read.
func (f *File) carried() []Symbol {
	s := f.Section(".gnu_debugdata")
	if s == nil {
		return nil
	}
	packed, err := f.Data(s, maxPacked)
	if err != nil {
		return nil
	}
	b, err := unpack(packed)
	if err != nil {
		return nil
	}
	within, err := Read(bytes.NewReader(b))
	if err != nil {
		return nil
	}
	list, _ := within.Symbols()
	return list
}

// unpack returns the first block of an xz file. Its dictionary is made here, not by a reader of whole files: the file
// may claim one of 4 GiB.
func unpack(b []byte) ([]byte, error) {
	const header, flags = 12, 13                                                              // of the stream; the block's second byte
	if len(b) <= flags || !bytes.HasPrefix(b, []byte("\xfd7zXZ\x00")) || b[flags]&0x3f != 0 { // one filter alone
		return nil, errPacked
	}
	end := header + (int(b[header])+1)*4
	at := flags + 1
	for has := b[flags]; has&0xc0 != 0; has <<= 1 { // the sizes of the block
		if has&0x80 == 0 {
			continue
		}
		for at < len(b) && b[at]&0x80 != 0 {
			at++
		}
		at++
	}
	const lzma2 = 0x21
	if end > len(b) || at+3 > end || b[at] != lzma2 || b[at+1] != 1 {
		return nil, errPacked
	}
	dict, err := lzma.DecodeDictCap(b[at+2])
	if err != nil {
		return nil, err
	}
	r, err := lzma.Reader2Config{DictCap: int(min(max(dict, lzma.MinDictCap), maxUnpacked))}.NewReader2(bytes.NewReader(b[end:]))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(r, maxUnpacked))
}

// errPacked: it is not what xz makes of a file by default.
var errPacked = errors.New("compressed in another way")

// debugFiles returns where a file's debug file may be.
func debugFiles(path, root, id, link string) (names []string) {
	roots := []string{root}
	if root != "" {
		roots = append(roots, "") // what another build has is not taken
	}
	if len(id) > 2 {
		for _, r := range roots {
			names = append(names, filepath.Join(r+debugRoot, ".build-id", id[:2], id[2:]+".debug"))
		}
		cache := os.Getenv("DEBUGINFOD_CACHE_PATH")
		if cache == "" {
			if dir, err := os.UserCacheDir(); err == nil {
				cache = filepath.Join(dir, "debuginfod_client")
			}
		}
		if cache != "" {
			names = append(names, filepath.Join(cache, id, "debuginfo"))
		}
	}
	if link != "" {
		dir := filepath.Dir(path)
		for _, r := range roots {
			names = append(names, filepath.Join(r+dir, link), filepath.Join(r+dir, ".debug", link), filepath.Join(r+debugRoot, dir, link))
		}
	}
	return names
}

// debugLink returns the name and the checksum that .gnu_debuglink has, "" for none.
func (f *File) debugLink() (name string, sum uint32) {
	s := f.Section(".gnu_debuglink")
	if s == nil {
		return "", 0
	}
	b, err := f.Data(s, maxDebugLink)
	end := bytes.IndexByte(b, 0)
	if err != nil || end < 1 || len(b) < (end+4)&^3+4 || bytes.IndexByte(b[:end], '/') >= 0 {
		return "", 0
	}
	return string(b[:end]), le.Uint32(b[(end+4)&^3:])
}

// debugSymbols returns the symbols of a debug file, if it is the one of the build ID, or of the checksum where the
// file has no ID.
func debugSymbols(name, id string, sum uint32) []Symbol {
	r, _, err := proc.OpenRegular(name)
	if err != nil {
		return nil // it is somewhere else, or nowhere
	}
	defer r.Close()
	f, err := Read(r)
	if err != nil {
		return nil
	}
	if id != "" && f.BuildID() != id {
		return nil
	}
	if h := crc32.NewIEEE(); id == "" {
		if _, err := io.Copy(h, r); err != nil || h.Sum32() != sum {
			return nil
		}
	}
	list, _ := f.Symbols()
	return list
}
