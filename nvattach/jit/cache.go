package jit

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// cache keeps results in files named by the hash of all that they depend on.
// Several processes may share it: files are written whole and then renamed.
// Whatever goes wrong with it only means that something is compiled again.
type cache struct {
	dir   string
	limit int64
}

// cacheMagic begins a file of the cache; it changes when the format does.
const cacheMagic = "nvtrace jit 1\n"

// tooOld is the age from which a file that is being written counts as left
// behind by a process that was killed.
const tooOld = time.Hour

func openCache(dir string, limit int64) (*cache, error) {
	if dir == "off" {
		return nil, nil
	}
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return nil, nil // no home: no cache
		}
		dir = filepath.Join(base, "nvtrace", "jit")
		if os.MkdirAll(dir, 0o700) != nil {
			return nil, nil
		}
	} else if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the cache of compiled PTX: %w", err)
	}
	if limit == 0 {
		limit = 1 << 30
	}
	return &cache{dir, limit}, nil
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

// get returns a result, nil if there is none.
func (c *cache) get(key string) *Result {
	if c == nil {
		return nil
	}
	name := filepath.Join(c.dir, key)
	b, err := os.ReadFile(name)
	if err != nil || len(b) < len(cacheMagic)+sha256.Size+4 || string(b[:len(cacheMagic)]) != cacheMagic {
		return nil
	}
	sum, body := b[len(cacheMagic):][:sha256.Size], b[len(cacheMagic)+sha256.Size:]
	if want := sha256.Sum256(body); !bytes.Equal(sum, want[:]) {
		_ = os.Remove(name)
		return nil
	}
	n := uint64(binary.LittleEndian.Uint32(body))
	if n > uint64(len(body)-4) {
		return nil
	}
	now := time.Now()
	_ = os.Chtimes(name, now, now)
	return &Result{Info: string(body[4:][:n]), Cubin: body[4+n:], Cached: true}
}

// put keeps a result, and drops old ones.
func (c *cache) put(key string, r *Result) {
	if c == nil {
		return
	}
	body := binary.LittleEndian.AppendUint32(nil, uint32(len(r.Info)))
	body = append(append(body, r.Info...), r.Cubin...)
	sum := sha256.Sum256(body)
	f, err := os.CreateTemp(c.dir, "new-*")
	if err != nil {
		return
	}
	_, err = f.Write(slices.Concat([]byte(cacheMagic), sum[:], body))
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(c.dir, key))
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return
	}
	c.trim()
}

// trim removes the results that were not used for the longest time until the
// rest fits.
func (c *cache) trim() {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return
	}
	var files []os.FileInfo
	var total int64
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		if strings.HasPrefix(e.Name(), "new-") {
			if time.Since(info.ModTime()) > tooOld {
				_ = os.Remove(filepath.Join(c.dir, e.Name()))
			}
			continue
		}
		files = append(files, info)
		total += info.Size()
	}
	slices.SortFunc(files, func(a, b os.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, f := range files {
		if total <= c.limit {
			return
		}
		if os.Remove(filepath.Join(c.dir, f.Name())) == nil {
			total -= f.Size()
		}
	}
}
