package gpu

import (
	gocontext "context"
	"errors"
	"fmt"
	"strings"
	"time"

	"nvtrace/fatbin"
	"nvtrace/nvattach/jit"
)

// compileFor returns what compiles for the program's driver; nil, or nothing as a
// result, leaves that to the driver itself.
//
// base is where the maps are that the code uses; options are the compiler's. It is the
// compiler library that belongs to this driver, in a process of nvtrace's (package jit): compiling
// is the larger part of what rewriting costs, and there its results can be kept.
func (tr *Tracer) compileFor(lib *library, arch fatbin.Arch, base uint64, options ...string) func(text string) ([]byte, error) {
	c := tr.compiler(lib.path)
	if c.c == nil {
		return nil
	}
	return func(text string) ([]byte, error) {
		began := time.Now()
		ctx, cancel := gocontext.WithCancel(gocontext.Background())
		defer cancel()
		go func() {
			select {
			case <-tr.quit:
				cancel()
			case <-ctx.Done():
			}
		}()
		compile := func(text string) (*jit.Result, error) {
			return c.c.Compile(ctx, []byte(text), target(text, arch), options...)
		}
		r, moved, err := compileMoved(compile, text, base)
		if !moved {
			r, err = compile(text)
		}
		if errors.Is(err, jit.ErrUnusable) {
			tr.log.Info("the driver compiles in the program", "err", err)
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		tr.count(func(s *Stats) {
			s.Compiled++
			if r.Cached {
				s.Cached++
			}
		})
		tr.log.Debug("compiled", "bytes", len(text), "took", time.Since(began), "cached", r.Cached, "moved", moved)
		return r.Cubin, nil
	}
}

// compiler returns the compiler that belongs to a driver.
func (tr *Tracer) compiler(driver string) *compiler {
	tr.mu.Lock()
	c := tr.compilers[driver]
	if c == nil {
		c = new(compiler)
		tr.compilers[driver] = c
	}
	tr.mu.Unlock()
	c.once.Do(func() {
		var path string
		if path, c.err = jit.Find(driver); c.err == nil {
			c.c, c.err = jit.Open(path, tr.o.JIT)
		}
		if c.err != nil {
			tr.log.Info("the driver compiles in the program", "err", c.err)
		}
	})
	return c
}

// target names what to compile a module for: the GPU, with the suffix that the
// module's own target has.
func target(text string, arch fatbin.Arch) string {
	suffix := ""
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), ".target")
		if !ok {
			continue
		}
		word, _, _ := strings.Cut(strings.TrimSpace(rest), ",")
		word = strings.TrimSpace(strings.SplitN(word, "/", 2)[0])
		if n := len(word); n > 0 && (word[n-1] == 'a' || word[n-1] == 'f') {
			suffix = word[n-1:]
		}
		break
	}
	return fmt.Sprintf("sm_%d%s", arch.SM, suffix)
}
