package sim

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"nvtrace/ptx"
	"nvtrace/ptx/emu"
)

// Bounds of what a program can make this process hold. A program that is served is not trusted,
// and one that leaks handles should get an error, as on a GPU, before nvtrace runs out of memory.
const (
	maxObjects = 1 << 20 // handles
	maxThreads = 1 << 14 // threads that have called
	maxPending = 1 << 12 // operations that wait in streams
	maxImage   = 1 << 30 // bytes of one image
	maxString  = 1 << 16 // bytes of a name
)

// newProcess makes the state of a program. Addresses are reserved here, memory is taken when the
// program allocates some.
func newProcess(s *Sim, pid int, start string, random uint64) (*Process, error) {
	a, err := newArena(s.opts.MemoryLimit)
	if err != nil {
		return nil, err
	}
	p := &Process{
		sim: s, pid: pid, start: start, random: random, session: s.ids.Add(1), arena: a,
		dead: make(chan struct{}), drained: make(chan struct{}, 1), callbacks: make(chan *hostCall),
		conns: map[*conn]bool{}, objects: map[uint64]any{}, next: 0x5e00_0000_0000, threads: map[uint64]*thread{}, strings: map[string]uint64{}, linked: map[uint64][]*ptx.File{}, imageOf: map[*ptx.File][32]byte{},
	}
	if p.mem = vmMemory(pid); s.opts.Memory != nil {
		p.mem = s.opts.Memory(pid)
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.rt.init()
	a.mapHost = p.mapHost
	for _, r := range s.shared {
		a.insert(&region{Region: r, kind: sharedMemory})
	}
	o := emu.Options{Memory: a, Device: s.gpu.machine(), Printf: &p.printf, Workers: s.opts.Workers, KeepShared: true}
	if len(s.shared) > 0 {
		o.Now = hostTime
	}
	for i := range s.opts.Count {
		d := &device{ordinal: i}
		d.machine = emu.New(&o)
		p.devices = append(p.devices, d)
	}
	return p, nil
}

// PID returns the process id.
func (p *Process) PID() int { return p.pid }

// Arena returns the memory of the program's GPUs.
func (p *Process) Arena() *Arena { return p.arena }

// Alloc allocates device memory that is not the program's own, for maps of
// probes, and returns its address in kernels and its bytes here. It stays until
// the program ends.
func (p *Process) Alloc(size uint64, name string) (uint64, []byte, error) {
	r, err := p.arena.alloc(size, 256, name, deviceMemory)
	if err != nil {
		return 0, nil, err
	}
	return r.Base, r.Data, nil
}

// inherit makes p the child of a fork: it knows what the parent had registered,
// and can't use CUDA if the parent had.
func (p *Process) inherit(parent *Process, used bool) {
	p.poisoned = used
	p.rt.inherit(&parent.rt)
}

// attach adds a connection; false if the process has ended.
func (p *Process) attach(c *conn, q *request) bool {
	p.connMu.Lock()
	select {
	case <-p.dead:
		p.connMu.Unlock()
		return false
	default:
	}
	p.conns[c] = true
	p.users.Add(1)
	p.connMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.libs[q.lib] = q.args[0]
	if q.args[1] != 0 {
		p.libs[libCUDA] = q.args[1]
	}
	if q.args[4] != 0 {
		p.canThread.Store(true)
	}
	return true
}

// detach removes a connection whose thread has ended, or broken the protocol.
func (p *Process) detach(c *conn) {
	p.connMu.Lock()
	delete(p.conns, c)
	p.connMu.Unlock()
	p.users.Done()
}

// kill ends the service of the program: its calls fail, its kernels stop.
func (p *Process) kill() {
	p.killOnce.Do(func() { close(p.dead); p.cancel() })
}

// wait waits for the end of the program, or of the service, and gives back what
// it held.
func (p *Process) wait() {
	p.waitExit()
	p.kill()
	p.connMu.Lock()
	for c := range p.conns {
		_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
	}
	p.connMu.Unlock()
	p.users.Wait()
	if h := p.sim.opts.Hooks; h != nil && h.Exit != nil {
		h.Exit(p)
	}
	p.sim.mu.Lock()
	if p.sim.procs[p.pid] == p {
		delete(p.sim.procs, p.pid)
	}
	p.sim.mu.Unlock()
	p.arena.close()
	p.closeChannels()
}

// waitExit returns when the process is gone or p was killed. A pidfd is polled, since the end
// of all connections does not mean that the program has ended: one that closes all its
// descriptors, as daemons do, connects again with its next call.
func (p *Process) waitExit() {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil { // gone, or a kernel before 5.3: the connections tell
		if !errors.Is(err, unix.ESRCH) {
			<-p.dead
		}
		return
	}
	defer unix.Close(fd)
	for {
		select {
		case <-p.dead:
			return
		default:
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 50)
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// add gives an object a handle; 0 if there are too many. Handles are numbers of ours, and no
// addresses of anything: one that a program makes up is looked up in vain, and one that it uses after
// it has destroyed the object is not somebody else's.
func (p *Process) add(v any) uint64 {
	if len(p.objects) >= maxObjects {
		return 0
	}
	return p.name(v)
}

// name gives an object a handle.
func (p *Process) name(v any) uint64 {
	p.next += 64
	p.objects[p.next] = v
	return p.next
}

// object returns the object of that handle and type.
func object[T any](p *Process, h uint64) (T, bool) {
	v, ok := p.objects[h].(T)
	return v, ok
}

// thread returns the state of a thread of the program.
func (p *Process) thread(id uint64) *thread {
	t := p.threads[id]
	if t == nil {
		if len(p.threads) >= maxThreads { // ends of threads are not told
			for k := range p.threads {
				delete(p.threads, k)
				break
			}
		}
		t = &thread{id: id}
		p.threads[id] = t
	}
	return t
}

// mapHost maps a new region of the shared file in the program, which is in the
// middle of a call: the thread that called is asked to call mmap. What the program shall read
// only, as the strings that functions return, it can't write to.
func (p *Process) mapHost(r *region) error {
	if p.cur == nil {
		return errors.New("memory of the host can be made only in a call")
	}
	size := (uint64(len(r.Data)) + pageSize - 1) &^ (pageSize - 1)
	prot := uint64(unix.PROT_READ | unix.PROT_WRITE)
	if r.kind == internalMemory {
		prot = unix.PROT_READ
	}
	res, err := p.cur.conn.do(&reply{action: actMap, a: [5]uint64{r.Base, size, r.off, prot}, fd: p.arena.fd})
	if err != nil {
		return err
	}
	if res != r.Base {
		return fmt.Errorf("map %d bytes at %#x in process %d: %w", size, r.Base, p.pid, errnoOf(res))
	}
	return nil
}

// unmapHost undoes mapHost.
func (p *Process) unmapHost(r *region) {
	size := (uint64(len(r.Data)) + pageSize - 1) &^ (pageSize - 1)
	if p.cur != nil {
		_, _ = p.cur.conn.do(&reply{action: actUnmap, a: [5]uint64{r.Base, size}})
	}
}

// errnoOf is what a system call of the program returned.
func errnoOf(res uint64) error {
	if n := -int64(res); n > 0 && n < 4096 {
		return unix.Errno(n)
	}
	return fmt.Errorf("unexpected address %#x", res)
}

// text returns the address of a string in the program, which can only read it. Functions such
// as cuGetErrorName return pointers that stay good; each string is written once, and never freed.
// 0 means that there is no room for more.
func (p *Process) text(s string) uint64 {
	if a, ok := p.strings[s]; ok {
		return a
	}
	n := uint64(len(s)) + 1
	if p.strEnd-p.strTop < n {
		if len(p.strings) > 1<<14 {
			return 0
		}
		r, err := p.arena.alloc(max(n, 1<<16), pageSize, "strings", internalMemory)
		if err != nil {
			return 0
		}
		p.strTop, p.strEnd = r.Base, r.Base+uint64(len(r.Data))
	}
	b, _ := p.arena.bytes(p.strTop, n)
	copy(b, s)
	b[n-1] = 0
	p.strings[s] = p.strTop
	p.strTop += n
	return p.strings[s]
}

// Allocations returns the memory that the program has allocated on its GPUs, managed memory
// too.
func (p *Process) Allocations() (list []emu.Region) {
	a := p.arena
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, r := range a.regions {
		if r.Name == userAllocation && (r.kind == deviceMemory || r.kind == managedMemory || r.kind == mappedMemory) {
			list = append(list, r.Region)
		}
	}
	return list
}
