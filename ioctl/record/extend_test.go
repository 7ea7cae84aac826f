package record

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// hooker is an extension that hooks a function and watches executable mappings,
// which the recorder watches too.
type hooker struct {
	t     *testing.T
	r     *record.Recorder
	tasks map[*ptrace.Task]bool
	mmaps int
}

const (
	classMark = record.ExtensionClass + iota
	classExec
)

func (h *hooker) rules() []ptrace.Rule {
	return []ptrace.Rule{
		{Names: []string{"ioctl"}, Class: classMark, Args: []ptrace.ArgMatch{{Arg: 0, Value: 0xfffffffe, Low: true}}},
		{Names: []string{"mmap"}, Class: classExec, Args: []ptrace.ArgMatch{
			{Arg: 2, Op: ptrace.NotEqual, Mask: unix.PROT_EXEC, Low: true}, {Arg: 4, Op: ptrace.NotEqual, Value: 0xffffffff, Low: true},
		}},
	}
}

func (h *hooker) Enter(t *ptrace.Task, c *ptrace.Syscall) ptrace.Verdict {
	if !h.tasks[t] {
		h.t.Errorf("call of task %d before its beginning", t.TID)
	}
	switch c.Class {
	case classMark:
		list := []agent.Target{{Addr: c.Args[2], Hook: &agent.Hook{
			Name: "api", Library: "extend", Derefs: []agent.Deref{{Arg: 1, Len: 64, CString: true, In: true}},
		}}}
		h.r.Agent().HookAllOrBreak(t, list)
		if list[0].Err != nil {
			h.t.Error(list[0].Err)
		}
		h.r.Emit(&traces.Event{Kind: traces.KindNote, PID: int32(t.PID), TID: int32(t.TID), Time: h.r.Now(), FD: -1, Text: "hooked"})
	case classExec:
		return ptrace.WantExit
	default:
		h.t.Errorf("class %#x", c.Class)
	}
	return ptrace.Skip
}

func (h *hooker) Exit(t *ptrace.Task, c *ptrace.Syscall) {
	if c.Class != classExec || c.Ret == 0 || c.Ret == -1 {
		h.t.Errorf("exit of %#x = %d", c.Class, c.Ret)
	}
	h.mmaps++
}

func (h *hooker) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	switch e.Kind {
	case ptrace.TaskNew:
		h.tasks[t] = true
	case ptrace.TaskExit:
		delete(h.tasks, t)
	}
}

// TestExtension: calls of a hooked function and the ioctls in it nest, whether
// the agent records them or the supervisor.
func TestExtension(t *testing.T) {
	bin := compile(t, "testdata/extend.c")
	for _, c := range []struct {
		fast    FastMode
		seccomp ptrace.SeccompMode
	}{{FastAuto, ptrace.SeccompAuto}, {FastOff, ptrace.SeccompAuto}, {FastAuto, ptrace.SeccompOff}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			h := &hooker{t: t, tasks: map[*ptrace.Task]bool{}}
			o := options{Options: Options{Fast: c.fast}, extend: func(r *record.Recorder) record.Extension {
				h.r = r
				return record.Extension{Rules: h.rules(), Handler: h}
			}}
			o.ptrace.Seccomp = c.seccomp
			_, events, res := runRecorded(t, o, bin)
			threads := map[int32]string{}
			mmaps, hooked := 0, false
			for _, ev := range events {
				switch ev.Kind {
				case traces.KindCall:
					if ev.Path != "extend" || len(ev.Mem) != 1 {
						t.Fatalf("%+v", ev)
					}
					threads[ev.TID] += fmt.Sprintf("%s(%d,%s ", ev.Name, ev.Args[0], strings.TrimSuffix(string(ev.Mem[0].In), "\x00"))
				case traces.KindReturn:
					threads[ev.TID] += fmt.Sprintf(")=%d ", ev.Ret)
				case traces.KindIoctl:
					threads[ev.TID] += "i"
				case traces.KindMmap:
					mmaps++
				case traces.KindNote:
					hooked = hooked || ev.Text == "hooked"
				}
			}
			const thread = "api(1,thread i)=2 api(2,thread ii)=4 api(3,thread iii)=6 api(4,thread iiii)=8 "
			count := map[string]int{}
			for _, s := range threads {
				count[s]++
			}
			if len(threads) != 5 || count[thread] != 4 || count["api(3,main iii)=6 api(0,end )=0 "] != 1 {
				t.Errorf("recorded %v", count)
			}
			if mmaps != 1 || h.mmaps < 2 || !hooked || len(h.tasks) != 0 {
				t.Errorf("%d mappings of devices, %d executable ones; hooked: %v; %d tasks left", mmaps, h.mmaps, hooked, len(h.tasks))
			}
			t.Logf("%d ioctls by the agent, %+v", res.FastIoctls, res.Agent)
		})
	}
}
