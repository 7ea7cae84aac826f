package view

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/ioctl"
	"nvtrace/nvattach/calls"
	"nvtrace/nvattach/capture"
	"nvtrace/traces"
)

// TestSummaryLength: what is printed at the end of a run that did a bit of everything
// fits on a screen, and says how much is left out and where it is.
func TestSummaryLength(t *testing.T) {
	r := &ioctl.Report{Ioctls: 400, Opens: []ioctl.OpenCount{{}}, MapPeak: 1 << 30, Cost: &traces.Cost{}}
	var files []string
	for i := range 20 {
		name := fmt.Sprint("name", i)
		r.Processes = append(r.Processes, ioctl.Process{PID: int32(i + 1), Exe: name})
		r.Calls = append(r.Calls, ioctl.CallCount{Name: name, Calls: 20})
		r.Maps = append(r.Maps, ioctl.MapCount{Node: name, What: "vidmem", Maps: 1, Peak: 1 << 20})
		r.Unknowns = append(r.Unknowns, ioctl.UnknownCount{Name: name, Why: "closed control"})
		files = append(files, name+" (fatbin)")
	}
	r.Notes = []string{capture.NoteFiles + strings.Join(files, ", "), "else"}
	for i := range 12 {
		r.Notes = append(r.Notes, fmt.Sprintf("/lib%d.so%s13.0): 400 of its functions are recorded", i, calls.NoteRuntime))
	}
	totals := &Totals{live: true, book: newFailureBook(ioctl.NewDecoder(nil)), holds: new(holdings)}
	for i := range 20 {
		totals.book.list = append(totals.book.list, &failure{Call: fmt.Sprint("CALL_", i), Count: 1, Result: "NV_ERR_GENERIC"})
	}
	text := func(l *Layout) string {
		var b bytes.Buffer
		if err := totals.write(&b, r, l); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	const api = fewAPI + 4 // title, header, what was cut, sum
	short := text(LiveLayout("run.nvt"))
	if n := strings.Count(short, "\n") + api; n > 60 {
		t.Errorf("%d lines:\n%s", n, short)
	}
	for _, cut := range []int{20 - fewProcesses, 20 - fewCalls, 20 - fewFailures, 21 - fewMaps, 20 - fewUnknown} {
		if line := fmt.Sprintf("  … and %d more (nvtrace report --rows 0 run.nvt shows all)\n", cut); !strings.Contains(short, line) {
			t.Errorf("no line %q in\n%s", line, short)
		}
	}
	if !strings.Contains(short, "  name2 (fatbin)\n  … and 17 more (nvtrace report --rows 0 run.nvt shows all)\n") || !strings.Contains(short, "\n  all ") {
		t.Errorf("files or the sum of the maps are not as they should be in\n%s", short)
	}
	if want := "note: else\nnote: /lib0.so and 11 other files have the CUDA runtime in them: its functions are recorded (nvtrace report"; !strings.Contains(short, want) {
		t.Errorf("no %q in\n%s", want, short)
	}
	if all := text(LiveLayout("")); !strings.Contains(all, "(--json has all)") {
		t.Errorf("without a recording:\n%s", all)
	}
	brief := LiveLayout("")
	brief.Brief = true
	if got := text(brief); !strings.Contains(got, "Device calls") || !strings.Contains(got, "Failed calls") ||
		strings.Contains(got, "Processes\n") || strings.Contains(got, "Mapped device memory") || strings.Contains(got, "Not in the tables") {
		t.Errorf("in brief:\n%s", got)
	}
	for i := range 20 {
		r.Gaps = append(r.Gaps, fmt.Sprintf("gap %d", i))
	}
	r.MoreGaps = 1000
	if want := fmt.Sprintf("\nincomplete: %d more reasons (nvtrace report --rows 0 run.nvt shows all)\n", 1020-FewGaps); !strings.Contains(text(LiveLayout("run.nvt")), want) {
		t.Errorf("no %q in\n%s", want, text(LiveLayout("run.nvt")))
	}
	if !strings.Contains(text(ReportLayout(0)), "\nincomplete: gap 19\nincomplete: 1000 more reasons\n") {
		t.Errorf("not all gaps in\n%s", text(ReportLayout(0)))
	}
	if all := text(ReportLayout(0)); strings.Contains(all, "more (") || strings.Count(all, "name19") < 5 || strings.Count(all, calls.NoteRuntime) != 12 {
		t.Errorf("report --rows 0 is cut:\n%s", all)
	}
}

// TestReasons: kernels that differ only in the places without programs have one reason, and what
// else is in brackets stays.
func TestReasons(t *testing.T) {
	var f found
	for i, reason := range []string{
		"registers change hands (setmaxnreg) (USETMAXREG at +0x1a0)", "registers change hands (setmaxnreg) (3 places, the first USETMAXREG.TRY_ALLOC at +0x40)",
		"no PTX (stripped)",
	} {
		f.Observe(&observe.Event{Event: &traces.Event{Kind: traces.KindProbe, Name: fmt.Sprintf("k%d", i), Probe: &traces.Probe{Launched: true, Launches: 2, Reason: reason}}})
	}
	const want = "in 0 of 3 launched kernels, 0% of 6 launches, at 0 places; NOT in 2 kernels: registers change hands (setmaxnreg); NOT in 1 kernel: no PTX (stripped)"
	if got := f.summary(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
