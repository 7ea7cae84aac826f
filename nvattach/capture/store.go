package capture

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"nvtrace/nvattach/owned"
	"nvtrace/ptrace"
)

// ErrStoreFull is in the chain of errors about an image that would exceed a
// store's limit.
var ErrStoreFull = errors.New("the module store's limit is reached")

// Store keeps images beside a recording, in RECORDING.d/images, in files named
// by the SHA-256 of what is in them. A file appears whole or not at all. Its
// methods may be called by several goroutines.
type Store struct {
	limit int64 // bytes, 0: none

	mu    sync.Mutex
	root  *os.Root        // the folder of the images, nil before Begin
	dir   string          // its name
	bytes int64           // kept by this Store
	has   map[string]bool // known to be there
}

// StoreDir returns the folder of the module store of a recording.
func StoreDir(recording string) string { return recording + ".d" }

// NewStore returns a module store that [Store.Begin] makes. limit, unless it is 0,
// bounds the bytes that are kept; what would exceed it gives [ErrStoreFull].
func NewStore(limit int64) *Store {
	return &Store{limit: limit, has: make(map[string]bool)}
}

// CheckStore returns an error if the store that a recording has, if it has one, can't become that
// of a new one: it is another user's, or a link.
func CheckStore(recording string) error {
	root, err := owned.Open(StoreDir(recording))
	if err == nil {
		defer root.Close()
		var images *os.Root
		if images, err = owned.OpenBelow(root, storeImages); err == nil {
			return images.Close()
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("module store: %w: take another name, or remove it", err)
}

// Begin makes the store of a recording that has begun, for its owner alone, and removes
// the images that an earlier recording of that name has left. It must be called before
// anything is put.
func (s *Store) Begin(recording string) error {
	in, name := filepath.Split(StoreDir(recording))
	root, err := owned.Make(cmp.Or(in, "."), name, storeImages)
	if err != nil {
		return fmt.Errorf("module store: %w", err)
	}
	if err := clearStore(root); err != nil {
		return fmt.Errorf("module store: %w", errors.Join(err, root.Close()))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.root, s.dir = root, filepath.Join(StoreDir(recording), storeImages)
	return nil
}

// clearStore removes what a store has written: the folder may hold what is the user's.
func clearStore(root *os.Root) error {
	old, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	for _, f := range old {
		if isHash(f.Name()) || strings.HasPrefix(f.Name(), tmpPrefix) {
			if err := root.Remove(f.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

// folder returns the folder of the images.
func (s *Store) folder() (*os.Root, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.root == nil {
		return nil, errors.New("module store: it has not begun")
	}
	return s.root, nil
}

// OpenStore opens the module store of a recording for reading. The error is
// fs.ErrNotExist where it has none.
func OpenStore(recording string) (*Store, error) {
	s := &Store{dir: filepath.Join(StoreDir(recording), storeImages), has: make(map[string]bool)}
	if _, err := os.Stat(s.dir); err != nil {
		return nil, fmt.Errorf("module store: %w", err)
	}
	return s, nil
}

const (
	storeImages = "images"
	tmpPrefix   = ".tmp-"
)

func isHash(s string) bool {
	return len(s) == 2*sha256.Size && strings.Trim(s, "0123456789abcdef") == ""
}

// Path returns the file of an image, which may not exist.
func (s *Store) Path(sum string) (string, error) {
	if !isHash(sum) {
		return "", fmt.Errorf("module store: %q is no SHA-256", sum)
	}
	return filepath.Join(s.dir, sum), nil
}

// Open opens an image of which a recording says that it has size bytes. The store may
// be a stranger's: what is no regular file of that size is refused, and nothing in it is
// followed elsewhere. The caller must make sure that the bytes have the hash. The error
// is fs.ErrNotExist where the image is not there.
func (s *Store) Open(sum string, size int64) (*os.File, error) {
	name, err := s.Path(sum)
	if err != nil {
		return nil, err
	}
	f, err := OpenImage(name, size, unix.O_NOFOLLOW)
	if err != nil {
		return nil, fmt.Errorf("module store: %w", err)
	}
	return f, nil
}

// OpenImage opens a file that holds at least an image of size bytes, without waiting for
// anything. flags are for open(2).
func OpenImage(name string, size int64, flags int) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|flags, 0)
	if flags&unix.O_NOFOLLOW != 0 && errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%s is a link, which is not followed", name)
	}
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	switch {
	case err != nil:
	case !st.Mode().IsRegular():
		err = fmt.Errorf("%s: not a regular file", name)
	case size < 0 || size > defaultMaxImage:
		err = fmt.Errorf("%s: %d bytes are no image's size", name, size)
	case st.Size() < size || flags&unix.O_NOFOLLOW != 0 && st.Size() != size:
		err = fmt.Errorf("%s was changed: it has %d bytes, the image %d", name, st.Size(), size)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Put keeps an image and returns its hash, which is valid also with an error.
func (s *Store) Put(b []byte) (string, error) {
	h := sha256.Sum256(b)
	sum := hex.EncodeToString(h[:])
	if s == nil || s.known(sum) {
		return sum, nil
	}
	w := s.writer()
	_, _ = w.Write(b) // close reports it
	_, err := w.close()
	return sum, err
}

func (s *Store) known(sum string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.has[sum]
}

// reserve takes n bytes of the limit.
func (s *Store) reserve(n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limit != 0 && s.bytes+n > s.limit {
		return fmt.Errorf("%w: %d bytes", ErrStoreFull, s.limit)
	}
	s.bytes += n
	return nil
}

// entry is an image on its way into a store. Without a store it is only hashed. A
// small one is written when its hash is known, so that one that is there already
// costs no file.
type entry struct {
	s     *Store
	hash  hash.Hash
	small []byte
	root  *os.Root // where the file lies
	name  string   // its name there
	tmp   *os.File // of one that is not small
	size  int64    // reserved
	err   error
}

// smallImage is what is held in memory.
const smallImage = 256 << 10

// writer returns an entry; s may be nil.
func (s *Store) writer() *entry { return &entry{s: s, hash: sha256.New()} }

// Write implements io.Writer. An error of the store doesn't keep the image from
// being hashed, and is reported by close.
func (e *entry) Write(b []byte) (int, error) {
	e.hash.Write(b)
	switch {
	case e.s == nil || e.err != nil:
	case e.tmp == nil && len(e.small)+len(b) <= smallImage:
		e.small = append(e.small, b...)
	default:
		if e.tmp == nil {
			e.spill(e.small)
			e.small = nil
		}
		e.spill(b)
	}
	return len(b), nil
}

// spill writes to the file, which it makes.
func (e *entry) spill(b []byte) {
	if e.err != nil {
		return
	}
	if e.tmp == nil {
		if e.root, e.err = e.s.folder(); e.err != nil {
			return
		}
		e.name = tmpPrefix + rand.Text()
		if e.tmp, e.err = owned.File(e.root, e.name, os.O_WRONLY|os.O_CREATE|os.O_EXCL); e.err != nil {
			e.err = fmt.Errorf("module store: %w", e.err)
			return
		}
	}
	if e.err = e.s.reserve(int64(len(b))); e.err != nil {
		return
	}
	e.size += int64(len(b))
	if _, err := e.tmp.Write(b); err != nil {
		e.err = fmt.Errorf("module store: %w", err)
	}
}

// abandon forgets the image.
func (e *entry) abandon() {
	if e.tmp != nil {
		e.tmp.Close()
		_ = e.root.Remove(e.name)
		e.tmp = nil
	}
	if e.size > 0 {
		_ = e.s.reserve(-e.size) // can't exceed
		e.size = 0
	}
}

// close names the file by its hash, which it returns, with an error too.
func (e *entry) close() (sum string, err error) {
	sum = hex.EncodeToString(e.hash.Sum(nil))
	defer e.abandon() // does nothing after success
	if e.s == nil || e.err != nil || e.s.known(sum) {
		return sum, e.err
	}
	if e.tmp == nil {
		if e.spill(e.small); e.err != nil {
			return sum, e.err
		}
	}
	if err := e.tmp.Close(); err != nil {
		return sum, fmt.Errorf("module store: %w", err)
	}
	if err := e.root.Rename(e.name, sum); err != nil {
		return sum, fmt.Errorf("module store: %w", err)
	}
	e.tmp, e.size = nil, 0
	e.s.mu.Lock()
	e.s.has[sum] = true
	e.s.mu.Unlock()
	return sum, nil
}

// Images lists the hashes of the images that are there.
func (s *Store) Images() ([]string, error) {
	list, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("module store: %w", err)
	}
	var sums []string
	for _, f := range list {
		if isHash(f.Name()) {
			sums = append(sums, f.Name())
		}
	}
	return sums, nil
}

// processMemory reads and writes the memory of a process that is traced, from
// any goroutine.
type processMemory struct{ pid int }

// ReadAt implements io.ReaderAt; offsets are addresses.
func (m processMemory) ReadAt(b []byte, addr int64) (n int, err error) {
	return m.move(unix.ProcessVMReadv, b, uint64(addr), "read")
}

// WriteAt implements io.WriterAt.
func (m processMemory) WriteAt(b []byte, addr int64) (n int, err error) {
	return m.move(unix.ProcessVMWritev, b, uint64(addr), "write")
}

// move goes from page border to page border where one call doesn't do it, since
// a call fails as a whole if its first range reaches beyond what is mapped.
func (m processMemory) move(call func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error), b []byte, addr uint64, verb string) (n int, err error) {
	for n < len(b) {
		at, size := addr+uint64(n), len(b)-n
		if at < addr {
			return n, fmt.Errorf("%s at %#x: %w", verb, at, unix.EFAULT)
		}
		k, err := call(m.pid, []unix.Iovec{iovec(b[n:])}, []unix.RemoteIovec{{Base: uintptr(at), Len: size}}, 0)
		if k <= 0 && errors.Is(err, unix.EFAULT) {
			size = min(size, int(pageSize-at%pageSize))
			k, err = call(m.pid, []unix.Iovec{iovec(b[n : n+size])}, []unix.RemoteIovec{{Base: uintptr(at), Len: size}}, 0)
		}
		if k > 0 {
			n += k
			continue
		}
		if err == nil {
			err = unix.EFAULT
		}
		return n, fmt.Errorf("%s memory of %d at %#x: %w%s", verb, m.pid, at, err, ptrace.WhyRefused(m.pid, err))
	}
	return n, nil
}

func iovec(b []byte) unix.Iovec { return unix.Iovec{Base: &b[0], Len: uint64(len(b))} }

// offsetReader reads an image at an address as if it began at 0.
type offsetReader struct {
	r    io.ReaderAt
	base uint64
}

// ReadAt implements io.ReaderAt.
func (o offsetReader) ReadAt(b []byte, off int64) (int, error) {
	at := o.base + uint64(off)
	if at < o.base || at > 1<<62 {
		return 0, fmt.Errorf("read at %#x: %w", at, unix.EFAULT)
	}
	return o.r.ReadAt(b, int64(at))
}

// copyBuffer is how much of an image is held in memory.
const copyBuffer = 1 << 20

// copyImage hashes and stores size bytes of r, and gives them to each, if not
// nil, in order. text drops the NUL at the end from what is kept. stored is why the
// store lacks the image, and err why it could not be copied.
func copyImage(s *Store, r io.ReaderAt, size int64, text bool, each func(off int64, b []byte) error) (sum string, kept int64, stored, err error) {
	w := s.writer()
	buf := make([]byte, min(size, copyBuffer))
	for off := int64(0); off < size; {
		b := buf[:min(int64(len(buf)), size-off)]
		if n, err := r.ReadAt(b, off); n < len(b) {
			w.abandon()
			return "", 0, nil, fmt.Errorf("+%#x: %w", off+int64(n), cmpErr(err, io.ErrUnexpectedEOF))
		}
		if each != nil {
			if err := each(off, b); err != nil {
				w.abandon()
				return "", 0, nil, err
			}
		}
		off += int64(len(b))
		if text && off == size {
			b = bytes.TrimSuffix(b, []byte{0})
		}
		_, _ = w.Write(b) // close reports it
		kept += int64(len(b))
	}
	sum, stored = w.close()
	return sum, kept, stored, nil
}

// cmpErr returns err, or other where err says no more than that the bytes ended.
func cmpErr(err, other error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return other
	}
	return err
}

const defaultMaxImage = 4 << 30

const pageSize = 4096
