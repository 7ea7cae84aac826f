package gpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
	"nvtrace/ptrace/remote"
)

// DriverError is what a function of the driver returned.
type DriverError struct {
	Function string
	Code     int32  // CUresult
	Name     string // of the code, as the driver says; "" where it does not
}

// Error implements error.
func (e *DriverError) Error() string {
	if e.Name != "" {
		return e.Function + " returned " + e.Name
	}
	return fmt.Sprintf("%s returned CUDA error %d", e.Function, e.Code)
}

// explain has the driver name the code in an error that may be shown.
func (v *visit) explain(err error) error {
	de, ok := errors.AsType[*DriverError](err)
	if !ok || slices.Contains([]int32{errNotReady, errNotInitialized, errDeinitialized, errInvalidContext}, de.Code) ||
		v.p.driver.syms["cuGetErrorName"] == 0 {
		return err
	}
	_ = v.do(func(t *ptrace.Task, done func(error)) {
		v.next(t, []step{try("cuGetErrorName", uint64(uint32(de.Code)), v.word(wordName))}, func(err error) {
			if at, rerr := readWord(t, v.word(wordName)); err == nil && rerr == nil && at != 0 {
				de.Name, _ = t.ReadString(at, 100)
			}
			done(err)
		})
	})
	return err
}

// readWord reads a word of the program's memory, on the tracing thread.
func readWord(t *ptrace.Task, addr uint64) (uint64, error) {
	var b [8]byte
	_, err := t.ReadMem(addr, b[:])
	return binary.LittleEndian.Uint64(b[:]), err
}

// stageBytes is how much is copied to and from the GPU at once.
const stageBytes = remote.StageBytes

// newVisit returns a visit of a held thread, whose functions have no limit.
func newVisit(p *process, th *thread) *visit { return &visit{p: p, th: th, mode: captureRelaxed} }

// errMissing is the code of a function that the driver lacks.
const errMissing = -1

// errEnded: tracing is over.
var errEnded = errors.New("tracing has ended")

// errStuck: a function of the driver did not return.
var errStuck = errors.New("the driver does not answer any more")

// do runs fn on the tracing thread; done must be called once, then or later. It returns when
// that is so, when the thread has ended, or when tracing has; fn may then still be called, so that what it
// writes to must be used only if there is no error.
func (v *visit) do(fn func(t *ptrace.Task, done func(error))) error {
	ch := make(chan error, 1)
	began := time.Now()
	v.th.task.Interrupt(func(t *ptrace.Task) {
		v.p.tr.handed(time.Since(began))
		fn(t, func(err error) { ch <- err })
	})
	var late <-chan time.Time
	if v.limit > 0 {
		late = time.After(v.limit)
	}
	for {
		select {
		case err := <-ch:
			v.stuck = v.stuck || errors.Is(err, ptrace.ErrCanceled)
			return err
		case <-v.th.gone:
			return ptrace.ErrGone
		case <-v.p.tr.quit:
			return errEnded
		case <-late:
			v.th.task.Interrupt(func(t *ptrace.Task) {
				if err := t.CancelCall(); err != nil { // it has just returned
					v.p.tr.log.Debug("cancel", "err", err)
				}
			})
		}
	}
}

// choose makes a decision of a function, call a call that must succeed, try one whose failure is told
// by visit.code alone.
func choose(f func(w results) ([]step, error)) step { return step{choose: f} }

func call(fn string, args ...uint64) step { return step{fn: fn, args: args} }

func try(fn string, args ...uint64) step { return step{fn: fn, args: args, may: true} }

// run makes the calls in order, up to the first that fails.
func (v *visit) run(steps ...step) error { return v.exchange(nil, 0, steps, 0, nil) }

// exchange writes in to the program's memory, makes the calls in order up to the
// first that fails, and reads out, also then.
func (v *visit) exchange(in []byte, to uint64, steps []step, from uint64, out []byte) error {
	if v.stuck {
		return errStuck
	}
	if err := v.room(); err != nil {
		return err
	}
	return v.explain(v.do(func(t *ptrace.Task, done func(error)) {
		if len(in) > 0 {
			if _, err := t.WriteMem(to, in); err != nil {
				done(err)
				return
			}
		}
		v.next(t, steps, func(err error) {
			if len(out) > 0 {
				if _, rerr := t.ReadMem(from, out); err == nil {
					err = rerr
				}
			}
			done(err)
		})
	}))
}

// next makes the first call, and the others when it has returned.
func (v *visit) next(t *ptrace.Task, steps []step, done func(error)) {
	for len(steps) > 0 && steps[0].may && v.p.driver.syms[steps[0].fn] == 0 {
		steps, v.code = steps[1:], errMissing
	}
	if len(steps) == 0 {
		done(nil)
		return
	}
	s := steps[0]
	if s.choose != nil {
		w, err := v.results(t)
		var first []step
		if err == nil {
			first, err = s.choose(w)
		}
		if err != nil {
			done(err)
			return
		}
		v.next(t, slices.Concat(first, steps[1:]), done)
		return
	}
	addr := v.p.driver.syms[s.fn]
	if addr == 0 {
		done(fmt.Errorf("the driver %s has no %s", v.p.driver.path, s.fn))
		return
	}
	v.p.tr.count(func(s *Stats) { s.DriverCalls++ })
	began := time.Now()
	err := v.p.scratch.Call(t, addr, s.args, func(t *ptrace.Task, ret uint64, err error) {
		v.code = int32(ret)
		v.p.tr.log.Debug("driver called", "function", s.fn, "status", int32(ret), "took", time.Since(began))
		if code := int32(ret); err == nil && code != 0 && !s.may {
			err = &DriverError{Function: s.fn, Code: code}
		}
		if err != nil {
			done(err)
			return
		}
		v.next(t, steps[1:], done)
	})
	if err != nil {
		done(err)
	}
}

// room maps memory into the program, once.
func (v *visit) room() error {
	if v.p.scratch.Mapped() {
		return nil
	}
	return v.do(func(t *ptrace.Task, done func(error)) { done(v.makeRoom(t)) })
}

// makeRoom is room, on the tracing thread.
func (v *visit) makeRoom(t *ptrace.Task) error {
	if v.p.scratch.Mapped() {
		return nil
	}
	var err error
	if v.p.scratch, err = remote.Map(t); err != nil || v.p.tr.own == nil {
		return err
	}
	if err := v.p.tr.own(t, v.p.scratch.Base()); err != nil {
		v.p.tr.log.Debug("programs on the host run at calls of nvtrace's own", "err", err)
	}
	return nil
}

// space maps memory into the process, which stays as long as it runs.
func (v *visit) space(size uint64) (at uint64, err error) {
	err = v.do(func(t *ptrace.Task, done func(error)) {
		at, err = remote.Alloc(t, size, unix.PROT_READ|unix.PROT_WRITE)
		done(err)
	})
	return at, err
}

// word is the address of result i of a function, in the program.
func (v *visit) word(i int) uint64 { return v.p.scratch.Word(i) }

// desc is where a description of a copy, or of memory, is put.
func (v *visit) desc() uint64 { return v.word(descWord) }

const descWord = 64

// stage is the address of what is copied.
func (v *visit) stage() uint64 { return v.p.scratch.Stage() }

// results reads the results, on the tracing thread.
func (v *visit) results(t *ptrace.Task) (results, error) {
	var b [8 * numWords]byte
	if _, err := t.ReadMem(v.word(0), b[:]); err != nil {
		return results{}, err
	}
	return parseResults(b[:]), nil
}

// parseResults reads the words for results.
func parseResults(b []byte) (w results) {
	for i := range w {
		w[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return w
}

// script makes calls, with all results set to zero but that for the capture mode, and
// desc, if there is one, in its place. It returns the results, also with an error.
// There must be room.
func (v *visit) script(desc []byte, steps ...step) (results, error) {
	in, out := make([]byte, 8*numWords), make([]byte, 8*numWords)
	binary.LittleEndian.PutUint64(in[8*wordMode:], v.mode)
	if len(desc) > 0 {
		if len(desc) > 8*(remote.Words-descWord) {
			return results{}, fmt.Errorf("a description of %d bytes is too long", len(desc))
		}
		in = append(append(in, make([]byte, 8*(descWord-numWords))...), desc...)
	}
	err := v.exchange(in, v.word(0), steps, v.word(0), out)
	return parseResults(out), err
}

// peek and poke copy the program's memory.
func (v *visit) peek(addr uint64, b []byte) error {
	return v.do(func(t *ptrace.Task, done func(error)) {
		_, err := t.ReadMem(addr, b)
		done(err)
	})
}

func (v *visit) poke(addr uint64, b []byte) error {
	return v.do(func(t *ptrace.Task, done func(error)) {
		_, err := t.WriteMem(addr, b)
		done(err)
	})
}
