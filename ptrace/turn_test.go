package ptrace

import (
	"testing"

	"nvtrace/internal/need"
)

// TestRequestsTakeTurns: a program whose tracer always has a request waiting stops, goes
// on and ends all the same.
func TestRequestsTakeTurns(t *testing.T) {
	victim := build(t, "victim")
	h := &tape{verdict: WantExit}
	requests, ended := 0, false
	h.onTask = func(task *Task, e *TaskEvent) {
		switch e.Kind {
		case TaskNew:
			if requests > 0 {
				return
			}
			var again func()
			again = func() {
				if requests++; !ended {
					task.Post(again)
				}
			}
			again()
		case TaskExit:
			ended = len(h.live) <= 1
		}
	}
	o := &Options{Argv: []string{victim, "threads"}, Rules: victimRules(), Stdout: devNull(t)}
	res, err := Run(need.Limit(t), o, h)
	if err != nil || res.Status != 0 || h.enters != 2560 {
		t.Errorf("%+v, %v, %d calls", res, err, h.enters)
	}
	h.check(t)
	if requests < 10 { // how many depends on how many stops are there at a time
		t.Errorf("%d requests", requests)
	}
}
