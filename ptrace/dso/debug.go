package dso

import (
	"bytes"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"nvtrace/ptrace/proc"
)

// maxDebugLink bounds .gnu_debuglink: a file's name, and its checksum.
const maxDebugLink = 1 << 12

// debugRoot is where distributions install separate debug files.
const debugRoot = "/usr/lib/debug"

// SymbolsOf returns what [File.Symbols] does, and of a file that was stripped of them those of its separate debug
// file: by its build ID or .gnu_debuglink, where debuggers look for it, or in debuginfod's cache. path is the file's.
func (f *File) SymbolsOf(path string) ([]Symbol, error) {
	list, err := f.Symbols()
	if err != nil || len(list) > 0 {
		return list, err
	}
	id := f.BuildID()
	link, sum := f.debugLink()
	for _, name := range debugFiles(path, id, link) {
		if list := debugSymbols(name, id, sum); len(list) > 0 {
			return list, nil
		}
	}
	return nil, nil
}

// debugFiles returns where a file's debug file may be.
func debugFiles(path, id, link string) (names []string) {
	if len(id) > 2 {
		names = append(names, filepath.Join(debugRoot, ".build-id", id[:2], id[2:]+".debug"))
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
		names = append(names, filepath.Join(dir, link), filepath.Join(dir, ".debug", link), filepath.Join(debugRoot, dir, link))
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
