package interpose

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/nvattach/preload"
)

// Options of a [Server]. Nil works: [ModeObserve], nothing is told to anyone.
//
// The functions are called from several goroutines at once; calls that concern
// one connection, as a rule one process, come one after another and in the order
// in which the process made them. While one runs, that process's messages wait.
type Options struct {
	// Mode is what processes are told to do; the zero value means ModeObserve.
	Mode Mode
	// Replace makes a process wait for what OnImage returns. ModeCapture only.
	Replace bool
	// Wait bounds how long a program waits for that, or for a server that does not
	// read; after it the program goes on alone. 0 means 10 seconds.
	Wait time.Duration
	// Dir is where a private directory for the shim and the socket is made; "" means
	// the first of the usual temporary directories from which programs can be mapped.
	Dir string

	// OnHello is told each program once, at its first use of something of CUDA's.
	OnHello func(p *Process)
	// OnImage is given each image before the driver reads it. With Replace, the
	// bytes that it returns, if ok, go to the driver instead: in a form that the
	// called function takes, which is any for the loaders.
	OnImage func(im *Image) (replacement []byte, ok bool)
	// OnNote is told each call of a wrapped function after its return; of launches,
	// graph launches and kernel nodes the first with each function since the process
	// last unloaded something. What a nested call within the driver does is not told.
	OnNote func(n *Note)
	// OnGap is told what the view lacks.
	OnGap func(g *Gap)
	// Outlived: programs may go on when the server is closed, also such as have never
	// talked to it. Close looks for them.
	Outlived bool

	MaxConnections int   // at once; 0 means 1024
	MaxPerProcess  int   // of these from one process; 0 means 8
	MaxImage       int64 // bytes of one image; 0 means 1 GiB
	MaxTotal       int64 // bytes of all images of this server; 0 means 256 GiB
}

func (o *Options) withDefaults() Options {
	var d Options
	if o != nil {
		d = *o
	}
	if d.Mode == ModeOff {
		d.Mode = ModeObserve
	}
	d.Replace = d.Replace && d.Mode == ModeCapture
	if d.Wait <= 0 {
		d.Wait = 10 * time.Second
	}
	if d.MaxConnections <= 0 {
		d.MaxConnections = 1024
	}
	if d.MaxPerProcess <= 0 {
		d.MaxPerProcess = 8
	}
	if d.MaxImage <= 0 {
		d.MaxImage = 1 << 30
	}
	d.MaxImage = min(d.MaxImage, maxImage)
	if d.MaxTotal <= 0 {
		d.MaxTotal = 256 << 30
	}
	if d.OnHello == nil {
		d.OnHello = func(*Process) {}
	}
	if d.OnImage == nil {
		d.OnImage = func(*Image) ([]byte, bool) { return nil, false }
	}
	if d.OnNote == nil {
		d.OnNote = func(*Note) {}
	}
	if d.OnGap == nil {
		d.OnGap = func(*Gap) {}
	}
	return d
}

// Server is the other side of the shims in a tree of processes.
//
// It expects them to be hostile. Process ids come from the kernel; packets are
// whole or end their connection; images are read from memfds that are sealed
// against changes, so that neither a stalled nor a growing file can hold it up;
// connections, images and their sum are limited. What programs of the run lose by
// that is told to OnGap.
//
// Everybody can connect, as a program may change its user. But only what has the
// run's key is heard: it is in the environment that the program was started with,
// which other users can't read. All else is refused and counted, and is no gap.
type Server struct {
	o         Options
	functions []Function
	table     uint32
	dir       *preload.Folder
	shim      string
	sock      string
	key       [32]byte // a secret of the programs of this run
	listeners []*net.UnixListener
	wg        sync.WaitGroup

	mu      sync.Mutex
	closing bool
	conns   map[*conn]bool
	perPID  map[int]int
	waiting map[int]int  // connections that have not said hello, by user
	users   map[int]bool // of programs of this run
	seen    map[int]*hellos
	known   map[imageKey]string
	total   int64
	stats   Stats
}

type hellos struct {
	p Process
	n int
}

// imageKey is what a shim knows of an image.
type imageKey struct {
	hash [2]uint64
	size int64
}

// Stats counts what a server has done.
type Stats struct {
	Connections int   // accepted
	Refused     int   // by a limit, or as they are not of this run
	Foreign     int   // of these, connections that are not of this run
	Broken      int   // ended by the server for what came through them
	Notes       int   // calls
	Images      int   // images
	ImageBytes  int64 // their bytes
	Gaps        int   // told by the shims
}

// Limits that keep the server's own memory bounded.
const (
	maxSeen    = 1 << 16 // processes remembered
	maxHellos  = 64      // of one process id
	maxKnown   = 1 << 18 // images whose hashes are remembered
	maxBroken  = 1000    // protocol errors that are told
	helloWait  = 5 * time.Second
	drainLimit = 5 * time.Second
	maxWaiting = 4 // a user's connections before hello: this part of all
)

// ErrUnsupported says that there is no shim for this machine.
var ErrUnsupported = errors.New("the interposer is built for amd64 only")

// Listen writes the shim to a private directory and waits for processes.
// [Server.Env] makes a program load the shim, and [Server.Close] ends it all.
func Listen(o *Options) (*Server, error) {
	if len(shimBytes) == 0 {
		return nil, fmt.Errorf("interpose: %w", ErrUnsupported)
	}
	s := &Server{
		o: o.withDefaults(), functions: Functions(), table: TableSum(),
		conns: make(map[*conn]bool), perPID: make(map[int]int), waiting: make(map[int]int),
		users: map[int]bool{os.Geteuid(): true}, seen: make(map[int]*hellos), known: make(map[imageKey]string),
	}
	copy(s.key[:], rand.Text())
	if err := s.place(); err != nil {
		return nil, fmt.Errorf("interpose: %w", err)
	}
	// The abstract name reaches programs in another mount namespace or a chroot,
	// the path those in another network namespace.
	for _, name := range []string{s.sock, "@" + s.sock} {
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: name, Net: "unixpacket"})
		if err != nil {
			_ = s.Close()
			return nil, fmt.Errorf("interpose: %w", err)
		}
		s.listeners = append(s.listeners, l)
	}
	if err := os.Chmod(s.sock, 0o666); err != nil { // the peer's key is checked
		_ = s.Close()
		return nil, fmt.Errorf("interpose: %w", err)
	}
	for _, l := range s.listeners {
		s.wg.Go(func() { s.accept(l) })
	}
	return s, nil
}

// place writes the shim where programs can map it and find it again after they
// changed their user.
func (s *Server) place() error {
	dirs := []string{s.o.Dir}
	if s.o.Dir == "" {
		dirs = preload.Folders()
	}
	if err := preload.Place(dirs, s.placeIn); err != nil {
		return fmt.Errorf("no directory for libnvtrace.so (set TMPDIR): %w", err)
	}
	return nil
}

func (s *Server) placeIn(dir string) error {
	own, err := preload.NewFolder(dir, "nvtrace-")
	if err != nil {
		return err
	}
	tmp := own.Path
	s.dir, s.shim, s.sock = own, filepath.Join(tmp, shimName), filepath.Join(tmp, "s")
	if len(s.sock) > 100 {
		err = fmt.Errorf("%s: too long for a socket's address", s.sock)
	}
	if err == nil {
		err = os.WriteFile(s.shim, shimBytes, 0o600)
	}
	if err == nil {
		err = errors.Join(os.Chmod(s.shim, 0o555), os.Chmod(tmp, 0o711))
	}
	if err != nil {
		_ = own.Remove()
	}
	return err
}

const (
	shimName = "libnvtrace.so"
	envShim  = "NVTRACE_SHIM"
)

// Path returns where the shim is.
func (s *Server) Path() string { return s.shim }

// Env returns env with what makes a program load the shim ([preload.Env]), and the
// server's address with the run's key. A shim of an nvtrace around this one is taken out: one program has
// one.
func (s *Server) Env(env []string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(e string) bool { return strings.HasPrefix(e, envShim+"=") })
	out := preload.Env(env, []string{s.shim}, func(lib string) bool { return filepath.Base(lib) == shimName })
	return append(out, envShim+"=2:"+strings.TrimRight(string(s.key[:]), "\x00")+":"+s.sock)
}

// Stats returns what the server has done so far.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Close reads what processes have sent until now, so that no call of a program
// that has ended is lost, and ends the server. The shim is removed, except where
// processes that use it go on: their children would complain of its absence.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closing = true
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	var errs []error
	for _, l := range s.listeners {
		errs = append(errs, l.Close())
	}
	s.listeners = nil
	for _, c := range conns {
		c.drain()
	}
	s.wg.Wait()
	if slices.ContainsFunc(conns, func(c *conn) bool { return c.alive }) || s.o.Outlived && s.dir.Mapped() {
		errs = append(errs, removeIfThere(s.sock), s.dir.Leave())
	} else {
		errs = append(errs, s.dir.Remove())
	}
	return errors.Join(errs...)
}

func removeIfThere(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (s *Server) accept(l *net.UnixListener) {
	for {
		u, err := l.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // no descriptors left, as a rule
			continue
		}
		if c := s.admit(u); c != nil {
			s.wg.Go(func() {
				c.serve()
				s.leave(c)
			})
		} else {
			_ = u.Close()
		}
	}
}

// admit applies the limits. It returns nil for a connection that is refused.
func (s *Server) admit(u *net.UnixConn) *conn {
	raw, err := u.SyscallConn()
	if err != nil {
		return nil
	}
	cred, err := peer(raw)
	if err != nil {
		return nil
	}
	pid, uid, euid := int(cred.Pid), int(cred.Uid), os.Geteuid()
	s.mu.Lock()
	why := ""
	switch {
	case s.closing:
		s.mu.Unlock()
		return nil
	case uid != euid && euid != 0 && uid != 0:
		why = "a user whose programs can't be of this run"
	case len(s.conns) >= s.o.MaxConnections:
		why = fmt.Sprintf("more than %d connections of interposers", s.o.MaxConnections)
	case s.perPID[pid] >= s.o.MaxPerProcess:
		why = fmt.Sprintf("more than %d connections of one interposer", s.o.MaxPerProcess)
	case s.waiting[uid] >= max(s.o.MaxConnections/maxWaiting, 1):
		why = fmt.Sprintf("more than %d interposers of user %d begin at the same time", s.o.MaxConnections/maxWaiting, uid)
	}
	if why != "" {
		likely := s.users[uid]
		s.mu.Unlock()
		if !likely {
			why = ""
		}
		s.refuse(pid, why)
		return nil
	}
	c := &conn{s: s, u: u, raw: raw, pid: pid, uid: uid}
	s.conns[c] = true
	s.perPID[pid]++
	s.waiting[uid]++
	s.stats.Connections++
	s.mu.Unlock()
	return c
}

// refuse counts a connection that is refused. why says what a program of this run
// loses by it; "" is for what is not of this run.
func (s *Server) refuse(pid int, why string) {
	s.mu.Lock()
	s.stats.Refused++
	if why == "" {
		s.stats.Foreign++
	}
	tell := why != "" && s.stats.Refused-s.stats.Foreign <= maxBroken
	s.mu.Unlock()
	if tell {
		s.o.OnGap(&Gap{PID: pid, Code: GapRefused, Text: why})
	}
}

// likely says whether a user has programs in this run, so that a connection which
// comes to nothing may be one of theirs.
func (s *Server) likely(uid int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.users[uid]
}

// welcome says that a connection is of this run.
func (s *Server) welcome(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users[c.uid] = true
	s.begun(c)
}

// begun says that a connection does not wait for its hello any more.
func (s *Server) begun(c *conn) {
	if c.begun {
		return
	}
	c.begun = true
	if s.waiting[c.uid]--; s.waiting[c.uid] <= 0 {
		delete(s.waiting, c.uid)
	}
}

func (s *Server) leave(c *conn) {
	_ = c.u.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.begun(c)
	if s.perPID[c.pid]--; s.perPID[c.pid] <= 0 {
		delete(s.perPID, c.pid)
	}
}

// greet notes who a connection belongs to, and reports whether the program is new.
func (s *Server) greet(p *Process) (*Process, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.seen[p.PID]
	if h == nil {
		if len(s.seen) >= maxSeen {
			clear(s.seen)
		}
		h = &hellos{}
		s.seen[p.PID] = h
	}
	if (h.n > 0 && h.p.Born == p.Born) || h.n >= maxHellos {
		return p, false
	}
	h.n++
	h.p = *p
	return p, true
}

func peer(raw syscall.RawConn) (*unix.Ucred, error) {
	var cred *unix.Ucred
	var err error
	if cerr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); cerr != nil {
		return nil, cerr
	}
	return cred, err
}
