package record

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"nvtrace/ptrace"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// byPID describes the events of each process, without what differs from run to run.
func byPID(events []*traces.Event) []string {
	of := map[int32]*strings.Builder{}
	for _, ev := range events {
		b := of[ev.PID]
		if b == nil {
			b = new(strings.Builder)
			of[ev.PID] = b
		}
		switch ev.Kind {
		case traces.KindIoctl:
			fmt.Fprintf(b, "ioctl %d %#x %s = %d\n", ev.FD, ev.Request(), ev.Dev, ev.Ret)
		case traces.KindOpen, traces.KindClose, traces.KindDup:
			fmt.Fprintf(b, "%v %v %d %s = %d\n", ev.Kind, ev.Flags, ev.FD, ev.Dev, ev.Ret)
		case traces.KindCall, traces.KindReturn:
			fmt.Fprintf(b, "%v %s\n", ev.Kind, ev.Name)
		}
	}
	var out []string
	for _, b := range of {
		out = append(out, b.String())
	}
	slices.Sort(out)
	return out
}

// TestManyProcesses: whatever comes first in a process, the agent for a hook or a device, and
// however many processes there are, each has all its events.
func TestManyProcesses(t *testing.T) {
	bin := compile(t, "testdata/many.c")
	for _, order := range []string{
		"shad", "sdha", "xhad", "xdha", "fhad", "fdha", "xhdadada", "fhdadada", // each on its own
		"sphad", "shpad", "sphda", "xphad", "xhpadadad", "fphad", "fhpdadad", // and with its own calls rerouted
		"phfadad", "phsadad", "phxhpadad", "pfhadad", "pdfhadad",
		"hfad", "hfda", "dhfad", "hdfad", "dfhad", "hsda", // what the parent did comes first
		"kfhucad", "khfucad", "kfuhcad", "hkfuad", "kshucad", "kxuhcad", "hkxucad", "kpfhpucad", "kpxhpucad", // a device handed down
	} {
		t.Run(order, func(t *testing.T) {
			run := func(fast FastMode) ([]string, result) {
				h := &hooker{t: t, tasks: map[*ptrace.Task]bool{}}
				_, events, res := runRecorded(t, options{Options: Options{Fast: fast}, extend: func(r *record.Recorder) record.Extension {
					h.r = r
					return record.Extension{Rules: h.rules()[:1], Handler: h}
				}}, bin, order)
				if res.Status != 0 {
					t.Fatalf("fast %v: ended with status %#x", fast, int(res.Status))
				}
				return byPID(events), res
			}
			want, _ := run(FastOff)
			for range 3 {
				got, res := run(FastAuto)
				if !slices.Equal(got, want) {
					t.Fatalf("%d processes:\n%s\nwithout the agent %d:\n%s", len(got), strings.Join(got, "\n"), len(want), strings.Join(want, "\n"))
				}
				if res.FastIoctls == 0 {
					t.Error("no ioctl came by the agent")
				}
			}
		})
	}
}
