package replay

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nvtrace/ioctl"
	"nvtrace/ptrace"
	"nvtrace/rm"
	"nvtrace/traces"
)

// loaded loads a recording that a test made or found.
func loaded(t testing.TB, rec []byte) *recording {
	t.Helper()
	r, err := traces.NewReader(bytes.NewReader(rec))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	out, err := load(r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// offline is a server without a program.
func offline(rec *recording) *server {
	return &server{
		rec: rec, opts: &Options{}, watcher: ioctl.NewWatcher(rec.header.Driver), decoder: ioctl.NewDecoder(&rec.header),
		files: make(map[inode]*openFile), clients: make(map[uint32]*liveClient), heads: make(map[**answer]int),
		names: make(map[uint32]string), misses: make(map[string]int),
	}
}

// image is memory that holds the recorded input of one event.
type image []traces.Seg

func (m image) ReadMem(addr uint64, buf []byte) (int, error) {
	for _, s := range m {
		if addr >= s.Addr && addr < s.Addr+uint64(len(s.In)) {
			n := copy(buf, s.In[addr-s.Addr:])
			if n < len(buf) {
				return n, os.ErrInvalid
			}
			return n, nil
		}
	}
	return 0, os.ErrInvalid
}

// askAgain puts a recorded ioctl as a question of a program that is in the very
// state that the recorded one was in.
func (s *server) askAgain(ev *traces.Event, f *openFile) *question {
	q := &question{task: &task{tid: int(ev.TID), pid: int(ev.PID)}}
	q.ev = traces.Event{Kind: traces.KindIoctl, PID: ev.PID, TID: ev.TID, Args: ev.Args, FD: ev.FD, File: f.id, Dev: f.name, Rdev: f.rdev}
	s.watcher.Enter(&q.ev, image(ev.Mem))
	s.understand(q, f)
	return q
}

// selfCheck replays a recording against itself without a program: every call
// must be answered exactly by its own record, and the answer must turn the
// recorded input into the recorded output.
func selfCheck(t testing.TB, data []byte) (calls int) {
	t.Helper()
	rec := loaded(t, data)
	s := offline(rec)
	files := make(map[uint32]*openFile)
	r, err := traces.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	byIndex := make(map[int]*answer)
	for _, a := range rec.answers {
		byIndex[a.index] = a
	}
	n := -1
	for ev, err := range r.All() {
		n++
		if err != nil {
			break
		}
		own := byIndex[n]
		if own == nil {
			continue
		}
		f := files[ev.File]
		if f == nil {
			f = &openFile{id: ev.File, name: ev.Dev, rdev: ev.Rdev, rec: rec.files[ev.File]}
			files[ev.File] = f
		}
		q := s.askAgain(ev, f)
		m := s.find(q)
		a := m.answer
		if a != own || m.how != exact {
			t.Errorf("event %d (%v): answered by %+v, not by itself", n, q.id, m)
			continue
		}
		h := s.newHandle(q, a)
		after := make([][]byte, len(ev.Mem))
		for i := range ev.Mem {
			after[i] = bytes.Clone(ev.Mem[i].In)
		}
		for _, w := range s.compose(q, a, h) {
			for i := range ev.Mem {
				if seg := &ev.Mem[i]; w.addr >= seg.Addr && w.addr < seg.Addr+uint64(len(seg.In)) {
					copy(after[i][w.addr-seg.Addr:], w.data)
				}
			}
		}
		for i := range ev.Mem {
			if out := ev.Mem[i].Out; out != nil && !bytes.Equal(after[i], out) {
				t.Errorf("event %d (%v), segment %d: became\n% x, recorded\n% x", n, q.id, i, after[i], out)
			}
		}
		s.commit(q, a, h)
		calls++
	}
	return calls
}

func TestSelf(t *testing.T) {
	other := h200
	other.id, other.minor, other.bus, other.name = 0x200, 1, 2, "NVIDIA H100"
	s := newScript(t)
	s.rminfo(3, 0xc1d00042, h200, other)
	s.rminfo(3, 0xc1d00042, h200, other) // the driver reuses handles
	s.rminfo(3, 0xc1d00043, other)
	if n := selfCheck(t, s.bytes()); n < 60 {
		t.Errorf("only %d calls", n)
	}
	selfCheck(t, clientScript(t).bytes())
}

// Every recording of the corpus is answered by itself.
func TestCorpus(t *testing.T) {
	files, err := filepath.Glob("../../traces/corpus/*.nvt")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("no recordings in traces/corpus")
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d calls", selfCheck(t, data))
		})
	}
}

// The recorded client on a machine with a GPU, replayed here, prints what it
// printed there.
func TestGolden(t *testing.T) {
	const dir = "../../traces/corpus/"
	r, err := traces.Open(dir + "rminfo.nvt")
	if err != nil {
		t.Fatal(err)
	}
	args := r.Header.Argv[1:]
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(dir + "rminfo.out")
	if err != nil {
		t.Fatal(err)
	}
	rec, err := os.ReadFile(dir + "rminfo.nvt")
	if err != nil {
		t.Fatal(err)
	}
	for _, more := range [][]string{nil, {"--threads", "4", "--repeat", "3", "--fork"}} {
		argv := slices.Concat([]string{rminfo(t)}, args, more)
		got := replay(t, rec, &Options{Strict: true}, argv...)
		got.want(t, 0)
		if got.stdout != string(want) {
			t.Errorf("%v: stdout:\n%s\nrecorded:\n%s", more, got.stdout, want)
		}
		if got.Missed != 0 || got.Unused != 0 {
			t.Errorf("%v: %d recorded answers unused, misses: %v", more, got.Unused, got.Misses)
		}
	}
}

// A program that launches a kernel gets all its calls answered, each with the input that it had on
// an H100. Then it waits for the GPU, in vain, and gives everything back.
func TestLaunch(t *testing.T) {
	rec, err := os.ReadFile("../../traces/corpus/rmlaunch.nvt")
	if err != nil {
		t.Fatal(err)
	}
	rmlaunch := buildOnce(t, "rmlaunch", func(out string) *exec.Cmd {
		cmd := exec.Command("go", "build", "-o", out, "nvtrace/examples/rmlaunch")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		return cmd
	})
	got := replay(t, rec, &Options{Strict: true}, rmlaunch, "-wait", "100ms")
	got.want(t, 1)
	if want := "rmlaunch: the GPU has not come to the semaphore in 100ms: of the ring 0 of 1 entries are fetched"; !strings.HasPrefix(got.stderr, want) || strings.Count(got.stderr, "\n") != 1 {
		t.Errorf("stderr %q", got.stderr)
	}
	if got.Missed != 0 || got.Unused != 0 || got.Inexact != 0 {
		t.Errorf("%d recorded answers unused, %d inexact, misses: %v", got.Unused, got.Inexact, got.Misses)
	}
}

// Two GPUs of one machine are told apart, whatever handles name them.
func TestTwoGPUs(t *testing.T) {
	other := gpuFacts{id: 0x200, minor: 1, bus: 2, name: "NVIDIA H100", uuid: "GPU-ffffffff-0000-0000-0000-000000000000"}
	s := newScript(t)
	s.rminfo(3, 0xc1d00042, h200, other)
	got := replay(t, s.bytes(), &Options{Strict: true}, rminfo(t), "--threads", "4", "--repeat", "3")
	got.want(t, 0)
	for _, line := range []string{"gpu 0: NVIDIA H200\n", "gpu 1: NVIDIA H100\n", "  pci     0000:02:00.0", other.uuid} {
		if !bytes.Contains([]byte(got.stdout), []byte(line)) {
			t.Errorf("no %q in\n%s", line, got.stdout)
		}
	}
	if got.Missed+got.Inexact != 0 {
		t.Errorf("misses: %v", got.Misses)
	}
}

func TestLayouts(t *testing.T) {
	s := newScript(t)
	l := make(layouts)
	roles := func(name string) []role {
		t.Helper()
		st := s.abi.Struct(name)
		if st == nil {
			t.Fatalf("no %s", name)
		}
		return l.of(st)
	}
	for _, tt := range []struct {
		name string
		at   int
		want role
	}{
		{"NVOS54_PARAMETERS", 0, roleHandle},
		{"NVOS54_PARAMETERS", 8, rolePlain},
		{"NVOS54_PARAMETERS", 16, rolePointer},
		{"NVOS54_PARAMETERS", 28, roleStatus},
		{"nv_ioctl_card_info_t", 1, rolePad},
		{"nv_ioctl_register_fd_t", 0, roleFD},
		{"nv_ioctl_sys_params_t", 7, roleHost},
		{"UVM_REGISTER_GPU_PARAMS", 17, rolePad},
		{"UVM_REGISTER_GPU_PARAMS", 20, roleOut},
		{"nv_ioctl_nvos33_parameters_with_fd", 48, roleFD},
		{"nv_ioctl_nvos33_parameters_with_fd", 40, roleStatus},
	} {
		if got := roles(tt.name)[tt.at]; got != tt.want {
			t.Errorf("%s+%d is %d, want %d", tt.name, tt.at, got, tt.want)
		}
	}
	if at := l.statusOffset(s.abi.Struct("NVOS64_PARAMETERS")); at != 40 {
		t.Errorf("status of NVOS64 at %d, want 40", at)
	}
	if at := l.statusOffset(s.abi.Struct("nv_ioctl_sys_params_t")); at != -1 {
		t.Errorf("status of a struct without one at %d", at)
	}
	// No layout of any release is too odd.
	for _, v := range rm.Versions() {
		for st := range rm.Load(v).Structs() {
			if st.Size > 0 && st.Size <= maxLayout && len(l.of(st)) != st.Size {
				t.Errorf("%v: %s: %d roles for %d bytes", v, st.Name, len(l.of(st)), st.Size)
			}
		}
	}
}

// Members of a union that disagree about a byte make it plain.
func TestUnion(t *testing.T) {
	u := &rm.Struct{Name: "u", Size: 8, Union: true, Fields: []rm.Field{
		{Name: "h", Size: 4, Elem: 4, Role: rm.RoleHandle},
		{Name: "flag", Size: 1, Elem: 1},
		{Name: "s", Size: 8, Elem: 8, Kind: rm.KindStruct, Struct: &rm.Struct{Name: "s", Size: 8, Fields: []rm.Field{
			{Name: "status", Offset: 4, Size: 4, Elem: 4, Role: rm.RoleStatus},
		}}},
	}}
	want := []role{rolePlain, roleHandle, roleHandle, roleHandle, roleStatus, roleStatus, roleStatus, roleStatus}
	if got := make(layouts).of(u); !slices.Equal(got, want) {
		t.Errorf("roles %v, want %v", got, want)
	}
}

// A child's inherited descriptors are known for what they are.
func TestInheritedFD(t *testing.T) {
	s := newScript(t)
	s.open(3, "nvidiactl")
	s.add(&traces.Event{Kind: traces.KindFork, FD: -1, Child: 200})
	s.pid, s.tid = 200, 200
	s.open(4, "nvidia0")
	reg := s.record("nv_ioctl_register_fd_t").set("ctl_fd", 3)
	s.escape(4, 0xc9, reg, reg.clone())
	s.add(&traces.Event{Kind: traces.KindClose, FD: 3, Args: [6]uint64{3}})
	s.escape(4, 0xc9, reg.clone(), reg.clone())
	rec := loaded(t, s.bytes())
	for i, want := range []string{"nvidiactl", ""} {
		if got := rec.answers[i].parts[0].fds[0]; got != want {
			t.Errorf("call %d: descriptor 3 is of %q, want %q", i, got, want)
		}
	}
}

// What an input may differ in, and what not.
func TestDifferences(t *testing.T) {
	s := clientScript(t)
	rec := loaded(t, s.bytes())
	srv := offline(rec)
	var ask *traces.Event
	for _, ev := range s.events {
		if ev.Kind == traces.KindIoctl && ev.Request() == req(escRMControl, 32) {
			ask = ev
			break
		}
	}
	var own *answer
	for _, a := range rec.answers {
		if a.id.sub == testCmd {
			own = a
			break
		}
	}
	client := &liveClient{objects: make(map[uint32]*object), toLive: make(map[uint32]uint32)}
	for _, a := range rec.answers {
		if a.makesClient() {
			client.pair(0xc1d00099, a.made)
		}
	}
	srv.clients[0xc1d00099] = client
	f := &openFile{id: 1, name: "nvidiactl", rdev: rdevOf("nvidiactl"), rec: rec.nodes["nvidiactl"].files[0]}
	for _, tt := range []struct {
		name string
		edit func(arg, params []byte)
		want int
	}{
		{"nothing", func(_, _ []byte) {}, 0},
		{"the client's handle", func(arg, _ []byte) {
			binary.LittleEndian.PutUint32(arg, 0xc1d00099)
			binary.LittleEndian.PutUint32(arg[4:], 0xc1d00099)
		}, 0},
		{"another handle", func(arg, _ []byte) { binary.LittleEndian.PutUint32(arg[4:], 0xdead0000) }, 1},
		{"the status", func(arg, _ []byte) { arg[28] = 0xff }, 0},
		{"flags", func(arg, _ []byte) { arg[12] = 1 }, 1},
		{"what the driver overwrites", func(_, p []byte) { p[4], p[5] = 0xaa, 0xbb }, 0},
		{"input", func(_, p []byte) { p[0] = 9 }, 1},
		{"two inputs", func(_, p []byte) { p[0], p[31] = 9, 9 }, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ev := ask.Clone()
			tt.edit(ev.Mem[0].In, ev.Mem[1].In)
			q := srv.askAgain(ev, f)
			if got := srv.differences(q, own); got != tt.want {
				t.Errorf("%d words differ, want %d", got, tt.want)
			}
		})
	}
}

// Values without a role that differ in every run.
func TestExplained(t *testing.T) {
	srv := offline(loaded(t, clientScript(t).bytes()))
	q := &question{task: &task{tid: 501, pid: 500}}
	a := &answer{pid: 100, tid: 101}
	at := func(v uint64) *part { return &part{in: binary.LittleEndian.AppendUint64(nil, v)} }
	for _, tt := range []struct {
		name      string
		live, rec uint64
		off       int
		differs   bool
	}{
		{"the process", 500, 100, 0, false},
		{"the thread", 501, 101, 0, false},
		{"another process", 77, 100, 0, true},
		{"an address", 0x7f1234567000, 0x7fabcdef0000, 0, false},
		{"an address's high half", 0x7f1234567000, 0x7eabcdef0000, 4, false},
		{"a size", 0x10000, 0x20000, 0, true},
		{"an address and a size", 0x7f1234567000, 0x20000, 0, true},
	} {
		if got := srv.explained(q, a, at(tt.live), at(tt.rec), tt.off, tt.off+4); got == tt.differs {
			t.Errorf("%s: explained is %v", tt.name, got)
		}
	}
}

// Interrupted calls are taken back: what is written remembers what was there.
func TestUndo(t *testing.T) {
	s := clientScript(t)
	rec := loaded(t, s.bytes())
	srv := offline(rec)
	f := &openFile{id: 1, name: "nvidiactl", rec: rec.nodes["nvidiactl"].files[0]}
	n := 0
	for _, ev := range s.events {
		if ev.Kind != traces.KindIoctl || ev.Dev != "nvidiactl" {
			continue
		}
		q := srv.askAgain(ev, f)
		a := srv.find(q).answer
		if a == nil {
			t.Fatal("no answer")
		}
		for _, w := range srv.compose(q, a, srv.newHandle(q, a)) {
			for _, seg := range ev.Mem {
				if w.addr >= seg.Addr && w.addr < seg.Addr+uint64(len(seg.In)) {
					at := int(w.addr - seg.Addr)
					if !bytes.Equal(w.old, seg.In[at:at+len(w.data)]) {
						t.Errorf("%v: old bytes % x, were % x", q.id, w.old, seg.In[at:at+len(w.data)])
					}
					n++
				}
			}
		}
	}
	if n == 0 {
		t.Error("nothing was written")
	}
}

// FuzzReplay: whatever a recording holds, it loads within bounds, and every call
// that it answers is answered without going beyond the program's buffers.
func FuzzReplay(f *testing.F) {
	s := newScript(f)
	s.rminfo(3, 0xc1d00042, h200)
	f.Add(s.bytes())
	f.Add(clientScript(f).bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := traces.NewReader(bytes.NewReader(data))
		if err != nil {
			return
		}
		defer r.Close()
		rec, err := load(r)
		if err != nil {
			return
		}
		srv := offline(rec)
		again, err := traces.NewReader(bytes.NewReader(data))
		if err != nil {
			return
		}
		defer again.Close()
		for ev, err := range again.All() {
			if err != nil {
				break
			}
			if ev.Kind != traces.KindIoctl {
				continue
			}
			file := &openFile{id: ev.File, name: ev.Dev, rdev: ev.Rdev, rec: rec.files[ev.File]}
			q := srv.askAgain(ev, file)
			q.faulty()
			a := srv.find(q).answer
			if a == nil {
				srv.note(q, "missing", false)
				continue
			}
			h := srv.newHandle(q, a)
			for _, w := range srv.compose(q, a, h) {
				inside := false
				for i := range q.parts {
					p := &q.parts[i]
					inside = inside || w.addr >= p.addr && w.addr-p.addr+uint64(len(w.data)) <= uint64(len(p.in))
				}
				if !inside || len(w.old) != len(w.data) {
					t.Fatalf("writes %d bytes at %#x, outside all buffers", len(w.data), w.addr)
				}
			}
			srv.commit(q, a, h)
		}
	})
}

// The rules compile, and select what must be selected.
func TestRules(t *testing.T) {
	p, err := ptrace.Compile(rules(), ptrace.ActionNotify)
	if err != nil || len(p) == 0 {
		t.Fatalf("%d instructions, %v", len(p), err)
	}
}

func TestParseMissPolicy(t *testing.T) {
	for name, want := range map[string]MissPolicy{"status": MissStatus, "errno": MissErrno, "abort": MissAbort} {
		if got, err := ParseMissPolicy(name); err != nil || got != want {
			t.Errorf("%s parses as %d, %v", name, got, err)
		}
	}
	if _, err := ParseMissPolicy("perhaps"); err == nil {
		t.Error("an unknown policy parses")
	}
}
