// Package jit compiles PTX to cubins with the compiler library that every
// NVIDIA driver ships, libnvidia-ptxjitcompiler.so: the compiler that the driver
// itself would use. It needs no GPU and no toolkit.
//
// The library runs in a helper process, so that its crash, or a compile that
// does not end, costs nothing but the result. That process has no privileges, no
// network and nothing that it could write to but its answer. Results are cached on
// disk.
package jit

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// LibraryName is the compiler library's file name, as the driver opens it.
const LibraryName = "libnvidia-ptxjitcompiler.so.1"

// Errors that callers tell apart.
var (
	ErrNoLibrary = errors.New("the driver's compiler library " + LibraryName + " was not found")
	// ErrCrashed: the library ended the helper process. The same input will do
	// it again.
	ErrCrashed = errors.New("the driver's compiler crashed")
	ErrTimeout = errors.New("the driver's compiler took too long")
	// ErrUnusable: the library can't be loaded, or lacks the compiler's functions.
	ErrUnusable = errors.New("the driver's compiler can't be used")
)

// CompileError is what the compiler says about PTX that it refuses.
type CompileError struct {
	Result int    // nvPTXCompileResult: 1 invalid handle, 2 out of memory, 4 incomplete invocation, 5 failure, 6 unsupported version
	Log    string // the compiler's messages, with lines of the PTX
}

// Error implements error. It gives the first line of the log.
func (e *CompileError) Error() string {
	line, _, _ := strings.Cut(strings.TrimSpace(e.Log), "\n")
	if line == "" {
		line = "no message"
	}
	return fmt.Sprintf("the driver's compiler refused the PTX (result %d): %s", e.Result, line)
}

// Options tune a [Compiler]. The zero value, and nil, are good defaults.
type Options struct {
	Timeout  time.Duration // of one compile; 0 means 60 s
	MaxBytes uint64        // address space of the helper process; 0 means 16 GiB
	// Cache is the directory of results; "" means nvtrace/jit in the user's cache
	// directory, "off" none.
	Cache string
	// CacheBytes bounds the cache; the results that were not used for the longest
	// time go first. 0 means 1 GiB.
	CacheBytes int64
}

// Compiler compiles with one library. It may be used by several goroutines.
type Compiler struct {
	library *library
	opts    Options
	cache   *cache // nil: none
}

// Result is a compiled module.
type Result struct {
	Cubin  []byte
	Info   string        // what the compiler printed; with "--verbose" each function's resources
	Cached bool          // it came from the cache
	Took   time.Duration // of the compile; of the cached one's compile 0
}

// Open prepares to compile with a library. It does not load it: what is in the cache
// needs none that works. The error matches [ErrNoLibrary] if there is no such file;
// one that others than root and nvtrace's user can change is an error, too.
func Open(library string, o *Options) (*Compiler, error) {
	c := new(Compiler)
	if o != nil {
		c.opts = *o
	}
	if c.opts.Timeout == 0 {
		c.opts.Timeout = time.Minute
	}
	if c.opts.MaxBytes == 0 {
		c.opts.MaxBytes = 16 << 30
	}
	var err error
	if c.library, err = openLibrary(library); errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNoLibrary, library)
	}
	if err != nil {
		return nil, fmt.Errorf("the driver's compiler: %w", err)
	}
	if c.cache, err = openCache(c.opts.Cache, c.opts.CacheBytes); err != nil {
		return nil, err
	}
	return c, nil
}

// Version loads the library and returns the version of the compiler, that of the
// CUDA toolkit to which it belongs: 13, 0. The error matches [ErrUnusable] if that
// can't be done.
func (c *Compiler) Version() (major, minor int, err error) {
	out, err := c.helper(context.Background(), nil)
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w", c.library.name, err)
	}
	return int(out.result >> 16), int(out.result & 0xffff), nil
}

// Compile compiles PTX (without or with its final NUL) for a target ("sm_90a").
// options are those of ptxas that the compiler library takes: "--maxrregcount=64",
// "--verbose". The error is a *[CompileError], or matches [ErrCrashed], [ErrTimeout]
// or [ErrUnusable]; the caller's program is not touched by any.
func (c *Compiler) Compile(ctx context.Context, ptx []byte, target string, options ...string) (*Result, error) {
	args := append([]string{"--gpu-name=" + target}, options...)
	text := append(bytes.TrimRight(slices.Clip(ptx), "\x00"), 0)
	var key string
	if c.cache != nil {
		identity, err := c.library.identity()
		if err != nil {
			return nil, err
		}
		key = c.cache.key(identity, args, text)
	}
	if r := c.cache.get(key); r != nil {
		return r, nil
	}
	began := time.Now()
	out, err := c.helper(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	if out.result != 0 || len(out.program) == 0 {
		return nil, &CompileError{Result: int(out.result), Log: out.errors}
	}
	r := &Result{Cubin: out.program, Info: out.info, Took: time.Since(began)}
	c.cache.put(key, r)
	return r, nil
}

// Kept returns what [Compiler.Keep] kept that depends on the same things, by the same
// nvtrace and compiler; false if there is nothing.
func (c *Compiler) Kept(parts []string) (info string, data []byte, ok bool) {
	key, ok := c.keptKey(parts)
	if !ok {
		return "", nil, false
	}
	r := c.cache.get(key)
	if r == nil {
		return "", nil, false
	}
	return r.Info, r.Cubin, true
}

// Keep keeps what was made of compiled code beside it. parts are all that it depends on,
// but for nvtrace and the compiler.
func (c *Compiler) Keep(parts []string, info string, data []byte) {
	if key, ok := c.keptKey(parts); ok && len(data) < mostKept {
		c.cache.put(key, &Result{Info: info, Cubin: data})
	}
}

// keptKey is the name under which something is kept that this compiler has a part in.
func (c *Compiler) keptKey(parts []string) (string, bool) {
	if c.cache == nil {
		return "", false
	}
	identity, err := c.library.identity()
	if err != nil {
		return "", false
	}
	return c.cache.key(keptName+ownHash()+" "+identity, parts, nil), true
}

const (
	keptName = "made by nvtrace " // for keys
	mostKept = 256 << 20
)

// ownHash is that of the program that runs.
var ownHash = sync.OnceValue(func() string {
	h := sha256.New()
	f, err := os.Open("/proc/self/exe")
	if err == nil {
		defer f.Close()
		_, err = io.Copy(h, f)
	}
	if err != nil {
		return rand.Text() // nothing is found again
	}
	return hex.EncodeToString(h.Sum(nil))
})

// answer is what the helper prints; see helper/ptxjit.c.
type answer struct {
	result       uint32
	program      []byte
	info, errors string
}

const (
	answerMagic  = 0x4a58544e
	answerHeader = 20
	maxAnswer    = 1 << 30

	statusUnusable = 2 // of the helper that can't do its work; it says why
)

// helper runs the helper process.
func (c *Compiler) helper(ctx context.Context, ptx []byte, options ...string) (*answer, error) {
	file, err := helperFile()
	if err != nil {
		return nil, fmt.Errorf("the compiling process can't be made: %w", err)
	}
	defer file.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, c.opts.Timeout, ErrTimeout)
	defer cancel()
	seconds := int64(c.opts.Timeout/time.Second) + 1 // should nvtrace be killed meanwhile
	args := append([]string{strconv.FormatUint(c.opts.MaxBytes, 10), strconv.FormatInt(seconds, 10), strconv.Itoa(len(ptx))}, options...)
	cmd := exec.CommandContext(ctx, "/proc/self/fd/3", args...)
	cmd.Args[0] = "nvtrace-ptxjit"
	// The process is told nothing of the user's: no environment, no folder, and of
	// descriptors these. It confines itself before it loads the library.
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{file, c.library.file}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second
	cmd.Stdin = bytes.NewReader(ptx)
	out := &bounded{limit: maxAnswer}
	said := &bounded{limit: 64 << 10}
	cmd.Stdout, cmd.Stderr = out, said
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("the compiling process can't be started: %w", err)
	}
	err = cmd.Wait()
	if ctx.Err() != nil {
		cause := context.Cause(ctx)
		if errors.Is(cause, ErrTimeout) {
			return nil, fmt.Errorf("%w (limit %v)", ErrTimeout, c.opts.Timeout)
		}
		return nil, cause
	}
	if status, ok := errors.AsType[*exec.ExitError](err); ok {
		if ws, ok := status.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return nil, fmt.Errorf("%w (%s)", ErrCrashed, unix.SignalName(ws.Signal()))
		}
		text := strings.ReplaceAll(strings.TrimSpace(string(said.b)), "/proc/self/fd/4", c.library.name)
		if status.ExitCode() == statusUnusable {
			return nil, fmt.Errorf("%w: %s", ErrUnusable, text)
		}
		return nil, fmt.Errorf("the compiling process: %s", text)
	}
	if err != nil {
		return nil, fmt.Errorf("the compiling process: %w", err)
	}
	return parseAnswer(out.b)
}

func parseAnswer(b []byte) (*answer, error) {
	if len(b) < answerHeader || binary.LittleEndian.Uint32(b) != answerMagic {
		return nil, fmt.Errorf("%w: its answer of %d bytes makes no sense", ErrCrashed, len(b))
	}
	a := &answer{result: binary.LittleEndian.Uint32(b[4:])}
	rest := b[answerHeader:]
	var parts [3][]byte
	for i := range parts {
		n := uint64(binary.LittleEndian.Uint32(b[8+4*i:]))
		if n > uint64(len(rest)) {
			return nil, fmt.Errorf("%w: its answer of %d bytes is cut short", ErrCrashed, len(b))
		}
		parts[i], rest = rest[:n], rest[n:]
	}
	a.program = parts[0]
	a.info = string(bytes.TrimRight(parts[1], "\x00"))
	a.errors = string(bytes.TrimRight(parts[2], "\x00"))
	return a, nil
}

// bounded gathers up to limit bytes; more is an error, which ends the process.
type bounded struct {
	b     []byte
	limit int
}

// Write implements io.Writer.
func (w *bounded) Write(p []byte) (int, error) {
	if len(w.b)+len(p) > w.limit {
		return 0, fmt.Errorf("more than %d bytes", w.limit)
	}
	w.b = append(w.b, p...)
	return len(p), nil
}
