package gpu

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"nvtrace/fatbin"
	"nvtrace/nvattach"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/session"
	"nvtrace/nvattach/sim"
)

// SimulatedOptions say what to run on the simulated GPU.
type SimulatedOptions struct {
	Session *session.Session
	Model   sim.GPU
	// Refuse and Report are as in [Options].
	Refuse func(err error)
	Report func(text string)
}

// Simulated runs a session's probes in programs on the simulated GPU, which, unlike a real
// one, asks before it loads and launches: what [Tracer] has the program call its driver for
// is a call of package sim here.
type Simulated struct {
	o    SimulatedOptions
	once sync.Once // for what keeps probes from running
	// unread is for what keeps them from reading memory.
	unread sync.Once
	mu     sync.Mutex
	of     map[*sim.Process]*session.Context
}

// NewSimulated makes a Simulated.
func NewSimulated(o *SimulatedOptions) *Simulated {
	o.Session.LooksAtLaunches()
	return &Simulated{o: *o, of: make(map[*sim.Process]*session.Context)}
}

// Hook sets the hooks by which the simulated GPU asks.
func (s *Simulated) Hook(h *sim.Hooks) {
	h.Image, h.Launch, h.Instead, h.Replaced, h.Exit = s.image, s.launch, s.instead, s.replaced, s.exit
}

// reasonLinked is said of kernels in relocatable device code.
const reasonLinked = "it is in relocatable device code, which the driver links when it is loaded"

// image puts probes into an image.
func (s *Simulated) image(proc *sim.Process, im *sim.Image) ([]byte, error) {
	if !im.Runs { // refused by the simulated GPU, or without code for one of several that are linked
		return im.Data, nil
	}
	if im.Linked {
		return im.Data, s.refused(s.o.Session.Pass(im.Data, fileName(im.File), reasonLinked))
	}
	c, err := s.context(proc)
	if err != nil && s.o.Session.Required() {
		return nil, s.refused(err)
	}
	if err != nil {
		s.once.Do(func() { s.o.Report(fmt.Sprintf("process %d runs without probes: %v", proc.PID(), err)) })
		return im.Data, nil
	}
	m := &s.o.Model
	arch := fatbin.Arch{SM: uint32(m.Major*10 + m.Minor)}
	if m.Major >= 9 {
		arch.Suffix = 'a'
	}
	o := &session.RewriteOptions{Arch: arch, Twins: nvattach.TwinsBlocks}
	switch {
	case s.o.Session.Verify():
		o.Twins = nvattach.TwinsAll // there is no other module to have the originals
	case m.RegistersPerBlock > 0:
		o.Twins = nvattach.TwinsNeeded
	}
	image, _, err := c.Rewrite(im.Data, fileName(im.File), o)
	return image, s.refused(err)
}

// refused ends the program if there is an error, which is returned.
func (s *Simulated) refused(err error) error {
	if err != nil && s.o.Session.Required() {
		s.o.Refuse(err)
	}
	return err
}

// exit shows what the maps of a program hold at its end.
func (s *Simulated) exit(proc *sim.Process) {
	s.mu.Lock()
	c := s.of[proc]
	delete(s.of, proc)
	s.mu.Unlock()
	if c == nil {
		return
	}
	if err := c.End(); err != nil {
		s.o.Report(fmt.Sprintf("probes: %v", err))
	}
}

// mapsName is what allocations of maps are called on the simulated GPU.
const mapsName = "maps of probes"

// context returns the probes of a process; all its devices share their maps.
func (s *Simulated) context(proc *sim.Process) (*session.Context, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.of[proc]; c != nil {
		return c, nil
	}
	c, err := s.o.Session.Add(&session.Target{
		PID: proc.PID(), Rank: rankOf(proc.PID()), SMs: s.o.Model.SMs,
		Alloc: func(size uint64) (uint64, mapmem.Memory, error) {
			addr, data, err := proc.Alloc(size, mapsName)
			return addr, &mapmem.Buffer{Base: addr, Data: data}, err
		},
		Share: func(addr, size uint64) error {
			if r, ok := proc.Arena().Region(addr); !ok || addr+size > r.Base+uint64(len(r.Data)) {
				return errors.New("the simulated GPU can't reach them")
			}
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	s.of[proc] = c
	if s.o.Session.Clocks() {
		before := monotonic()
		real := hostClock(unix.CLOCK_REALTIME)
		margin := (monotonic() - before + 1) / 2
		err = c.SetClock(mapmem.Clock{Offset: int64(before + margin - real), Since: real, Margin: margin})
	}
	return c, err
}

// launch notes a kernel's launch, and runs it both ways if that is due, on copies of what
// it looks at.
func (s *Simulated) launch(proc *sim.Process, l *sim.Launch) {
	p := s.o.Session
	if p.ReadsMemory() {
		s.mu.Lock()
		c := s.of[proc]
		s.mu.Unlock()
		if c != nil {
			if err := showReadable(func() error { return c.SetReadable(readable(proc)) }); err != nil {
				s.unread.Do(func() {
					s.o.Report(fmt.Sprintf("process %d: what kernels may read can't be told: %v", proc.PID(), err))
				})
			}
		}
	}
	if of, twin := nvattach.TwinOf(l.Kernel); twin && p.HasTwin(of) {
		p.Ran(of)
		p.CountLaunches(of, 1)
		return
	}
	p.Ran(l.Kernel)
	p.CountLaunches(l.Kernel, 1)
	if !p.Verify() || !p.HasTwin(l.Kernel) || !p.Launched(l.Kernel) {
		return
	}
	p.Verified(l.Kernel, trySimulated(l))
}

// readersTries is how often threads that read memory are waited for.
const readersTries = 10000

// showReadable calls set until no kernel of another stream reads by the table of memory that is to
// be written. Of a kernel that has failed, threads do so for ever.
func showReadable(set func() error) (err error) {
	for range readersTries {
		if err = set(); !errors.Is(err, mapmem.ErrReaders) {
			return err
		}
		runtime.Gosched()
	}
	return fmt.Errorf("%w: %w", errReaders, err)
}

// trySimulated runs a launch twice without probes and once with them, and compares.
func trySimulated(l *sim.Launch) *session.Verification {
	once, err := l.Try(nvattach.TwinName(l.Kernel))
	var again *sim.Outcome
	if err == nil {
		again, err = l.Try(nvattach.TwinName(l.Kernel))
	}
	if err != nil {
		return &session.Verification{Reason: fmt.Sprintf("alone and without probes: %v", err), Final: errors.Is(err, sim.ErrNoEnd)}
	}
	var c session.Comparison
	probed, err := l.Try(l.Kernel)
	if err != nil {
		c.Fails = err.Error()
		return &c.Verification
	}
	c.UnprobedInsns, c.ProbedInsns = once.Stats.ThreadInstructions, probed.Stats.ThreadInstructions
	for _, r := range l.Touched() {
		if r.Name == mapsName {
			continue
		}
		after := func(o *sim.Outcome) []byte {
			if b := o.Data(r.Base); b != nil {
				return b
			}
			return r.Data
		}
		c.Add(fmt.Sprintf("%s, %d bytes at %#x", r.Name, len(r.Data), r.Base), r.Base, after(once), after(again), after(probed))
	}
	return &c.Verification
}

// instead names the kernel without probes, which may have what the one with them was refused.
func (s *Simulated) instead(_ *sim.Process, kernel string) string {
	if !s.o.Session.HasTwin(kernel) {
		return ""
	}
	return nvattach.TwinName(kernel)
}

// replaced takes note of a launch of that kernel.
func (s *Simulated) replaced(_ *sim.Process, kernel string, shared bool) {
	why := session.TooManyRegisters
	if shared {
		why = session.TooMuchShared
	}
	s.o.Session.RanUnprobed(kernel, why)
}
