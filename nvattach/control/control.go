// Package control lets other processes of the same user look at the probes of a run of
// nvtrace, and switch them: a socket in a folder of the user's own, on which a request and its
// answer are a line of JSON each.
package control

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/nvattach/owned"
)

// An Attachment is a program that is attached.
type Attachment struct {
	ID      int    `json:"id"`
	Program string `json:"program"`
	// Section says what kind it is, and where: the name of the program's section.
	Section string `json:"section"`
	// Places are where it runs so far: function, module and offset, or a system call.
	Places []string `json:"places,omitempty"`
	State  string   `json:"state"` // on, off, detached
}

// States of attachments.
const (
	On       = "on"
	Off      = "off"
	Detached = "detached"
)

// What can be done.
const (
	doList    = "list"
	DoEnable  = "enable"
	DoDisable = "disable"
	DoDetach  = "detach"
)

// A Target has attachments. Its methods may be called by any goroutine.
type Target interface {
	Attachments() []Attachment
	// Do does DoEnable, DoDisable or DoDetach.
	Do(what string, id int) error
}

type request struct {
	Do string `json:"do"`
	ID int    `json:"id,omitempty"`
}

type answer struct {
	Error       string       `json:"error,omitempty"`
	Attachments []Attachment `json:"attachments,omitempty"`
}

// maxRequest bounds a request, and answerTime the time for one and its answer.
const (
	maxRequest = 4 << 10
	maxAnswer  = 16 << 20
	answerTime = 5 * time.Second
)

// Folder returns where the sockets are: in $XDG_RUNTIME_DIR, or else among temporary files.
func Folder() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "nvtrace")
	}
	return filepath.Join(os.TempDir(), "nvtrace-"+strconv.Itoa(os.Getuid()))
}

// own reports an error unless dir is a folder that only this user can use.
func own(dir string) error {
	r, err := owned.Open(dir)
	if err != nil {
		return err
	}
	defer r.Close()
	st, err := r.Stat(".")
	if err == nil && st.Mode().Perm()&0o077 != 0 {
		err = fmt.Errorf("%s is open to other users (mode %#o; chmod go= %[1]s)", dir, st.Mode().Perm())
	}
	return err
}

// A Server answers requests about one run.
type Server struct {
	l      listener
	target Target
}

// listener is a [net.UnixListener].
type listener interface {
	AcceptUnix() (*net.UnixConn, error)
	Close() error
}

// Serve begins to answer requests in the folder dir, under this process's number.
func Serve(dir string, target Target) (*Server, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	if err := own(dir); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, strconv.Itoa(os.Getpid()))
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // of one that was killed
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	s := &Server{l, target}
	go s.serve()
	return s, nil
}

// Close ends the answers, and removes the socket.
func (s *Server) Close() error { return s.l.Close() }

func (s *Server) serve() {
	const longest = time.Second
	pause := time.Millisecond
	for {
		c, err := s.l.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // a lack of descriptors or memory, as a rule, that passes
			time.Sleep(pause)
			pause = min(2*pause, longest)
		default:
			pause = time.Millisecond
			s.answer(c) // one at a time: they take microseconds, or their deadline
		}
	}
}

func (s *Server) answer(c *net.UnixConn) {
	defer c.Close()
	if !sameUser(c) || c.SetDeadline(time.Now().Add(answerTime)) != nil {
		return
	}
	line, err := bufio.NewReader(io.LimitReader(c, maxRequest)).ReadBytes('\n')
	if err != nil {
		return
	}
	var r request
	var a answer
	err = json.Unmarshal(line, &r)
	switch {
	case err != nil:
	case r.Do == doList:
		a.Attachments = s.target.Attachments()
	case r.Do == DoEnable || r.Do == DoDisable || r.Do == DoDetach:
		err = s.target.Do(r.Do, r.ID)
	default:
		err = fmt.Errorf("%q is nothing that can be done", r.Do)
	}
	if err != nil {
		a.Error = err.Error()
	}
	_ = json.NewEncoder(c).Encode(&a) // who asks may be gone
}

// sameUser reports whether this user, or root, is at the other end.
func sameUser(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	if err := raw.Control(func(fd uintptr) { cred, _ = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || cred == nil {
		return false
	}
	return cred.Uid == 0 || cred.Uid == uint32(os.Getuid())
}

// ask makes a request to the run of a process.
func ask(dir string, pid int, r *request) (*answer, error) {
	c, err := net.DialTimeout("unix", filepath.Join(dir, strconv.Itoa(pid)), answerTime)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if u, ok := c.(*net.UnixConn); !ok || !sameUser(u) {
		return nil, fmt.Errorf("%s: the socket is another user's", filepath.Join(dir, strconv.Itoa(pid)))
	}
	if err := c.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return nil, err
	}
	if err := json.NewEncoder(c).Encode(r); err != nil {
		return nil, err
	}
	var a answer
	if err := json.NewDecoder(io.LimitReader(c, maxAnswer)).Decode(&a); err != nil {
		return nil, err
	}
	if a.Error != "" {
		return nil, errors.New(a.Error)
	}
	return &a, nil
}

// List returns the attachments of the run of nvtrace that is the process pid.
func List(dir string, pid int) ([]Attachment, error) {
	a, err := ask(dir, pid, &request{Do: doList})
	if err != nil {
		return nil, err
	}
	return a.Attachments, nil
}

// Do has it do something with an attachment.
func Do(dir string, pid int, what string, id int) error {
	_, err := ask(dir, pid, &request{Do: what, ID: id})
	return err
}

// Runs returns the processes of the runs that answer, ascending.
func Runs(dir string) ([]int, error) {
	if err := own(dir); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var list []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid <= 0 || strings.HasPrefix(e.Name(), "+") {
			continue
		}
		if c, err := net.Dial("unix", filepath.Join(dir, e.Name())); err == nil {
			_ = c.Close()
			list = append(list, pid)
		}
	}
	slices.Sort(list)
	return list, nil
}
