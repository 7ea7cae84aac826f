package jit

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"nvtrace/nvattach/owned"
)

// cache keeps results in files named by the hash of all that they depend on, in a
// folder that is nvtrace's user's alone. Several processes may share it: files are
// written whole and then renamed. Whatever goes wrong with it only means that
// something is compiled again.
type cache struct {
	dir   *os.Root
	limit int64
}

// A file of the cache begins with cacheMagic, which changes when the format does;
// then come the hash of its name and of what follows, and that. All formats begin
// with anyMagic.
const (
	anyMagic   = "nvtrace jit "
	cacheMagic = anyMagic + "2\n"
)

// tempPrefix begins the names of files that are being written.
const tempPrefix = "new-"

// tooOld is the age from which a file that is being written counts as left
// behind by a process that was killed.
const tooOld = time.Hour

// openCache returns the cache in a folder; "" is the default one, "off" none. An
// error says why there is none; with the default folder there need not be one.
func openCache(dir string, limit int64) (*cache, error) {
	if dir == "off" {
		return nil, nil
	}
	if limit == 0 {
		limit = 1 << 30
	}
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return nil, nil // no home: no cache
		}
		c, err := openFolder(base, limit, "nvtrace", "jit")
		if err != nil {
			return nil, nil // as in another user's home, under sudo
		}
		return c, nil
	}
	parent, name := filepath.Split(filepath.Clean(dir))
	c, err := openFolder(cmp.Or(parent, "."), limit, name)
	if err != nil {
		return nil, fmt.Errorf("the cache of compiled PTX: %w", err)
	}
	return c, nil
}

// openFolder opens a chain of folders below base, and makes what is missing.
func openFolder(base string, limit int64, below ...string) (*cache, error) {
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, err
	}
	root, err := owned.Make(base, below...)
	if err != nil {
		return nil, err
	}
	st, err := root.Stat(".")
	if err == nil {
		err = private(root.Name(), st)
	}
	if err != nil {
		_ = root.Close()
		return nil, err
	}
	return &cache{root, limit}, nil
}

// private returns an error if others may look at a file or folder.
func private(name string, st fs.FileInfo) error {
	if st.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s is open to others (mode %#o): chmod go= %[1]s", name, st.Mode().Perm())
	}
	return nil
}

// key is the name under which a result is kept.
func (c *cache) key(compiler string, args []string, ptx []byte) string {
	h := sha256.New()
	for _, part := range append([]string{cacheMagic, compiler}, args...) {
		_ = binary.Write(h, binary.LittleEndian, uint64(len(part))) // hashes take everything
		h.Write([]byte(part))
	}
	h.Write(ptx)
	return hex.EncodeToString(h.Sum(nil))
}

// isKey says whether a file's name is a key.
func isKey(name string) bool {
	return len(name) == 2*sha256.Size && strings.Trim(name, "0123456789abcdef") == ""
}

// open opens a file of the cache for reading: a regular one that is nobody else's.
func (c *cache) open(name string) (*os.File, fs.FileInfo, error) {
	f, err := owned.File(c.dir, name, os.O_RDONLY)
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Stat()
	if err == nil {
		err = private(name, st)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, st, nil
}

// get returns a result, nil if there is none.
func (c *cache) get(key string) *Result {
	if c == nil {
		return nil
	}
	f, st, err := c.open(key)
	if err != nil {
		return nil
	}
	defer f.Close()
	if st.Size() < int64(len(cacheMagic)+sha256.Size+4) || st.Size() > maxAnswer {
		return nil
	}
	b := make([]byte, st.Size())
	if _, err := io.ReadFull(f, b); err != nil || string(b[:len(cacheMagic)]) != cacheMagic {
		return nil
	}
	sum, body := b[len(cacheMagic):][:sha256.Size], b[len(cacheMagic)+sha256.Size:]
	if !bytes.Equal(sum, checksum(key, body)) {
		_ = c.dir.Remove(key)
		return nil
	}
	n := uint64(binary.LittleEndian.Uint32(body))
	if n > uint64(len(body)-4) {
		return nil
	}
	now := time.Now()
	_ = c.dir.Chtimes(key, now, now)
	return &Result{Info: string(body[4:][:n]), Cubin: body[4+n:], Cached: true}
}

func checksum(key string, body []byte) []byte {
	h := sha256.New()
	io.WriteString(h, key)
	h.Write(body)
	return h.Sum(nil)
}

// put keeps a result, and drops old ones.
func (c *cache) put(key string, r *Result) {
	if c == nil {
		return
	}
	body := binary.LittleEndian.AppendUint32(nil, uint32(len(r.Info)))
	body = append(append(body, r.Info...), r.Cubin...)
	name := tempPrefix + rand.Text()
	f, err := c.dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return
	}
	_, err = f.Write(slices.Concat([]byte(cacheMagic), checksum(key, body), body))
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = c.dir.Rename(name, key)
	}
	if err != nil {
		_ = c.dir.Remove(name)
		return
	}
	c.trim()
}

// trim removes the results that were not used for the longest time until the
// rest fits. What is not the cache's it leaves alone.
func (c *cache) trim() {
	entries, err := fs.ReadDir(c.dir.FS(), ".")
	if err != nil {
		return
	}
	var files []fs.FileInfo
	var total int64
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		switch {
		case isKey(e.Name()):
			files = append(files, info)
			total += info.Size()
		case strings.HasPrefix(e.Name(), tempPrefix) && time.Since(info.ModTime()) > tooOld:
			c.remove(e.Name())
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, f := range files {
		if total <= c.limit {
			return
		}
		c.remove(f.Name()) // what is not the cache's does not count either
		total -= f.Size()
	}
}

// remove removes a file that begins as those of the cache do, as far as it was
// written.
func (c *cache) remove(name string) {
	f, _, err := c.open(name)
	if err != nil {
		return
	}
	defer f.Close()
	b := make([]byte, len(anyMagic))
	n, err := io.ReadFull(f, b)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return
	}
	if string(b[:n]) == anyMagic[:n] {
		_ = c.dir.Remove(name)
	}
}
