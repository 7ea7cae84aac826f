package control

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

type target struct{ done []string }

func (t *target) Attachments() []Attachment {
	return []Attachment{{ID: 1, Program: "p", Section: "uprobe/a:b", Places: []string{"b in /a+0x10"}, State: On}}
}

func (t *target) Do(what string, id int) error {
	if id != 1 {
		return errors.New("there is no attachment " + strconv.Itoa(id))
	}
	t.done = append(t.done, what)
	return nil
}

// TestControl: a run is found, lists what is attached, and does what it is asked to.
func TestControl(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "runs")
	if runs, err := Runs(dir); err != nil || len(runs) > 0 {
		t.Fatal(runs, err)
	}
	var has target
	s, err := Serve(dir, &has)
	if err != nil {
		t.Fatal(err)
	}
	pid := os.Getpid()
	if err := os.WriteFile(filepath.Join(dir, "no number"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if runs, err := Runs(dir); err != nil || !slices.Equal(runs, []int{pid}) {
		t.Errorf("runs %v, %v", runs, err)
	}
	list, err := List(dir, pid)
	if err != nil || len(list) != 1 || list[0].Program != "p" || list[0].Places[0] != "b in /a+0x10" {
		t.Errorf("%v, %v", list, err)
	}
	if err := errors.Join(Do(dir, pid, DoDisable, 1), Do(dir, pid, DoEnable, 1), Do(dir, pid, DoDetach, 1)); err != nil || !slices.Equal(has.done, []string{DoDisable, DoEnable, DoDetach}) {
		t.Errorf("%v, did %v", err, has.done)
	}
	if err := Do(dir, pid, DoDetach, 2); err == nil || err.Error() != "there is no attachment 2" {
		t.Error(err)
	}
	for _, text := range []string{"", "\n", "{}\n", "[1]\n", `{"do":"frobnicate"}` + "\n", strings.Repeat("x", 2*maxRequest) + "\n"} { // no request
		c, err := net.Dial("unix", filepath.Join(dir, strconv.Itoa(pid)))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte(text))
		_ = c.(*net.UnixConn).CloseWrite()
		var a answer
		if json.NewDecoder(c).Decode(&a) == nil && a.Error == "" {
			t.Errorf("%.20q is done", text)
		}
		_ = c.Close()
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if runs, err := Runs(dir); err != nil || len(runs) > 0 {
		t.Errorf("runs %v, %v", runs, err)
	}
}

// lacking is a listener that at first has no descriptor for a connection.
type lacking struct {
	*net.UnixListener
	times int
}

func (l *lacking) AcceptUnix() (*net.UnixConn, error) {
	if l.times--; l.times >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", unix.EMFILE)}
	}
	return l.UnixListener.AcceptUnix()
}

// TestLacking: a run whose descriptors were all in use answers when there are some again.
func TestLacking(t *testing.T) {
	dir := t.TempDir()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "1"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{&lacking{l, 3}, &target{}}
	ended := make(chan struct{})
	go func() { s.serve(); close(ended) }()
	if list, err := List(dir, 1); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	_ = s.Close()
	<-ended
}

// TestFolder: a folder that others can use is none.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if s, err := Serve(dir, &target{}); err == nil {
		_ = s.Close()
		t.Error("others can reach the socket")
	}
	if _, err := Runs(dir); err == nil {
		t.Error("others can put sockets there")
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	if s, err := Serve(link, &target{}); err == nil {
		_ = s.Close()
		t.Error("a link is taken")
	}
}
