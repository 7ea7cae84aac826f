package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/proc"
)

// errGone says that a program does not answer any more.
var errGone = errors.New("the program is gone")

// recv waits for a request.
func (c *conn) recv(q *request) error {
	for {
		n, err := unix.Read(c.fd, c.buf[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return errGone
		}
		return q.decode(c.buf[:n])
	}
}

// send sends a reply.
func (c *conn) send(r *reply) error {
	c.out = r.append(c.out[:0])
	var oob []byte
	if r.fd > 0 {
		oob = unix.UnixRights(r.fd)
	}
	for {
		err := unix.Sendmsg(c.fd, c.out, oob, nil, unix.MSG_NOSIGNAL)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return errGone
		}
		return nil
	}
}

// do asks the program for something in the middle of a call and returns what it
// answers.
func (c *conn) do(r *reply) (uint64, error) {
	if err := c.send(r); err != nil {
		return 0, err
	}
	var q request
	if err := c.recv(&q); err != nil {
		return 0, err
	}
	if q.kind != kindDone {
		return 0, fmt.Errorf("a request of kind %d in the middle of a call", q.kind)
	}
	return q.result, nil
}

// serve serves one connection to its end. Who connects is told by the kernel (SO_PEERCRED), not
// by the program. What does not keep to the protocol ends the connection. The library connects
// once more then; if that fails, too, the call returns CUDA_ERROR_NOT_INITIALIZED.
func (s *Sim) serve(uc *net.UnixConn) {
	f, err := uc.File() // blocking: a goroutine of its own waits faster than the poller
	_ = uc.Close()
	if err != nil {
		s.hint(fmt.Sprintf("a program runs without the simulated GPU: %v", err))
		return
	}
	defer f.Close()
	// Both sides sleep while they wait: to look for packets instead (which two idle
	// processors would reward) costs a busy machine more than it gains.
	fd := int(f.Fd())
	if unix.SetNonblock(fd, false) != nil {
		return
	}
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || cred.Pid <= 0 {
		return
	}
	c := &conn{fd: fd}
	var q request
	var out reply
	if c.recv(&q) != nil || q.kind != kindHello || q.lib >= 3 {
		return
	}
	p, err := s.hello(int(cred.Pid), &q)
	if err != nil {
		if !errors.Is(err, net.ErrClosed) {
			s.hint(fmt.Sprintf("process %d can't use the simulated GPU: %v", cred.Pid, err))
		}
		return
	}
	if !p.attach(c, &q) {
		return
	}
	defer p.detach(c)
	if c.send(&reply{result: p.session}) != nil {
		return
	}
	for {
		if err := c.recv(&q); err != nil {
			return
		}
		if q.lib >= 3 {
			return
		}
		switch q.kind {
		case kindCall:
			if p.call(c, &q, &out) != nil || c.send(&out) != nil {
				return
			}
		case kindExe:
			if p.redirect(c, &q) != nil || c.send(&reply{}) != nil {
				return
			}
		case kindHelper:
			p.runCallbacks(c)
			return
		default:
			return
		}
	}
}

// startTime tells processes apart that had the same id one after the other.
func startTime(pid int) (string, error) {
	start := proc.Stat(pid, pid, proc.StatStart)
	if start == "" {
		return "", fmt.Errorf("process %d is gone, or /proc does not show it", pid)
	}
	return start, nil
}

// hello finds or makes the process of a connection. A forked child names the session of its
// parent: what the parent registered (fat binaries, by constructors that ran before main) the child has
// too, but a CUDA that was initialised before the fork can't be used in it, as with the real driver.
func (s *Sim) hello(pid int, q *request) (*Process, error) {
	start, err := startTime(pid)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, net.ErrClosed
	}
	// An exec keeps the process but nothing that it had. The random number that
	// the kernel gives every image tells them apart.
	if p := s.procs[pid]; p != nil {
		if p.start == start && p.random == q.args[5] {
			return p, nil
		}
		p.kill()
	}
	p, err := newProcess(s, pid, start, q.args[5])
	if err != nil {
		return nil, err
	}
	if parent := s.bySession(q.args[3]); parent != nil {
		p.inherit(parent, q.args[2] != 0)
	}
	s.procs[pid] = p
	s.report.Processes++
	s.wg.Go(p.wait)
	return p, nil
}

// bySession returns the living process of a session, nil if there is none.
func (s *Sim) bySession(session uint64) *Process {
	if session == 0 {
		return nil
	}
	for _, p := range s.procs {
		if p.session == session {
			return p
		}
	}
	return nil
}

// redirect makes the runtime's functions in the program's own file jump to our
// library's, which asks for it when the program starts: before any constructor of
// the program registers its kernels. Nothing of the program has run by then, so that no thread is in
// the middle of the 12 bytes that a jump takes. They are written through /proc/PID/mem, which
// does not ask whether the program may write to its own code.
//
// q.args[0] is where the program headers are, by which the file's addresses become the program's. An
// error ends the connection; what is none of our business, or can't be read, is none.
func (p *Process) redirect(c *conn, q *request) error {
	if q.lib != libCudart12 && q.lib != libCudart13 {
		return fmt.Errorf("library %d has no functions of the runtime", q.lib)
	}
	f, err := os.Open(proc.Path(p.pid, "exe"))
	if err != nil {
		return nil // gone, or not ours to read: its calls will show
	}
	defer f.Close()
	ex, err := readExecutable(f)
	if err != nil || ex.shared || !ex.static || ex.version() != q.lib {
		return nil
	}
	if !ex.redirectable() {
		name, _ := os.Readlink(proc.Path(p.pid, "exe"))
		p.sim.hint(fmt.Sprintf("%s: %v", name, ErrRuntime))
		_, err := c.do(&reply{action: actExit, a: [5]uint64{127}, data: fmt.Appendf(nil, "nvtrace: %.1500s: %v\n", name, ErrRuntime)})
		return err
	}
	mem, err := os.OpenFile(proc.Path(p.pid, "mem"), os.O_WRONLY, 0)
	if err != nil {
		p.sim.hint(fmt.Sprintf("the runtime in process %d can't be redirected: %v", p.pid, err))
		return nil
	}
	defer mem.Close()
	bias := q.args[0] - ex.headers
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, addr := range ex.funcs {
		target := p.entryAddr(int(q.lib), name)
		if target == 0 {
			continue
		}
		// mov $target, %rax; jmp *%rax
		code := binary.LittleEndian.AppendUint64([]byte{0x48, 0xb8}, target)
		code = append(code, 0xff, 0xe0)
		if _, err := mem.WriteAt(code, int64(bias+addr)); err != nil {
			p.sim.hint(fmt.Sprintf("%s in process %d can't be redirected: %v", name, p.pid, err))
			return nil
		}
	}
	return nil
}
